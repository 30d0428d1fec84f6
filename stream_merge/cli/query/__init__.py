"""Builds a pipeline's query: sources, packages, decoding and sinks; explains its failures; and tells what a record is.

May import `cli.file`.
"""
