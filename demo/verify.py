"""Compare the Delta tables with the database's own dump, row for row."""

from __future__ import annotations

import gzip
import json
from collections import Counter
from dataclasses import dataclass
from decimal import Decimal
from pathlib import Path
from typing import Any

from pyspark.sql import SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import DataType, TimestampNTZType, TimestampType

from demo.shop import CapturedTable

ISO_TIMESTAMP = "yyyy-MM-dd'T'HH:mm:ss.SSSSSS"
JSON_COLUMNS = ("address",)
DECIMAL_COLUMNS = ("balance", "price", "total")


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """What a Delta table has and the database has not, and the other way round.

    Attributes:
        table: Name of the table.
        num_rows: How many rows the database has.
        missing: Rows, as JSON text, that the Delta table lacks.
        unexpected: Rows, as JSON text, that the Delta table should not have.
    """

    table: str
    num_rows: int
    missing: list[str]
    unexpected: list[str]

    @property
    def is_equal(self) -> bool:
        """Whether both have the same rows."""
        return not self.missing and not self.unexpected


def compare_with_dump(spark: SparkSession, root: Path, dumps: Path, table: CapturedTable) -> Comparison:
    """Compare one Delta table with `<name>.jsonl.gz` of the dump."""
    with gzip.open(dumps / f"{table.name}.jsonl.gz", "rt", encoding="utf-8", newline="\n") as lines:
        expected = Counter(_canonical(json.loads(line)) for line in lines)
    actual = Counter(_canonical(row) for row in _read_rows(spark, root / table.name))
    return Comparison(
        table=table.name,
        num_rows=expected.total(),
        missing=sorted((expected - actual).elements()),
        unexpected=sorted((actual - expected).elements()),
    )


def _read_rows(spark: SparkSession, path: Path) -> list[dict[str, Any]]:
    rows = spark.read.format("delta").load(str(path)).drop("lsn")
    columns = [_as_text(field.name, field.dataType) for field in rows.schema]
    return [row.asDict() for row in rows.select(*columns).collect()]


def _as_text(name: str, data_type: DataType) -> Any:
    match data_type:
        case TimestampType():
            return F.date_format(name, ISO_TIMESTAMP + "'Z'").alias(name)
        case TimestampNTZType():
            return F.date_format(name, ISO_TIMESTAMP).alias(name)
        case _:
            return F.col(name)


def _canonical(row: dict[str, Any]) -> str:
    """Return the row as JSON text that is the same for equal values: decimals without trailing zeros, keys sorted."""
    values = dict(row)
    for name in DECIMAL_COLUMNS:
        if values.get(name) is not None:
            text = format(Decimal(values[name]), "f")
            values[name] = text.rstrip("0").rstrip(".") if "." in text else text
    for name in JSON_COLUMNS:
        if values.get(name) is not None:
            values[name] = json.dumps(json.loads(values[name]), sort_keys=True, ensure_ascii=False)
    return json.dumps(values, sort_keys=True, ensure_ascii=False)
