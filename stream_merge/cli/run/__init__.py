"""A pipeline that runs: its Spark session, its query from start to stop, and its progress as numbers.

May import `cli.checks`, `cli.query` and `cli.file`.
"""
