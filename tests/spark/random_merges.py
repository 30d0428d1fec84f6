"""Hypothesis strategies for tables and the merges into them, as SQL text and Python rows.

Most of what is drawn is a merge that succeeds; now and then there is a missing column, a wrong type, an ambiguous match
or a clause in the wrong place, so that errors are compared as well.
"""

from __future__ import annotations

import datetime as dt
import math
from collections.abc import Sequence
from dataclasses import dataclass
from decimal import Decimal
from typing import Any

from hypothesis import strategies as st

from stream_merge import MergeSink, merge_sink
from tests.spark.cases import quote

Column = tuple[str, str]
"""Name and SQL type."""

ADDRESS = "struct<x:int,y:string>"
WIDER_ADDRESS = "struct<x:int,y:string,z:int>"
NARROWER_ADDRESS = "struct<y:string>"

COLUMNS: tuple[Column, ...] = (
    ("K2", "string"),
    ("x.y", "date"),
    ("select", "timestamp"),
    ("50%", "double"),
    ("flag", "boolean"),
    ("big", "bigint"),
    ("a b", "decimal(10,2)"),
    ("at", ADDRESS),
    ("list", "array<int>"),
)
"""What a target has beside its key `k`.

Only column mapping allows the blank in `a b`. No name has a back quote: Delta's own merge builder cannot resolve it.
"""

VALUES: dict[str, tuple[Any, ...]] = {
    "int": (0, 1, 2, 3, 4),
    "bigint": (0, 1, 2, 3, 2**40),
    "string": ("a", "A", "", "é", "2", "a "),
    "date": (dt.date(2024, 2, 29), dt.date(1969, 12, 31), dt.date(2024, 3, 1)),
    "timestamp": (dt.datetime.fromisoformat("2024-03-31 02:30:00.000001"), dt.datetime.fromisoformat("1969-12-31")),
    "double": (0.0, -0.0, 1.5, math.nan, math.inf),
    "boolean": (True, False),
    "decimal(10,2)": (Decimal("0.00"), Decimal("1.50"), Decimal("99999999.99")),
}
LITERALS: dict[str, tuple[str, ...]] = {
    "int": ("0", "2", "-1", "CAST(NULL AS INT)"),
    "bigint": ("3L", "CAST(NULL AS BIGINT)"),
    "string": ("'a'", "''", "'it''s'", "CAST(NULL AS STRING)"),
    "date": ("DATE'2024-02-29'", "CAST(NULL AS DATE)"),
    "timestamp": ("TIMESTAMP'2024-03-31 02:30:00.000001'", "CAST(NULL AS TIMESTAMP)"),
    "double": ("0.0D", "-0.0D", "double('NaN')", "CAST(NULL AS DOUBLE)"),
    "boolean": ("true", "false", "CAST(NULL AS BOOLEAN)"),
    "decimal(10,2)": ("CAST(1.50 AS DECIMAL(10, 2))", "CAST(NULL AS DECIMAL(10, 2))"),
    "array<int>": ("array(1, null)", "CAST(array() AS ARRAY<INT>)", "CAST(NULL AS ARRAY<INT>)"),
    ADDRESS: ("named_struct('x', 7, 'y', 'z')", "CAST(NULL AS STRUCT<x: INT, y: STRING>)"),
}
CASTABLE = {
    "int": "bigint",
    "bigint": "int",
    "string": "int",
    "double": "int",
    "decimal(10,2)": "int",
    "timestamp": "date",
}
"""To each type another one, whose values are cast when they are assigned to a column of the type."""

PARTITIONABLE = ("int", "string", "date", "boolean", "decimal(10,2)")


@dataclass(frozen=True, slots=True, kw_only=True)
class RandomClause:
    """One clause: the sink's method and its arguments."""

    method: str
    condition: str | None = None
    assignments: dict[str, str] | None = None

    def add_to(self, sink: MergeSink) -> MergeSink:
        """Return the sink with this clause at its end."""
        arguments: dict[str, Any] = {"condition": self.condition}
        if self.assignments is not None:
            arguments["values" if self.method == "when_not_matched_insert" else "set"] = self.assignments
        sink = getattr(sink, self.method)(**arguments)
        assert isinstance(sink, MergeSink)
        return sink


@dataclass(frozen=True, slots=True, kw_only=True)
class RandomMerge:
    """One merge into a table: its source, condition and clauses; which copy of the table the next one goes into."""

    columns: tuple[Column, ...]
    rows: list[tuple[Any, ...]]
    condition: str
    clauses: tuple[RandomClause, ...]
    merge_schema: bool
    goes_on_with_copy: bool

    def sink(self, path: str, **options: Any) -> MergeSink:
        """Return the merge as a sink on the table at `path`."""
        options = {"target_alias": "t", "source_alias": "s", "merge_schema": self.merge_schema, **options}
        sink = merge_sink(path, on=self.condition, **options)
        for clause in self.clauses:
            sink = clause.add_to(sink)
        return sink


@dataclass(frozen=True, slots=True, kw_only=True)
class RandomTable:
    """A target before the first merge."""

    columns: tuple[Column, ...]
    rows: list[tuple[Any, ...]]
    files: int
    partition_by: tuple[str, ...]
    properties: dict[str, str]


@dataclass(frozen=True, slots=True, kw_only=True)
class RandomHistory:
    """A target and the merges into it, one after the other."""

    table: RandomTable
    merges: list[RandomMerge]


def values(sql_type: str) -> st.SearchStrategy[Any]:
    """Draw a value of a type; one in five is null."""
    match sql_type:
        case "array<int>":
            some: st.SearchStrategy[Any] = st.lists(st.sampled_from([1, 2, None]), max_size=2)
        case _ if sql_type.startswith("struct"):
            fields = [field.split(":")[1] for field in sql_type[7:-1].split(",")]
            some = st.tuples(*map(values, fields))
        case _:
            some = st.sampled_from(VALUES[sql_type])
    return st.one_of(st.none(), some, some, some, some)


@st.composite
def rows_of(draw: st.DrawFn, columns: Sequence[Column], *, max_size: int) -> list[tuple[Any, ...]]:
    """Draw rows; the values of a column are few, so that keys repeat and meet."""
    # An even choice: the size of `st.lists` alone is zero in every fourth example.
    size = draw(st.sampled_from(range(max_size + 1)))
    return draw(st.lists(st.tuples(*(values(kind) for _, kind in columns)), min_size=size, max_size=size))


def chance(percent: int) -> st.SearchStrategy[bool]:
    """Draw True that often; False is the simpler value."""
    return st.integers(0, 99).map(lambda number: number >= 100 - percent)


@st.composite
def histories(draw: st.DrawFn) -> RandomHistory:
    """Draw a target and one to three merges. Their columns are the target's first ones, also after it grew."""
    table = draw(tables())
    count = draw(st.sampled_from([1, 2, 3]))
    return RandomHistory(table=table, merges=[draw(merges(table.columns)) for _ in range(count)])


@st.composite
def tables(draw: st.DrawFn) -> RandomTable:
    """Draw a target with its properties and rows."""
    columns = (("k", "int"), *draw(st.lists(st.sampled_from(COLUMNS), min_size=1, max_size=4, unique=True)))
    columns = tuple(draw(st.permutations(columns)))
    maps_columns = ("a b", "decimal(10,2)") in columns or draw(chance(20))
    properties = {
        "delta.enableDeletionVectors": str(draw(st.booleans())).lower(),
        "delta.enableChangeDataFeed": str(draw(st.booleans())).lower(),
        **({"delta.columnMapping.mode": "name"} if maps_columns else {}),
    }
    # Delta's MERGE cannot insert into a table that is partitioned by a column with a dot in its name.
    candidates = [name for name, sql_type in columns if sql_type in PARTITIONABLE and "." not in name]
    partition_by = tuple(draw(st.lists(st.sampled_from(candidates), max_size=1))) if draw(chance(40)) else ()
    rows = draw(rows_of(columns, max_size=12))
    files = draw(st.sampled_from([1, 2]))
    return RandomTable(columns=columns, rows=rows, files=files, partition_by=partition_by, properties=properties)


@st.composite
def merges(draw: st.DrawFn, target: Sequence[Column]) -> RandomMerge:
    """Draw a merge into a table of these columns."""
    merge_schema = draw(chance(30))
    source = draw(source_columns(target))
    keys = [column for column in source if column in target and column[1] in VALUES]
    key_names = draw(st.lists(st.sampled_from(keys), min_size=1, max_size=2, unique=True)) if keys else []
    condition = draw(merge_conditions(key_names, source, target))
    rows = draw(rows_of(source, max_size=8))
    if not draw(chance(25)):
        positions = [source.index(key) for key in key_names]
        rows = list({repr([row[position] for position in positions]): row for row in rows}.values())
    clauses = draw(clause_lists(source, target, merge_schema=merge_schema))
    return RandomMerge(
        columns=source,
        rows=rows,
        condition=condition,
        clauses=clauses,
        merge_schema=merge_schema,
        goes_on_with_copy=draw(st.booleans()),
    )


@st.composite
def source_columns(draw: st.DrawFn, target: Sequence[Column]) -> tuple[Column, ...]:
    """Draw the source's columns: the target's in any order, rarely one less or of another type, perhaps one more."""
    columns = list(draw(st.permutations(target)))
    if draw(chance(10)):
        columns = [column for column in columns if column[0] == "k" or not draw(chance(40))]
    if draw(chance(25)):
        other = {**CASTABLE, ADDRESS: draw(st.sampled_from([WIDER_ADDRESS, NARROWER_ADDRESS]))}
        columns = [(name, other.get(kind, kind) if draw(chance(40)) else kind) for name, kind in columns]
    if draw(chance(35)):
        columns.append(("extra", draw(st.sampled_from(["int", "string", ADDRESS]))))
    return tuple(columns)


@st.composite
def merge_conditions(
    draw: st.DrawFn, keys: Sequence[Column], source: Sequence[Column], target: Sequence[Column]
) -> str:
    """Draw a merge condition: equal keys, most often, and perhaps more."""
    if not keys or draw(chance(10)):
        return str(draw(expressions("boolean", {"t": target, "s": source})))
    conjuncts = [
        f"{left}.{quote(name)} {operator} {right}.{quote(name)}"
        for name, _ in keys
        for operator in [draw(st.sampled_from(["=", "=", "<=>", "<=>" if len(keys) > 1 else ">"]))]
        for left, right in [draw(st.sampled_from([("t", "s"), ("s", "t")]))]
    ]
    for alias, columns in (("t", target), ("s", source)):
        if draw(chance(20)):
            conjuncts.append(draw(expressions("boolean", {alias: columns})))
    return " AND ".join(conjuncts)


@st.composite
def clause_lists(
    draw: st.DrawFn, source: Sequence[Column], target: Sequence[Column], *, merge_schema: bool
) -> tuple[RandomClause, ...]:
    """Draw one to four clauses, of which only the last of its kind goes without a condition."""
    stars = ["update_all", "insert_all"] if {name for name, _ in target} <= {name for name, _ in source} else []
    if stars and draw(chance(25)):
        return draw(upserts(source))
    names = [
        *[f"when_matched_{action}" for action in ("update", "delete", *(s for s in stars if s == "update_all"))],
        *[f"when_not_matched_{action}" for action in ("insert", *(s for s in stars if s == "insert_all"))],
        *[f"when_not_matched_by_source_{action}" for action in ("update", "delete")],
    ]
    if merge_schema and stars:
        names += ["when_matched_update_all", "when_not_matched_insert_all"]
    methods = [draw(st.sampled_from(names)) for _ in range(draw(st.sampled_from([1, 2, 3, 4])))]
    clauses = []
    for position, method in enumerate(methods):
        is_last = all(kind_of(later) != kind_of(method) for later in methods[position + 1 :])
        has_condition = not draw(chance(50 if is_last else 2))
        clauses.append(draw(clauses_of(method, source, target, has_condition=has_condition)))
    return tuple(clauses)


@st.composite
def upserts(draw: st.DrawFn, source: Sequence[Column]) -> tuple[RandomClause, ...]:
    """Draw an upsert over the source alone, whose new rows are written while the matches are looked for.

    It meets what many clauses seldom do: a change that matches several rows of one key.
    """
    deletes = draw(chance(30))
    has_condition = draw(chance(20))
    methods = [*["when_matched_delete"] * deletes, "when_matched_update_all", "when_not_matched_insert_all"]
    return tuple(
        draw(clauses_of(method, source, (), has_condition=has_condition or method == "when_matched_delete"))
        for method in methods
    )


def kind_of(method: str) -> str:
    """Return which rows the clauses of a method look at."""
    return method.rpartition("_update" if "_update" in method else "_insert" if "_insert" in method else "_delete")[0]


@st.composite
def clauses_of(
    draw: st.DrawFn, method: str, source: Sequence[Column], target: Sequence[Column], *, has_condition: bool
) -> RandomClause:
    """Draw a clause for a method of the sink."""
    sides = {
        "when_matched": {"t": target, "s": source},
        "when_not_matched": {"s": source},
        "when_not_matched_by_source": {"t": target},
    }[kind_of(method)]
    condition = draw(expressions("boolean", sides)) if has_condition else None
    if not method.endswith(("_update", "_insert")):
        return RandomClause(method=method, condition=condition)
    assigned = draw(st.lists(st.sampled_from(target), min_size=1, max_size=3, unique=True))
    assignments = {}
    for name, sql_type in assigned:
        if sql_type == ADDRESS and method.endswith("_update") and draw(chance(40)):
            assignments[f"{quote(name)}.x"] = draw(expressions("int", sides))
        else:
            value_type = CASTABLE.get(sql_type, sql_type) if draw(chance(10)) else sql_type
            assignments[quote(name)] = draw(expressions(value_type, sides))
    return RandomClause(method=method, condition=condition, assignments=assignments)


@st.composite
def expressions(draw: st.DrawFn, sql_type: str, sides: dict[str, Sequence[Column]], depth: int = 2) -> str:
    """Draw an SQL expression of a type over the columns of these sides."""
    leaves = [
        f"{alias}.{quote(name)}" for alias, columns in sides.items() for name, kind in columns if kind == sql_type
    ]
    if sql_type in ("int", "string"):
        field = "x" if sql_type == "int" else "y"
        leaves += [f"{a}.{quote(name)}.{field}" for a, cs in sides.items() for name, kind in cs if kind == ADDRESS]
    leaves = leaves * 3 + list(LITERALS.get(sql_type, ("NULL",)))
    if depth == 0 or (sql_type != "boolean" and draw(st.booleans())):
        return str(draw(st.sampled_from(leaves)))

    def operand(kind: str = sql_type) -> str:
        return str(draw(expressions(kind, sides, depth - 1)))

    if sql_type == "boolean":
        return f"({draw(conditions(sides, depth))})"
    templates = {
        "int": ["({0} + {1})", "coalesce({0}, {1})", "size({list})", "length({string})"],
        "bigint": ["({0} + {int})", "coalesce({0}, {1})"],
        "string": ["concat({0}, {1})", "upper({0})", "CAST({int} AS STRING)"],
        "double": ["({0} * 2)", "coalesce({0}, {1})", "CAST({int} AS DOUBLE)"],
        "date": ["date_add({0}, {int})", "coalesce({0}, {1})"],
        "array<int>": ["array({int}, {int})", "concat({0}, {1})"],
        ADDRESS: ["named_struct('x', {int}, 'y', {string})", "coalesce({0}, {1})"],
    }.get(sql_type, ["coalesce({0}, {1})"])
    template = draw(st.sampled_from([*templates, "CASE WHEN {boolean} THEN {0} ELSE {1} END"]))
    named = {kind: operand(kind) for kind in ("int", "string", "boolean") if "{" + kind + "}" in template}
    if "{list}" in template:
        named["list"] = operand("array<int>")
    return template.format(operand(), operand(), **named)


@st.composite
def conditions(draw: st.DrawFn, sides: dict[str, Sequence[Column]], depth: int) -> str:
    """Draw a boolean expression that is more than a column."""
    shape = draw(st.sampled_from(["compare", "compare", "compare", "null", "in", "and", "or", "not", "leaf"]))
    if shape in ("and", "or", "not", "leaf"):
        left = draw(expressions("boolean", sides, depth - 1))
        if shape == "leaf":
            return str(left)
        if shape == "not":
            return f"NOT ({left})"
        return f"({left} {shape.upper()} {draw(expressions('boolean', sides, depth - 1))})"
    kinds = sorted({kind for columns in sides.values() for _, kind in columns if kind in VALUES})
    kind = draw(st.sampled_from(kinds or ["int"]))
    left = draw(expressions(kind, sides, depth - 1))
    if shape == "null":
        return f"{left} IS {draw(st.sampled_from(['', 'NOT ']))}NULL"
    if shape == "in":
        return f"{left} IN ({', '.join(LITERALS[kind])})"
    operator = draw(st.sampled_from(["=", "<=>", "<", ">=", "<>"]))
    return f"{left} {operator} {draw(expressions(kind, sides, depth - 1))}"
