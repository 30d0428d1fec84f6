"""Looks at the column in which `from_registry` says why a record cannot be decoded."""

from __future__ import annotations

from pyspark.sql import DataFrame

DECODE_ERROR_COL = "_decode_error"
"""The column: text, NULL for a record that can be decoded."""


def has_decode_errors(records: DataFrame) -> bool:
    """Return whether the records have been decoded, so that some of them may have such errors."""
    return DECODE_ERROR_COL in records.columns


def first_decode_error(records: DataFrame) -> str | None:
    """Return why one of the records cannot be decoded; None if all can. Reads the records."""
    if not has_decode_errors(records):
        return None
    row = records.where(f"{DECODE_ERROR_COL} IS NOT NULL").select(DECODE_ERROR_COL).head()
    return None if row is None else str(row[0])


def decodable(records: DataFrame) -> DataFrame:
    """Return the records without those that cannot be decoded: they tell nothing of columns and keys."""
    return records.where(f"{DECODE_ERROR_COL} IS NULL") if has_decode_errors(records) else records
