"""One MERGE on one version of a table: the statement, the batch as its source, and an engine for each strategy.

An engine stages files that no reader sees; it commits nothing. `locate` finds the rows. May import `table` and `bridge`.
"""
