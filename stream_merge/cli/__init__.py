"""Provides the command `stream-merge`: runs a pipeline from a file, shows its progress and the state of tables.

Needs the extra `cli`; the library itself never imports this package.
"""
