"""Keeps a table young beside the merges: compacts small files and files of deleted rows, and removes old ones.

`policy` chooses what to rewrite and `account` says when there is time for it; neither needs Spark. `compaction`
rewrites and commits, `vacuum` removes files that no version within the retention has, `upkeep` is what a sink keeps of
it all from batch to batch. May import `table`, `bridge` and the modules below them.
"""
