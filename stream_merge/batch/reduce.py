"""Reduces a micro-batch to at most one row for each key, which is evaluated once.

There is one reducer for each kind of sink and batch. All have the same signature:

- `_as_is`: a sink without a sequence merges the rows as they are;
- `_newest`: the newest change of each key wins;
- `_columns`: the newest value of each column wins;
- `_key_changes`: the same, and rows that get another key take the values along that the batch does not have;
- `_multiset`: a table without a key gets changes of rows with an id.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, TypeAlias

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from stream_merge.batch.accept import Accepted
from stream_merge.batch.bind import Bound, bind
from stream_merge.batch.micro_batch import MicroBatch
from stream_merge.bridge.kept_plans import kept_plan
from stream_merge.bridge.kept_rows import persisted
from stream_merge.bridge.source_size import is_computed_in_one_task, is_known_to_be_small
from stream_merge.bridge.statement import ResolvedMerge
from stream_merge.bridge.transaction import Transaction
from stream_merge.column_names import SOURCE_ID
from stream_merge.keyless.multiset import paired
from stream_merge.merge.key_and_sequence import key_names
from stream_merge.merge.source import MAX_UNSHUFFLED_ROWS, key_ranges_of
from stream_merge.order.sequence import newest_changes
from stream_merge.partial_updates.fold import described_changes, folded_changes
from stream_merge.partial_updates.key_change_values import followed_moves
from stream_merge.partial_updates.key_changes import Moves, find_moves, with_moves
from stream_merge.partial_updates.registers import PartialUpdates
from stream_merge.sql import quote
from stream_merge.table.char_columns import char_columns, without_blanks
from stream_merge.table.files import KeyRange
from stream_merge.tombstones.store import TombstoneStore


@dataclass(frozen=True, slots=True, kw_only=True)
class Changes:
    """The accepted rows of a batch, bound to a version of the table.

    Attributes:
        bound: Sink and batch, bound to that version.
        rows: The accepted rows.
        truncates: The rows that stand for a TRUNCATE; None if there are none.
        moves: The rows that get another key and have values that must follow them; None if there are none.
        partial: How these changes, or rows of the target, set single columns; None if whole rows can be merged.
        unset: The columns that a change of the batch leaves alone; None if that was not looked for.
        num_lacking: The number of changes that leave columns alone and give no row another key; None as well. Like the
            number of rows, it is that of another batch where it makes no difference (`Accepted.is_reduced_as`).
        num_rows: The number of rows that the batch has kept; None where they were not counted.
    """

    bound: Bound
    rows: DataFrame
    truncates: DataFrame | None
    moves: Moves | None
    partial: PartialUpdates | None
    unset: Sequence[str] | None
    num_lacking: int | None
    num_rows: int | None

    def narrowed(self, store: TombstoneStore | None) -> Changes:
        """Return the changes, merged column by column only for the columns that may differ in age from their row.

        Mostly there are few such columns, or none.

        Args:
            store: What the table remembers, if the sink keeps tombstones.
        """
        partial, known = self.bound.partial, store.state.older_columns if store is not None else None
        if partial is not None and not partial.is_always and known is not None and self.unset is not None:
            older = {*known, *self.unset}
            # Whole rows, where there is none, unless values have to follow a row to another key.
            partial = partial.narrowed(older) if older or self.moves is not None else None
        return replace(self, partial=partial)


@contextmanager
def changes_of(
    batch: MicroBatch, accepted: Accepted, bound: Bound, transaction: Transaction, store: TombstoneStore | None
) -> Iterator[Changes]:
    """Give the accepted rows in terms of columns that a version of the table has, for the block.

    Args:
        batch: The batch.
        accepted: Its rows that can be merged.
        bound: Sink and batch, bound to the version.
        transaction: The version.
        store: What the version remembers, if the sink keeps tombstones.
    """
    rows, truncates = bound.frame, accepted.truncates
    once = batch.caches.expressions(batch.frame, transaction)

    def as_bound(changes: DataFrame) -> DataFrame:
        partitions = transaction.partition_columns
        return bind(
            batch.config, changes, transaction.struct_type, bound.changes, partition_columns=partitions, once=once
        ).frame

    if accepted.rows is not batch.frame:
        rows = as_bound(accepted.rows)
    if truncates is not None:
        truncates = as_bound(truncates)
    changes = Changes(
        bound=bound,
        rows=rows,
        truncates=truncates,
        moves=None,
        partial=bound.partial,
        unset=accepted.unset,
        num_lacking=accepted.num_lacking,
        num_rows=accepted.num_rows,
    )
    with ExitStack() as stack:
        # Without tombstones nothing can wait for its row.
        if accepted.has_moves and bound.partial is not None and store is not None:
            described = with_moves(described_changes(rows, bound.config, bound.partial, once), bound.config, once)
            moves = find_moves(
                described,
                bound.config,
                bound.partial,
                accepted.num_rows,
                moved=store.moved,
                may_remember=store.may_remember_move,
                once=once,
            )
            changes = replace(changes, moves=stack.enter_context(moves))
        yield changes.narrowed(store)


@dataclass(frozen=True, slots=True, kw_only=True)
class Reduction:
    """What a reducer works on.

    Attributes:
        batch: The batch.
        changes: Its changes.
        resolved: The statement.
        transaction: The version that is read.
        store: What the version remembers, if the sink keeps tombstones.
    """

    batch: MicroBatch
    changes: Changes
    resolved: ResolvedMerge
    transaction: Transaction
    store: TombstoneStore | None

    @property
    def whole_rows(self) -> ResolvedMerge | None:
        """The statement that merges whole rows, if no row of the batch probably needs values of the target's row."""
        changes = self.changes
        if changes.partial is None or changes.truncates is not None or changes.num_lacking != 0:
            return None
        return self.resolved.whole_rows

    @property
    def measured_for(self) -> ResolvedMerge:
        """The statement that is tried first."""
        return self.whole_rows or self.resolved

    def written(self, names: Sequence[str]) -> set[str]:
        """Return which columns of a frame the target takes, in lower case; all where clauses say what they take."""
        config = self.changes.bound.config
        if config.clauses:
            return {name.lower() for name in names}
        return {name.lower() for name in config.columns or names} & {name.lower() for name in self.resolved.columns}

    def rows_in(self, ranges: Sequence[KeyRange]) -> DataFrame:
        """Return the rows of the target's files that may hold such values."""
        candidates = self.batch.caches.active_files(self.transaction).may_match(ranges, None)
        return self.resolved.target(self.transaction, [file.add for file in candidates], with_rows=False)

    def rows_of(self, keys: DataFrame, bounds: Sequence[tuple[Any, Any, int]] | None) -> DataFrame:
        """Return the target's rows of some keys.

        Args:
            keys: The keys, as structs in the column `key`.
            bounds: Smallest and largest value of each key column, and number of nulls; None if they are not known.
        """
        config, moves = self.changes.bound.config, self.changes.moves
        ranges = []
        if bounds is not None:
            ranges = key_ranges_of(config.keys, bounds, self.resolved.key_pairs, self.transaction.schema)
        rows = self.rows_in(ranges)
        padded = [key for key in config.keys if key.lower() in char_columns(self.transaction.struct_type)]
        if padded:
            rows = rows.withColumns({key: without_blanks(F.col(quote(key))) for key in padded})
        in_struct = key_names(len(config.keys))
        pairs = [(rows[quote(name)], keys["key"][field]) for name, field in zip(config.keys, in_struct, strict=True)]
        is_null_safe = config.null_keys == "match"
        is_same = [one.eqNullSafe(other) if is_null_safe else one == other for one, other in pairs]
        found = rows.join(keys, is_same, "left_semi")
        # The table may be large: it is read in as many tasks as it takes, whatever reads these rows.
        return found.repartition(1) if moves is not None and moves.is_small else found


Reducer: TypeAlias = "Callable[[Reduction, ExitStack], DataFrame]"
"""Returns what is merged; what that is read from is kept until the stack is closed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedReduction:
    """The plan that reduces a batch to the rows that the merge takes, numbered by `SOURCE_ID`.

    Attributes:
        reduction: The batch.
        persist: Plans the rows once more.
        rows: The frame that will keep them, of which nothing is evaluated.
    """

    reduction: Reduction
    persist: Callable[[], AbstractContextManager[DataFrame]]
    rows: DataFrame


@contextmanager
def planned_reduction(reduction: Reduction) -> Iterator[PlannedReduction]:
    """Plan how a batch is reduced. A job is only run for rows that get another key, and for tables without a key."""
    batch, changes = reduction.batch, reduction.changes
    with ExitStack() as stack:
        # Rows that are counted already are reduced in one task without a shuffle, if they are few.
        is_small = changes.num_rows is None and is_known_to_be_small(batch.frame, batch.query)
        if is_small and is_computed_in_one_task(batch.frame):
            reduction = replace(reduction, changes=replace(changes, rows=changes.rows.coalesce(1)))
        frame = _reducer(reduction)(reduction, stack)
        # The changes that hand values on are joined in many small stages.
        at_once = changes.moves is not None and changes.moves.is_small
        # Nothing else is read, then.
        is_alone = changes.moves is None and not changes.bound.is_keyless
        is_one_task = is_small or (is_alone and _are_few(changes.num_rows))
        persist = partial(persisted, frame, in_one_task=is_one_task, at_once=at_once, number=SOURCE_ID)
        yield PlannedReduction(reduction=reduction, persist=persist, rows=stack.enter_context(persist()))


def _reducer(reduction: Reduction) -> Reducer:
    changes = reduction.changes
    if changes.bound.is_keyless:
        return _multiset
    if changes.partial is not None:
        return _columns if changes.moves is None or reduction.store is None else _key_changes
    return _newest if changes.bound.config.sequence_by else _as_is


def _as_is(reduction: Reduction, _: ExitStack) -> DataFrame:
    return reduction.changes.rows


def _newest(reduction: Reduction, _: ExitStack) -> DataFrame:
    return _newest_of(reduction, reduction.changes.rows)


def _columns(reduction: Reduction, _: ExitStack) -> DataFrame:
    changes = reduction.changes
    assert changes.bound.partial is not None
    once = reduction.batch.caches.expressions(reduction.batch.frame, reduction.transaction)
    described = described_changes(changes.rows, changes.bound.config, changes.bound.partial, once)
    return _folded(reduction, described) if changes.bound.config.sequence_by else described


def _key_changes(reduction: Reduction, stack: ExitStack) -> DataFrame:
    changes, store = reduction.changes, reduction.store
    assert changes.bound.partial is not None and changes.moves is not None and store is not None  # noqa: PT018
    moved = followed_moves(
        changes.moves,
        changes.bound.config,
        changes.bound.partial,
        read_target=reduction.rows_of,
        moved=store.moved,
        incomplete=store.incomplete,
        deletes=store.deletes,
        keep=store.keep_moved,
        once=reduction.batch.caches.expressions(reduction.batch.frame, reduction.transaction),
    )
    return _folded(reduction, stack.enter_context(moved))


def _multiset(reduction: Reduction, stack: ExitStack) -> DataFrame:
    assert reduction.store is not None
    rows = paired(
        reduction.changes.rows,
        reduction.batch.config,
        reduction.changes.bound.config,
        schema=reduction.transaction.struct_type,
        partition_columns=reduction.transaction.partition_columns,
        store=reduction.store,
        read_target=reduction.rows_in,
        batch_name=reduction.batch.name,
    )
    return _newest_of(reduction, stack.enter_context(rows))


def _newest_of(reduction: Reduction, rows: DataFrame) -> DataFrame:
    config, resolved = reduction.changes.bound.config, reduction.resolved

    def newest(changes: DataFrame) -> DataFrame:
        return newest_changes(changes, config, reduction.written(changes.columns), resolved.once)

    plan = resolved.once(f"plan of newest of {rows.schema.json()}", lambda: kept_plan(rows, newest))
    return plan.on(in_one_task(rows, reduction.changes.num_rows))


def _folded(reduction: Reduction, described: DataFrame) -> DataFrame:
    changes = reduction.changes
    assert changes.partial is not None
    rows, written = in_one_task(described, changes.num_rows), reduction.written(described.columns)
    return folded_changes(rows, changes.bound.config, written, changes.partial, reduction.resolved.once)


def in_one_task(rows: DataFrame, num_rows: int | None) -> DataFrame:
    """Let one task choose among few rows, which needs no shuffle, where they are kept and were counted."""
    return rows.coalesce(1) if _are_few(num_rows) else rows


def _are_few(num_rows: int | None) -> bool:
    return num_rows is not None and num_rows <= MAX_UNSHUFFLED_ROWS
