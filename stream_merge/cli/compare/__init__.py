"""Compares Delta tables with the database's tables that they follow: `stream-merge diff`.

Both sides are read with Spark, so that values are compared by one set of rules whatever the database is.
"""
