"""Binds a sink and its batch to a table: puts both in terms of columns that the table has."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F
from pyspark.sql.types import (
    AtomicType,
    BooleanType,
    DataType,
    DateType,
    DecimalType,
    NullType,
    StringType,
    StructType,
    TimestampType,
)

from stream_merge.batch.schema_changes import NOTHING, SchemaChanges, with_schema_changes
from stream_merge.bridge.expressions import are_stable
from stream_merge.bridge.kept_plans import KeptPlan, kept_plan
from stream_merge.bridge.statement import Once
from stream_merge.clauses import Expression
from stream_merge.column_names import COLUMN_SEQUENCES, RESERVED_PREFIX, SEQUENCE
from stream_merge.config import SinkConfig
from stream_merge.errors import SchemaMismatchError, UnresolvedColumnError
from stream_merge.keyless.bind import with_row_ids
from stream_merge.merge import lossless_casts
from stream_merge.merge.fields_by_name import has_other_order, has_same_fields, in_order_of
from stream_merge.merge.key_and_sequence import sequence_type_in
from stream_merge.merge.lossless_casts import exactly_typed
from stream_merge.order.sequence import has_texts, in_type_of_target, stored_in, valid_texts, with_sequence
from stream_merge.partial_updates.registers import PartialUpdates, find_partial_updates
from stream_merge.sql import column_of, quote
from stream_merge.table.char_columns import char_columns, without_blanks
from stream_merge.table.empty_partition_values import empty_as_null, null_if_empty
from stream_merge.table.features import GENERATED
from stream_merge.widening import lacks_fields, wider


@dataclass(frozen=True, slots=True, kw_only=True)
class Bound:
    """A sink and a batch in terms of columns that a table has.

    Attributes:
        config: The sink; its sequence, and the key of a table without one, are columns.
        frame: The batch with these columns.
        partial: How changes of the sink may set single columns, if they may.
        is_keyless: Whether the table has no key, so that removals are paired with rows.
        changes: What the batch's columns ask of the table.
    """

    config: SinkConfig
    frame: DataFrame
    partial: PartialUpdates | None = None
    is_keyless: bool = False
    changes: SchemaChanges = NOTHING


def bind(
    config: SinkConfig,
    batch: DataFrame,
    schema: StructType,
    changes: SchemaChanges = NOTHING,
    *,
    partition_columns: Sequence[str],
    is_typed: bool = True,
    once: Once | None = None,
) -> Bound:
    """Bind a sink and a batch to a table.

    Args:
        config: The sink as the user configured it.
        batch: The batch as it arrived.
        schema: The table's.
        changes: What the batch's columns ask of the table.
        partition_columns: The columns that partition the table.
        is_typed: Whether keys and sequence get the table's types, with an error where that changes a value. The
            quarantine checks the batch before that.
        once: Keeps the plan for other batches of this sink with the same columns and settings.

    Raises:
        SchemaMismatchError: The sequence has another order in the table's type, or the fields of a struct in keys and
            sequence have other names there.
    """

    def bound_to(rows: DataFrame) -> Bound:
        return _bound(config, rows, schema, changes, partition_columns, is_typed=is_typed)

    if once is None or not changes.is_nothing or config.before is not None:
        return bound_to(batch)

    def make() -> tuple[Bound, KeptPlan | None] | None:
        made: list[tuple[Bound, bool]] = []

        def build(rows: DataFrame) -> DataFrame:
            bound = bound_to(rows)
            made.append((bound, bound.frame is rows))
            return bound.frame

        plan = kept_plan(batch, build)
        ((bound, is_as_it_came),) = made
        return (bound, None if is_as_it_came else plan) if _is_stable(config, batch) else None

    kept = once(f"bound {is_typed} {list(partition_columns)} {batch.schema.json()}", make)
    if kept is None:
        return bound_to(batch)
    bound, plan = kept
    return replace(bound, frame=batch if plan is None else plan.on(batch))


def _bound(
    config: SinkConfig,
    batch: DataFrame,
    schema: StructType,
    changes: SchemaChanges,
    partition_columns: Sequence[str],
    *,
    is_typed: bool,
) -> Bound:
    config, batch = with_schema_changes(config, batch, changes, schema)
    batch = _with_types(batch, schema)
    batch = _with_values(batch, _by_name(config, batch.schema, schema))
    config, batch = _with_keys(config, batch, schema, partition_columns)
    if config.before is not None:
        config, batch = with_row_ids(config, batch, schema)
        return Bound(config=config, frame=batch, is_keyless=True, changes=changes)
    if config.alters_columns and not (config.columns or config.except_columns) and _lacks_columns(batch, schema):
        # Delta looks for each column of the table in the source, unless the schema may evolve.
        config = replace(config, merge_schema=True)
    elif leaves_columns_out(config, batch, schema):
        # These columns are then older than the rows, as where the sink says so itself.
        config = replace(config, columns=tuple(batch.columns))
    config, batch = _with_sequence(config, batch, schema)
    if is_typed and config.keeps_order:
        batch = _typed_as_in_target(config, batch, schema)
        batch = _with_values(batch, _values_of_moves(config, batch, schema, changes))
    if not config.sets_columns and (not config.keeps_order or COLUMN_SEQUENCES not in schema.names):
        return Bound(config=config, frame=batch, changes=changes)
    if config.columns or config.except_columns:
        config = replace(config, columns=_written_in_target(config, batch, schema), except_columns=())
    sequence = None
    if config.sequence_by:
        in_target = {name.lower() for name in schema.names}
        holder = schema if in_target.issuperset(map(str.lower, config.sequence_columns)) else batch.schema
        sequence = sequence_type_in(holder, config.sequence_columns)
    partial = find_partial_updates(config, batch.schema.fields, schema.fields, sequence)
    if partial is not None and sequence is not None:
        batch = batch.withColumn(COLUMN_SEQUENCES, F.lit(None).cast(partial.sequences_type))
        if config.columns:
            config = replace(config, columns=(*config.columns, COLUMN_SEQUENCES))
    return Bound(config=config, frame=batch, partial=partial, changes=changes)


def _written_in_target(config: SinkConfig, batch: DataFrame, schema: StructType) -> tuple[str, ...]:
    """Return the columns that the sink writes, and those of its sequence."""
    in_target = {name.lower() for name in schema.names}
    written = config.written_columns(batch.columns)
    kept = [name for name in written if config.merge_schema or name.lower() in in_target]
    if config.columns and len(kept) < len(written):
        raise UnresolvedColumnError(
            f"{config.target}: columns names {', '.join(name for name in written if name not in kept)}, and the table "
            "has no such column: add it to the table, set merge_schema, or leave the name out"
        )
    # The sequence may be spelt otherwise than in the batch.
    spellings: dict[str, str] = {}
    for name in (*kept, *config.sequence_columns):
        spellings.setdefault(name.lower(), name)
    return tuple(spellings.values())


def leaves_columns_out(config: SinkConfig, batch: DataFrame, schema: StructType) -> bool:
    """Return whether a batch leaves columns of the table alone because the schema may evolve, in the order of changes.

    Delta takes no batch without all of the table's columns otherwise. The age of the columns is not kept if the table
    has generated columns, which no change of single columns sets, or if the batch lacks fields of a struct, which it
    would set to NULL.
    """
    if not config.merge_schema or not config.keeps_order or config.alters_columns or config.sets_columns:
        return False
    if not _lacks_columns(batch, schema) or any(GENERATED in (field.metadata or {}) for field in schema.fields):
        return False
    kinds = {field.name.lower(): field.dataType for field in schema.fields}
    return not any(
        lacks_fields(field.dataType, kinds.get(field.name.lower(), field.dataType)) for field in batch.schema.fields
    )


def _lacks_columns(batch: DataFrame, schema: StructType) -> bool:
    """Return whether the table has columns that neither the batch nor the sink gives a value."""
    given = {name.lower() for name in batch.columns}
    return any(
        field.name.lower() not in given
        and not field.name.startswith(RESERVED_PREFIX)
        and GENERATED not in (field.metadata or {})
        for field in schema.fields
    )


def _is_stable(config: SinkConfig, batch: DataFrame) -> bool:
    """Return whether the sequence is provably analysed alike at any time."""
    names = {name.lower() for name in batch.columns}
    parts = [part for part in config.sequence_parts if not isinstance(part, str) or part.lower() not in names]
    texts = [part for part in parts if isinstance(part, str)]
    return len(texts) == len(parts) and are_stable(batch.sparkSession, texts, (config.source_alias, batch.columns))


def _with_types(batch: DataFrame, schema: StructType) -> DataFrame:
    """Give columns that are NULL without a type the types of the table's columns."""
    in_target = {field.name.lower(): field.dataType for field in schema.fields}
    typed = {
        field.name: F.lit(None).cast(in_target[field.name.lower()])
        for field in batch.schema.fields
        if isinstance(field.dataType, NullType) and field.name.lower() in in_target
    }
    return _with_values(batch, typed)


def _with_keys(
    config: SinkConfig, batch: DataFrame, schema: StructType, partition_columns: Sequence[str]
) -> tuple[SinkConfig, DataFrame]:
    """Give values that are compared across batches one spelling, whatever the table's files make of them.

    Delta writes an empty value as NULL where it partitions the table. Blanks at the end of a CHAR may come and go with
    the files: keys that are compared within a batch and with tombstones have none. The keys that rows had or get
    (`old_key`, `new_key`) are treated alike, since they are compared with these.
    """
    parts = [part for part in config.sequence_parts if isinstance(part, str)]
    nullable = empty_as_null((*config.keys, *parts), partition_columns, batch.schema, schema)
    padded = char_columns(schema) & {name.lower() for name in config.keys} if config.keeps_order else frozenset()
    kinds = {
        field.name: field.dataType
        for field in batch.schema.fields
        if field.name.lower() in nullable or (field.name.lower() in padded and isinstance(field.dataType, StringType))
    }
    if not kinds:
        return config, batch

    def spelt(name: str, value: Column) -> Column:
        value = without_blanks(value) if name.lower() in padded else value
        return null_if_empty(value) if name.lower() in nullable else value

    fields = {name: kinds[kept] for name in config.keys for kept in kinds if kept.lower() == name.lower()}

    def of_moves(key: Expression | None) -> Expression | None:
        if key is None:
            return None
        value = column_of(key)
        for name, kind in fields.items():
            value = value.withField(quote(name), spelt(name, value.getField(name).cast(kind)))
        return value

    config = replace(config, old_key=of_moves(config.old_key), new_key=of_moves(config.new_key))
    return config, _with_values(batch, {name: spelt(name, F.col(quote(name))) for name in kinds})


def _with_values(batch: DataFrame, values: Mapping[str, Column]) -> DataFrame:
    """Return a batch with other values in some of its columns; the batch itself if there are none."""
    if not values:
        return batch
    return batch.select(*[values[n].alias(n) if n in values else F.col(quote(n)) for n in batch.columns])


def _typed_as_in_target(config: SinkConfig, batch: DataFrame, schema: StructType) -> DataFrame:
    """Cast the keys and sequence of a batch to the target's types, so that all steps compare the same values.

    Keys that only the cast makes equal ('1' and '01' in an INT) are then one key, within the batch and among the
    deletes.
    """
    in_target = {field.name.lower(): field.dataType for field in schema.fields}
    given = {field.name.lower(): field for field in batch.schema.fields}
    typed = {}
    for name in config.sequence_columns:
        field, kept = given.get(name.lower()), in_target.get(name.lower())
        if field is None or kept is None or field.name == SEQUENCE:
            continue
        value = valid_texts(F.col(quote(field.name)), field.dataType)
        if field.dataType != kept:
            typed[field.name] = in_type_of_target(value, field.name, field.dataType, kept)
        elif has_texts(kept):
            typed[field.name] = value
    for name in config.keys:
        field, kept = given.get(name.lower()), in_target.get(name.lower())
        if field is None or kept is None or field.dataType == kept or field.name in typed:
            continue
        # Distinct numbers have distinct texts, so a cast to STRING makes no two keys equal.
        if _is_plain(field.dataType) and _is_plain(kept) and not isinstance(kept, StringType):
            typed[field.name] = exactly_typed(F.col(quote(field.name)), field.name, field.dataType, kept)
    typed |= _reordered((*config.sequence_columns, *config.keys), batch.schema, schema, typed)
    return _with_values(batch, typed)


def _values_of_moves(
    config: SinkConfig, batch: DataFrame, schema: StructType, changes: SchemaChanges
) -> dict[str, Column]:
    """Return values of a batch in types that hold the target's as well, if rows may take these along to other keys."""
    if config.old_key is None and config.new_key is None:
        return {}
    kinds = {field.name.lower(): field.dataType for field in schema.fields}
    kinds |= {name.lower(): kind for name, kind in changes.widened.items()}
    written = {name.lower() for name in config.written_columns(batch.columns)}
    written -= {name.lower() for name in (*config.sequence_columns, *config.keys)}
    is_exact = lossless_casts.is_wanted(batch.sparkSession)
    values = {}
    for field in batch.schema.fields:
        kept, given = kinds.get(field.name.lower()), field.dataType
        if field.name.lower() not in written or kept is None or not has_same_fields(given, kept):
            continue
        value, both = F.col(quote(field.name)), wider(kept, given)
        if given.simpleString() in {kept.simpleString(), both and both.simpleString()} or _has_all_of(given, kept):
            continue
        if isinstance(both, DecimalType):
            # What does not fit the target is no error before it is known that the merge needs it.
            values[field.name] = value.cast(both)
            continue
        is_lossless = both is not None and both.simpleString() == kept.simpleString()
        values[field.name] = lossless_casts.as_kept(
            value, field.name, given, kept, is_exact=is_exact and not is_lossless
        )
    return values


def _has_all_of(given: DataType, kept: DataType) -> bool:
    """Return whether a type has a value for each of another type's, where `wider` knows nothing of both."""
    is_longer = isinstance(given, TimestampType) and isinstance(kept, DateType)
    return is_longer or isinstance(given, StringType) or isinstance(kept, BooleanType)


def in_order_of_target(config: SinkConfig, bound: SinkConfig, batch: DataFrame, schema: StructType) -> DataFrame:
    """Return a batch as it came, but with the fields of its structs in the target's order where that counts.

    Args:
        config: The sink as the user configured it.
        bound: The sink as `bind` returned it.
        batch: The batch.
        schema: The target's.

    Raises:
        SchemaMismatchError: A struct in keys or sequence has other fields.
    """
    values = _by_name(config, batch.schema, schema)
    if config.keeps_order and config.before is None:
        values |= _reordered((*bound.sequence_columns, *bound.keys), batch.schema, schema, values)
    return _with_values(batch, values)


def _by_name(config: SinkConfig, batch: StructType, schema: StructType) -> dict[str, Column]:
    """Return the values of columns with structs whose fields have another order in the target.

    Only where the sink itself compares or unites the batch's values with the target's; Delta sets fields by name.
    """
    if not config.sets_columns and config.before is None:
        return {}
    in_target = {field.name.lower(): field.dataType for field in schema.fields}
    return {
        field.name: in_order_of(F.col(quote(field.name)), field.dataType, kept)
        for field in batch.fields
        if (kept := in_target.get(field.name.lower())) is not None and has_other_order(field.dataType, kept)
    }


def _reordered(
    names: Sequence[str], batch: StructType, schema: StructType, typed: Mapping[str, Column]
) -> dict[str, Column]:
    """Return the values of columns that are structs whose fields have another order in the target."""
    in_target = {field.name.lower(): field.dataType for field in schema.fields}
    wanted = {name.lower() for name in names} - {SEQUENCE}
    reordered = {}
    for field in batch.fields:
        kept = in_target.get(field.name.lower())
        if field.name.lower() not in wanted or kept is None:
            continue
        if isinstance(field.dataType, StructType) and not has_same_fields(field.dataType, kept):
            raise SchemaMismatchError(
                f"{field.name} is {field.dataType.simpleString().upper()} in the batch and "
                f"{kept.simpleString().upper()} in the target. Give the struct the target's fields in the source"
            )
        if has_other_order(field.dataType, kept):
            reordered[field.name] = in_order_of(typed.get(field.name, F.col(quote(field.name))), field.dataType, kept)
    return reordered


def _is_plain(data_type: DataType) -> bool:
    return isinstance(data_type, AtomicType) and not isinstance(data_type, NullType)


def _with_sequence(config: SinkConfig, batch: DataFrame, schema: StructType) -> tuple[SinkConfig, DataFrame]:
    if not config.sequence_by:
        return config, batch
    # Clauses of the user's own compare with the target as they like; the order decides inside the batch alone.
    columns = stored_in(config.sequence_parts, batch.columns, schema.names if config.keeps_order else batch.columns)
    if columns == (SEQUENCE,):
        target_type = schema[SEQUENCE].dataType if SEQUENCE in schema.names else None
        batch = with_sequence(batch, config.sequence_parts, config.source_alias, target_type)
    return replace(config, sequence_by=columns, tie_break_by=()), batch
