"""Reads a Delta table as a merge needs it: active files and statistics, features, deletion vectors, log store.

`exactly_once` decides whether a batch is already in the table. May import `bridge`.
"""
