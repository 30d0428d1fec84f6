"""Rows that cannot be merged: the checks that find them (`row_checks`), and the Delta table that takes them (`table`).

May import `keyless`, `debezium` and the rooms below them.
"""
