"""Writes the result of a comparison as text; values are shown as text that controls no terminal."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from pyspark.sql import types as T

from stream_merge.cli.compare.columns import ComparedColumn
from stream_merge.cli.compare.comparison import Comparison
from stream_merge.cli.compare.rows import Difference
from stream_merge.cli.compare.values import MISFIT
from stream_merge.cli.show.formats import plural

MAX_LENGTH = 200
"""Characters of a value that are shown."""

_UNQUOTED = (T.NumericType, T.BooleanType)


def lines_of(comparison: Comparison) -> Iterator[str]:
    """Return the result, line by line."""
    pair, differences = comparison.pair, comparison.differences
    yield f"{visible(pair.target)} and {visible(str(pair.source))}: {_verdict(comparison)}"
    if not comparison.is_equal:
        yield (
            f"  {plural(comparison.num_equal, 'row')} equal, {differences.num_missing:,} missing in the Delta table, "
            f"{differences.num_extra:,} extra in it, {differences.num_differing:,} differing"
        )
    if comparison.num_settled:
        yield f"  {plural(comparison.num_settled, 'key')} differed at first and agreed when read again"
    names = [column.name for column in comparison.columns.compared]
    if differences.columns:
        counted = ", ".join(
            f"{visible(names[number])} in {plural(count, 'row')}" for number, count in differences.columns
        )
        yield f"  columns that differ: {counted}"
    yield from _columns_left_out(comparison)
    for sample in differences.samples:
        yield from _sample_lines(sample, comparison)
    more = differences.num_keys - len(differences.samples)
    if differences.samples and more > 0:
        yield f"  and {plural(more, 'more key')}"


def _verdict(comparison: Comparison) -> str:
    if comparison.is_equal:
        key = "" if comparison.columns.has_key else ", which have no key"
        return f"equal, {plural(comparison.num_equal, 'row')}{key}"
    return f"different, {comparison.num_source:,} and {plural(comparison.num_target, 'row')}"


def _columns_left_out(comparison: Comparison) -> Iterator[str]:
    columns = comparison.columns
    for names, where in ((columns.source_only, "the database"), (columns.target_only, "the Delta table")):
        if names:
            yield f"  not compared, only in {where}: {', '.join(visible(name) for name in names)}"
    for name, fault in columns.faults.items():
        yield f"  not compared, {visible(name)} {visible(fault)}"


def _sample_lines(sample: Difference, comparison: Comparison) -> Iterator[str]:
    columns = comparison.columns
    source, target = len(sample.source), len(sample.target)
    if not columns.has_key:
        values = ", ".join(_named(column, text) for column, text in zip(columns.compared, sample.key, strict=True))
        yield f"  {source} in the database, {target} in the Delta table: {values}"
        return
    key = ", ".join(_named(column, text) for column, text in zip(columns.keys, sample.key, strict=True))
    if not target:
        yield f"  missing: {key}"
    elif not source:
        yield f"  extra: {key}"
    elif source > 1 or target > 1:
        yield f"  {source} in the database, {target} in the Delta table: {key}"
    else:
        yield f"  differs: {key}"
        yield from _value_lines(columns.compared, sample.source[0], sample.target[0])


def _value_lines(
    columns: Sequence[ComparedColumn], source: Sequence[str | None], target: Sequence[str | None]
) -> Iterator[str]:
    for column, ours, theirs in zip(columns, source, target, strict=True):
        if ours != theirs:
            yield (
                f"    {visible(column.name)}: {_shown(column, ours)} in the database, "
                f"{_shown(column, theirs)} in the Delta table"
            )


def _named(column: ComparedColumn, text: str | None) -> str:
    return f"{visible(column.name)} = {_shown(column, text)}"


def _shown(column: ComparedColumn, text: str | None) -> str:
    if text is None:
        return "NULL"
    is_misfit = text.startswith(MISFIT) and not isinstance(column.data_type, T.StringType)
    value = visible(text.removeprefix(MISFIT) if is_misfit else text, MAX_LENGTH)
    if is_misfit:
        return f'"{value}" (not a {column.data_type.simpleString()})'
    return value if isinstance(column.data_type, _UNQUOTED) else f'"{value}"'


def visible(text: str, length: int | None = None) -> str:
    """Return a text in which all that is not printed as a character is written as an escape, cut to a length."""
    cut = text if length is None or len(text) <= length else f"{text[:length]}…"
    return "".join(
        {"\\": "\\\\", '"': '\\"'}.get(char, char)
        if char.isprintable()
        else char.encode("unicode_escape", "backslashreplace").decode("ascii")
        for char in cut
    )
