"""A Delta table as a merge sees it: its active files and their statistics, its features, its deletion vectors, its log store.

`exactly_once` says whether a batch is in the table already. May import `bridge`.
"""
