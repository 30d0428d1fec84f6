"""Prepares the rows of a micro-batch for the merge: sets rows aside, follows moved keys, folds changes."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass, field
from typing import Any

from pyspark.sql import DataFrame
from pyspark.sql import functions as F
from pyspark.sql.types import StructType

from stream_merge.batch.measure import evaluated, measured, written_columns
from stream_merge.batch.target import ordered_batch
from stream_merge.bridge.materialized import materialized
from stream_merge.bridge.sessions import summary
from stream_merge.bridge.statement import ResolvedMerge
from stream_merge.bridge.transaction import Transaction
from stream_merge.config import SinkConfig
from stream_merge.keyless.multiset import paired
from stream_merge.merge.merge_on_read import independent_rows
from stream_merge.merge.source import Source, key_ranges_of
from stream_merge.partial_updates.fold import described_changes
from stream_merge.partial_updates.key_change_values import followed_moves
from stream_merge.partial_updates.key_changes import Moves, find_moves, with_moves
from stream_merge.partial_updates.registers import PartialUpdates
from stream_merge.partial_updates.special_changes import special_changes, without_truncates
from stream_merge.quarantine.table import Quarantine
from stream_merge.sql import quote
from stream_merge.table.exactly_once import BatchIdentity
from stream_merge.table.files import KeyRange, TableFiles
from stream_merge.tombstones.store import TombstoneStore


@dataclass(slots=True, kw_only=True)
class Preparation:
    """A micro-batch on its way to the rows that the merge takes.

    Attributes:
        config: The sink as the user configured it.
        received: The batch as it arrived.
        identity: Under which ids the batch is recorded; None outside a stream.
        name: How messages name the batch.
        ordered: The sink, its sequence in terms of columns that batch and target have.
        frame: The batch with these columns.
        all_partial: How changes of the sink may set single columns, if they may.
        partial: How those of this batch do, and the rows of the target.
        unset: The columns that a change of the batch leaves alone, if that was looked for.
        truncates: The rows that stand for a TRUNCATE, if there are any.
        moves: The rows that get another key and have values that must follow them, if there are any.
        num_quarantined_rows: How many rows were set aside.
        num_rows: How many rows are kept and were counted, those included that were set aside.
    """

    config: SinkConfig
    received: DataFrame
    identity: BatchIdentity | None
    name: str
    ordered: SinkConfig = field(init=False)
    frame: DataFrame = field(init=False)
    all_partial: PartialUpdates | None = field(init=False)
    partial: PartialUpdates | None = field(init=False)
    unset: Sequence[str] | None = None
    truncates: DataFrame | None = None
    moves: Moves | None = None
    num_quarantined_rows: int = 0
    num_rows: int | None = None
    _accepted: DataFrame | None = None
    _truncates: DataFrame | None = None
    _has_moves: bool = False

    @property
    def is_paired(self) -> bool:
        """Whether the table has no key, so that removals are paired with rows."""
        return self.config.before is not None

    @property
    def depends_on_columns(self) -> bool:
        """Whether sink and batch look otherwise to a target that has other columns."""
        return self.config.keeps_order or self.is_paired

    def arrange(self, transaction: Transaction) -> None:
        """Put sink and batch in terms of columns that the target has."""
        schema = StructType.fromJson(transaction.schema)
        self.ordered, self.frame, self.all_partial = ordered_batch(self.config, self.received, schema)
        self.partial = self.all_partial

    @contextmanager
    def accepted(
        self, transaction: Transaction, store: TombstoneStore | None, analyse: Callable[[DataFrame], ResolvedMerge]
    ) -> Iterator[DataFrame]:
        """Give the rows of the batch that can be merged, the others set aside, for the block.

        Args:
            transaction: The version that is read.
            store: The remembered deletes, if the sink keeps any.
            analyse: Gives the statement as it is resolved for a frame: the batch with the columns of `frame`.

        Raises:
            QuarantineLimitError: Too many rows cannot be merged; nothing was written.
        """
        config, schema = self.ordered, StructType.fromJson(transaction.schema)
        with ExitStack() as stack:
            batch = self.received
            counts: Mapping[str, Any] = {}
            if config.checks_rows:
                # As it came: what has another type in the target is judged before it gets that.
                judged_frame = ordered_batch(self.config, batch, schema, is_typed=False)[1]
                resolved = analyse(judged_frame).analysed
                special = resolved.once("special changes", lambda: special_changes(config, self.all_partial))
                quarantine = Quarantine(
                    config=self.config,
                    ordered=config,
                    partial=self.partial,
                    identity=self.identity,
                    name=self.name,
                    transaction=transaction,
                )
                judged = stack.enter_context(quarantine.accepted(batch, judged_frame, resolved, special))
                batch, self.num_quarantined_rows, counts = judged
                self.num_rows = counts.get("rows")
            else:
                special = special_changes(config, self.all_partial)
            if special and not counts:
                batch = stack.enter_context(materialized(batch))
                counts = summary(batch.alias(config.source_alias), *special, F.count(F.lit(1)).alias("rows")).asDict()
                self.num_rows = counts["rows"]
            if self.is_paired and batch is self.received:
                # After a conflict rows are paired anew.
                batch = stack.enter_context(materialized(batch))
            if counts.get("truncates"):
                self._truncates, batch = without_truncates(batch, config)
            self._accepted, self._has_moves, self.unset = batch, bool(counts.get("moves")), counts.get("unset")
            yield stack.enter_context(self.arranged(transaction, store))

    @contextmanager
    def arranged(self, transaction: Transaction, store: TombstoneStore | None) -> Iterator[DataFrame]:
        """Give the accepted rows in terms of columns that the target has, for the block.

        After a conflict the target may have other columns, and `arrange` and this give the same rows for these.
        """
        config, schema = self.config, StructType.fromJson(transaction.schema)
        with ExitStack() as stack:
            if self._truncates is not None:
                self.truncates = ordered_batch(config, self._truncates, schema)[1]
            batch = self._accepted
            assert batch is not None
            accepted = self.frame if batch is self.received else ordered_batch(config, batch, schema)[1]
            # Without tombstones nothing can wait for its row.
            if self._has_moves and self.all_partial is not None and store is not None:
                described = with_moves(described_changes(accepted, self.ordered, self.all_partial), self.ordered)
                moves = find_moves(
                    described,
                    self.ordered,
                    self.all_partial,
                    self.num_rows,
                    left=store.left,
                    may_remember=store.may_remember_move,
                )
                self.moves = stack.enter_context(moves)
            self.narrow(store)
            yield accepted

    def narrow(self, store: TombstoneStore | None) -> None:
        """Limit what is merged column by column to the columns that may differ in age from their row; mostly there are few."""
        known = store.state.older_columns if store is not None else None
        if self.all_partial is None or self.all_partial.is_always or known is None or self.unset is None:
            self.partial = self.all_partial
            return
        older = {*known, *self.unset}
        # Whole rows, where there is none, unless values have to follow a row to another key.
        self.partial = self.all_partial.narrowed(older) if older or self.moves is not None else None

    @contextmanager
    def evaluated(
        self,
        batch: DataFrame,
        resolved: ResolvedMerge,
        transaction: Transaction,
        store: TombstoneStore | None,
        read_files: Callable[[], TableFiles],
    ) -> Iterator[DataFrame]:
        """Give the rows that the merge takes, evaluated once, for the block.

        Args:
            batch: What `accepted` gave.
            resolved: The statement.
            transaction: The version that is read.
            store: The remembered deletes, if the sink keeps any.
            read_files: Gives the files of that version.
        """
        with ExitStack() as stack:
            if self.is_paired:
                assert store is not None
                batch = stack.enter_context(
                    paired(
                        batch,
                        self.config,
                        self.ordered,
                        schema=StructType.fromJson(transaction.schema),
                        store=store,
                        read_target=lambda ranges: _rows_in(ranges, resolved, transaction, read_files()),
                        batch_name=self.name,
                    )
                )
            elif self.partial is not None:
                assert self.all_partial is not None
                if self.moves is not None and store is not None:
                    batch = stack.enter_context(
                        followed_moves(
                            self.moves,
                            self.ordered,
                            self.all_partial,
                            read_target=lambda keys, bounds: self._rows_of(
                                keys, bounds, resolved, transaction, read_files()
                            ),
                            left=store.left,
                            lacking=store.lacking,
                            dead=store.dead,
                            keep=store.keep_moved,
                        )
                    )
                else:
                    batch = described_changes(batch, self.ordered, self.all_partial)
            written = written_columns(batch, self.ordered, resolved)
            yield stack.enter_context(
                evaluated(batch, self.ordered, self.partial, self.num_rows, written, resolved.once)
            )

    def _rows_of(
        self,
        keys: DataFrame,
        bounds: Sequence[tuple[Any, Any, int]] | None,
        resolved: ResolvedMerge,
        transaction: Transaction,
        files: TableFiles,
    ) -> DataFrame:
        """Return the target's rows of some keys."""
        names = self.ordered.keys
        ranges = [] if bounds is None else key_ranges_of(names, bounds, resolved.key_pairs, transaction.schema)
        rows = _rows_in(ranges, resolved, transaction, files)
        pairs = [(rows[quote(name)], keys["key"][f"k{number}"]) for number, name in enumerate(names)]
        is_null_safe = self.ordered.null_keys == "match"
        is_same = [one.eqNullSafe(other) if is_null_safe else one == other for one, other in pairs]
        found = rows.join(keys, is_same, "left_semi")
        # The table may be large: it is read in as many tasks as it takes, whatever reads these rows.
        return found.repartition(1) if self.moves is not None and self.moves.is_small else found

    def measured(
        self, rows: DataFrame, resolved: ResolvedMerge, transaction: Transaction, store: TombstoneStore | None
    ) -> AbstractContextManager[Source]:
        """Give what the merge needs to know of the evaluated rows, without those that a remembered delete outdates.

        Raises:
            NullKeyError: Keys are null and `null_keys` is error.
        """
        keeps_order = self.ordered.keeps_order
        independence = resolved.once(
            "independence", lambda: independent_rows(resolved.clauses, keeps_order=keeps_order)
        )
        columns = transaction.partition_columns
        return measured(rows, self.ordered, resolved, columns, independence, store, self.partial, self.name)


def _rows_in(
    ranges: Sequence[KeyRange], resolved: ResolvedMerge, transaction: Transaction, files: TableFiles
) -> DataFrame:
    """Return the rows of the target's files that may hold such values."""
    candidates = files.may_match(ranges, None)
    return resolved.target(transaction, [file.add for file in candidates], with_rows=False)
