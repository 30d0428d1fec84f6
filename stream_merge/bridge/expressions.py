"""Parses expressions: returns their SQL text, qualifies their names, and decides whether a MERGE is stable."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

from pyspark.sql import Column, SparkSession

from stream_merge.bridge.column_text import column_sql
from stream_merge.bridge.jvm import JVM_ERRORS, items, java_class, optional, translate
from stream_merge.clauses import Expression

_STABLE_NODES = frozenset(
    {
        "Add",
        "And",
        "BitwiseAnd",
        "BitwiseNot",
        "BitwiseOr",
        "BitwiseXor",
        "CaseWhen",
        "DeleteAction",
        "Divide",
        "EqualNullSafe",
        "EqualTo",
        "GreaterThan",
        "GreaterThanOrEqual",
        "In",
        "InsertAction",
        "InsertStarAction",
        "IntegralDivide",
        "IsNotNull",
        "IsNull",
        "LambdaFunction",
        "LessThan",
        "LessThanOrEqual",
        "Like",
        "Multiply",
        "Not",
        "Or",
        "Remainder",
        "Subtract",
        "UnaryMinus",
        "UnaryPositive",
        "UnresolvedExtractValue",
        "UnresolvedNamedLambdaVariable",
        "UnresolvedStar",
        "UpdateAction",
        "UpdateStarAction",
    }
)
"""Expressions, as the parser names them, whose value does not depend on the time, the user or chance."""

_STABLE_FUNCTIONS = frozenset(
    {
        "abs",
        "array",
        "array_contains",
        "array_distinct",
        "array_size",
        "between",
        "bigint",
        "boolean",
        "bround",
        "btrim",
        "ceil",
        "ceiling",
        "char_length",
        "coalesce",
        "concat",
        "concat_ws",
        "contains",
        "crc32",
        "decimal",
        "double",
        "element_at",
        "endswith",
        "exists",
        "filter",
        "float",
        "floor",
        "from_json",
        "get_json_object",
        "greatest",
        "hash",
        "hex",
        "if",
        "ifnull",
        "int",
        "isnotnull",
        "isnull",
        "lcase",
        "least",
        "left",
        "length",
        "lower",
        "lpad",
        "ltrim",
        "map",
        "map_keys",
        "map_values",
        "md5",
        "mod",
        "named_struct",
        "nullif",
        "nvl",
        "nvl2",
        "pmod",
        "position",
        "power",
        "regexp_extract",
        "regexp_replace",
        "replace",
        "right",
        "round",
        "rpad",
        "rtrim",
        "sha2",
        "sign",
        "size",
        "smallint",
        "split",
        "startswith",
        "string",
        "struct",
        "substr",
        "substring",
        "tinyint",
        "to_json",
        "transform",
        "translate",
        "trim",
        "ucase",
        "unbase64",
        "unhex",
        "upper",
        "when",
        "xxhash64",
    }
)
"""Spark's functions whose value depends only on their arguments."""

_NAMES = ("UnresolvedAttribute", "UnresolvedNamedLambdaVariable")
"""What the parser makes of a name. Inside a lambda function, it treats every name as one of its arguments."""

_MOMENTS = ("DateType", "TimestampType", "TimestampNTZType", "TimeType")
_WRITTEN_OUT = re.compile(r"\s*\w+\s*['\"]\s*[+-]?\d")


def expression_sql(spark: SparkSession, expression: Expression) -> str:
    """Return an expression as SQL text.

    Raises:
        ClauseError: The text is not an SQL expression, or a `Column` has no such text.
    """
    text = expression if isinstance(expression, str) else column_sql(spark, expression)
    try:
        spark._jsparkSession.sessionState().sqlParser().parseExpression(text)
    except JVM_ERRORS as error:
        raise translate(error) from error
    return text


def qualified_sql(spark: SparkSession, expression: Expression, alias: str) -> str:
    """Return an expression as SQL text, with an alias before each unqualified column name.

    Raises:
        ClauseError: The text is not an SQL expression.
    """
    text = _with_variables(spark, expression_sql(spark, expression))
    starts: list[int] = []

    def visit(node: Any, bound: frozenset[str]) -> None:
        kind = str(node.getClass().getSimpleName())
        if kind in _NAMES:
            first = str(node.nameParts().head()).lower()
            if first != alias.lower() and first not in bound:
                starts.append(int(node.origin().startIndex().get()))
            return
        if kind == "LambdaFunction":
            bound |= {str(argument.name()).lower() for argument in items(node.arguments())}
            visit(node.function(), bound)
            return
        for child in items(node.children()):
            visit(child, bound)

    visit(spark._jsparkSession.sessionState().sqlParser().parseExpression(text), frozenset())
    for start in sorted(starts, reverse=True):
        text = f"{text[:start]}`{alias}`.{text[start:]}"
    return text


def _with_variables(spark: SparkSession, text: str) -> str:
    """Return a text with the values of the settings that it names (`${name}`), as Spark's parser counts its letters."""
    if "${" not in text:
        return text
    return str(java_class(spark._jvm, "org.apache.spark.sql.internal.VariableSubstitution")().substitute(text))


def named_columns(spark: SparkSession, expression: Expression, alias: str) -> frozenset[str]:
    """Return the names, in lower case, that columns of the source have in an expression, and maybe others.

    Args:
        spark: The session.
        expression: The expression.
        alias: The alias by which it may qualify the names.

    Raises:
        ClauseError: The text is not an SQL expression.
    """
    names: set[str] = set()
    text = expression_sql(spark, expression)
    for leaf in items(spark._jsparkSession.sessionState().sqlParser().parseExpression(text).collectLeaves()):
        if str(leaf.getClass().getSimpleName()) in _NAMES:
            parts = [str(part).lower() for part in items(leaf.nameParts())]
            names.update(parts[: 2 if parts[0] == alias.lower() else 1])
    return frozenset(names)


def column_name_parts(spark: SparkSession, name: str) -> list[str]:
    """Split a column name as Spark does, at dots outside backticks."""
    attribute = java_class(spark._jvm, "org.apache.spark.sql.catalyst.analysis.UnresolvedAttribute")
    try:
        return [str(part) for part in items(attribute.parseAttributeName(name))]
    except JVM_ERRORS as error:
        raise translate(error) from error


def is_stable(
    spark: SparkSession, statement: str, source: Relation, target: Relation, schema: Mapping[str, Any]
) -> bool:
    """Whether the analysis of a MERGE provably gives the same result at any time, so that it can be cached.

    Parser and analyser turn whatever asks for the time, the user or chance into literals, in more forms than any list
    has. So this is an allow-list: names must be column names, and everything else a known expression or function.

    Args:
        spark: The session that analyses.
        statement: The statement.
        source: The source's alias and columns.
        target: The target's alias and columns.
        schema: The target's schema, whose columns may be generated or have defaults.
    """
    parser = spark._jsparkSession.sessionState().sqlParser()
    is_exact = str(spark.conf.get("spark.sql.caseSensitive")).lower() == "true"
    of_source, of_target, of_both = (
        _Proof.of(relations, is_exact=is_exact) for relations in ([source], [target], [source, target])
    )
    for field in schema["fields"]:
        for name in ("CURRENT_DEFAULT", "delta.generationExpression"):
            text = field["metadata"].get(name)
            if text is not None and not of_target.covers(parser.parseExpression(text), text):
                return False
    merge = parser.parsePlan(statement)
    return of_both.covers(merge.mergeCondition(), statement) and all(
        proof.covers(action, statement)
        for proof, actions in (
            (of_both, merge.matchedActions()),
            # In an INSERT, a name that only the target has is not a column.
            (of_source, merge.notMatchedActions()),
            (of_target, merge.notMatchedBySourceActions()),
        )
        for action in items(actions)
    )


def are_stable(spark: SparkSession, texts: Sequence[str], source: Relation) -> bool:
    """Whether the analysis of expressions over a source's columns provably gives the same at any time: see `is_stable`.

    Args:
        spark: The session that analyses.
        texts: The expressions.
        source: The source's alias and columns.
    """
    parser = spark._jsparkSession.sessionState().sqlParser()
    proof = _Proof.of([source], is_exact=str(spark.conf.get("spark.sql.caseSensitive")).lower() == "true")
    return all(proof.covers(parser.parseExpression(text), text) for text in texts)


Relation: TypeAlias = tuple[str, Sequence[str]]
"""The alias of a side of the MERGE, and its columns."""


@dataclass(frozen=True, slots=True)
class _Proof:
    """The names that a stable expression may use."""

    names: frozenset[str]
    qualified: frozenset[tuple[str, str]]
    is_exact: bool

    @classmethod
    def of(cls, relations: Sequence[Relation], *, is_exact: bool) -> _Proof:
        pairs = [(alias, column) for alias, columns in relations for column in columns]
        if not is_exact:
            pairs = [(alias.lower(), column.lower()) for alias, column in pairs]
        return cls(frozenset(column for _, column in pairs), frozenset(pairs), is_exact)

    def covers(self, node: Any, text: str) -> bool:
        """Whether the parsed node of the text provably has the same value at any time."""
        children = items(node.children())
        match str(node.getClass().getSimpleName()):
            case "Literal":
                return _is_stable_literal(node, text)
            case "UnresolvedAttribute":
                return self._is_column([str(part) for part in items(node.nameParts())])
            case "UnresolvedFunction":
                names = [str(name) for name in items(node.nameParts())]
                if len(names) != 1 or names[0].lower() not in _STABLE_FUNCTIONS:
                    return False
            case "Assignment":
                children = iter([node.value()])
            case "Cast":
                # Words such as 'now' are dates as well.
                kind = str(node.child().getClass().getSimpleName())
                if kind == "Literal" and _type_name(node) in _MOMENTS:
                    return False
            case name:
                if name not in _STABLE_NODES:
                    return False
        return all(self.covers(child, text) for child in children)

    def _is_column(self, parts: Sequence[str]) -> bool:
        """Whether a name is a column's, not that of a function without parentheses or a session variable."""
        known = parts if self.is_exact else [part.lower() for part in parts]
        return known[0] in self.names or (len(known) > 1 and (known[0], known[1]) in self.qualified)


def _type_name(node: Any) -> str:
    return str(node.dataType().getClass().getSimpleName()).rstrip("$")


def _is_stable_literal(node: Any, text: str) -> bool:
    if _type_name(node) not in _MOMENTS:
        return True
    start, stop = optional(node.origin().startIndex()), optional(node.origin().stopIndex())
    return start is not None and stop is not None and bool(_WRITTEN_OUT.match(text[int(start) : int(stop) + 1]))


def bitmap(spark: SparkSession, column: Column) -> Column:
    """Return the aggregate of row positions as Delta's bitmap: struct<cardinality, bitmap>; ignores NULL."""
    jvm: Any = spark._jvm
    from pyspark.sql.classic.column import Column as ClassicColumn

    utils = java_class(jvm, "org.apache.spark.sql.classic.ExpressionUtils")
    portable = java_class(jvm, "org.apache.spark.sql.delta.deletionvectors.RoaringBitmapArrayFormat").Portable()
    aggregator = java_class(jvm, "org.apache.spark.sql.catalyst.expressions.aggregation.BitmapAggregator")(
        utils.expression(column._jc),
        portable,
    )
    return ClassicColumn(utils.column(aggregator.toAggregateExpression()))
