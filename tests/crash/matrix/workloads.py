"""What the crash matrix merges: three kinds of sinks, four batches, and the rows that they must leave."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pyarrow as pa
from pyspark.sql import functions as F

from stream_merge import MergeSink, merge_router, merge_sink
from stream_merge.routing.parking_table import SOURCE_NAME, Owner, ParkedBatch, ParkingTable

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

APP_ID = "matrix"
TABLE = "id INT, n BIGINT, m BIGINT"
NUM_BATCHES = 4
FAULTED = 2
"""The batch in which the fault comes, unless it comes while the first one prepares the table."""
OTHER_KEY, OTHER_N = 7, 1000
"""The row that another writer changes, and by how much; no batch after the first one touches it."""
NEW_KEY, NEW_N = 70, 7
"""The row that another writer inserts while the table is prepared."""

Rows = dict[int, tuple[int | None, int | None]]
Sink = Callable[["DataFrame", int], None]


@dataclass(frozen=True)
class Damage:
    """How many rows a table has lost, has twice, or has although they were deleted."""

    lost: int = 0
    doubled: int = 0
    revived: int = 0

    def __add__(self, other: Damage) -> Damage:
        return Damage(self.lost + other.lost, self.doubled + other.doubled, self.revived + other.revived)


class Counting:
    """A sink without state: it adds to rows, so that a batch which is merged twice counts twice."""

    title = "Without state (clauses that add to rows):"
    schema = pa.schema([("id", pa.int32()), ("n", pa.int64()), ("m", pa.int64())])
    batches: tuple[list[tuple[Any, ...]], ...] = (
        [(key, 1, 0) for key in range(10)],
        [(key, 2, 0) for key in range(5)],
        [*[(key, 4, 0) for key in range(6)], (6, -1, 0), (20, 4, 0)],
        [(0, 8, 0), (20, 8, 0)],
    )
    rejected: frozenset[tuple[int, int]] = frozenset()

    def sink(self, target: str, **options: Any) -> Sink:
        """Return what merges the batches."""
        return self._sink(target, **options)

    @staticmethod
    def _sink(target: str, **options: Any) -> MergeSink:
        sink = merge_sink(target, on="target.id = source.id", app_id=APP_ID, **options)
        sink = sink.when_matched_delete(condition="source.n < 0")
        return sink.when_matched_update(set={"n": "target.n + source.n"}).when_not_matched_insert()

    @staticmethod
    def rows() -> Rows:
        """Return what the batches must leave."""
        totals = {key: 1 + 2 * (key < 5) + 4 * (key < 6) + 8 * (key == 0) for key in range(10) if key != 6}
        return {key: (n, 0) for key, n in {**totals, 20: 12}.items()}


class Ordered:
    """A sink with all the state that there is: sequences, tombstones, moved keys, a TRUNCATE and a quarantine."""

    title = "With state (sequence, tombstones, moved keys, quarantine):"
    schema = pa.schema(
        [
            *Counting.schema,
            ("s", pa.int64()),
            ("op", pa.string()),
            ("unset", pa.list_(pa.string())),
            ("old", pa.struct({"id": pa.int32()})),
            ("new", pa.struct({"id": pa.int32()})),
        ]
    )
    rejected = frozenset({(0, 90), (1, 91), (2, 92), (3, 93)})
    """The batches and keys of the rows that cannot be merged."""

    @staticmethod
    def _upsert(key: int, n: int | None, m: int | None, s: int, *unset: str, old: int | None = None) -> tuple[Any, ...]:
        return (key, n, m, s, "u", list(unset), None if old is None else {"id": old}, None)

    @staticmethod
    def _delete(key: int, s: int, new: int | None = None) -> tuple[Any, ...]:
        return (key, None, None, s, "d", [], None, None if new is None else {"id": new})

    @property
    def batches(self) -> tuple[list[tuple[Any, ...]], ...]:
        """Return the changes of each batch."""
        upsert, delete = self._upsert, self._delete
        return (
            [*[upsert(key, 100 + key, 200 + key, 10) for key in range(10)]]
            + [upsert(key, 1, 1, 5) for key in (50, 51, 52)]
            + [upsert(90, -1, 0, 10)],
            [delete(1, 20), upsert(2, 1002, 2002, 20), upsert(91, -1, 0, 20)],
            [
                (None, None, None, 6, "t", [], None, None),
                delete(3, 30),
                # Late: older than what deleted them.
                upsert(1, 1, 1, 15),
                upsert(3, 3, 3, 25),
                # A row gets another key, and m is not sent.
                delete(4, 30, new=14),
                upsert(14, 1014, None, 30, "m", old=4),
                upsert(5, 1005, None, 30, "m"),
                upsert(20, 1020, 2020, 30),
                upsert(92, -1, 0, 30),
            ],
            # Late, but for one of them.
            [upsert(key, 9, 9, s) for key, s in ((1, 19), (3, 28), (4, 29), (51, 5), (2, 19))]
            + [upsert(6, 1006, 2006, 40), upsert(93, -1, 0, 40)],
        )

    @staticmethod
    def sink(target: str, **options: Any) -> Sink:
        """Return what merges the batches."""
        return merge_sink(
            target,
            keys="id",
            app_id=APP_ID,
            sequence_by="s",
            delete_when="op = 'd'",
            truncate_when="op = 't'",
            unchanged_columns="unset",
            old_key="old",
            new_key="new",
            except_columns=["s", "op", "unset", "old", "new"],
            quarantine=f"{target}_rejected",
            expect={"n is positive": "n IS NULL OR n >= 0"},
            **options,
        )

    @staticmethod
    def rows() -> Rows:
        """Return what the batches must leave."""
        rows: Rows = {key: (100 + key, 200 + key) for key in (0, 7, 8, 9)}
        return {**rows, 2: (1002, 2002), 14: (1014, 204), 5: (1005, 205), 6: (1006, 2006), 20: (1020, 2020)}


class Resting(Counting):
    """A router whose table refuses a batch, goes to rest, and gets what is parked before the next batch."""

    title = "Of a router, for a table that is at rest:"
    schema = Counting.schema.append(pa.field("topic", pa.string()))
    batches = tuple([(*row, "items") for row in batch] for batch in Counting.batches)
    # Only what the table has already holds.
    checks: Mapping[int, str] = {1: f"n < 3 OR id = {OTHER_KEY}", 2: f"n < 7 OR id = {OTHER_KEY}"}

    def sink(self, target: str, **options: Any) -> Sink:
        """Return what merges the batches."""
        sinks = {"items": self._sink(target, **options)}
        return merge_router(
            sinks, prepare=lambda _, changed: changed.drop("topic"), parking=f"{target}_parked", max_parallel=1
        )

    def prepare(self, spark: SparkSession, target: str, batch_id: int, *, refused: int) -> None:
        """Break the table before the batch that it refuses, and mend it before the next."""
        if batch_id == refused:
            spark.sql(f"ALTER TABLE delta.`{target}` ADD CONSTRAINT small CHECK ({self.checks[refused]})")
        elif batch_id == refused + 1:
            spark.sql(f"ALTER TABLE delta.`{target}` DROP CONSTRAINT IF EXISTS small")

    def park_another(self, spark: SparkSession, target: str) -> None:
        """Let another query park a record in the same table."""
        batch = ParkedBatch(batch_id=0, planned_ms=None, sources=("other",), columns=("id",), num_rows=1)
        rows = spark.range(1).selectExpr("CAST(id AS INT) AS id", f"'other' AS {SOURCE_NAME}")
        owner = Owner("other", "elsewhere")
        ParkingTable(spark, f"{target}_parked").append(owner, batch, rows, "refused", self._sink(target).config)

    def start_again(self, spark: SparkSession, target: str) -> None:
        """Start the router again without changes: it deletes what is parked still although the table has it."""
        self.sink(target)(frame(spark, self, 0).limit(0), NUM_BATCHES)

    @staticmethod
    def parked(spark: SparkSession, target: str) -> set[int]:
        """Return the batches that are parked for the table."""
        found = ParkingTable(spark, f"{target}_parked").read()
        return {batch.batch_id for parked in found if parked.owner.app_id == APP_ID for batch in parked.batches}

    @staticmethod
    def damage(spark: SparkSession, target: str, *, num_others: int) -> Damage:
        """Return what is parked still although the table has it, and what another query has parked and lost."""
        owners = Counter(parked.owner.app_id for parked in ParkingTable(spark, f"{target}_parked").read())
        return Damage(doubled=owners[APP_ID], lost=num_others - owners["other"])


WORKLOADS: dict[str, Counting | Ordered | Resting] = {
    "counting": Counting(),
    "ordered": Ordered(),
    "resting": Resting(),
}


def frame(
    spark: SparkSession, workload: Counting | Ordered, batch_id: int, *, has_wide_keys: bool = False
) -> DataFrame:
    """Return a batch in three partitions, with keys that are BIGINT in place of INT if so asked."""
    # By Arrow, since rows would take processes of Python.
    columns = zip(*workload.batches[batch_id], strict=True)
    arrays = [pa.array(values, field.type) for values, field in zip(columns, workload.schema, strict=True)]
    rows = spark.createDataFrame(pa.Table.from_arrays(arrays, schema=workload.schema)).repartition(3)
    if not has_wide_keys:
        return rows
    return rows.withColumns(
        {"id": F.col("id").cast("bigint")}
        | {name: F.col(name).cast("struct<id: bigint>") for name in ("old", "new") if name in rows.columns}
    )


def damage(found: Iterable[tuple[int, int | None, int | None]], expected: Rows) -> Damage:
    """Compare the rows of a table, each (id, n, m), with what must be there."""
    rows = list(found)
    num_of = Counter(key for key, _, _ in rows)
    doubled = sum(number - 1 for number in num_of.values())
    doubled += sum(key in expected and (n or 0) > (expected[key][0] or 0) for key, n, _ in rows)
    lost = sum(key not in num_of for key in expected)
    lost += sum(
        key in expected and (n, m) != expected[key] and (n or 0) <= (expected[key][0] or 0) for key, n, m in rows
    )
    return Damage(lost=lost, doubled=doubled, revived=sum(key not in expected for key in num_of))


def damage_of_quarantine(found: Mapping[tuple[int, int], int], expected: frozenset[tuple[int, int]]) -> Damage:
    """Compare how often each (batch id, key) is in the quarantine with what must be there once."""
    return Damage(
        lost=sum(row not in found for row in expected),
        doubled=sum(number - 1 for number in found.values()),
        revived=sum(row not in expected for row in found),
    )
