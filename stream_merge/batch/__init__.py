"""One micro-batch, from the call of `foreachBatch` to its result: `run` reads as the story.

`context` finds out who runs the batch, `target` opens its table, `accept`, `reduce` and `measure` make the rows to
merge, `attempts` puts them together for a version of the table, `staging` writes, `commit` commits, `report` reports.
May import every subpackage below: quarantine, keyless, tombstones, partial_updates, order, merge, table, bridge.
"""
