"""The conformance cases of `tests/data/cases`: their format, their values, and one run of a case through a sink.

A case is one MERGE: a target, a source, a condition, clauses, and what Delta's own MERGE makes of it. Values are JSON:
decimal, date and timestamp (UTC) as text, binary in hex, NaN and Infinity as text, a struct as an object, a map as a
list of pairs.
"""

from __future__ import annotations

import datetime as dt
import functools
import json
import math
import re
import struct
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from decimal import Decimal
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    DataType,
    DateType,
    DecimalType,
    DoubleType,
    FloatType,
    MapType,
    StructField,
    StructType,
    TimestampNTZType,
    TimestampType,
)

from stream_merge import MergeSink, merge_sink
from tests.spark.tables import create_computed

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

CASES = Path(__file__).parents[1] / "data" / "cases" / "open.jsonl"
STRATEGIES = ("copy_on_write", "merge_on_read")

Bag = Counter[str]
"""Rows as a multiset of their JSON text."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """One line of the file; `README.md` beside the file explains the fields."""

    id: str
    target: dict[str, Any]
    source: dict[str, Any]
    condition: str
    clauses: list[dict[str, Any]]
    schema_evolution: bool
    expect: dict[str, Any]
    metrics: dict[str, int] = field(default_factory=dict)
    cdf: list[dict[str, Any]] | None = None
    conf: dict[str, str] = field(default_factory=dict)
    tags: tuple[str, ...] = ()

    @property
    def expected_columns(self) -> list[list[Any]]:
        """The table's columns after the merge."""
        return self.expect.get("columns") or self.target["columns"]


def load_cases(path: Path = CASES) -> list[Case]:
    """Return all cases in the order of the file."""
    names = set(Case.__dataclass_fields__)
    lines = [json.loads(line) for line in path.read_text().splitlines() if line]
    return [Case(**{name: value for name, value in line.items() if name in names}) for line in lines]


@functools.cache
def parse_type(text: str) -> DataType:
    """Return the type of a DataFrame column for an SQL type: nullable all through, char and varchar as string."""
    text = re.sub(r"(?i)\bnot\s+null\b", "", text)
    return DataType.fromDDL(re.sub(r"(?i)\b(?:var)?char\s*\(\d+\)", "string", text))


def schema_of(columns: Iterable[Sequence[Any]]) -> StructType:
    """Return the DataFrame schema of a case's column list."""
    return StructType([StructField(column[0], parse_type(column[1])) for column in columns])


def decode(value: Any, data_type: DataType) -> Any:
    """Return the Python value that Spark takes for a JSON value of a case."""
    if value is None:
        return None
    match data_type:
        case StructType():
            return tuple(decode(value.get(f.name), f.dataType) for f in data_type.fields)
        case ArrayType():
            return [decode(item, data_type.elementType) for item in value]
        case MapType():
            return {decode(key, data_type.keyType): decode(item, data_type.valueType) for key, item in value}
        case DecimalType():
            return Decimal(value)
        case DateType():
            return dt.date.fromisoformat(value)
        case TimestampType() | TimestampNTZType():
            return dt.datetime.fromisoformat(value)
        case BinaryType():
            return bytearray.fromhex(value)
        case FloatType() | DoubleType():
            return float(value)
        case _:
            return value


def encode(value: Any, data_type: DataType) -> Any:
    """Return the JSON value for a Python value that Spark gave: the inverse of `decode`, one text for each value."""
    if value is None:
        return None
    match data_type:
        case StructType():
            return {f.name: encode(item, f.dataType) for f, item in zip(data_type.fields, value, strict=True)}
        case ArrayType():
            return [encode(item, data_type.elementType) for item in value]
        case MapType():
            pairs = [[encode(k, data_type.keyType), encode(v, data_type.valueType)] for k, v in value.items()]
            return sorted(pairs, key=json.dumps)
        case DecimalType() | DateType() | TimestampType() | TimestampNTZType():
            return str(value)
        case BinaryType():
            return bytes(value).hex()
        case FloatType() if math.isfinite(value):
            return struct.unpack("f", struct.pack("f", value))[0]
        case FloatType() | DoubleType() if not math.isfinite(value):
            return str(value)
        case _:
            return value


def bag_of(rows: Iterable[Sequence[Any]], schema: StructType) -> Bag:
    """Return rows that Spark gave as a multiset."""
    return Counter(
        json.dumps([encode(value, f.dataType) for value, f in zip(row, schema.fields, strict=True)], sort_keys=True)
        for row in rows
    )


def decode_rows(rows: Iterable[Sequence[Any]], schema: StructType) -> list[tuple[Any, ...]]:
    """Return the rows of a case as Spark takes them."""
    return [tuple(decode(value, f.dataType) for value, f in zip(row, schema.fields, strict=True)) for row in rows]


def frame_of(spark: SparkSession, side: dict[str, Any]) -> DataFrame:
    """Return the rows of a case's target or source as a DataFrame of one partition."""
    schema = schema_of(side["columns"])
    return spark.createDataFrame(decode_rows(side["rows"], schema), schema).coalesce(1)


def quote(name: str) -> str:
    """Return a name as SQL writes it when it may hold anything."""
    return "`" + name.replace("`", "``") + "`"


def create_target(spark: SparkSession, target: dict[str, Any], path: str, properties: dict[str, str]) -> None:
    """Create a case's target, with these properties on top of its own."""
    properties = {**target.get("properties", {}), **properties}
    computed = {c[0]: (c[1], c[2]["generated"]) for c in target["columns"] if len(c) > 2 and "generated" in c[2]}
    is_plain = not any(len(column) > 2 or re.search(r"(?i)char\(|not null", column[1]) for column in target["columns"])
    if computed:
        columns = {column[0]: computed.get(column[0], column[1]) for column in target["columns"]}
        with_vectors = properties.get("delta.enableDeletionVectors") == "true"
        create_computed(spark, path, columns, partition_by=target["partition_by"], deletion_vectors=with_vectors)
    elif not is_plain:
        pairs = ", ".join(f"'{name}' = '{value}'" for name, value in properties.items())
        spark.sql(
            f"CREATE TABLE delta.`{path}` ({', '.join(map(column_definition, target['columns']))}) USING delta"
            + (f" PARTITIONED BY ({', '.join(map(quote, target['partition_by']))})" if target["partition_by"] else "")
            + (f" TBLPROPERTIES ({pairs})" if pairs else "")
        )
    for batch in file_batches(target):
        if batch["rows"] or is_plain:
            writer = frame_of(spark, batch).write.format("delta").mode("append")
            if is_plain:
                writer = writer.options(**properties).partitionBy(*target["partition_by"])
            writer.save(path)
    for name, check in target.get("constraints", {}).items():
        spark.sql(f"ALTER TABLE delta.`{path}` ADD CONSTRAINT {quote(name)} CHECK ({check})")


def column_definition(column: Sequence[Any]) -> str:
    """Return a column of a case's target as CREATE TABLE writes it."""
    options = column[2] if len(column) > 2 else {}
    definition = f"{quote(column[0])} {column[1]}"
    if options.get("not_null"):
        definition += " NOT NULL"
    if "default" in options:
        definition += f" DEFAULT {options['default']}"
    return definition


def file_batches(target: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """Yield the target's rows in the parts that each become a file: they decide how many rows a rewrite copies."""
    start = 0
    for size in target.get("row_batches") or [len(target["rows"])]:
        yield {"columns": target["columns"], "rows": target["rows"][start : start + size]}
        start += size


def build_sink(case: Case, path: str, *, strategy: str | None = None) -> MergeSink:
    """Return the case's MERGE as a sink."""
    sink = merge_sink(
        path,
        on=case.condition,
        source_alias="s",
        target_alias="t",
        merge_schema=case.schema_evolution,
        strategy=strategy,
    )
    for clause in case.clauses:
        condition, assignments = clause.get("condition"), clause.get("set")
        match clause["when"], clause["action"]:
            case "matched", "update":
                sink = sink.when_matched_update(set=assignments, condition=condition)
            case "matched", "update_all":
                sink = sink.when_matched_update_all(condition=condition)
            case "matched", "delete":
                sink = sink.when_matched_delete(condition=condition)
            case "not_matched", "insert":
                sink = sink.when_not_matched_insert(values=assignments, condition=condition)
            case "not_matched", "insert_all":
                sink = sink.when_not_matched_insert_all(condition=condition)
            case "not_matched_by_source", "update":
                sink = sink.when_not_matched_by_source_update(set=assignments, condition=condition)
            case "not_matched_by_source", "delete":
                sink = sink.when_not_matched_by_source_delete(condition=condition)
            case unknown:
                raise ValueError(unknown)
    return sink


@contextmanager
def session_conf(spark: SparkSession, conf: dict[str, str]) -> Iterator[None]:
    """Change settings of the session inside the block."""
    before = {name: spark.conf.get(name, None) for name in conf}
    for name, value in conf.items():
        spark.conf.set(name, value)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                spark.conf.unset(name)
            else:
                spark.conf.set(name, value)
