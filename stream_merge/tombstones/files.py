"""Reads, writes and cleans up files of tombstones: the keys and sequences of deletes.

They are Parquet files under the table's `_stream_merge/`, which VACUUM ignores.
"""

from __future__ import annotations

import uuid
from collections.abc import Collection, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from functools import reduce
from typing import Any

from pyspark.sql import Column, DataFrame, DataFrameReader, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import ArrayType, DataType, DoubleType, FloatType, StructField, StructType

from stream_merge.bridge.jvm import JVM_ERRORS
from stream_merge.bridge.kept_rows import persisted
from stream_merge.bridge.sessions import summary
from stream_merge.bridge.statement import ResolvedMerge
from stream_merge.bridge.table import Table
from stream_merge.column_names import COLUMN_SEQUENCES, DELETED, IS_OUTDATED, NEWEST_DELETE, SOURCE_ID
from stream_merge.merge.key_and_sequence import key_fields, key_names, key_type, sequence_struct, sequence_type
from stream_merge.row_json import EXACT_TIMES
from stream_merge.sql import quote
from stream_merge.steps import reached
from stream_merge.table.char_columns import without_blanks
from stream_merge.tombstones.collected import parquet_of
from stream_merge.tombstones.manifest import FOLDER, RetiredFile, TombstoneFile, TombstoneManifest
from stream_merge.tombstones.moved_schemas import MovedSchemas

MAX_FILES = 16
"""With more files, the smallest are merged into one."""

MAX_BROADCAST_TOMBSTONES = 500_000
"""With more tombstones, Spark decides how to join them with a batch, which may be large as well."""

MAX_UNSHUFFLED_TOMBSTONES = 50_000
"""With more tombstones, one task would take longer than a shuffle."""

KEPT_MS = 7 * 24 * 3600 * 1000
"""How long to keep a file that only old versions name: as long as Delta keeps data files for RESTORE by default."""

_AS_JSON = {**EXACT_TIMES, "timeZone": "UTC"}
"""In UTC, because the pattern has no seconds of an offset, which most zones had before they adopted a standard time."""

_FROM_JSON = {**_AS_JSON, "timestampNTZFormat": "yyyy-MM-dd['T'HH:mm:ss.SSSSSS]"}
"""A DATE has become a TIMESTAMP_NTZ, maybe, since the sequence was written."""

_LACKS = "size(moved.unset) > 0"


def _all_digits(kind: DataType) -> DataType:
    """Return the type in which a sequence is written as JSON: with the digits that a FLOAT has as a DOUBLE."""
    match kind:
        case StructType():
            return StructType([StructField(each.name, _all_digits(each.dataType)) for each in kind.fields])
        case ArrayType():
            return ArrayType(_all_digits(kind.elementType))
        case FloatType():
            return DoubleType()
        case _:
            return kind


@dataclass(frozen=True, slots=True, kw_only=True)
class Tombstones:
    """Reads and writes the tombstones of one table.

    Attributes:
        table: The table.
        keys: The key columns with their types in the table.
        sequence: The columns that hold the sequence, with their types in the table.
        is_null_safe: Whether NULL equals NULL in a key.
        padded: The key columns that are a CHAR: blanks at their end do not count, and older versions remembered them.
        schemas: What is known of the schemas of files with values.
    """

    table: Table
    keys: Mapping[str, DataType]
    sequence: Mapping[str, DataType]
    is_null_safe: bool
    padded: frozenset[str] = frozenset()
    schemas: MovedSchemas = field(default_factory=MovedSchemas)

    @property
    def _spark(self) -> SparkSession:
        return self.table.spark

    @property
    def _reader(self) -> DataFrameReader:
        # The table's folder may have any name; a star or a bracket in it is not a pattern.
        return self._spark.read.option("__globPaths__", "false")

    def _key_columns(self) -> list[Column]:
        return key_fields(F.col(quote(name)).cast(kind) for name, kind in self.keys.items())

    @property
    def _key_names(self) -> list[str]:
        return key_names(len(self.keys))

    def sequence_column(self) -> Column:
        """Return the sequence of a source row."""
        values = (F.col(quote(name)).cast(kind) for name, kind in self.sequence.items())
        return sequence_struct(values).alias("sequence")

    @property
    def sequence_type(self) -> StructType:
        """The type of a sequence: a struct s0, s1, ..."""
        return sequence_type(self.sequence.values())

    def _schema(self) -> StructType:
        return key_type(self.keys.values()).add("sequence", self.sequence_type).add("deleted_ms", "long")

    def read(self, files: Sequence[TombstoneFile]) -> DataFrame:
        """Return the tombstones of some files: keys k0, k1, ..., `sequence` and `deleted_ms`."""
        paths = [self.table.path(file.path) for file in files]
        return self._without_blanks(self._reader.schema(self._schema()).parquet(*paths))

    def _without_blanks(self, rows: DataFrame) -> DataFrame:
        keys = zip(self._key_names, self.keys, strict=True)
        trimmed = {place: without_blanks(F.col(place)) for place, name in keys if name in self.padded}
        return rows.withColumns(trimmed) if trimmed else rows

    def deleted(self, files: Sequence[TombstoneFile], source: DataFrame, *, only_older: bool) -> DataFrame:
        """Return the `SOURCE_ID` of source rows whose key was deleted, with `DELETED` and `IS_OUTDATED`.

        Args:
            files: The tombstone files.
            source: The rows.
            only_older: Whether to return only rows older than the delete.
        """
        batch = source.select(*self._key_columns(), self.sequence_column(), SOURCE_ID)
        remembered = self.read(files)
        number = sum(file.num_rows for file in files)
        is_distinct = number <= MAX_UNSHUFFLED_TOMBSTONES
        if is_distinct:
            # One tombstone for each key, in one partition, so that nothing has to be shuffled.
            newest_of_key = F.max("sequence").alias("sequence")
            remembered = remembered.coalesce(1).groupBy(*self._key_names).agg(newest_of_key)
        if number <= MAX_BROADCAST_TOMBSTONES:
            remembered = F.broadcast(remembered)
        ours, theirs = remembered.alias("ours"), batch.alias("theirs")
        condition = F.col("theirs.sequence") < F.col("ours.sequence") if only_older else F.lit(True)
        for name in self._key_names:
            one, other = F.col(f"ours.{name}"), F.col(f"theirs.{name}")
            condition = condition & (one.eqNullSafe(other) if self.is_null_safe else one == other)
        found, deleted = theirs.join(ours, condition), F.col("ours.sequence")
        if is_distinct:
            is_outdated = F.col("theirs.sequence") < deleted
            return found.select(SOURCE_ID, deleted.alias(DELETED), is_outdated.alias(IS_OUTDATED))
        newest = F.max(deleted)
        is_outdated = F.first("theirs.sequence") < newest
        return found.groupBy(SOURCE_ID).agg(newest.alias(DELETED), is_outdated.alias(IS_OUTDATED))

    def lowest(self, columns: Collection[str]) -> Column:
        """Aggregate the lowest sequence of source rows with these columns, and of the values that they set."""
        lowest = self.sequence_column()
        if COLUMN_SEQUENCES in columns:
            of_values = F.array_min(F.map_values(COLUMN_SEQUENCES))
            lowest = F.least(lowest, of_values.cast(self.sequence_type))
        return F.min(lowest)

    def are_reached(self, highest: str, lowest: Column) -> Column:
        """Return, for each file, whether changes with this lowest sequence may be older than a tombstone in it.

        Args:
            highest: What `highest_of` returned for the files.
            lowest: The lowest sequence.
        """
        all_highest = F.from_json(F.lit(highest), ArrayType(self.sequence_type), _FROM_JSON)
        return F.transform(all_highest, lambda of_file: F.coalesce(~(of_file < lowest), F.lit(True)))

    def _as_json(self, sequence: Column) -> Column:
        return F.to_json(sequence.cast(_all_digits(self.sequence_type)), _AS_JSON)

    def _highest(self) -> Column:
        """Return the highest sequence of tombstones as JSON."""
        return self._as_json(F.max("sequence"))

    def may_hold(self, files: Sequence[TombstoneFile], sequence: Column) -> Column:
        """Return whether one of the files may have a tombstone with this sequence or a newer one."""
        if not files:
            return F.lit(False)
        return F.array_max(self.are_reached(highest_of(files), sequence.cast(self.sequence_type)))

    def highest_delete(self, is_delete: Column, columns: Collection[str]) -> Column:
        """Return the highest sequence that `write` writes for the source's rows, as JSON."""
        return self._as_json(F.max(F.when(is_delete, self._deleted_at(columns))))

    def is_undecidable(self, horizon: str) -> Column:
        """Return whether a source row is older than a forgotten tombstone, so that its key may have been deleted.

        Args:
            horizon: The highest sequence that was forgotten, as JSON.
        """
        return F.coalesce(self.sequence_column() < self.column_of(horizon), F.lit(False))

    def column_of(self, sequence: str) -> Column:
        """Return a sequence that the state holds as JSON, as a column."""
        return F.from_json(F.lit(sequence), self.sequence_type, _FROM_JSON)

    def is_older(self, resolved: ResolvedMerge, sequence: str) -> Column:
        """Return whether a target row is older than a sequence in JSON."""
        places = {name.lower(): place for place, name in enumerate(resolved.columns)}
        values = [resolved.old_values[places[name.lower()]] for name in self.sequence]
        return sequence_struct(values) < self.column_of(sequence)

    def read_moved(self, files: Sequence[TombstoneFile]) -> DataFrame | None:
        """Return the tombstones that hold values of a row, in `moved`; None if there are none."""
        wanted = [file for file in files if file.num_moved]
        return self._with_moved(wanted).where("moved IS NOT NULL") if wanted else None

    def read_lacking(self, files: Sequence[TombstoneFile]) -> DataFrame | None:
        """Return the departures of rows some of whose values no tombstone holds; None if there are none.

        Values that come later are in further tombstones of the departure, each of which lacks those of the others. So
        `moved.unset` has the names that all of them lack, and there is no `moved.row`.
        """
        if not any(file.num_lacking for file in files):
            return None
        moved = self.read_moved(files)
        assert moved is not None
        # Older versions did not note `since`.
        since = F.col("moved.since") if "since" in moved.select("moved.*").columns else F.lit(None)
        tombstones = moved.select(*self._key_names, "sequence", "moved.to", "moved.unset", since.alias("since"))
        if sum(file.num_moved for file in files) <= MAX_UNSHUFFLED_TOMBSTONES:
            tombstones = tombstones.coalesce(1)
        all_unset = F.collect_list("unset")
        lacking = F.aggregate(all_unset, F.flatten(all_unset), F.array_intersect).alias("unset")
        departures = tombstones.groupBy(*self._key_names, "sequence", "to").agg(lacking, F.max("since").alias("since"))
        moved_of = F.struct("to", "unset", "since").alias("moved")
        return departures.select(*self._key_names, "sequence", moved_of).where(_LACKS)

    def write(self, deletes: DataFrame, num_rows: int, highest: str | None, now_ms: int) -> TombstoneFile:
        """Write a tombstone for each delete; the rows have the source's columns.

        A row with an older delete of its key has that delete's sequence in `NEWEST_DELETE`.

        Args:
            deletes: The deletes.
            num_rows: Their number.
            highest: What `highest_delete` returned.
            now_ms: The current time, in milliseconds since the epoch.
        """
        # Text that depends on a column: Spark would compile a number into its generated code, anew for each batch.
        moment = F.concat(F.lit(str(now_ms)), F.substring(F.col(SOURCE_ID).cast("string"), 1, 0)).cast("long")
        rows = deletes.select(*self.columns(deletes.columns), moment.alias("deleted_ms"))
        return TombstoneFile(
            path=self._write(rows), num_rows=num_rows, oldest_ms=now_ms, newest_ms=now_ms, highest=highest
        )

    def write_collected(self, tombstones: Any, highest: str | None, now_ms: int) -> TombstoneFile:
        """Write tombstones that are on the driver.

        Args:
            tombstones: A table of them, which `is_writable`.
            highest: What `highest_delete` returned.
            now_ms: The current time, in milliseconds since the epoch.
        """
        path = f"{FOLDER}/{uuid.uuid4()}"
        self.table.write_file(f"{path}/part-0.parquet", parquet_of(tombstones, now_ms, self._spark.version))
        return TombstoneFile(path=path, num_rows=len(tombstones), oldest_ms=now_ms, newest_ms=now_ms, highest=highest)

    def columns(self, columns: Collection[str]) -> list[Column]:
        """Return the key and the sequence of the tombstone of a source row, whose columns are given."""
        return [*self._key_columns(), self._deleted_at(columns)]

    def _deleted_at(self, columns: Collection[str]) -> Column:
        return F.col(NEWEST_DELETE).alias("sequence") if NEWEST_DELETE in columns else self.sequence_column()

    def moved_rows(self, rows: DataFrame, now_ms: int) -> DataFrame:
        """Return tombstones that hold values, with the table's types."""
        typed = [F.col(f.name).cast(f.dataType).alias(f.name) for f in self._schema() if f.name != "deleted_ms"]
        # See `write`; a sequence is a struct and never NULL.
        moment = F.concat(F.lit(str(now_ms)), F.substring(F.col("sequence").cast("string"), 1, 0)).cast("long")
        return rows.select(*typed, moment.alias("deleted_ms"), "moved")

    def write_moved(self, rows: DataFrame, now_ms: int) -> TombstoneFile | None:
        """Write what `moved_rows` returned; return None if it is empty."""
        number, num_lacking, highest = summary(rows, F.count(F.lit(1)), F.count_if(F.expr(_LACKS)), self._highest())
        if not number:
            return None
        return TombstoneFile(
            path=self._write(rows),
            num_rows=number,
            oldest_ms=now_ms,
            newest_ms=now_ms,
            num_moved=number,
            num_lacking=num_lacking,
            highest=highest,
        )

    def read_written(self, file: TombstoneFile, schema: StructType) -> DataFrame:
        """Return the rows of a file that was written with this schema."""
        rows = self._reader.schema(schema).parquet(self.table.path(file.path))
        self.schemas.note([self.table.path(file.path)], rows.schema)
        return rows

    def _write(self, rows: DataFrame) -> str:
        """Write tombstones and return their path."""
        path = f"{FOLDER}/{uuid.uuid4()}"
        rows.coalesce(1).write.parquet(self.table.path(path))
        return path

    def maintained(self, state: TombstoneManifest, *, cutoff_ms: int, now_ms: int) -> tuple[TombstoneManifest, int]:
        """Forget tombstones older than the cutoff, and merge small files when there are many.

        A file is dropped when its newest tombstone is too old; single tombstones are dropped when files are merged.

        Returns:
            The new state, and the number of tombstones that were forgotten or superseded.
        """
        state = replace(state, retired=tuple(file for file in state.retired if file.since_ms >= now_ms - KEPT_MS))
        expired = [file for file in state.files if file.newest_ms < cutoff_ms]
        kept = sorted((file for file in state.files if file.newest_ms >= cutoff_ms), key=lambda file: file.num_rows)
        merged = kept[: len(kept) // 2 + 1] if len(kept) > MAX_FILES else []
        if not expired and not merged:
            return state, 0
        reached("forgetting")
        before = state.num_rows
        files = kept[len(merged) :]
        forgotten: list[DataFrame] = [self.read(expired)] if expired else []
        with ExitStack() as stack:
            if merged:
                rows = self._with_moved(merged)
                if sum(file.num_rows for file in merged) <= MAX_UNSHUFFLED_TOMBSTONES:
                    rows = rows.coalesce(1)
                if any(file.oldest_ms < cutoff_ms for file in merged):
                    rows = stack.enter_context(persisted(rows))
                    forgotten.append(rows.where(F.col("deleted_ms") < cutoff_ms))
                    rows = rows.where(F.col("deleted_ms") >= cutoff_ms)
                new = self._merge(rows)
                files += [new] if new else []
            horizon = self.highest(state.horizon, forgotten) if forgotten else state.horizon
        retired = [RetiredFile(path=file.path, since_ms=now_ms) for file in (*expired, *merged)]
        state = replace(state, files=tuple(files), retired=(*state.retired, *retired), horizon=horizon)
        reached("forgotten")
        return state, before - state.num_rows

    def _with_moved(self, files: Sequence[TombstoneFile]) -> DataFrame:
        """Return the tombstones of some files, with `moved` if any file has it."""
        paths = [self.table.path(file.path) for file in files if file.num_moved]
        plain = [file for file in files if not file.num_moved]
        if not paths:
            return self.read(plain)
        rows = self._of_one_schema(paths)
        if rows is None:
            rows = self._united(paths)
        rows = self._without_blanks(rows)
        return rows.unionByName(self.read(plain), allowMissingColumns=True) if plain else rows

    def _of_one_schema(self, paths: Sequence[str]) -> DataFrame | None:
        """Return tombstones that hold values; None if a column has several types in these files."""
        known = self.schemas.of(paths)
        if known is not None:
            return self._reader.schema(known).parquet(*paths)
        try:
            rows = self._reader.option("mergeSchema", "true").parquet(*paths)
        except JVM_ERRORS as error:
            if "CANNOT_MERGE" not in str(error):
                raise
            return None
        self.schemas.note(paths, rows.schema)
        return rows

    def _united(self, paths: Sequence[str]) -> DataFrame:
        """Return tombstones that hold values from files written before and after a column's type was widened."""
        frames = [self._reader.parquet(path) for path in paths]
        typed = [
            frame.withColumns(
                {f.name: F.col(f.name).cast(f.dataType) for f in self._schema() if f.name in frame.columns}
            )
            for frame in frames
        ]
        return reduce(_with_all_columns, typed)

    def _merge(self, rows: DataFrame) -> TombstoneFile | None:
        """Write the newest tombstone of each key, and those that hold values, each once, to one file."""
        has_moved = "moved" in rows.columns
        plain = rows.where("moved IS NULL") if has_moved else rows
        newest = plain.groupBy(*self._key_names).agg(
            F.max("sequence").alias("sequence"),
            F.max_by("deleted_ms", F.struct("sequence", "deleted_ms")).alias("deleted_ms"),
        )
        if has_moved:
            newest = newest.unionByName(self._once_each(rows.where("moved IS NOT NULL")), allowMissingColumns=True)
        counts = [F.count("moved"), F.count_if(F.expr(_LACKS))] if has_moved else [F.lit(0), F.lit(0)]
        with persisted(newest) as newest:
            facts = summary(
                newest, F.count(F.lit(1)), F.min("deleted_ms"), F.max("deleted_ms"), *counts, self._highest()
            )
            if not facts[0]:
                return None
            return TombstoneFile(
                path=self._write(newest),
                num_rows=facts[0],
                oldest_ms=facts[1],
                newest_ms=facts[2],
                num_moved=facts[3],
                num_lacking=facts[4],
                highest=facts[5],
            )

    def _once_each(self, moved: DataFrame) -> DataFrame:
        """Return the oldest of the tombstones that hold the same values of a departure, kept as long as the newest.

        Earlier versions wrote one each time that the values came.
        """
        what = [F.col("moved.to").alias("to"), F.array_sort("moved.unset").alias("unset")]
        oldest = moved.groupBy(*self._key_names, "sequence", *what).agg(
            F.min_by("moved", "deleted_ms").alias("moved"), F.max("deleted_ms").alias("deleted_ms")
        )
        return oldest.drop("to", "unset")

    def highest(self, known: str | None, frames: Sequence[DataFrame]) -> str | None:
        """Return the highest of the known sequence, as JSON, and the column `sequence` of some frames.

        The known one as it is, if none is higher: equal ones may have several spellings, as 0.0 and -0.0.
        """
        if not frames:
            return known
        united = reduce(DataFrame.unionByName, [frame.select("sequence") for frame in frames])
        highest = self._highest()
        if known is not None:
            is_higher = F.max("sequence") > self.column_of(known)
            highest = F.when(is_higher, highest).otherwise(F.lit(known))
        found = summary(united, highest)[0]
        return None if found is None else str(found)

    def clean_up(self, state: TombstoneManifest, *, now_ms: int) -> None:
        """Delete files that no version within RESTORE's reach names, and what failed attempts left behind."""
        paths = [file.path for file in state.files] + [file.path for file in state.retired]
        named = {path.rpartition("/")[2] for path in paths}
        for name in self.table.list_folder(FOLDER):
            path = f"{FOLDER}/{name}"
            if name not in named and self.table.modified_ms(path) < now_ms - KEPT_MS:
                self.table.delete(path)


def highest_of(files: Sequence[TombstoneFile]) -> str:
    """Return the highest sequence in each of some files, as one JSON array."""
    return f"[{', '.join(file.highest or 'null' for file in files)}]"


def _with_all_columns(one: DataFrame, other: DataFrame) -> DataFrame:
    return one.unionByName(other, allowMissingColumns=True)
