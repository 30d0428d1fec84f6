"""Builds a pipeline's query: sources, packages, decoding and sinks; and explains its failures.

May import `cli.file`.
"""
