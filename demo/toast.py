"""Large values (TOAST), which PostgreSQL's log leaves out where an update did not change them."""

from __future__ import annotations

from collections.abc import Mapping
from functools import reduce
from typing import Any

from pyspark.sql import Column, DataFrame, Row, Window
from pyspark.sql import functions as F

from demo.shop import CapturedTable


def carry_values(changes: DataFrame, table: CapturedTable) -> DataFrame:
    """Return the changes with values in place of placeholders where an earlier change in the micro-batch has them.

    A delete is given the row's values too. A create begins the row anew; `life` counts the creates of a key.
    """
    of_key = Window.partitionBy(*table.keys).orderBy("lsn")
    of_row = Window.partitionBy(*table.keys, "life").orderBy("lsn")
    carried = {}
    for name, placeholder in table.placeholders.items():
        # A known value is wrapped, so that a NULL that was sent differs from a value that was not.
        known = F.expr(f"IF({name} <=> {placeholder}, NULL, struct({name} AS value))")
        last = F.last(known, ignorenulls=True).over(of_row)
        carried[name] = F.when(last.isNull(), F.expr(placeholder)).otherwise(last["value"])
    return changes.withColumn("life", F.count_if(F.col("op") == "c").over(of_key)).withColumns(carried)


def follow_key_moves(changes: DataFrame, target: DataFrame, table: CapturedTable) -> DataFrame:
    """Return the carried changes with the values of rows that got another key, which are under the old one.

    Few rows both have large values and get another key, so the driver follows them. Where the old row is gone, the move
    was delivered again: the placeholder stays, and the row there is newer, or its delete is delivered again as well.
    """
    names = list(table.placeholders)
    moves = _find_moves(changes, table)
    old_rows = _find_old_rows(target, moves, table)
    latest: dict[Row, Mapping[str, Any]] = {}
    moved = []
    for move in moves:
        # A row that came to its old key in this micro-batch is not the one that the target has under that key.
        before = latest.get(move.old_key) if move.life else old_rows.get(move.old_key)
        is_older = before is not None and before["lsn"] < move.lsn
        values = {name: before[name] if before and is_older and move[f"no_{name}"] else move[name] for name in names}
        latest[move.key] = {"lsn": move.lsn, **values}
        moved.append((*move.key, move.lsn, *values.values()))

    moved_columns = target.select(*table.keys, "lsn", *(F.col(name).alias(f"moved_{name}") for name in names)).schema
    moved_rows = changes.sparkSession.createDataFrame(moved, moved_columns).withColumn("is_move", F.lit(True))
    joined = changes.join(F.broadcast(moved_rows), [*table.keys, "lsn"], how="left")
    filled = {name: F.when(F.col("is_move"), F.col(f"moved_{name}")).otherwise(F.col(name)) for name in names}
    return carry_values(joined.withColumns(filled).select(*changes.columns), table)


def _find_moves(changes: DataFrame, table: CapturedTable) -> list[Row]:
    """Return the moves that lack values, oldest first: both keys, the values as far as the old row's delete has them.

    To Debezium a move is a delete and a create of one lsn.
    """
    is_missing = {name: F.expr(f"{name} <=> {placeholder}") for name, placeholder in table.placeholders.items()}
    key = F.struct(*table.keys)
    creates = changes.where(F.col("old_key").isNotNull() & reduce(Column.__or__, is_missing.values()))
    departures = changes.where("op = 'd'").select(
        key.alias("old_key"),
        "lsn",
        "life",
        *table.placeholders,
        *(condition.alias(f"no_{name}") for name, condition in is_missing.items()),
    )
    moves = F.broadcast(creates.select(key.alias("key"), "old_key", "lsn")).join(departures, ["old_key", "lsn"])
    # The same move may be there twice, delivered again.
    distinct = {(move.key, move.lsn): move for move in moves.collect()}
    return sorted(distinct.values(), key=lambda move: move.lsn)


def _find_old_rows(target: DataFrame, moves: list[Row], table: CapturedTable) -> dict[Row, Row]:
    """Return the target's rows under the old keys of the moves, by key."""
    # As literals, by which Delta skips files; a join with so few keys would take longer.
    is_old = reduce(Column.__or__, (_is_key(old_key) for old_key in {move.old_key for move in moves}), F.lit(False))
    old_rows = target.where(is_old).select(F.struct(*table.keys).alias("key"), "lsn", *table.placeholders)
    return {row.key: row for row in old_rows.collect()}


def _is_key(key: Row) -> Column:
    return reduce(Column.__and__, (F.col(name) == value for name, value in key.asDict().items()))
