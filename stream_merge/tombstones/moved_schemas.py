"""Knows the schemas of the files with values of rows that got another key: to find one out takes a Spark job."""

from __future__ import annotations

from collections.abc import Sequence

from pyspark.sql.types import DataType, StructField, StructType

_MAX_KNOWN = 1000


class MovedSchemas:
    """The schemas of files that the sink has written or read, by path. A file never changes."""

    def __init__(self) -> None:
        """Know none."""
        self._known: dict[str, StructType] = {}

    def note(self, paths: Sequence[str], schema: StructType) -> None:
        """Note a schema in which some files can be read."""
        if len(self._known) + len(paths) > _MAX_KNOWN:
            self._known.clear()
        self._known.update(dict.fromkeys(paths, schema))

    def of(self, paths: Sequence[str]) -> StructType | None:
        """Return a schema in which all these files can be read; None if there is none, or if it is not known."""
        found: DataType | None = None
        for path in paths:
            schema = self._known.get(path)
            found = schema if found is None or schema is None else united(found, schema)
            if found is None:
                return None
        return found if isinstance(found, StructType) else None


def united(one: DataType, other: DataType) -> DataType | None:
    """Return a type with the fields of both structs, at any depth; None if a field has two types."""
    if one == other:
        return one
    if not isinstance(one, StructType) or not isinstance(other, StructType):
        return None
    fields = {field.name: field for field in one.fields}
    for field in other.fields:
        kind = united(fields[field.name].dataType, field.dataType) if field.name in fields else field.dataType
        if kind is None:
            return None
        fields[field.name] = StructField(field.name, kind)
    return StructType([*fields.values()])
