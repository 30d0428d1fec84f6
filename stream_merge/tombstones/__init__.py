"""What a table remembers of deleted keys, so that a late change brings no row back.

`manifest` is the format on disk, `store` loads and writes it for a version of the table, `reach` says which files a batch has to
look at. May import `partial_updates` and the rooms below it.
"""
