"""The command `stream-merge`: a pipeline from a file, its progress, and what a table's own commits tell about it.

Needs the extra `cli`; nothing in the library itself imports this package.
"""
