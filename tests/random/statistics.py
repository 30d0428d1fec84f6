"""Whether the statistics of a table's files hold what is in the files, which pyarrow reads."""

from __future__ import annotations

import datetime as dt
import json
import math
from collections.abc import Iterator
from decimal import Decimal
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from tests.spark.delta_log import latest_version, read_actions

MILLISECOND = dt.timedelta(milliseconds=1)
EPOCH = dt.datetime(1970, 1, 1, tzinfo=dt.timezone.utc)


def active_files(path: str) -> list[dict[str, Any]]:
    """Return the add actions of a table's newest version, by its log's commits alone."""
    files: dict[tuple[str, str], dict[str, Any]] = {}
    for version in range(latest_version(path) + 1):
        actions = read_actions(path, version)
        for kind in ("remove", "add"):
            for action in (action[kind] for action in actions if kind in action):
                vector = action.get("deletionVector") or {}
                name = action["path"], vector.get("pathOrInlineDv", "") + str(vector.get("offset", ""))
                if kind == "remove":
                    files.pop(name, None)
                else:
                    files[name] = action
    return list(files.values())


def wrong_statistics(path: str) -> list[str]:
    """Return what is wrong with the statistics of the active files."""
    return [fault for add in active_files(path) for fault in _faults(path, add)]


def _faults(path: str, add: dict[str, Any]) -> Iterator[str]:
    if not add.get("stats"):
        return
    stats = json.loads(add["stats"], parse_float=Decimal)
    # Of the metadata that Spark keeps beside, pyarrow knows nothing.
    table = pq.ParquetFile(Path(path, unquote(add["path"])), coerce_int96_timestamp_unit="us").read()
    if stats["numRecords"] != table.num_rows:
        yield f"{add['path']} has {table.num_rows} rows, not {stats['numRecords']}"
    for name in table.column_names:
        yield from _column_faults(table[name], name, stats, add)


def _column_faults(column: Any, name: str, stats: dict[str, Any], add: dict[str, Any]) -> Iterator[str]:
    parts = {kind: (stats.get(kind) or {}).get(name) for kind in ("minValues", "maxValues", "nullCount")}
    if pa.types.is_struct(column.type):
        # The members of NULL are NULL.
        combined = column.combine_chunks()
        for field in column.type:
            values = _listed(pc.struct_field(combined, field.name))
            inner = {kind: {field.name: (part or {}).get(field.name)} for kind, part in parts.items()}
            yield from _value_faults(values, field.name, {**stats, **inner}, add)
        return
    yield from _value_faults(_listed(column), name, stats, add)


def _listed(column: Any) -> list[Any]:
    if pa.types.is_timestamp(column.type):
        micros = column.cast(pa.timestamp("us", column.type.tz)).cast(pa.int64()).to_pylist()
        return [None if value is None else EPOCH + dt.timedelta(microseconds=value) for value in micros]
    return list(column.to_pylist())


def _value_faults(values: list[Any], name: str, stats: dict[str, Any], add: dict[str, Any]) -> Iterator[str]:
    low, high, nulls = ((stats.get(kind) or {}).get(name) for kind in ("minValues", "maxValues", "nullCount"))
    present = [value for value in values if value is not None]
    if nulls is not None and nulls != len(values) - len(present) and not add.get("deletionVector"):
        yield f"{add['path']}: {name} is NULL {len(values) - len(present)} times, not {nulls}"
    for value in present:
        if low is not None and not _is_at_least(value, low):
            yield f"{add['path']}: {name} {value!r} is below {low!r}"
        if high is not None and not _is_at_most(value, high):
            yield f"{add['path']}: {name} {value!r} is above {high!r}"


def _is_at_least(value: Any, bound: Any) -> bool:
    one, other = _comparable(value, bound)
    return bool(one >= other)


def _is_at_most(value: Any, bound: Any) -> bool:
    one, other = _comparable(value, bound)
    if isinstance(one, dt.datetime):
        other += MILLISECOND
    return bool(one <= other)


def _comparable(value: Any, bound: Any) -> tuple[Any, Any]:
    match value:
        case str():
            return value.encode(), bound.encode()
        case dt.datetime():
            moment = dt.datetime.fromisoformat(bound.replace("Z", "+00:00"))
            moment = moment.replace(tzinfo=moment.tzinfo or dt.timezone.utc)
            # The offsets of local mean time are cut to minutes in statistics.
            if value.year < 1973 and abs(moment - value) <= dt.timedelta(minutes=1):
                moment = value
            return value, moment
        case dt.date():
            # A column that has become one of timestamps has their statistics.
            return value, dt.date.fromisoformat(bound[:10])
        case bool():
            return value, bool(bound)
        case float():
            number = float(bound)
            if math.isnan(value) or math.isnan(number):
                return 0, 0
            return value, number
        case _:
            return Decimal(value), Decimal(bound)
