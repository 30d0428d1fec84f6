"""Runs one MERGE on one version of a table: the statement, its source, and an engine for each strategy.

`locate` finds the matching rows. An engine stages files that no reader sees, and commits nothing. May import `table`
and `bridge`.
"""
