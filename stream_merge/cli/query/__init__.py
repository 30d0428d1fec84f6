"""What a pipeline's query is made of: sources, packages, decoding, sinks; and what its failures mean.

May import `cli.file`.
"""
