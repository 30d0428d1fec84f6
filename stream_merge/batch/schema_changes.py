"""Decides what the columns of a batch ask of a table, and puts the batch in terms of the table's new columns."""

from __future__ import annotations

import logging
import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F
from pyspark.sql.types import (
    AtomicType,
    BinaryType,
    DataType,
    DateType,
    DecimalType,
    DoubleType,
    FloatType,
    IntegralType,
    NullType,
    StringType,
    StructField,
    StructType,
    TimestampNTZType,
    TimestampType,
)

from stream_merge.bridge.expressions import named_columns
from stream_merge.bridge.table import Table
from stream_merge.bridge.transaction import Transaction
from stream_merge.clauses import Expression
from stream_merge.column_names import RESERVED_PREFIX
from stream_merge.config import SinkConfig
from stream_merge.errors import SchemaChangedError
from stream_merge.merge.fields_by_name import with_fields_of
from stream_merge.sql import column_of, quote
from stream_merge.tombstones.history import columns_of_batches
from stream_merge.widening import in_shape, is_widened, keeps_text, lacked_fields, lacks_fields, wider

logger: logging.Logger = logging.getLogger("stream_merge")

WIDENING = "delta.enableTypeWidening"


@dataclass(frozen=True, slots=True, kw_only=True)
class SchemaChanges:
    """What the columns of a batch ask of a table.

    Attributes:
        added: The columns that the table gets, with the batch's names and types.
        widened: The new types of columns of the table, by its names for them.
        replaced: For columns of the batch that a column of the table cannot take, the column that takes the values.
        misfits: The columns whose values the table's type cannot hold, with both types: the table's, the batch's.
        dropped: The columns of the table that the source had, and has no more.
        nullable: The columns that lose NOT NULL, since the source has no values for them.
        incomplete: The columns that lack fields in the batch which they have in the table.
        untyped: The columns of the batch that are NULL without a type, and that the table does not have: it gets them
            once they have a type.
    """

    added: tuple[StructField, ...] = ()
    widened: Mapping[str, DataType] = field(default_factory=dict)
    replaced: Mapping[str, str] = field(default_factory=dict)
    misfits: tuple[tuple[str, DataType, DataType], ...] = ()
    dropped: tuple[StructField, ...] = ()
    nullable: tuple[str, ...] = ()
    incomplete: tuple[str, ...] = ()
    untyped: tuple[str, ...] = ()

    @property
    def needs_evolution(self) -> bool:
        """Whether Delta has to evolve the schema for the batch: only then may a struct lack fields, too."""
        return bool(self.added or self.widened or self.incomplete)

    @property
    def is_nothing(self) -> bool:
        """Whether the batch fits the table as it is."""
        return self == NOTHING

    def texts(self) -> Iterator[str]:
        """Yield what has changed, in words."""
        for added in self.added:
            yield f"{added.name} ({added.dataType.simpleString().upper()}) is new"
        for name, kind in self.widened.items():
            yield f"{name} needs the wider type {kind.simpleString().upper()}"
        for name, kept, sent in self.misfits:
            types = kept.simpleString().upper(), sent.simpleString().upper()
            yield f"{name} is {types[1]} in the source and {types[0]} in the table, which cannot hold all its values"
        for name in self.incomplete:
            yield f"{name} has fewer fields in the source than in the table"
        for dropped in self.dropped:
            yield f"{dropped.name} is no column of the source any more"


NOTHING = SchemaChanges()


def find_schema_changes(
    table: StructType,
    source: StructType,
    mode: str | None,
    *,
    gone: Collection[str] = (),
    fixed: Collection[str] = (),
    can_widen: bool = True,
    is_by_contents: bool = False,
) -> SchemaChanges:
    """Return what the columns of a batch ask of a table.

    Args:
        table: The table's schema.
        source: The columns of the batch that are written.
        mode: The sink's `schema_changes`.
        gone: Lower-case names of columns that earlier batches had, and this one does not have.
        fixed: Lower-case names of columns that no other column can stand for: those of keys and sequence, and those
            that the sink's options name.
        can_widen: Whether the table may get type widening.
        is_by_contents: Whether rows are identified by their contents, of which an id is made.
    """
    if mode is None or mode == "ignore":
        return NOTHING
    kept = {each.name.lower(): each for each in table.fields}
    sent = {each.name.lower() for each in source.fields}
    new = [each for each in source.fields if each.name.lower() not in kept]
    untyped = [each.name for each in new if isinstance(each.dataType, NullType) and mode != "error"]
    added = [each for each in new if each.name not in untyped]
    misfits, incomplete = [], []
    widened: dict[str, DataType] = {}
    replaced: dict[str, str] = {}
    nullable = []
    for each in [each for each in source.fields if each not in new]:
        name = each.name.lower()
        if lacks_fields(each.dataType, kept[name].dataType):
            incomplete.append(kept[name].name)
        kind = _holding(kept[name].dataType, each.dataType)
        if kind is not None and kind.simpleString() == kept[name].dataType.simpleString():
            continue
        if (
            kind is not None
            and (can_widen or not is_widened(kept[name].dataType, kind))
            and (keeps_text(kept[name].dataType, kind) or not is_by_contents)
        ):
            widened[kept[name].name] = kind
            continue
        other = _other_name(each.name, each.dataType)
        there = kept.get(other.lower())
        is_free = other.lower() not in sent and (there is None or there.dataType == each.dataType)
        if mode != "lenient" or name in fixed or not is_free:
            misfits.append((kept[name].name, kept[name].dataType, each.dataType))
            continue
        replaced[each.name] = other
        if there is None:
            added.append(StructField(other, each.dataType))
        if not kept[name].nullable:
            nullable.append(kept[name].name)
    taken = {name.lower() for name in replaced.values()}
    dropped = tuple(kept[name] for name in kept if name in gone and name not in {*sent, *taken, *fixed})
    return SchemaChanges(
        added=tuple(added),
        widened=widened,
        replaced=replaced,
        misfits=tuple(misfits),
        dropped=dropped,
        incomplete=tuple(incomplete),
        untyped=tuple(untyped),
        nullable=(*nullable, *(each.name for each in dropped if not each.nullable)),
    )


def decoded_type(kept: DataType, sent: DataType, mode: str | None) -> DataType:
    """Return the type in which to decode the values of a column, so that the sink finds the change that it makes.

    Args:
        kept: The column's type in the table.
        sent: Its type in the source.
        mode: The sink's `schema_changes`.
    """
    if mode is None or mode == "ignore":
        return sent if _is_for_the_sink(kept, sent) else kept
    holding = _holding(kept, sent)
    if holding is not None:
        return holding
    return kept if mode == "evolve" and not _is_for_the_sink(kept, sent) else sent


def _is_for_the_sink(kept: DataType, sent: DataType) -> bool:
    """Return whether the sink decides better than decoding does which values fit a column.

    Decoding would cut off or round these without an error, or refuse 5.0 for an INT.
    """
    match kept:
        case DateType():
            return isinstance(sent, TimestampType | TimestampNTZType)
        case FloatType():
            return isinstance(sent, IntegralType | DoubleType | DecimalType | StringType)
        case DoubleType():
            return isinstance(sent, IntegralType | DecimalType | StringType)
        case IntegralType():
            return isinstance(sent, FloatType | DoubleType | DecimalType)
        case _:
            return False


def can_hold(kept: DataType, sent: DataType) -> bool:
    """Return whether a column's type holds all values of another type that Debezium's records are read in."""
    # What has no zone is read as UTC.
    is_utc = isinstance(kept, TimestampType) and isinstance(sent, TimestampNTZType)
    holding = _holding(kept, sent)
    return is_utc or (holding is not None and holding.simpleString() == kept.simpleString())


def schema_changes_of(config: SinkConfig, batch: DataFrame, table: Table, transaction: Transaction) -> SchemaChanges:
    """Return what a batch asks of a version of its table.

    Args:
        config: The sink as the user configured it.
        batch: The batch as it arrived.
        table: The table.
        transaction: The version.

    Raises:
        SchemaChangedError: The sink has `schema_changes="error"`, and something has changed.
    """
    mode = config.schema_changes
    if not config.follows_columns:
        return NOTHING
    given = {name.lower() for name in batch.columns}
    written = {*config.written_columns(batch.columns)}
    schema, is_keyless = transaction.struct_type, config.before is not None
    # Every column of a table without a key identifies the row.
    fixed = {*given} if is_keyless else {name.lower() for name in (*config.keys, *config.sequence_columns)}
    # With columns of its own, a sink may be one of several of the table.
    remembers = config.keeps_tombstones and not is_keyless and not config.columns
    absent = {name.lower() for name in schema.names if not name.startswith(RESERVED_PREFIX)} - given
    gone = columns_of_batches(table, transaction, absent) if remembers and absent else set()
    find = partial(
        find_schema_changes,
        schema,
        StructType([each for each in batch.schema.fields if each.name in written]),
        mode,
        gone=gone,
        can_widen=transaction.properties.get(WIDENING, "true").lower() == "true",
        is_by_contents=is_keyless,
    )
    changes = find(fixed=fixed)
    unsure = {*map(str.lower, changes.replaced), *(each.name.lower() for each in changes.dropped)}
    if mode != "error" and unsure:
        changes = find(fixed={*fixed, *_named_in_options(config, batch, unsure)})
    if mode == "error" and not changes.is_nothing:
        raise SchemaChangedError(config.target, tuple(changes.texts()))
    return changes


def _named_in_options(config: SinkConfig, batch: DataFrame, names: Collection[str]) -> set[str]:
    """Return which columns, by lower-case names, decide what a change does: NULL in them would decide otherwise."""
    found = {name.lower() for name in config.ignores_nulls_of(batch.columns)}
    for option in config.change_expressions:
        if isinstance(option, str):
            text = option.lower()
            if text in names:  # as it is: a column's name need not be SQL
                found.add(text)
                continue
            # Every batch comes here, once the source has dropped a column. Few options name it, however it is quoted.
            if not any(_without_quotes(name) in _without_quotes(text) for name in names):
                continue
        found |= named_columns(batch.sparkSession, option, config.source_alias)
    return found.intersection(names)


def _without_quotes(text: str) -> str:
    return text.replace("`", "").replace('"', "")


def with_schema_changes(
    config: SinkConfig, batch: DataFrame, changes: SchemaChanges, schema: StructType
) -> tuple[SinkConfig, DataFrame]:
    """Return a sink that alters its table where needed, and the batch with the columns that the table will have.

    Args:
        config: The sink.
        batch: The batch, of whose rows all that was found holds.
        changes: What the batch asks of the table.
        schema: The table's schema.
    """
    if changes.is_nothing:
        return config, batch
    types = {each.name.lower(): each.dataType for each in schema.fields}
    widened = {name.lower(): kind for name, kind in changes.widened.items()}
    casts = {
        each.name: in_shape(each.dataType, widened[each.name.lower()])
        for each in batch.schema.fields
        if each.name.lower() in widened
    }

    lacking = _filled(config, batch, changes, types)

    def columns() -> Iterator[Column]:
        for name in batch.columns:
            value = F.col(quote(name))
            if name in changes.replaced:
                yield F.lit(None).cast(types[name.lower()]).alias(name)
                yield value.alias(changes.replaced[name])
                continue
            value = value.cast(casts[name]) if name in casts else value
            if name.lower() in lacking:
                value = with_fields_of(value, casts.get(name, batch.schema[name].dataType), types[name.lower()])
            yield value.alias(name)
        for each in changes.dropped:
            yield F.lit(None).cast(each.dataType).alias(each.name)

    if casts or changes.replaced or changes.dropped or lacking:
        batch = batch.select(*columns())
    if changes.needs_evolution:
        config = replace(config, merge_schema=True)
    config = _with_columns(config, changes)
    if config.unchanged_columns is not None and config.schema_changes == "lenient":
        others = _with_its_values(batch, changes)
        config = replace(config, unchanged_columns=_with_others(config.unchanged_columns, others)) if others else config
    return config, batch


def _with_its_values(batch: DataFrame, changes: SchemaChanges) -> dict[str, list[str]]:
    """Return, by the names of columns of a batch, the columns that have or had values of the source in their place.

    Also those of earlier types: to the table they are columns that the source has dropped, but a change that leaves the
    source's column alone means them, too.

    Args:
        batch: The batch.
        changes: What it asks of the table.
    """
    found = {}
    for name in batch.columns:
        earlier = [
            each.name for each in changes.dropped if each.name.lower() == _other_name(name, each.dataType).lower()
        ]
        now = [changes.replaced[name]] if name in changes.replaced else []
        if now or earlier:
            found[name] = [*now, *earlier]
    return found


def _filled(config: SinkConfig, batch: DataFrame, changes: SchemaChanges, types: Mapping[str, DataType]) -> set[str]:
    """Return the lower-case names of the columns whose structs get NULL for the fields that they lack.

    Delta would leave the fields alone, and how old they are would stand nowhere. So it does with fields that cannot be
    NULL. A struct that decides what a change does has to have them.

    Args:
        config: The sink.
        batch: The batch.
        changes: What it asks of the table.
        types: The types of the table's columns, by lower-case names.
    """
    if not changes.incomplete or config.before is not None:
        return set()
    sent = {each.name.lower(): each.dataType for each in batch.schema.fields}
    names = {name.lower() for name in changes.incomplete}
    names = {name for name in names if all(each.nullable for each in lacked_fields(sent[name], types[name]))}
    return names - {name.lower() for name in config.keys} - _named_in_options(config, batch, names)


def _with_columns(config: SinkConfig, changes: SchemaChanges) -> SinkConfig:
    """Return a sink that writes the columns which take the values of others, and leaves out those without a type."""
    if not config.columns:
        return replace(config, except_columns=(*config.except_columns, *changes.untyped))
    untyped = {name.lower() for name in changes.untyped}
    # Without any, a sink writes all columns.
    written = [name for name in config.columns if name.lower() not in untyped] or config.keys
    return replace(config, columns=(*written, *changes.replaced.values()))


def _with_others(unchanged: Expression, others: Mapping[str, Sequence[str]]) -> Column:
    """Return the names of columns that a change leaves alone with those that have the values in their place."""

    def all_of(name: Column) -> Column:
        found = [
            F.when(F.lower(name) == one.lower(), F.array(name, *map(F.lit, names))) for one, names in others.items()
        ]
        return F.coalesce(*found, F.array(name))

    return F.flatten(F.transform(column_of(unchanged), all_of))


def without_schema_changes(rows: DataFrame, columns: Sequence[str], changes: SchemaChanges) -> DataFrame:
    """Return rows of `with_schema_changes` under the names of the batch, for another version of the table.

    Args:
        rows: The rows.
        columns: The batch's columns.
        changes: What the batch asked of the table.
    """
    if changes.is_nothing:
        return rows
    return rows.select(*[F.col(quote(changes.replaced.get(name, name))).alias(name) for name in columns])


def written_names(config: SinkConfig, columns: Collection[str]) -> set[str]:
    """Return the lower-case names of the columns of a batch that a sink writes, without those of its own."""
    names = {name.lower() for name in config.written_columns(list(columns))}
    return {name for name in names if not name.startswith(RESERVED_PREFIX)}


def tell_schema_changes(name: str, changes: SchemaChanges, mode: str | None, told: set[str]) -> None:
    """Log what has changed, each change once.

    Args:
        name: The batch's name.
        changes: What it asks of the table.
        mode: The sink's `schema_changes`.
        told: What was logged before, to which this is added.
    """
    texts = dict.fromkeys(replace(changes, misfits=()).texts(), logging.INFO)
    for column, kept, sent in changes.misfits:
        kinds = kept.simpleString().upper(), sent.simpleString().upper()
        way_out = 'set schema_changes="lenient", which gives the values a column of their own'
        if mode == "lenient":
            way_out = (
                "see why schema_changes gives the values no column of their own: "
                f"{_other_name(column, sent)} is taken, or {column} is a key or decides what a change does"
            )
        texts[
            f"{column} is {kinds[1]} in the source and {kinds[0]} in the table; a value that {kinds[0]} cannot hold is "
            f"an error, or goes to the quarantine. Give the table a column of the new type, or {way_out}"
        ] = logging.WARNING
    for column, other in changes.replaced.items():
        texts[
            f"the table's {column} cannot hold the values of the source any more; they go to {other}, and {column} is "
            "NULL in rows that change from now on"
        ] = logging.WARNING
    for text, level in texts.items():
        if text not in told:
            told.add(text)
            logger.log(level, "%s: %s", name, text)


def _holding(kept: DataType, sent: DataType) -> DataType | None:
    """Return the type for a column of the table that holds old and new values; None if there is none."""
    if isinstance(kept, StringType) and isinstance(sent, AtomicType) and not isinstance(sent, BinaryType):
        return kept
    return wider(kept, sent)


def _other_name(name: str, kind: DataType) -> str:
    """Return the name of the column that takes the values of another where they are of this type."""
    return f"{name}__{_in_name(kind)}"


def _in_name(kind: DataType) -> str:
    """Return a type as a part of a column's name: decimal_12_2."""
    return re.sub(r"\W+", "_", kind.simpleString()).strip("_")
