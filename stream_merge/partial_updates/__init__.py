"""Merges changes that set some columns of a row, and rows that get another key.

Each column is a last-writer-wins register (`last_writer_wins`). `fold` folds those of a batch, `registers` joins them
with the target's. `key_changes` finds rows that get another key; `key_change_values` and `carried_values` take their
values along. May import `order`, `merge`, `table` and `bridge`.
"""
