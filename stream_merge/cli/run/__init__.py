"""Runs a pipeline: starts its Spark session, runs its query from start to stop, and measures its progress.

May import `cli.checks`, `cli.query` and `cli.file`.
"""
