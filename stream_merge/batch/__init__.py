"""One micro-batch, from the call of `foreachBatch` to its result: `micro_batch` reads as the story.

`context` says who runs it, `target` gives the table what it needs, `preparation` and `measure` make the rows to merge of the
batch, `commit` commits. May import every room below: quarantine, keyless, tombstones, partial_updates, order, merge, table.
"""
