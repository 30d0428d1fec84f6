"""The order of changes: which change of a key is the newest, and where the target keeps a row's sequence.

May import `merge`, `table` and `bridge`.
"""
