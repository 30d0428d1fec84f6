"""Remembers deleted keys in the table, so that a late change does not bring a row back.

`manifest` is the format on disk, `store` loads and writes it for a version of the table, `reach` chooses the files that
a batch has to read. May import `partial_updates` and the subpackages below it.
"""
