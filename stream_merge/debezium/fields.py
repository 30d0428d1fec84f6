"""Describes the columns of the changes: their types in the lake, and how Debezium encodes their values."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from typing import TypeAlias

from pyspark.sql import types as T

from stream_merge.column_names import RESERVED_PREFIX
from stream_merge.errors import ConfigError

SEMANTICS = frozenset(
    (
        "Date",
        "Time",
        "MicroTime",
        "NanoTime",
        "Timestamp",
        "MicroTimestamp",
        "NanoTimestamp",
        "ZonedTimestamp",
        "ZonedTime",
        "IsoDate",
        "IsoTime",
        "IsoTimestamp",
        "Year",
        "Interval",
        "MicroDuration",
        "NanoDuration",
        "Decimal",
        "VariableScaleDecimal",
        "Uuid",
        "Json",
        "Xml",
        "Enum",
        "EnumSet",
        "Bits",
        "Ltree",
        "Point",
        "Geometry",
        "Geography",
    )
)
"""Last parts of Debezium's and Kafka Connect's type names; types that share one have the same meaning."""
PLAIN = "Plain"
"""The semantic type of a number or text that a message's schema describes as no more than that."""
BYTES = "Bytes"
"""The semantic type of what a message's schema describes as bytes."""


@dataclass(frozen=True, slots=True)
class Field:
    """A column: its type in the lake, and what the message alone does not tell about its values.

    Attributes:
        type: Spark's type, or its DDL.
        semantic: Debezium's or Kafka Connect's name of the type ("io.debezium.time.Timestamp", or its last part).
            Without one, values are read as Debezium writes them for PostgreSQL by default. It also applies to the
            elements of an array and the values of a map.
        scale: Digits after the point of a decimal that is sent as bytes; the type's own by default.
        length: Number of bits of a bit string.
        default: The value of rows that existed when the column was added (ADD COLUMN ... DEFAULT sends no changes). It
            replaces both NULL and a missing value, so it is for NOT NULL columns.
        default_as_sent: The default as a message would send it: text, or the JSON of any other value. `learn_columns`
            takes it from the schema part, for records from before the column was added.
        element: The elements of an array, or the values of a map, if this field does not describe them.
        fields: The fields of a struct, by name, if their types do not describe them.
        sent_as: The name of the column in the messages, if that is another one.
        is_in_key_only: Whether records have the value in their key alone, and not in their row, so that it is the same
            in the old key of a row that gets another one. `learn_columns` finds such columns, and `changes` knows that
            of Debezium's ByLogicalTableRouter.
    """

    type: str | T.DataType
    semantic: str | None = None
    scale: int | None = None
    length: int | None = None
    default: str | int | float | bool | None = None
    default_as_sent: str | None = None
    element: Field | None = None
    fields: Mapping[str, Field] | None = None
    sent_as: str | None = None
    is_in_key_only: bool = False

    @property
    def data_type(self) -> T.DataType:
        """Spark's type; CHAR and VARCHAR are STRING."""
        parsed = _parse_type(self.type) if isinstance(self.type, str) else self.type
        return T.StringType() if isinstance(parsed, (T.CharType, T.VarcharType)) else parsed

    @property
    def kind(self) -> str | None:
        """Last part of the semantic type's name."""
        return None if self.semantic is None else self.semantic.rpartition(".")[2]

    def item(self, data_type: T.DataType) -> Field:
        """Return the field that describes the elements of this one."""
        if self.element is not None:
            return self.element
        return Field(data_type, semantic=self.semantic, scale=self.scale, length=self.length)

    def member(self, name: str, data_type: T.DataType) -> Field:
        """Return the field that describes one field of a struct."""
        return (self.fields or {}).get(name) or Field(data_type)


Columns: TypeAlias = "str | T.StructType | Mapping[str, str | T.DataType | Field]"
"""The columns of a table: DDL, a schema, or a type or `Field` for each name."""


def resolve_columns(columns: Columns) -> dict[str, Field]:
    """Return the columns in order, each as a `Field` with a Spark type.

    Raises:
        ConfigError: There are no columns, or one is described incorrectly.
    """
    schema = _parse_ddl(columns) if isinstance(columns, str) else columns
    # The schema of a table that a sink merges into has the sink's columns, which the source does not send.
    given = (
        {field.name: field.dataType for field in schema if not is_own(field.name)}
        if isinstance(schema, T.StructType)
        else schema
    )
    fields = {name: field if isinstance(field, Field) else Field(field) for name, field in given.items()}
    fields = {name: replace(field, type=field.data_type) for name, field in fields.items()}
    faults = [] if fields else ["columns is empty; name at least one"]
    for name, field in fields.items():
        faults += [f"column {name!r}: {fault}" for fault in _find_faults(field)]
    if faults:
        raise ConfigError(faults)
    return fields


def table_fields(
    schema: T.StructType, *, settings: Mapping[str, Field] | None = None, except_columns: Collection[str] = ()
) -> dict[str, Field]:
    """Return the columns of an existing table for `columns`, without those that a sink has added.

    Args:
        schema: The table's schema: `spark.table(...).schema`.
        settings: The columns whose types do not say everything.
        except_columns: Columns of the table that the source does not send.
    """
    given = dict(settings or {})
    unknown = [name for name in (*given, *except_columns) if name not in schema.fieldNames()]
    if unknown:
        columns = ", ".join(schema.fieldNames())
        raise ConfigError([f"the table has no column {name!r}; it has {columns}" for name in unknown])
    return resolve_columns(
        {
            field.name: given.get(field.name, Field(field.dataType))
            for field in schema.fields
            if field.name not in except_columns and not is_own(field.name)
        }
    )


def is_own(name: str) -> bool:
    """Return whether a sink has added a column to its table."""
    return name.lower().startswith(RESERVED_PREFIX)


def _parse_ddl(text: str) -> T.StructType:
    schema = T.StructType.fromDDL(text)
    if not isinstance(schema, T.StructType):
        raise ConfigError([f"{text!r} is not a list of columns; write them as DDL: id BIGINT, name STRING"])
    return schema


def _parse_type(text: str) -> T.DataType:
    return _parse_ddl(f"`type` {text}")["type"].dataType


def _find_faults(field: Field) -> list[str]:
    faults = []
    if field.kind is not None and field.kind not in SEMANTICS:
        faults.append(f"semantic type {field.semantic!r} is unknown; known are {', '.join(sorted(SEMANTICS))}")
    if field.scale is not None and not 0 <= field.scale <= 1000:
        faults.append(f"scale {field.scale} is not between 0 and 1000")
    if isinstance(field.data_type, T.MapType) and not isinstance(field.data_type.keyType, T.StringType):
        faults.append("the keys of a map in JSON are text; use MAP<STRING, ...>")
    return faults
