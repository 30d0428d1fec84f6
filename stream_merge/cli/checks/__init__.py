"""What `validate` and `explain` find out with Spark, before anything is written: source, tables, checkpoint.

May import `cli.query` and `cli.file`.
"""
