"""Orders changes: finds the newest change of each key and decides where the target keeps a row's sequence.

May import `merge`, `table` and `bridge`.
"""
