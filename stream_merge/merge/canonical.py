"""Builds the canonical form of values: equal values have the same form, and different values have different forms.

Spark's own equality is not enough. It takes -0.0 for 0.0, and texts that their collation calls equal for one another.
It has no equality for maps, which are equal whatever the order of their entries. So a value is taken apart down to its
leaves: a struct becomes the struct of its fields' forms, an array the array of its elements' forms, a map the sorted
array of its entries' forms. Two forms differ in their leaves and entries:

- `EXACT` compares two values of one type in one query (`unchanged`). It keeps values as they are, so Spark writes no
  text.
- `TEXT` gives hashes that outlive the query (`canonical_text`): the ids of rows without a key, and the order of tied
  changes. Integers and decimals have the same text whatever their width and scale, since a column may be widened.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from pyspark.sql import Column
from pyspark.sql import functions as F
from pyspark.sql import types as T

from stream_merge.row_json import EXACT_TIMES

AS_JSON = {**EXACT_TIMES, "timeZone": "UTC", "ignoreNullFields": "true"}
"""NULL is left out, so that a column that is added to the table leaves the contents of its rows as they are."""

_OF_BYTES = "\0bytes:"

PLAIN_NUMBER = "0." + "#" * 38
"""A number with the digits that it has, and no more."""


@dataclass(frozen=True, slots=True)
class CanonicalForm:
    """A way to write values so that equal ones look the same.

    Attributes:
        is_own: Whether values of a type without parts are their own form.
        leaf: The form of other values without parts.
        entry: The form of a map's entry, given those of its key and its value. Entries are sorted by it.
    """

    is_own: Callable[[T.DataType], bool]
    leaf: Callable[[Column, T.DataType], Column]
    entry: Callable[[Column, Column], Column]

    def of(self, value: Column, kind: T.DataType) -> Column:
        """Return the form of a value of this type."""
        if self.keeps(kind):
            return value
        match kind:
            case T.StructType():
                fields = [self.of(value.getField(f.name), f.dataType).alias(f.name) for f in kind.fields]
                return F.when(value.isNotNull(), F.struct(*fields))
            case T.ArrayType():
                return F.transform(value, lambda element: self.of(element, kind.elementType))
            case T.MapType():

                def form(entry: Column) -> Column:
                    return self.entry(self.of(entry["key"], kind.keyType), self.of(entry["value"], kind.valueType))

                return F.array_sort(F.transform(F.map_entries(value), form))
            case _:
                return self.leaf(value, kind)

    def keeps(self, kind: T.DataType) -> bool:
        """Return whether values of this type are their own form, with all their parts."""
        match kind:
            case T.StructType():
                return all(self.keeps(field.dataType) for field in kind.fields)
            case T.ArrayType():
                return self.keeps(kind.elementType)
            case T.MapType():
                return False
            case _:
                return self.is_own(kind)


def _exact_leaf(value: Column, kind: T.DataType) -> Column:
    if isinstance(kind, T.StringType):
        return value.cast("binary")
    # Equality takes -0.0 for 0.0. The text, which is made of zeros alone, tells them apart.
    return F.struct(value, F.when(value == 0, value.cast("string")))


def _is_exact(kind: T.DataType) -> bool:
    if isinstance(kind, T.StringType):
        return bool(kind.isUTF8BinaryCollation())
    return not isinstance(kind, (T.FloatType, T.DoubleType))


EXACT = CanonicalForm(
    is_own=_is_exact,
    leaf=_exact_leaf,
    entry=lambda key, value: F.struct(key.alias("key"), value.alias("value")),
)
"""For comparing two values of one type. NaN equals NaN, and -0.0 is another value than 0.0."""


def _text_leaf(value: Column, kind: T.DataType) -> Column:
    if isinstance(kind, T.StringType):
        # JSON has one character for all bytes that are not UTF-8.
        is_plain = F.is_valid_utf8(value) & ~F.startswith(value, F.lit(_OF_BYTES))
        return F.when(is_plain | value.isNull(), value).otherwise(F.concat(F.lit(_OF_BYTES), F.hex(value)))
    if isinstance(kind, T.DecimalType):
        # The zeros at its end come of the scale.
        return F.call_function("format_number", value, F.lit(PLAIN_NUMBER))
    return value.cast("string")


TEXT = CanonicalForm(
    is_own=lambda kind: not isinstance(kind, (T.IntegralType, T.DecimalType, T.StringType)),
    leaf=_text_leaf,
    entry=lambda key, value: F.to_json(F.struct(key.alias("key"), value.alias("value")), AS_JSON),
)
"""For writing values as JSON, which tells all else apart. Row ids in tables depend on it: it must stay as it is."""


def canonical_text(values: Mapping[str, tuple[Column, T.DataType]]) -> Column:
    """Return values by name, with their types, as one text: the same for rows whose values are the same."""
    return F.to_json(F.struct(*[TEXT.of(value, kind).alias(name) for name, (value, kind) in values.items()]), AS_JSON)
