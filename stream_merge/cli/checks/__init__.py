"""Implements `validate` and `explain`: checks source, tables and checkpoint with Spark, and writes nothing.

May import `cli.query` and `cli.file`.
"""
