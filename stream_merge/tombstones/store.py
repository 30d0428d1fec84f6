"""Loads and writes the tombstones of a table version, also after RESTORE or REPLACE."""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any, TypeVar

from pyspark.errors import AnalysisException
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql.types import ArrayType, DataType, MapType, StructType

from stream_merge.bridge.expressions import expression_sql
from stream_merge.bridge.jvm import JVM_ERRORS, translate
from stream_merge.bridge.kept_rows import persisted
from stream_merge.bridge.operations import manual_operation
from stream_merge.bridge.sessions import classic_session
from stream_merge.bridge.table import Table, open_table
from stream_merge.bridge.threads import BackgroundTask
from stream_merge.bridge.transaction import CommitActions, Transaction
from stream_merge.column_names import ROW_ID
from stream_merge.config import SinkConfig
from stream_merge.errors import UnresolvedColumnError
from stream_merge.partial_updates.registers import PartialUpdates
from stream_merge.steps import reached
from stream_merge.table.char_columns import char_columns
from stream_merge.table.files import now_ms
from stream_merge.tombstones.collected import is_writable
from stream_merge.tombstones.files import Tombstones
from stream_merge.tombstones.history import manifest_of, older_columns
from stream_merge.tombstones.manifest import (
    DOMAIN,
    TombstoneFile,
    TombstoneManifest,
)
from stream_merge.tombstones.moved_schemas import MovedSchemas
from stream_merge.tombstones.reach import Reach

T = TypeVar("T")

logger: logging.Logger = logging.getLogger("stream_merge")

CLEANED_EVERY_MS = 24 * 3600 * 1000
"""How often a sink cleans up what killed attempts left behind; the first time is after its first batch."""


@dataclass(slots=True, kw_only=True)
class TombstoneStore:
    """The tombstones of a table as one micro-batch reads and extends them.

    Attributes:
        tombstones: Reads and writes the files.
        state: The manifest of the version that is read.
        retention_ms: How long a tombstone is kept, in milliseconds.
        reach: The files that the last batch reached.
        is_truncated: Whether the batch has a TRUNCATE that is newer than all earlier ones.
    """

    tombstones: Tombstones
    state: TombstoneManifest
    retention_ms: int
    reach: Reach
    is_truncated: bool = False
    _written: TombstoneFile | None = None
    _moved: tuple[TombstoneFile, ...] = ()

    @contextmanager
    def remembering(
        self,
        deletes: Callable[[], DataFrame],
        num_deletes: int,
        highest: str | None,
        batch_name: str,
        collected: Any = None,
    ) -> Iterator[None]:
        """Write the batch's deletes while the block runs; they are complete when it ends.

        Args:
            deletes: Returns the source's rows that tell of a delete.
            num_deletes: The number of these rows.
            highest: Their highest sequence, as JSON.
            batch_name: The batch's name in job descriptions.
            collected: A table of the tombstones, if they were collected.
        """
        if not num_deletes or self._written is not None:
            yield
            return
        rows = None if is_writable(collected) else deletes()

        def write() -> TombstoneFile:
            if rows is None:
                return self.tombstones.write_collected(collected, highest, now_ms())
            return self.tombstones.write(rows, num_deletes, highest, now_ms())

        reached("remembering")
        with BackgroundTask(self.tombstones.table.spark, f"{batch_name}: remember deletes", write) as writing:
            yield
            self._written = writing.result()
        reached("remembered")

    def next_state(
        self, num_deletes: int, read_version: int, *, partial: PartialUpdates | None
    ) -> tuple[TombstoneManifest, dict[str, int]]:
        """Forget expired tombstones, and return the state for the commit with its metrics.

        Args:
            num_deletes: The number of the batch's deletes, which `remembering` has written.
            read_version: The version that the commit is based on.
            partial: How the batch sets single columns; None if it does not.
        """
        now = now_ms()
        older = self.state.older_columns
        if older is not None and partial is not None:
            older = _with_older(older, partial)

        def maintained(remembered: Sequence[TombstoneFile]) -> tuple[TombstoneManifest, int]:
            files = (*remembered, *self._moved, *([self._written] if self._written else []))
            state = replace(self.state, read_version=read_version, files=files, older_columns=older)
            return self.tombstones.maintained(state, cutoff_ms=now - self.retention_ms, now_ms=now)

        state, num_forgotten = self._read(maintained)
        return state, {
            "num_tombstones": state.num_rows,
            "num_tombstones_added": num_deletes,
            "num_tombstones_removed": num_forgotten,
            "oldest_tombstone_ms": max((now - file.oldest_ms for file in state.files), default=0),
        }

    @property
    def files(self) -> tuple[TombstoneFile, ...]:
        """The files in which changes of the batch may have an older delete."""
        if ROW_ID in self.tombstones.keys:
            return ()  # The id of an event has one sequence: no change of it is older.
        return self.state.files

    def deleted(self, files: Collection[TombstoneFile], source: DataFrame, *, only_older: bool) -> DataFrame | None:
        """Return what `Tombstones.deleted` returns for the deletes in some of `files`; None if there are none."""

        def read(there: Sequence[TombstoneFile]) -> DataFrame | None:
            wanted = [file for file in there if file in files]
            return self.tombstones.deleted(wanted, source, only_older=only_older) if wanted else None

        return self._read(read)

    def deletes(self) -> DataFrame | None:
        """Return all tombstones, of which a key may have several; None if there are none."""
        return self._read(lambda files: self.tombstones.read(files) if files else None)

    def cutoff_ms(self) -> int:
        """Return the time before which tombstones are forgotten, in milliseconds since the epoch."""
        return now_ms() - self.retention_ms

    def _read(self, read: Callable[[Sequence[TombstoneFile]], T]) -> T:
        """Call `read` with the tombstone files; drop files that no longer exist or are empty, and warn."""
        # Of a folder without its file, or an empty file, Spark reads no rows and says nothing.
        new = [file.path for file in self.state.files if file.path not in self.reach.whole]
        missing = [path for path in new if not self.tombstones.table.has_content(path)]
        if not missing:
            self.reach.whole = frozenset(file.path for file in self.state.files)
            try:
                return read(self.state.files)
            except AnalysisException:
                missing = [file.path for file in self.state.files if not self.tombstones.table.exists(file.path)]
                if not missing:
                    raise
        logger.warning(
            "%s: tombstone files are missing (%s); older changes of their keys that arrive late will bring rows back",
            self.tombstones.table.name,
            ", ".join(missing),
        )
        self.state = replace(self.state, files=tuple(file for file in self.state.files if file.path not in missing))
        return self._read(read)

    def truncate(self, truncates: DataFrame) -> str | None:
        """Note the newest TRUNCATE of a batch; return its sequence as JSON if no earlier one is as new, else None."""
        newest = self.tombstones.highest(
            self.state.truncated, [truncates.select(self.tombstones.sequence_column().alias("sequence"))]
        )
        if newest == self.state.truncated:
            return None
        self.state, self.is_truncated = replace(self.state, truncated=newest), True
        reached("truncating")
        return newest

    def order_of_contents(self, written: Sequence[str]) -> list[str]:
        """Return columns in the order in which the ids of the table's rows have them, and note it.

        It is that of the first batch; the source may send them in another order one day.

        Args:
            written: Lower-case names of the columns by which rows without a key are compared.
        """
        self.state = replace(self.state, contents=tuple(dict.fromkeys((*self.state.contents, *written))))
        return [name for name in self.state.contents if name in {*written}]

    def take_over(self, earlier: TombstoneStore) -> bool:
        """Reuse what an earlier attempt wrote if the table's tombstones are still the same; return whether they are."""
        mine, theirs = ((store.state.files, store.state.horizon, store.state.truncated) for store in (self, earlier))
        is_same = mine == theirs
        if is_same:
            self._written = earlier._written
        return is_same

    def moved(self) -> DataFrame | None:
        """Return tombstones of earlier batches with the values of rows that got another key; None if there are none."""
        return self._read(self.tombstones.read_moved)

    def may_remember_move(self, at: Column) -> Column:
        """Return whether a tombstone that holds values may have this sequence."""
        return self.tombstones.may_hold([file for file in self.state.files if file.num_moved], at)

    def incomplete(self) -> DataFrame | None:
        """Return the departures of rows some of whose values no tombstone holds; None if there are none."""
        return self._read(self.tombstones.read_lacking)

    def keep_moved(self, rows: DataFrame, *, at_once: bool) -> DataFrame | None:
        """Write tombstones that hold values, and return them as a reader sees them; None if there are none.

        Args:
            rows: The tombstones.
            at_once: Whether they are few and derived from few rows.
        """
        now = now_ms()
        with persisted(self.tombstones.moved_rows(rows, now), at_once=at_once) as moved:
            reached("handing_on")
            file = self.tombstones.write_moved(moved, now)
        if file is None:
            return None
        reached("handed_on")
        self._moved = (*self._moved, file)
        # Read back from the file: the plan of the persisted frame would become part of the merge's plan, which Spark
        # prints again and again for its UI.
        return self.tombstones.read_written(file, moved.schema)

    @property
    def has_moved(self) -> bool:
        """Whether the batch kept values of rows that got another key."""
        return bool(self._moved)

    def after_commit(self, state: TombstoneManifest, cleaned_ms: int) -> int:
        """Clean up when the list of retired files changed, and once a day for what killed attempts left behind.

        Args:
            state: The committed state.
            cleaned_ms: When the sink last cleaned up, in milliseconds since the epoch.

        Returns:
            The new value of `cleaned_ms`.
        """
        now = now_ms()
        self.reach.whole = frozenset(file.path for file in state.files)
        if state.retired == self.state.retired and now - cleaned_ms < CLEANED_EVERY_MS:
            return cleaned_ms
        self.tombstones.clean_up(state, now_ms=now)
        return now


def fresh_state(config: SinkConfig, spark: SparkSession) -> TombstoneManifest:
    """Return the state of a table that remembers nothing yet."""
    # A column's name need not be SQL.
    parts = (part if isinstance(part, str) else expression_sql(spark, part) for part in config.sequence_parts)
    return TombstoneManifest(keys=config.keys, sequence=tuple(parts))


def written_state(
    config: SinkConfig, ordered: SinkConfig, table: Table, transaction: Transaction, *, had_registers: bool
) -> TombstoneManifest:
    """Return the state of the version that is read, in terms of its columns.

    Args:
        config: The sink as the user configured it.
        ordered: The sink as `bind` returned it.
        table: The target.
        transaction: The version that is read.
        had_registers: As in `load_store`.

    Raises:
        ConfigurationChangedError: The table was written with other keys or another sequence.
    """
    schema = {f.name.lower(): f.dataType for f in transaction.struct_type.fields}
    compared = {name.lower() for name in (*ordered.keys, *ordered.sequence_columns)}
    fields = sorted(path for name in compared & schema.keys() for path in _fields_in(schema[name], name))
    fresh = replace(
        fresh_state(config, table.spark),
        keys=ordered.keys,
        older_columns=None if had_registers else (),
        fields=tuple(fields),
    )
    state = manifest_of(table, transaction, fresh)
    state.check(table.name, fresh)
    return replace(state, holder=ordered.sequence_columns, fields=fresh.fields)


def load_store(
    config: SinkConfig,
    ordered: SinkConfig,
    table: Table,
    transaction: Transaction,
    *,
    had_registers: bool,
    reach: Reach,
    schemas: MovedSchemas,
) -> TombstoneStore | None:
    """Return the tombstones of the version that is read; None if the sink keeps none.

    Args:
        config: The sink as the user configured it.
        ordered: The sink as `bind` returned it.
        table: The target.
        transaction: The version that is read.
        had_registers: Whether the target had `COLUMN_SEQUENCES` before the batch; if so, and no state says otherwise,
            rows may use it.
        reach: The files that the last batch reached.
        schemas: What the sink knows of the schemas of files with values.

    Raises:
        ConfigurationChangedError: The table was written with other keys or another sequence.
    """
    if not config.keeps_tombstones:
        return None
    schema = {f.name.lower(): f.dataType for f in transaction.struct_type.fields}
    state = written_state(config, ordered, table, transaction, had_registers=had_registers)
    absent = [key for key in ordered.keys if key.lower() not in schema]
    if absent:
        raise UnresolvedColumnError(
            f"{table.name}: the table has no column {', '.join(absent)}, which keys names; it has "
            f"{', '.join(f.name for f in transaction.struct_type.fields)}"
        )
    if state.older_columns is None:
        # No commit says: a batch was killed before its commit, or nothing was merged. Looked up once.
        state = replace(state, older_columns=older_columns(table, transaction))
    # The files have the keys by their place.
    places = {key.lower(): place for place, key in enumerate(state.keys)}
    tombstones = Tombstones(
        table=table,
        keys={key: schema[key.lower()] for key in sorted(ordered.keys, key=lambda key: places[key.lower()])},
        sequence={name: schema[name.lower()] for name in ordered.sequence_columns},
        is_null_safe=config.null_keys == "match",
        padded=frozenset(key for key in ordered.keys if key.lower() in char_columns(transaction.struct_type)),
        schemas=schemas,
    )
    retention_ms = int(config.tombstone_retention.total_seconds() * 1000)
    return TombstoneStore(tombstones=tombstones, state=state, retention_ms=retention_ms, reach=reach)


def _fields_in(kind: DataType, path: str) -> Iterator[str]:
    """Yield the paths of the fields inside a column, as they are spelt: so they stand in JSON."""
    match kind:
        case StructType():
            for each in kind.fields:
                below = f"{path}.{each.name}"
                yield below
                yield from _fields_in(each.dataType, below)
        case ArrayType():
            yield from _fields_in(kind.elementType, f"{path}.element")
        case MapType():
            yield from _fields_in(kind.keyType, f"{path}.key")
            yield from _fields_in(kind.valueType, f"{path}.value")
        case _:
            pass


def noted_columns(table: Table, transaction: Transaction, partial: PartialUpdates) -> TombstoneManifest | None:
    """Return what the table remembers, with the columns that a sink without tombstones makes older than their rows.

    Other sinks merge whole rows where the manifest says that no column is older.

    Args:
        table: The target.
        transaction: The version that is read.
        partial: How the sink sets single columns.

    Returns:
        The manifest for the commit; None if the table remembers nothing, or these columns already.
    """
    if transaction.domain_metadata(DOMAIN) is None:
        return None
    fresh = TombstoneManifest(keys=(), sequence=(), older_columns=None)
    state = manifest_of(table, transaction, fresh)
    if not state.keys or state.older_columns is None:
        return None
    older = _with_older(state.older_columns, partial)
    if older == state.older_columns:
        return None
    return replace(state, read_version=transaction.version, older_columns=older)


def _with_older(known: Sequence[str], partial: PartialUpdates) -> tuple[str, ...]:
    """Return the columns that may be older than their row, with those that single columns of a batch make so."""
    # Columns that the sink never writes are older than the rows that it writes.
    left_alone = partial.unwritten if partial.is_always else ()
    return tuple(sorted({*known, *(name.lower() for name in (*partial.columns, *left_alone))}))


def forget_state(spark: SparkSession, target: str) -> None:
    """Remove the table's tombstones in a commit of its own; their files are deleted once they are old enough."""
    session = classic_session(spark.range(0))
    table = open_table(session, target)
    transaction = table.begin()
    if transaction.domain_metadata(DOMAIN) is None:
        return
    try:
        transaction.commit({}, CommitActions(domain_metadata={DOMAIN: None}), manual_operation(session))
    except JVM_ERRORS as error:
        raise translate(error) from error
