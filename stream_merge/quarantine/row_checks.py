"""Checks source rows: each check returns the reason why a row cannot be merged, or NULL."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import StructField, StructType

from stream_merge.bridge.attempts import SourceValue, attempted, columns_in, fails, source_values
from stream_merge.bridge.statement import ResolvedMerge
from stream_merge.clauses import Expression
from stream_merge.column_names import SEQUENCE
from stream_merge.config import SinkConfig
from stream_merge.keyless.bind import before_of, is_lost
from stream_merge.merge.lossless_casts import exact
from stream_merge.merge.source import deletes
from stream_merge.order.sequence import has_texts, valid_texts
from stream_merge.partial_updates.fold import unset_columns
from stream_merge.partial_updates.registers import PartialUpdates
from stream_merge.partial_updates.special_changes import is_truncate
from stream_merge.sql import quote
from stream_merge.table.empty_partition_values import empty_as_null, null_if_empty

_SHOWN = 80
"""The number of characters of a value that a reason quotes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Check:
    """A reason to quarantine rows.

    Attributes:
        label: The kind of reason, without the value that it quotes.
        reason: The reason as text; NULL for rows that pass.
    """

    label: str
    reason: Column


@dataclass(frozen=True, slots=True, kw_only=True)
class Checks:
    """Makes the checks of one sink for a batch.

    Attributes:
        batch: The batch as it arrived.
        config: The sink as the user configured it.
        ordered: The sink with its sequence as columns.
        partial: How changes set single columns; None if they do not.
        resolved: The merge. Its source has the batch's columns and the column that the sink adds for the sequence.
        target: The target's schema.
        partition_columns: The columns that partition the target.
        before: The type of the row before a change, for tables without a key.
    """

    batch: DataFrame
    config: SinkConfig
    ordered: SinkConfig
    partial: PartialUpdates | None
    resolved: ResolvedMerge
    target: StructType
    partition_columns: Sequence[str]
    before: StructType | None = None

    @property
    def _spark(self) -> SparkSession:
        return self.batch.sparkSession

    def all(self) -> list[Check]:
        """Return every check; none of them can fail on the data."""
        return self._made(
            self._errors, self._removals, self._null_keys, self._sequence, self._values, self._expectations
        )

    def stated(self) -> list[Check]:
        """Return the checks that the user configured."""
        return self._made(self._errors, self._expectations)

    @staticmethod
    def _made(*parts: Callable[[], Iterator[Check]]) -> list[Check]:
        reasons: dict[str, Column] = {}
        for part in parts:
            for check in part():
                known = reasons.get(check.label)
                reasons[check.label] = check.reason if known is None else F.coalesce(known, check.reason)
        return [Check(label=label, reason=reason) for label, reason in reasons.items()]

    def _expression(self, expression: Expression) -> Column:
        if not isinstance(expression, str):
            return expression
        if expression.lower() in {name.lower() for name in self.batch.columns}:
            return F.col(quote(expression))
        # On separate lines, so that a trailing comment in the text does not swallow the parenthesis.
        return F.expr(f"(\n{expression}\n)")

    def _errors(self) -> Iterator[Check]:
        if self.config.error_column is not None:
            error = self._expression(self.config.error_column)
            yield Check(label="error_column", reason=error.cast("string"))

    def _removals(self) -> Iterator[Check]:
        if self.config.before is None:
            return
        label = "a change removes a row, but before, which identifies the row, is NULL"
        is_lost_row = is_lost(self.config, self.batch.columns) & ~is_truncate(self.config)
        yield Check(label=label, reason=F.when(is_lost_row, F.lit(label)))
        before = before_of(self.config, self.batch.columns)
        written = {name.lower() for name in self.ordered.columns}
        written &= {name.lower() for name in self.batch.columns}
        assert self.before is not None
        types = {field.name.lower(): field.dataType for field in self.before.fields}

        def converted(field: StructField) -> Column:
            value = before.getField(field.name)
            narrowed = value.cast(field.dataType)
            checked = exact(value, narrowed, field.name, types[field.name.lower()], field.dataType)
            return narrowed if checked is None else checked

        values = [
            converted(field).alias(f"v{number}")
            for number, field in enumerate(self.target.fields)
            if field.name.lower() in written
        ]
        label = "before cannot be converted to the target's types"
        if values:
            yield Check(label=label, reason=F.when(fails(self._spark, F.struct(*values)), F.lit(label)))

    def _null_keys(self) -> Iterator[Check]:
        if self.config.null_keys != "quarantine":
            return
        keys = {key: F.col(quote(key)) for key in self.config.keys}
        nullable = empty_as_null(keys, self.partition_columns, self.batch.schema, self.target)
        keys |= {key: null_if_empty(value) for key, value in keys.items() if key.lower() in nullable}
        names = [F.when(value.isNull(), F.lit(key)) for key, value in keys.items()]
        listed = F.concat(F.lit("NULL in a key ("), F.concat_ws(", ", *names), F.lit(")"))
        is_null = F.coalesce(*names).isNotNull() & ~is_truncate(self.config)
        yield Check(label="NULL in a key", reason=F.when(is_null, listed))

    def _expectations(self) -> Iterator[Check]:
        for name, condition in self.config.expect.items():
            label = f"expectation {name} failed"
            expected = self._expression(condition)
            is_met = ~self._is_asked(expected) | attempted(self._spark, expected)
            yield Check(label=label, reason=F.when(is_met, F.lit(None)).otherwise(F.lit(label)))

    def _is_asked(self, expected: Column) -> Column:
        """Return whether an expectation applies to a change.

        A delete has only its key and its position, a TRUNCATE not even a key, and a change that leaves a column
        unchanged has an arbitrary value in it.
        """
        is_delete = F.lit(False)
        if not self.config.clauses:
            is_delete = F.coalesce(attempted(self._spark, deletes(self.resolved)), F.lit(False))
        has_row = ~(is_delete | is_truncate(self.config))
        if self.partial is None:
            return has_row
        names = columns_in(self.batch.alias(self.config.source_alias), expected)
        names &= {name.lower() for name in self.partial.columns}
        if not names:
            return has_row
        unset = attempted(self._spark, unset_columns(self.config, self.partial.columns))
        leaves = F.arrays_overlap(unset, F.array(*[F.lit(name) for name in sorted(names)]))
        return has_row & ~F.coalesce(leaves, F.lit(False))

    def _sequence(self) -> Iterator[Check]:
        """Check texts of the sequence, and its expressions if it is not a column yet; rows that pass get the column."""
        if not self.config.keeps_order and SEQUENCE not in self.ordered.sequence_columns:
            return
        parts = (*self.config.sequence_by, *self.config.tie_break_by)
        named = self.batch.alias(self.config.source_alias)
        for part in parts:
            value = self._expression(part)
            label = "the sequence is not UTF-8" + (f": {part}" if isinstance(part, str) else "")
            kind = named.select(value.alias("part")).schema["part"].dataType
            if has_texts(kind):
                is_no_text = fails(self._spark, valid_texts(value, kind)) & ~fails(self._spark, value)
                yield Check(label=label, reason=F.when(is_no_text, F.lit(label)))
        if SEQUENCE not in self.ordered.sequence_columns:
            return
        stored = self.target[SEQUENCE].dataType if SEQUENCE in self.target.names else None
        for number, part in enumerate(parts):
            value = self._expression(part)
            if isinstance(stored, StructType) and number < len(stored):
                value = value.cast(stored[number].dataType)
            label = "the sequence cannot be computed" + (f": {part}" if isinstance(part, str) else "")
            yield Check(label=label, reason=F.when(fails(self._spark, value), F.lit(label)))

    def _values(self) -> Iterator[Check]:
        given = {name.lower() for name in self.batch.columns}
        keys = {key.lower() for key in self.config.keys}
        required = {field.name.lower() for field in self.target.fields if not field.nullable} - keys
        if self.partial is not None:
            # NULL may mean that the change leaves the column unchanged.
            required -= {name.lower() for name in self.partial.columns}
        conversions: dict[tuple[str, ...], list[Column]] = {}
        values = self.resolved.once("source_values", lambda: source_values(self.resolved))
        # Conditions last: they need not repeat what a column's own conversion reports.
        for value in sorted(values, key=lambda value: value.column is None):
            if not given.issuperset(name.lower() for name in value.sources):
                continue
            if value.can_fail:
                check = self._conversion(value)
                known = conversions.setdefault(value.sources, [])
                if value.column is None and known:
                    check = replace(check, reason=F.when(F.coalesce(*known).isNull(), check.reason))
                known.append(check.reason)
                yield check
            if value.column is not None and value.column.lower() in required:
                yield self._not_null(value)

    def _conversion(self, value: SourceValue) -> Check:
        names = ", ".join(value.sources)
        label = f"{names} cannot be converted to {value.type_name}"
        if value.column is not None and value.column.lower() != names.lower():
            label = f"{value.column}: {label}"
        shown: list[Column] = []
        if len(value.sources) == 1:
            shown = [F.left(attempted(self._spark, F.col(quote(names)).cast("string")), F.lit(_SHOWN))]
        reason = F.concat_ws(": ", F.lit(label), *shown)
        return Check(label=label, reason=F.when(self._is_taken(value) & fails(self._spark, value.value), reason))

    def _not_null(self, value: SourceValue) -> Check:
        label = f"{value.column} is NULL, which the target does not allow"
        is_null = attempted(self._spark, F.struct(value.value.alias("value"))).getField("value").isNull()
        return Check(label=label, reason=F.when(self._is_taken(value) & is_null, F.lit(label)))

    def _is_taken(self, value: SourceValue) -> Column:
        """Return whether the merge may use the value of a row."""
        name = None if value.column is None else value.column.lower()
        if self.config.keeps_order and name in {column.lower() for column in self.ordered.sequence_columns}:
            return F.lit(True)
        # The merge uses nothing else of a TRUNCATE.
        is_row = ~is_truncate(self.config)
        keys = {key.lower() for key in self.config.keys}
        if name is None or (self.config.keeps_order and name in keys):
            # Conditions are evaluated for every row; tombstones keep the keys and sequence of deletes.
            return is_row
        # The default clauses use only the key of a delete, whether it matches or not.
        taken = value.taken_when if self.config.clauses else ~deletes(self.resolved)
        return is_row if taken is None else is_row & F.coalesce(attempted(self._spark, taken), F.lit(False))
