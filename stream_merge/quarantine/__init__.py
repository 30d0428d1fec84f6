"""Finds rows that cannot be merged (`row_checks`) and appends them to a Delta table (`table`).

May import `keyless`, `debezium` and the subpackages below them.
"""
