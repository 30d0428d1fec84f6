"""The parts of `stream-merge diff` that need no Spark: names, ranges, conditions, checksums, texts."""

from __future__ import annotations

from pathlib import Path

import pytest
from pyspark.sql import types as T

from stream_merge.bridge.jdbc import JdbcColumn
from stream_merge.cli.compare.checksums import BucketSum, check, ranges_of
from stream_merge.cli.compare.columns import PairedColumns, pair_columns
from stream_merge.cli.compare.comparison import Comparison
from stream_merge.cli.compare.database import Access, TableName
from stream_merge.cli.compare.diff_command import PASSWORD_VARIABLE, Request, password_of
from stream_merge.cli.compare.kinds import KeyKind, Kind, quoted, source_column
from stream_merge.cli.compare.pairs import Pair, source_of
from stream_merge.cli.compare.ranges import (
    EVERYWHERE,
    KeyRanges,
    conditions_on_keys,
    literal_of,
    num_ranges_for,
    reading_ranges,
    shared_ranges,
)
from stream_merge.cli.compare.report import lines_of, visible
from stream_merge.cli.compare.rows import Difference, Differences
from stream_merge.cli.errors import ExitCode, PipelineError

POSTGRES = "jdbc:postgresql://localhost/shop"


def postgres_column(type_name: str, jdbc_type: int = 1111, name: str = "c"):
    return source_column(JdbcColumn(name=name, type_name=type_name, jdbc_type=jdbc_type), '"', "postgresql")


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("public.customers", TableName(schema="public", name="customers")),
        ("customers", TableName(schema=None, name="customers")),
        ('"We.ird"."or""ders"', TableName(schema="We.ird", name='or"ders')),
        ('public."Order Items"', TableName(schema="public", name="Order Items")),
        ("public.naïve table", TableName(schema="public", name="naïve table")),
    ],
)
def test_names_of_tables(text, name):
    assert TableName.parse(text) == name


@pytest.mark.parametrize("text", ["", ".", "a.", ".a", "a.b.c", '"a', 'a"b', '"a"b'])
def test_what_is_no_name_is_refused(text):
    with pytest.raises(PipelineError, match="is not the name of a table") as refused:
        TableName.parse(text)
    assert refused.value.exit_code is ExitCode.USAGE


def test_names_are_quoted_with_their_quotes():
    assert TableName(schema="s", name='a"; DROP TABLE b; --').sql('"') == '"s"."a""; DROP TABLE b; --"'
    assert quoted("a`b", "`") == "`a``b`"


@pytest.mark.parametrize(
    "url",
    [
        "jdbc:postgresql://localhost/shop?password=hush",
        "jdbc:postgresql://localhost/shop?user=a&PASSWORD=hush",
        "jdbc:postgresql://localhost/shop?ssl=true&sslpassword=hush",
        "jdbc:mysql://root:hush@localhost/shop",
        "jdbc:sqlserver://localhost;user=a;password=hush",
        "jdbc:oracle:thin:scott/tiger@localhost:1521/shop",
    ],
)
def test_an_address_with_a_password_is_refused(url):
    with pytest.raises(PipelineError, match="--jdbc has a password"):
        Access(url=url).check()


@pytest.mark.parametrize("url", ["postgresql://localhost/shop", "jdbc:", "jdbc:postgresql://a b"])
def test_what_is_no_address_is_refused(url):
    with pytest.raises(PipelineError, match="--jdbc is the database's address"):
        Access(url=url).check()


@pytest.mark.parametrize(
    "url",
    [POSTGRES, "jdbc:postgresql://[::1]:5432/shop?ssl=true", "jdbc:derby:memory:shop", "jdbc:oracle:thin:@//h:1/s"],
)
def test_an_address_without_a_password_is_taken(url):
    Access(url=url).check()


def test_a_password_comes_from_the_environment_and_is_not_shown():
    assert password_of({PASSWORD_VARIABLE: "hush"}, None) == "hush"
    assert password_of({"MINE": "hush"}, "MINE") == "hush"
    assert password_of({}, None) is None
    with pytest.raises(PipelineError, match="no variable MINE"):
        password_of({PASSWORD_VARIABLE: "hush"}, "MINE")
    access = Access(url=POSTGRES, user="u", password="hush")
    assert "hush" not in repr(access)
    assert access.options == {"url": POSTGRES, "user": "u", "password": "hush", "driver": "org.postgresql.Driver"}


def test_the_driver_of_postgresql_is_chosen_and_another_one_replaces_it():
    assert [package.rpartition(":")[0] for package in Access(url=POSTGRES).packages] == ["org.postgresql:postgresql"]
    assert Access(url=POSTGRES, driver="mine.Driver").packages == []
    assert Access(url=POSTGRES, driver="mine.Driver").options["driver"] == "mine.Driver"
    assert Access(url="jdbc:derby:memory:x").packages == []


def request(**given) -> Request:
    values = {
        "target": "./lake/t",
        "table": "public.t",
        "loaded": None,
        "only": (),
        "keys": None,
        "access": Access(url=POSTGRES),
        "seconds": 0.0,
        "num_samples": 0,
        "all_columns": False,
    }
    return Request(**{**values, **given})


def test_a_request_names_one_table_or_a_pipeline():
    request().check()
    for given, says in [
        ({"target": None}, "Name either a Delta table"),
        ({"table": None}, "Name the table of the database"),
        ({"only": ("./lake/t",)}, "--only chooses"),
        ({"table": "a.b.c"}, "is not the name of a table"),
    ]:
        with pytest.raises(PipelineError, match=says):
            request(**given).check()


@pytest.mark.parametrize(
    ("topic", "name"),
    [
        ("shop.public.customers", TableName(schema="public", name="customers")),
        ("a.b.c.public.customers", TableName(schema="public", name="customers")),
        ("customers", None),
        ("public.customers", None),
        ("shop..customers", None),
    ],
)
def test_the_table_of_a_topic(topic, name):
    assert source_of(topic) == name


def test_only_harmless_values_become_literals():
    number, date, text, uuid = KeyKind.NUMBER, KeyKind.DATE, KeyKind.TEXT, KeyKind.UUID
    assert [literal_of(value, number) for value in ("5", "-5.25", "1e5", "NaN", "٣", "1;", None)] == [
        "5", "(-5.25)", None, None, None, None, None,
    ]  # fmt: skip
    assert literal_of("2026-01-31", date) == "{d '2026-01-31'}"
    assert [literal_of(value, date) for value in ("0000-01-01", "-0043-03-15", "+12026-01-01")] == [None] * 3
    assert literal_of("a_B-c 1", text) == "'a_B-c 1'"
    assert [literal_of(value, text) for value in ("", " a", "a ", "it's", "\\", "a\n", "ä", "?", "{a}", "%")] == [
        None
    ] * 10
    assert literal_of("8d5f1f0a-0000-4000-8000-0123456789ab", uuid) == "'8d5f1f0a-0000-4000-8000-0123456789ab'"
    assert literal_of("8D5F1F0A-0000-4000-8000-0123456789AB", uuid) is None


def members(ranges: KeyRanges, keys) -> list[list[object]]:
    """Return which keys are in each range; the conditions are read as Python."""
    as_python = [
        condition.replace(" IS NULL", " is None").replace(" AND ", " and ").replace(" OR ", " or ")
        for condition in ranges.conditions()
    ]

    def meets(condition: str, key: object) -> bool:
        if key is None:
            return "is None" in condition
        return bool(eval(condition, {"k": key}))

    return [[key for key in keys if meets(condition, key)] for condition in as_python]


def test_ranges_of_numbers_take_each_key_once():
    ranges = shared_ranges("k", KeyKind.NUMBER, ["10", "-2.50", "9", "-2.5", "NaN", "100"])
    assert ranges.values == ("-2.50", "9", "10", "100")
    found = members(ranges, [None, -3, -2.5, 0, 9, 9.5, 10, 99, 100, 10**9])
    assert found == [[None, -3], [-2.5, 0], [9, 9.5], [10, 99], [100, 10**9]]
    assert ranges.conditions([1, 4]) == ["k >= (-2.50) AND k < 9", "k >= 100"]
    assert len(ranges.conditions([1, EVERYWHERE])) == 5
    assert ranges.condition_of_spark("x", "bigint", [0, 2]) == (
        "(x < CAST('-2.50' AS bigint)) OR (x >= CAST('9' AS bigint) AND x < CAST('10' AS bigint))"
    )
    assert ranges.condition_of_spark("x", "bigint", [2, EVERYWHERE]) == "true"


def test_sparks_ranges_are_those_of_the_database():
    ranges = shared_ranges("k", KeyKind.NUMBER, ["1", "5", "7", "20", "21"])
    sql = ranges.number_of("x", "int")
    assert sql.startswith("CASE WHEN x IS NULL THEN -1 ELSE ")
    text = sql.removeprefix("CASE WHEN x IS NULL THEN -1 ELSE ").removesuffix(" END")
    text = text.replace("CAST('", "int('").replace(" AS int)", ")")
    found = [eval(text, {"x": key, "IF": lambda is_so, yes, no: yes if is_so else no}) for key in range(25)]
    keys = members(ranges, range(25))
    assert [next(number for number, part in enumerate(keys) if key in part) for key in range(25)] == found


def test_ranges_of_text_are_in_the_order_of_the_database():
    ordered = ["a", "A", "b", "it's", "_", "z"]
    ranges = reading_ranges("k", ordered, 3)
    assert ranges.conditions() == ["(k < 'A' OR k IS NULL)", "k >= 'A' AND k < '_'", "k >= '_'"]
    # Spark does not know them, so that all are read, whatever differs.
    assert ranges.conditions([0]) == ranges.conditions()
    assert ranges.num_shared == 1
    assert reading_ranges("k", ["a"], 5).conditions() == ["(k < 'a' OR k IS NULL)", "k >= 'a'"]
    assert reading_ranges("k", ["it's"], 5).conditions() == ["1 = 1"]


def test_tables_are_divided_by_their_size():
    assert [num_ranges_for(rows) for rows in (0, 10, 250_000, 10**9)] == [1, 1, 2, 64]


def test_conditions_on_keys():
    kinds = [KeyKind.NUMBER, KeyKind.TEXT]
    keys = [["1", "a"], ["2", "b"], ["3", "c"]]
    assert conditions_on_keys(["k0", "k1"], kinds, keys, a_query=2) == [
        "(k0 = 1 AND k1 = 'a') OR (k0 = 2 AND k1 = 'b')",
        "(k0 = 3 AND k1 = 'c')",
    ]
    assert conditions_on_keys(["k0", "k1"], kinds, [*keys, ["4", "'"]]) is None
    assert conditions_on_keys(["k0", "k1"], [KeyKind.NUMBER, None], keys) is None
    assert conditions_on_keys(["k0"], [KeyKind.NUMBER], [[None]]) is None


def test_buckets_are_equal_only_with_number_and_sums():
    sums = [
        BucketSum(bucket=7, source=(2, 5, 5, 5, 5), target=(2, 5, 5, 5, 5)),
        BucketSum(bucket=3, source=(2, 5, 5, 5, 5), target=(2, 5, 5, 5, 6)),
        BucketSum(bucket=1, source=(0, 0, 0, 0, 0), target=(4, 1, 1, 1, 1)),
    ]
    found = check(sums)
    assert (found.num_source, found.num_target, found.num_equal, found.differing) == (4, 8, 2, (1, 3))
    # Four buckets a range, the first ones for keys without a place.
    assert ranges_of([0, 3, 4, 11], 4) == {-1, 0, 1}


@pytest.mark.parametrize(
    ("type_name", "kind"),
    [
        ("bigserial", Kind.PLAIN),
        ("numeric", Kind.NUMBER),
        ("money", Kind.NUMBER),
        ("timestamptz", Kind.MOMENT),
        ("timetz", Kind.TIME),
        ("interval", Kind.DURATION),
        ("jsonb", Kind.JSON),
        ("_text", Kind.ARRAY),
        ("bytea", Kind.BINARY),
        ("order_status", Kind.PLAIN),
        ("inet", Kind.PLAIN),
        ("hstore", None),
        ("_bytea", None),
    ],
)
def test_kinds_of_postgresqls_types(type_name, kind):
    column = postgres_column(type_name, name='a"b')
    assert column.kind is kind
    assert '"a""b"' in column.sql


def test_kinds_of_other_databases():
    kinds = {4: Kind.PLAIN, 3: Kind.NUMBER, 93: Kind.MOMENT, 92: Kind.TIME, 2004: Kind.BINARY, 2009: None}
    for jdbc_type, kind in kinds.items():
        column = source_column(JdbcColumn(name="c", type_name="X", jdbc_type=jdbc_type), "`", "mysql")
        assert (column.kind, column.sql) == (kind, "`c`")


def table_of(**types: T.DataType) -> T.StructType:
    return T.StructType([T.StructField(name, data_type) for name, data_type in types.items()])


def table_of_text(*names: str) -> T.StructType:
    return table_of(**dict.fromkeys(names, T.StringType()))


def columns_of(*names: str):
    return [postgres_column("text", 12, name) for name in names]


def test_columns_are_paired_by_name():
    target = table_of_text("ID", "odd name", "email", "own", "_stream_merge_sequence")
    source = columns_of("id", "odd name", "email_address", "new")
    found = pair_columns(source, target, ["id"], renamed={"email_address": "email"}, left_out=())
    assert [(column.name, column.source.name) for column in found.compared] == [
        ("ID", "id"),
        ("odd name", "odd name"),
        ("email", "email_address"),
    ]
    assert (found.source_only, found.target_only, found.num_keys) == (("new",), ("own",), 1)


def test_an_exact_name_goes_before_one_that_is_alike():
    found = pair_columns(columns_of("ID", "id"), table_of_text("id"), [], renamed={})
    assert [column.source.name for column in found.compared] == ["id"]
    assert found.source_only == ("ID",)
    assert (found.has_key, found.num_keys) == (False, 1)


def test_columns_that_the_pipeline_leaves_out_are_not_told():
    target = table_of_text("id", "secret")
    found = pair_columns(columns_of("id", "secret", "other"), target, ["id"], renamed={}, left_out=["Secret"])
    assert [column.name for column in found.compared] == ["id"]
    assert (found.source_only, found.target_only) == (("other",), ())
    found = pair_columns(columns_of("id", "secret", "other"), target, ["id"], renamed={}, written=["SECRET"])
    assert [column.name for column in found.compared] == ["id", "secret"]
    assert (found.source_only, found.target_only) == ((), ())


def test_columns_that_cannot_be_compared_are_named():
    source = [*columns_of("id"), postgres_column("hstore", name="h"), postgres_column("timestamp", 93, name="at")]
    target = table_of(id=T.StringType(), h=T.MapType(T.StringType(), T.StringType()), at=T.LongType())
    found = pair_columns(source, target, ["id"], renamed={})
    assert found.faults == {
        "h": "has no text that both sides share (hstore and map<string,string>)",
        "at": "has times on one side and numbers of an unknown unit on the other (timestamp and bigint)",
    }


@pytest.mark.parametrize(
    ("names", "keys", "says"),
    [(["id"], ["nr"], "nr is not on both sides"), (["other"], [], "no column in common")],
)
def test_tables_without_a_common_key_are_refused(names, keys, says):
    with pytest.raises(PipelineError, match=says):
        pair_columns(columns_of(*names), table_of_text("id", "nr"), keys, renamed={})


def test_what_is_shown_controls_no_terminal():
    assert visible("a\x1b[31mb\x9b\n\u202e[bold]") == "a\\x1b[31mb\\x9b\\n\\u202e[bold]"
    assert visible('"\\') == '\\"\\\\'
    assert visible("naïve 日本語", 5) == "naïve…"
    assert visible("\ud800") == "\\ud800"


def comparison(columns: PairedColumns, differences: Differences, **given) -> Comparison:
    pair = Pair(target="./lake/t", source=TableName(schema="public", name="t"))
    values = {"num_source": 3, "num_target": 4, "num_equal": 2, "num_settled": 0}
    return Comparison(pair=pair, columns=columns, differences=differences, **{**values, **given})


def test_the_result_as_text():
    source = [*columns_of("id", "name"), postgres_column("numeric", 2, "price")]
    target = table_of(id=T.StringType(), name=T.StringType(), price=T.DecimalType(4, 2), own=T.IntegerType())
    columns = pair_columns(source, target, ["id"], renamed={})
    assert list(lines_of(comparison(columns, Differences()))) == [
        "./lake/t and public.t: equal, 2 rows",
        "  not compared, only in the Delta table: own",
    ]
    differences = Differences(
        num_keys=5,
        num_missing=1,
        num_extra=1,
        num_differing=3,
        columns=((2, 2),),
        samples=(
            Difference(key=("a",), source=(("a", "x", "\x001.234"),), target=(("a", "x", None),)),
            Difference(key=("b\n",), source=(), target=(("b\n", "x", None),)),
            Difference(key=("c",), source=(("c", "x", None),), target=()),
            Difference(key=("d",), source=(("d", "x", None),), target=(("d", "x", None),) * 2),
        ),
    )
    assert list(lines_of(comparison(columns, differences, num_settled=1))) == [
        "./lake/t and public.t: different, 3 and 4 rows",
        "  2 rows equal, 1 missing in the Delta table, 1 extra in it, 3 differing",
        "  1 key differed at first and agreed when read again",
        "  columns that differ: price in 2 rows",
        "  not compared, only in the Delta table: own",
        '  differs: id = "a"',
        '    price: "1.234" (not a decimal(4,2)) in the database, NULL in the Delta table',
        '  extra: id = "b\\n"',
        '  missing: id = "c"',
        '  1 in the database, 2 in the Delta table: id = "d"',
        "  and 1 more key",
    ]


def test_the_result_of_the_guide_is_what_is_printed():
    def printed(name: str, columns: PairedColumns, differences: Differences, **given: int) -> list[str]:
        pair = Pair(target=f"./lake/{name}", source=TableName(schema="public", name=name))
        return list(lines_of(Comparison(pair=pair, columns=columns, differences=differences, **given)))

    source = [postgres_column("int8", -5, "order_id"), *columns_of("status")]
    target = table_of(order_id=T.LongType(), status=T.StringType(), loaded_at=T.DateType())
    columns = pair_columns(source, target, ["order_id"], renamed={})
    equal = pair_columns(source, table_of_text("order_id", "status"), ["order_id"], renamed={})
    row = (("9", "new"),)
    differences = Differences(
        num_keys=4,
        num_missing=2,
        num_extra=1,
        num_differing=1,
        columns=((1, 1),),
        samples=(
            Difference(key=("12",), source=(), target=row),
            Difference(key=("13",), source=row, target=()),
            Difference(key=("14",), source=row, target=()),
            Difference(key=("7",), source=(("7", "paid"),), target=(("7", "new"),)),
        ),
    )
    counts = {"num_source": 88_102, "num_target": 88_101, "num_equal": 88_099, "num_settled": 14}
    same = {"num_source": 12_400_118, "num_target": 12_400_118, "num_equal": 12_400_118, "num_settled": 0}
    lines = [*printed("customers", equal, Differences(), **same), *printed("orders", columns, differences, **counts)]
    guide = (Path(__file__).parents[2] / "docs/command-line.md").read_text()
    assert "\n```\n" + "\n".join(lines) + "\n```\n" in guide
