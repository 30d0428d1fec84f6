"""Provides `merge_sink` and `MergeSink`, the callable for `foreachBatch`."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from datetime import timedelta
from typing import TYPE_CHECKING

from stream_merge.clauses import Action, Clause, Expression, When
from stream_merge.config import DEFAULT_TOMBSTONE_RETENTION, Learn, SinkConfig
from stream_merge.metrics import MergeResult
from stream_merge.options import expressions, names

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from stream_merge.batch.caches import SinkCaches
    from stream_merge.batch.learning import LearntSink
    from stream_merge.bridge.sessions import RunningQuery
    from stream_merge.table.exactly_once import BatchIdentity


def merge_sink(
    target: str,
    *,
    keys: str | Sequence[str] | None = None,
    on: Expression | None = None,
    before: Expression | None = None,
    learn: Learn | None = None,
    sequence_by: Expression | Sequence[Expression] | None = None,
    tie_break_by: Expression | Sequence[Expression] | None = None,
    delete_when: Expression | None = None,
    truncate_when: Expression | None = None,
    columns: str | Sequence[str] | None = None,
    except_columns: str | Sequence[str] | None = None,
    unchanged_columns: Expression | None = None,
    ignore_null_updates: bool | Sequence[str] = False,
    old_key: Expression | None = None,
    new_key: Expression | None = None,
    source_alias: str = "source",
    target_alias: str = "target",
    merge_schema: bool = False,
    schema_changes: str | None = None,
    overwrite_schema: bool = False,
    create_if_missing: bool = False,
    partition_by: str | Sequence[str] | None = None,
    cluster_by: str | Sequence[str] | None = None,
    table_properties: Mapping[str, str] | None = None,
    app_id: str | None = None,
    output_mode: str | None = None,
    strategy: str | None = None,
    locator: str | None = None,
    null_keys: str = "error",
    tombstone_retention: timedelta = DEFAULT_TOMBSTONE_RETENTION,
    check_cardinality: bool = True,
    skip_unchanged: bool = False,
    single_writer: bool = False,
    maintenance: bool = False,
    quarantine: str | None = None,
    error_column: Expression | None = None,
    expect: Mapping[str, Expression] | None = None,
    max_quarantined_share: float = 1.0,
    max_commit_retries: int = 10,
    user_metadata: str | None = None,
    on_result: Callable[[MergeResult], None] | None = None,
) -> MergeSink:
    """Make a sink that merges every micro-batch into a Delta table in one transaction, exactly once.

    Args:
        target: Path (anything with a `/`) of the Delta table, or its name in Spark's session catalog.
        keys: Columns that identify a row; they have the same names in source and target. Give exactly one of `keys`,
            `on`, `before` and `learn`.
        on: Merge condition over the two aliases, as in SQL's MERGE.
        before: For a table without a key: an expression on the source that gives the row before the change, as a struct
            of the table's columns; NULL where the change inserts. A change removes one row equal to `before` and adds
            the row in its columns, unless `delete_when` holds. The sink recognizes a repeated event by its sequence, so
            each event must have its own. The sink adds the columns `_stream_merge_row_id` and `_stream_merge_sequence`
            to the target. Needs `sequence_by`, `delete_when` and a `tombstone_retention`. For Debezium's records, see
            `debezium.KEYLESS_MERGE_OPTIONS`.
        learn: For tables whose keys only the rows tell: a function that is called with each micro-batch and returns the
            options that say what its rows mean: keys, order, deletes, columns. `learn(rows, remembered)` has to decide
            by the schema of the rows; `remembered()` returns the key columns that the target was written with, which
            are none for a table without a key, or None if the target does not exist or remembers no keys. If the rows
            bring other keys than the target remembers, the sink refuses them. For Debezium's records:
            `debezium.learn_options`.
        sequence_by: Columns or expressions of the source that order the changes of a key. The first that differs
            decides; NULL is older than any value. The sink takes the newest change of each key in a batch. The default
            clauses skip a change that is older than the target row, and remember deletes, so that an older change that
            arrives late does not bring the row back. The target keeps the sequence of each row: in its columns of the
            same names if it has them all, else in a column `_stream_merge_sequence` that the sink adds. Needs `keys` or
            `before`.
        tie_break_by: Columns or expressions that decide between changes with the same sequence, for example Kafka's
            partition and offset. Without it, the change of the later batch wins; within a batch, the contents of the
            changes decide.
        delete_when: Condition on the source under which the default clauses delete. Needs `keys` or `before`.
        truncate_when: Condition on the source that marks a row as a TRUNCATE: the sink deletes all older rows of the
            target, and skips older changes that arrive later. It ignores the row's keys. Needs `sequence_by`.
        columns: The source columns to write besides `keys`; all by default. The target's other columns keep their
            values; in new rows they are NULL or have their default. Without `merge_schema` the target must have them.
        except_columns: The source columns not to write.
        unchanged_columns: Expression on the source for the names of the columns that a change leaves unchanged, an
            ARRAY<STRING>; NULL or empty for none. For Debezium's records: `_change.unavailable`.
        ignore_null_updates: Whether NULL in a change leaves the target's value unchanged; give a list to limit this to
            some columns. With `sequence_by`, each column ends with the newest value that a change set, whatever the
            order in which the changes arrive. For that the sink adds a column `_stream_merge_column_sequences` to the
            target, as it does with `columns` and `unchanged_columns`.
        old_key: Expression on the source for the previous key of a row, where an upsert gives the row another key: a
            struct of the keys by name, else NULL. Columns that the upsert leaves unchanged (`unchanged_columns`) then
            take the values of the row under its old key. For Debezium's records: `_change.old_key`.
        new_key: The counterpart in the delete of the old key: the key that the row gets. For Debezium's records:
            `_change.new_key`.
        source_alias: Name of the micro-batch in expressions.
        target_alias: Name of the table in expressions.
        merge_schema: Whether to add columns that only the source has to the table, in the same commit. Otherwise their
            values are dropped; a warning names those that no option uses.
        schema_changes: What to do when the source's columns change: evolve (add columns, widen types, let columns be
            NULL that the source has no more), lenient (the same; values that the type of their column cannot hold get
            another column), ignore (leave the table's columns as they are) or error (stop). None leaves the choice to
            `merge_schema`. Belongs to the default clauses.
        overwrite_schema: Whether a batch in output mode Complete may replace the table's schema.
        create_if_missing: Whether to create a missing table with the source's schema, and with column mapping if its
            names need it.
        partition_by: Partition columns of a table that the sink creates.
        cluster_by: Clustering columns of a table that the sink creates.
        table_properties: Table properties of a table that the sink creates.
        app_id: Application id of the SetTransaction; the streaming query's id by default.
        output_mode: append, update or complete; the running query's by default.
        strategy: insert_only, merge_on_read, copy_on_write or overwrite; by default the clauses and the table decide.
        locator: How to find matching rows. scan reads the key columns of the files that can hold a match. index keeps
            the keys of these files on the driver's disk and reads new files only; it takes 24 bytes a row there and in
            the table's folder, and equality of plain columns. By default the sink uses the index where it applies and
            a scan would read much. Where the index does not apply, the sink scans even with locator="index".
        null_keys: What to do with source rows that have NULL in a key: error, match (NULL equals NULL), or quarantine,
            which needs the option `quarantine`.
        tombstone_retention: How long deletes are remembered, by the clock of the machine that runs the query; 7 days by
            default. It adds the table feature domainMetadata to the target. `timedelta(0)` remembers none: a change
            older than its key's delete then brings the row back if it arrives in a later batch.
        check_cardinality: Whether to fail when several source rows match one target row. Without the check, the result
            has a row for each match.
        skip_unchanged: Whether to skip an update that would leave every column of its row unchanged: the row is not
            rewritten, its file is not touched for it, and the change feed does not show it. `num_unchanged_rows` counts
            such rows. The sink reads every column that an update assigns from the files that can hold a match, and does
            not use the key index. Needs `check_cardinality`; has no effect in output mode Complete.
        single_writer: Whether no other process ever writes to the table or to the quarantine. If False, the sink
            refuses a table whose LogStore lets writers overwrite each other's commits, as Delta's default does on S3.
            If True, the checkpoint records the last batch of each table, and the query stops with `CommitLostError`
            when the table does not know that batch.
        maintenance: Whether the sink keeps the table young: after some batches it compacts small files and files with
            many deleted rows, and once a day it runs VACUUM with the table's own retention. Compaction takes at most a
            tenth of the time of the merges. Not done in output mode Complete.
        quarantine: Path or name of a Delta table for rows that cannot be merged, with the reason; created when missing.
            Several sinks may share one. It takes the rows that `error_column`, `expect` and `null_keys` name, and rows
            with a value that cannot be converted to its target column's type, or with NULL where the target demands NOT
            NULL. Not available in output mode Complete.
        error_column: Column or expression of the source that says why a row could not be decoded; NULL for good rows.
            For the changes of `stream_merge.debezium`: `"_change.error"`. Rows with an error go to the quarantine;
            without a quarantine they fail the batch.
        expect: Conditions on the source by name. Rows for which a condition is not true (false, NULL or an error) go to
            the quarantine; without a quarantine they fail the batch. Conditions do not apply to deletes by
            `delete_when`, to TRUNCATEs, or to changes that leave a column of the condition unchanged.
        max_quarantined_share: The share of a batch's rows, 0 to 1, that may go to the quarantine. Above it the batch
            fails with `QuarantineLimitError` before anything is written. By default there is no limit.
        max_commit_retries: How often to retry a commit after a conflict with another writer.
        user_metadata: Text for the commit's `userMetadata` in DESCRIBE HISTORY.
        on_result: Called with the `MergeResult` of every batch, after its commit.

    Returns:
        A sink to pass to `foreachBatch`. Without clauses of its own it deletes where `delete_when` holds, else updates
        all columns, else inserts all columns.

    Raises:
        ConfigError: Options contradict each other or are out of range; one error lists all faults.
    """
    return MergeSink(
        SinkConfig(
            target=target,
            learn=learn,
            keys=names(keys),
            on=on,
            before=before,
            sequence_by=expressions(sequence_by),
            tie_break_by=expressions(tie_break_by),
            delete_when=delete_when,
            truncate_when=truncate_when,
            columns=names(columns),
            except_columns=names(except_columns),
            unchanged_columns=unchanged_columns,
            ignore_null_updates=ignore_null_updates
            if isinstance(ignore_null_updates, bool)
            else names(ignore_null_updates),
            old_key=old_key,
            new_key=new_key,
            source_alias=source_alias,
            target_alias=target_alias,
            merge_schema=merge_schema,
            schema_changes=schema_changes,
            overwrite_schema=overwrite_schema,
            create_if_missing=create_if_missing,
            partition_by=names(partition_by),
            cluster_by=names(cluster_by),
            table_properties=dict(table_properties or {}),
            app_id=app_id,
            output_mode=output_mode.lower() if output_mode is not None else None,
            strategy=strategy,
            locator=locator,
            null_keys=null_keys,
            tombstone_retention=tombstone_retention,
            check_cardinality=check_cardinality,
            skip_unchanged=skip_unchanged,
            single_writer=single_writer,
            maintenance=maintenance,
            quarantine=quarantine,
            error_column=error_column,
            expect=dict(expect or {}),
            max_quarantined_share=max_quarantined_share,
            max_commit_retries=max_commit_retries,
            user_metadata=user_metadata,
            on_result=on_result,
        )
    )


class MergeSink:
    """An immutable merge into one Delta table; pass it to `foreachBatch`, or call `merge` once.

    Each clause method returns a new sink. Of the clauses of each kind, the first whose condition holds applies, in the
    order in which they were added. A sink holds no SparkSession and can be pickled.
    """

    def __init__(self, config: SinkConfig) -> None:
        config.check()
        self._config = config
        self._cache: SinkCaches | None = None
        self._learnt: LearntSink | None = None

    def __str__(self) -> str:
        return f"MergeSink[{self._config.target}]"

    def __repr__(self) -> str:
        return str(self)

    @property
    def config(self) -> SinkConfig:
        """The options and clauses of this sink."""
        return self._config

    def when_matched_update(
        self,
        *,
        set: Mapping[str, Expression],
        condition: Expression | None = None,
    ) -> MergeSink:
        """Update the named columns of a matched row; values may refer to both sides."""
        return self._with(When.MATCHED, Action.UPDATE, condition, set)

    def when_matched_update_all(self, *, condition: Expression | None = None) -> MergeSink:
        """Update every column of a matched row with the source's column of the same name."""
        return self._with(When.MATCHED, Action.UPDATE_ALL, condition)

    def when_matched_delete(self, *, condition: Expression | None = None) -> MergeSink:
        """Delete a matched row."""
        return self._with(When.MATCHED, Action.DELETE, condition)

    def when_not_matched_insert(
        self, *, values: Mapping[str, Expression] | None = None, condition: Expression | None = None
    ) -> MergeSink:
        """Insert a source row that matches no target row: the named columns, or all columns without `values`."""
        if values is None:
            return self.when_not_matched_insert_all(condition=condition)
        return self._with(When.NOT_MATCHED, Action.INSERT, condition, values)

    def when_not_matched_insert_all(self, *, condition: Expression | None = None) -> MergeSink:
        """Insert a source row that matches no target row, with all its columns."""
        return self._with(When.NOT_MATCHED, Action.INSERT_ALL, condition)

    def when_not_matched_by_source_update(
        self,
        *,
        set: Mapping[str, Expression],
        condition: Expression | None = None,
    ) -> MergeSink:
        """Update the named columns of a target row that no source row matches; reads every file of the table."""
        return self._with(When.NOT_MATCHED_BY_SOURCE, Action.UPDATE, condition, set)

    def when_not_matched_by_source_delete(self, *, condition: Expression | None = None) -> MergeSink:
        """Delete a target row that no source row matches; reads every file of the table."""
        return self._with(When.NOT_MATCHED_BY_SOURCE, Action.DELETE, condition)

    def _with(
        self,
        when: When,
        action: Action,
        condition: Expression | None,
        assignments: Mapping[str, Expression] | None = None,
    ) -> MergeSink:
        clause = Clause(when=when, action=action, condition=condition, assignments=dict(assignments or {}))
        return MergeSink(replace(self._config, clauses=(*self._config.clauses, clause)))

    def __call__(self, batch_df: DataFrame, batch_id: int) -> None:
        """Merge one micro-batch; `foreachBatch` calls this.

        Raises:
            StreamMergeError: The table has nothing of the batch. The sink never reports a commit that landed as a
                failure.
        """
        self.merge_micro_batch(batch_df, batch_id)

    def merge_micro_batch(
        self,
        batch_df: DataFrame,
        batch_id: int,
        query: RunningQuery | None = None,
        identity: BatchIdentity | None = None,
    ) -> MergeResult:
        """Merge one micro-batch of a query that the caller knows; a router calls this in its threads.

        Args:
            batch_df: The rows.
            batch_id: The micro-batch's number.
            query: The running query.
            identity: Under which ids the table records the batch, if they do not follow from sink and query.

        Raises:
            StreamMergeError: The table has nothing of the batch.
        """
        from stream_merge.batch.context import run_micro_batch

        return run_micro_batch(*self._completed(batch_df), batch_df, batch_id, query, identity)

    def merge(self, batch_df: DataFrame) -> MergeResult:
        """Run the merge once, outside a stream.

        There is no batch id to recognize a repeated call: a second call merges again. A merge that changes nothing
        commits nothing.

        Raises:
            StreamMergeError: The table has nothing of the batch.
        """
        from stream_merge.batch.context import run_micro_batch

        return run_micro_batch(*self._completed(batch_df), batch_df, None)

    def explain(self, batch_df: DataFrame) -> str:
        """Return the strategy, its reason and what a merge would read, without running the batch or writing anything.

        Raises:
            StreamMergeError: The merge is not possible; `merge` would raise the same error.
        """
        from stream_merge.batch.explain import explain

        return explain(*self._completed(batch_df), batch_df)

    def reset_state(self, spark: SparkSession) -> None:
        """Make the target forget its tombstones, and the keys and sequence that it was written with.

        Call it after changing `keys` or `sequence_by` on purpose, once the table's rows have been made to fit. The rows
        do not change.

        Raises:
            StreamMergeError: The target is not a Delta table, or another writer committed first.
        """
        from stream_merge.tombstones.store import forget_state

        forget_state(spark, self._config.target)

    def _completed(self, batch_df: DataFrame) -> tuple[SinkConfig, SinkCaches]:
        """Return the sink with the options that the rows bring, and the caches that go with them."""
        if self._config.learn is None:
            return self._config, self._state()
        from stream_merge.batch.learning import learnt_sink

        self._learnt = learnt = learnt_sink(self._config, batch_df, self._learnt, self._state())
        return learnt.config, learnt.caches

    def _state(self) -> SinkCaches:
        # Not in __init__: importing the package must start nothing and need no pyspark.
        if self._cache is None:
            from stream_merge.batch.caches import SinkCaches

            self._cache = SinkCaches()
        return self._cache

    def __getstate__(self) -> SinkConfig:
        return self._config

    def __setstate__(self, config: SinkConfig) -> None:
        self._config = config
        self._cache = None
        self._learnt = None
