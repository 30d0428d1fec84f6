"""Knows the file and the position of each key of a table, so that a merge need not read what it has read before.

`index` is what a merge asks, `segment` holds sorted entries and merges them, `runs` keeps large segments in files on
the driver's disk, `stored` keeps such files in the table's folder for the next start. May import `bridge` and the
subpackages below it.
"""
