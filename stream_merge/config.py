"""Options of a sink with their defaults and limits; the check reports all faults at once."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from typing import TYPE_CHECKING, Any, TypeAlias

from stream_merge.clauses import Clause, Expression
from stream_merge.errors import ConfigError
from stream_merge.metrics import MergeResult
from stream_merge.plan import Strategy

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

OUTPUT_MODES = ("append", "update", "complete")
NULL_KEY_POLICIES = ("error", "match", "quarantine")
LOCATORS = ("scan", "index")
SCHEMA_CHANGES = ("evolve", "lenient", "ignore", "error")
MAX_COMMIT_RETRIES = 1000

DEFAULT_TOMBSTONE_RETENTION = timedelta(days=7)

NO_QUARANTINE_IN_COMPLETE = (
    "quarantine, error_column and expect do not work in output mode complete, where each batch repeats the same rows; "
    "use update"
)

_ALIAS = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")

Remembered: TypeAlias = Callable[[], "tuple[str, ...] | None"]
"""Returns the keys that the target was written with: none for a table without a key, None if it remembers nothing."""

Learn: TypeAlias = "Callable[[DataFrame, Remembered], Mapping[str, Any]]"
"""Returns further options of `merge_sink` for the rows of a micro-batch."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SinkConfig:
    """All options of `merge_sink`, which documents them."""

    target: str
    learn: Learn | None = None
    keys: tuple[str, ...] = ()
    on: Expression | None = None
    before: Expression | None = None
    sequence_by: tuple[Expression, ...] = ()
    tie_break_by: tuple[Expression, ...] = ()
    tombstone_retention: timedelta = DEFAULT_TOMBSTONE_RETENTION
    delete_when: Expression | None = None
    truncate_when: Expression | None = None
    columns: tuple[str, ...] = ()
    except_columns: tuple[str, ...] = ()
    unchanged_columns: Expression | None = None
    ignore_null_updates: bool | tuple[str, ...] = False
    old_key: Expression | None = None
    new_key: Expression | None = None
    clauses: tuple[Clause, ...] = ()
    source_alias: str = "source"
    target_alias: str = "target"
    merge_schema: bool = False
    schema_changes: str | None = None
    overwrite_schema: bool = False
    create_if_missing: bool = False
    partition_by: tuple[str, ...] = ()
    cluster_by: tuple[str, ...] = ()
    table_properties: Mapping[str, str] = field(default_factory=dict)
    app_id: str | None = None
    output_mode: str | None = None
    strategy: str | None = None
    locator: str | None = None
    null_keys: str = "error"
    check_cardinality: bool = True
    skip_unchanged: bool = False
    single_writer: bool = False
    maintenance: bool = False
    quarantine: str | None = None
    error_column: Expression | None = None
    expect: Mapping[str, Expression] = field(default_factory=dict)
    max_quarantined_share: float = 1.0
    max_commit_retries: int = 10
    user_metadata: str | None = None
    on_result: Callable[[MergeResult], None] | None = None

    @property
    def sequence_parts(self) -> tuple[Expression, ...]:
        """The expressions that order the changes of a key: the sequence, then the tie-break."""
        return (*self.sequence_by, *self.tie_break_by)

    @property
    def change_expressions(self) -> tuple[Expression, ...]:
        """The expressions that decide what a change does: its order, its kind, and which values it has."""
        options = (self.delete_when, self.truncate_when, self.unchanged_columns, self.old_key, self.new_key)
        found = (*self.sequence_parts, *options, self.error_column)
        return tuple(each for each in found if each is not None)

    @property
    def sequence_columns(self) -> tuple[str, ...]:
        """The names of the columns that hold the sequence."""
        return tuple(part for part in self.sequence_by if isinstance(part, str))

    @property
    def requested_strategy(self) -> Strategy | None:
        """The strategy that the user chose, if any."""
        return None if self.strategy is None else Strategy(self.strategy)

    @property
    def keeps_order(self) -> bool:
        """Whether the sink keeps the order of changes across batches, as its default clauses do with a sequence."""
        return bool(self.sequence_by) and not self.clauses

    @property
    def keeps_values(self) -> bool:
        """Whether the target must hold exactly the source's values: true for changes, not for a query's results."""
        return not self.clauses and (bool(self.sequence_by) or self.before is not None)

    @property
    def keeps_tombstones(self) -> bool:
        """Whether the sink remembers deletes."""
        return self.keeps_order and bool(self.tombstone_retention)

    @property
    def checks_rows(self) -> bool:
        """Whether the sink checks rows before it merges them."""
        return self.quarantine is not None or self.error_column is not None or bool(self.expect)

    @property
    def sets_columns(self) -> bool:
        """Whether a change may set only some columns of a row."""
        return (
            bool(self.columns or self.except_columns or self.ignore_null_updates) or self.unchanged_columns is not None
        )

    @property
    def follows_columns(self) -> bool:
        """Whether the sink looks for changes of the source's columns."""
        return self.schema_changes is not None and self.schema_changes != "ignore"

    @property
    def alters_columns(self) -> bool:
        """Whether the sink gives the table the columns and types of the source."""
        return self.schema_changes in ("evolve", "lenient")

    @property
    def needs_default_clauses(self) -> dict[str, bool]:
        """The options that belong to the default clauses, and whether each is given."""
        return {
            "before": self.before is not None,
            "delete_when": self.delete_when is not None,
            "truncate_when": self.truncate_when is not None,
            "columns": bool(self.columns),
            "except_columns": bool(self.except_columns),
            "unchanged_columns": self.unchanged_columns is not None,
            "ignore_null_updates": bool(self.ignore_null_updates),
            "old_key": self.old_key is not None,
            "new_key": self.new_key is not None,
            "schema_changes": self.schema_changes is not None,
        }

    def ignores_nulls_of(self, columns: Sequence[str]) -> list[str]:
        """Return the columns whose NULL leaves the target's value unchanged."""
        if isinstance(self.ignore_null_updates, bool):
            return list(columns) if self.ignore_null_updates else []
        ignored = {name.lower() for name in self.ignore_null_updates}
        return [name for name in columns if name.lower() in ignored]

    def written_columns(self, names: Sequence[str]) -> tuple[str, ...]:
        """Return the batch's columns to write: the keys and the chosen columns, or all but the excepted ones."""
        chosen = {name.lower() for name in self.columns}
        excepted = {name.lower() for name in self.except_columns}
        keys = {name.lower() for name in self.keys}
        return tuple(
            name
            for name in names
            if name.lower() in keys or ((not chosen or name.lower() in chosen) and name.lower() not in excepted)
        )

    def check(self) -> None:
        """Raise `ConfigError` with all faults that show without a table."""
        # What is learnt completes the options about keys: they are checked with it, for each micro-batch.
        keys = self._key_faults() if self.learn is None else self._learn_faults()
        faults = [*keys, *self._choice_faults(), *self._quarantine_faults(), *self._creation_faults()]
        if faults:
            raise ConfigError(faults)

    def _learn_faults(self) -> list[str]:
        faults = [] if callable(self.learn) else [f"learn is a {type(self.learn).__name__}, not a function"]
        return faults + [
            f"learn brings what identifies a row; leave {name} out"
            for name, is_given in (
                ("keys", bool(self.keys)),
                ("on", self.on is not None),
                ("before", self.before is not None),
            )
            if is_given
        ]

    def _key_faults(self) -> list[str]:
        faults = []
        if [bool(self.keys), self.on is not None, self.before is not None].count(True) != 1:
            faults.append("give exactly one of keys, on and before")
        for name, columns in (
            ("keys", self.keys),
            ("sequence_by", self.sequence_by),
            ("tie_break_by", self.tie_break_by),
        ):
            texts = [column for column in columns if isinstance(column, str)]
            if len(set(texts)) < len(texts):
                faults.append(f"{name} names a column twice: {', '.join(texts)}")
            if not all(text.strip() for text in texts):
                faults.append(f"{name} has an empty column name")
        if self.tie_break_by and not self.sequence_by:
            faults.append("tie_break_by needs sequence_by")
        if self.tombstone_retention < timedelta(0):
            faults.append(
                f"tombstone_retention={self.tombstone_retention} is negative; timedelta(0) keeps no tombstones"
            )
        if self.before is not None:
            faults += self._keyless_faults()
        elif not self.keys:
            faults += [
                f"{name} needs keys"
                for name, is_given in (
                    ("sequence_by", bool(self.sequence_by)),
                    *self.needs_default_clauses.items(),
                    (f"null_keys={self.null_keys!r}", self.null_keys != "error"),
                )
                if is_given
            ]
        if self.clauses:
            faults += [
                f"{name} belongs to the default clauses; express it in your own clauses instead"
                for name, is_given in self.needs_default_clauses.items()
                if is_given
            ]
        return [*faults, *self._column_faults()]

    def _keyless_faults(self) -> list[str]:
        faults = [
            f"before needs {name}"
            for name, is_given in (
                ("sequence_by, which identifies an event", bool(self.sequence_by)),
                ("delete_when, which tells removals from updates", self.delete_when is not None),
                ("a tombstone_retention: a removal waits for a row that arrives late", bool(self.tombstone_retention)),
            )
            if not is_given
        ]
        return faults + [
            f"{name} needs keys, and a sink with before has none; leave it out"
            for name, is_given in (
                ("unchanged_columns", self.unchanged_columns is not None),
                ("ignore_null_updates", bool(self.ignore_null_updates)),
                ("old_key", self.old_key is not None),
                ("new_key", self.new_key is not None),
                (f"null_keys={self.null_keys!r}", self.null_keys != "error"),
            )
            if is_given
        ]

    def _column_faults(self) -> list[str]:
        faults = []
        if self.columns and self.except_columns:
            faults.append("columns and except_columns exclude each other; give one of them")
        keys = {key.lower() for key in self.keys}
        for name, columns in (
            ("except_columns", self.except_columns),
            ("ignore_null_updates", self.ignore_null_updates or ()),
        ):
            named = [column for column in columns if column.lower() in keys] if not isinstance(columns, bool) else []
            if named:
                faults.append(f"{name} names the key {', '.join(named)}")
        if (self.old_key is None) != (self.new_key is None):
            faults.append("give old_key and new_key together: a row that gets another key is a delete and an upsert")
        elif self.old_key is not None:
            faults += [
                f"old_key and new_key need {name}"
                for name, is_given in (
                    (
                        "unchanged_columns: only values that a change does not send move with the row",
                        self.unchanged_columns is not None,
                    ),
                    ("sequence_by", bool(self.sequence_by)),
                    ("delete_when", self.delete_when is not None),
                )
                if not is_given
            ]
        if self.truncate_when is not None and not (self.sequence_by and self.tombstone_retention):
            faults.append(
                "truncate_when needs sequence_by and a tombstone_retention: rows newer than the truncate stay"
            )
        return faults

    def _choice_faults(self) -> list[str]:
        strategies = tuple(strategy.value for strategy in Strategy)
        faults = [
            f"{name}={value!r} is not one of {', '.join(legal)}"
            for name, value, legal in (
                ("output_mode", self.output_mode, OUTPUT_MODES),
                ("null_keys", self.null_keys, NULL_KEY_POLICIES),
                ("strategy", self.strategy, strategies),
                ("locator", self.locator, LOCATORS),
                ("schema_changes", self.schema_changes, SCHEMA_CHANGES),
            )
            if value is not None and value not in legal
        ]
        for name, alias in (("source_alias", self.source_alias), ("target_alias", self.target_alias)):
            if not _ALIAS.fullmatch(alias):
                faults.append(f"{name}={alias!r} is not a plain identifier")
        if self.source_alias.lower() == self.target_alias.lower():
            faults.append(f"source_alias and target_alias are both {self.source_alias!r}")
        if not 0 <= self.max_commit_retries <= MAX_COMMIT_RETRIES:
            faults.append(f"max_commit_retries={self.max_commit_retries} is not between 0 and {MAX_COMMIT_RETRIES}")
        if not self.target.strip():
            faults.append("target is empty")
        if self.app_id is not None and not self.app_id.strip():
            faults.append("app_id is empty")
        if self.overwrite_schema and self.merge_schema:
            faults.append("overwrite_schema and merge_schema exclude each other; set one of them")
        if self.schema_changes is not None and (self.merge_schema or self.overwrite_schema):
            name = "merge_schema" if self.merge_schema else "overwrite_schema"
            faults.append(f"schema_changes={self.schema_changes!r} says what becomes of new columns; leave {name} out")
        if self.skip_unchanged and not self.check_cardinality:
            faults.append("skip_unchanged needs check_cardinality: one of several matches of a row may change it")
        return faults

    def _quarantine_faults(self) -> list[str]:
        faults = []
        if self.quarantine is None:
            faults += [
                f"{name} needs quarantine, the table that takes the rows"
                for name, is_given in (
                    ('null_keys="quarantine"', self.null_keys == "quarantine"),
                    ("max_quarantined_share", self.max_quarantined_share != 1),
                )
                if is_given
            ]
        elif not self.quarantine.strip():
            faults.append("quarantine is empty")
        elif self.quarantine == self.target:
            faults.append("quarantine is the target")
        if self.checks_rows and self.output_mode == "complete":
            faults.append(NO_QUARANTINE_IN_COMPLETE)
        for name, condition in self.expect.items():
            if not name.strip() or (isinstance(condition, str) and not condition.strip()):
                faults.append(f"expect has an empty name or condition: {name!r}")
        if isinstance(self.error_column, str) and not self.error_column.strip():
            faults.append("error_column is empty")
        if not 0 <= self.max_quarantined_share <= 1:
            faults.append(f"max_quarantined_share={self.max_quarantined_share} is not between 0 and 1")
        return faults

    def _creation_faults(self) -> list[str]:
        faults = []
        if not self.create_if_missing:
            faults += [
                f"{name} describes a new table; set create_if_missing=True"
                for name, is_given in (
                    ("partition_by", bool(self.partition_by)),
                    ("cluster_by", bool(self.cluster_by)),
                    ("table_properties", bool(self.table_properties)),
                )
                if is_given
            ]
        if self.partition_by and self.cluster_by:
            faults.append("partition_by and cluster_by exclude each other; give one of them")
        return faults
