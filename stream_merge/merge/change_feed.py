"""Makes the rows of the change data feed in Delta's form, together with the rows of the table.

A row with a NULL change type is a row of the table; the others go to change files. If a commit has change files, Delta
reads its changes from them alone, so all kinds of changes must be written once one is.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import reduce

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

CHANGE_TYPE = "_change_type"


def union(parts: Sequence[DataFrame], empty_of: DataFrame, columns: Sequence[str]) -> DataFrame:
    """Return the rows of all parts, or an empty frame with the columns if there are no parts."""
    if not parts:
        return empty_of.limit(0).select(*[F.lit(None).alias(name) for name in columns])
    return reduce(DataFrame.union, parts)


def _as(values: Sequence[Column], columns: Sequence[str], change_type: str | None) -> Column:
    kind = F.lit(change_type).cast("string").alias(CHANGE_TYPE)
    return F.struct(*[value.alias(name) for value, name in zip(values, columns, strict=True)], kind)


def with_changes(
    columns: Sequence[str],
    *,
    inserted: DataFrame | None,
    changed: DataFrame,
    new: Sequence[str],
    old: Sequence[str],
    is_update: Column,
    is_delete: Column,
    has_updates: bool,
) -> DataFrame:
    """Return new rows and change rows of a merge-on-read batch.

    Args:
        columns: The table's columns.
        inserted: Rows to insert; None if there can be none.
        changed: Rows that a clause applies to, with their old and new values.
        new: Names of the new values in `changed`, which has them only if the merge has updates.
        old: Names of the old values in `changed`.
        is_update: Whether a changed row is updated.
        is_delete: Whether a changed row is deleted.
        has_updates: Whether the merge can update.
    """
    before = [F.col(name) for name in old]
    images = F.when(is_delete, delete_image(before, columns))
    if has_updates:
        images = images.when(is_update, update_images(before, [F.col(name) for name in new], columns))
    parts = [explode_images(changed, images)]
    if inserted is not None:
        parts.append(insert_images(inserted, columns))
    return reduce(DataFrame.union, parts)


def explode_images(rows: DataFrame, images: Column) -> DataFrame:
    """Return one row for each image; rows without images disappear."""
    return rows.select(F.explode(images).alias("image")).select("image.*")


def insert_images(inserted: DataFrame, columns: Sequence[str]) -> DataFrame:
    """Return each inserted row as a row of the table and as a change."""
    values = [inserted[f"`{name.replace('`', '``')}`"] for name in columns]
    return explode_images(inserted, F.array(_as(values, columns, None), _as(values, columns, "insert")))


def copied_image(values: Sequence[Column], columns: Sequence[str]) -> Column:
    """Return the image of a table row that does not change."""
    return F.array(_as(values, columns, None))


def update_images(before: Sequence[Column], after: Sequence[Column], columns: Sequence[str]) -> Column:
    """Return the images of an update: before, after, and the row of the table."""
    return F.array(
        _as(before, columns, "update_preimage"), _as(after, columns, "update_postimage"), _as(after, columns, None)
    )


def delete_image(before: Sequence[Column], columns: Sequence[str]) -> Column:
    """Return the image of a delete."""
    return F.array(_as(before, columns, "delete"))
