"""`stream-merge diff` between Delta tables and Derby, a real database that needs no service."""

from __future__ import annotations

from decimal import Decimal

import pytest
from pyspark.sql import functions as F
from pyspark.sql.types import StringType

from stream_merge import merge_sink
from stream_merge.cli.compare import checksums, ranges
from stream_merge.cli.compare.comparison import compare
from stream_merge.cli.compare.database import DatabaseTable, TableName
from stream_merge.cli.compare.diff_command import Request, diff
from stream_merge.cli.compare.kinds import Kind
from stream_merge.cli.compare.pairs import Pair, pairs_of
from stream_merge.cli.compare.report import lines_of
from stream_merge.cli.compare.values import comparable
from stream_merge.cli.errors import ExitCode, PipelineError
from tests.cli.derby import derby

NAMES = {"delta.columnMapping.mode": "name"}


@pytest.fixture
def database(spark, tmp_path):
    with derby(spark, tmp_path / "derby.log") as made:
        yield made


@pytest.fixture
def read(monkeypatch):
    """Return the conditions of each read of a table of the database, as they come."""
    found = []
    read_before = DatabaseTable.read

    def spied(self, spark, columns, conditions):
        found.append(conditions)
        return read_before(self, spark, columns, conditions)

    monkeypatch.setattr(DatabaseTable, "read", spied)
    return found


def compared(database, path, table, *, keys=None, wait=None, num_samples=10, **pair):
    """Compare, and wait by calling a function, if there is one, that changes what it likes."""
    return compare(
        database.spark,
        database.access,
        Pair(target=path, source=TableName.parse(table), keys=keys, **pair),
        seconds=0 if wait is None else 12,
        num_samples=num_samples,
        wait=wait or (lambda _: None),
    )


def test_rows_that_differ_are_told_with_their_columns(spark, database, create_table):
    database.execute(
        'CREATE TABLE "odd t" ("we""ird id" BIGINT PRIMARY KEY, "x.y`ü" VARCHAR(20), P DECIMAL(10, 3), N INT)'
    )
    rows = [(1, "same", 1), (2, None, None), (3, "old\n[bold]", 1), (4, "gone", 1), (6, None, 1)]
    database.execute('INSERT INTO "odd t" VALUES (?, ?, NULL, ?)', rows=rows)
    database.execute('UPDATE "odd t" SET P = 1.500 WHERE N = 1', 'UPDATE "odd t" SET P = 1.234 WHERE "we""ird id" = 6')
    path = create_table(
        '`we"ird id` BIGINT, `x.y``ü` STRING, p DECIMAL(12, 2), own STRING',
        [
            (1, "same", Decimal("1.5"), "a"),
            (2, None, None, "a"),
            (3, "new", Decimal("1.25"), "a"),
            (5, "extra", None, "a"),
            (6, "", Decimal("1.23"), "a"),
        ],
        properties=NAMES,
    )
    found = compared(database, path, 'APP."odd t"')
    assert (found.num_source, found.num_target, found.num_equal, found.is_equal) == (5, 5, 2, False)
    assert list(lines_of(found)) == [
        f"{path} and APP.odd t: different, 5 and 5 rows",
        "  2 rows equal, 1 missing in the Delta table, 1 extra in it, 2 differing",
        "  columns that differ: x.y`ü in 2 rows, p in 2 rows",
        "  not compared, only in the database: N",
        "  not compared, only in the Delta table: own",
        '  differs: we\\"ird id = 3',
        '    x.y`ü: "old\\n[bold]" in the database, "new" in the Delta table',
        "    p: 1.50 in the database, 1.25 in the Delta table",
        '  missing: we\\"ird id = 4',
        '  extra: we\\"ird id = 5',
        '  differs: we\\"ird id = 6',
        '    x.y`ü: NULL in the database, "" in the Delta table',
        '    p: "1.234" (not a decimal(12,2)) in the database, 1.23 in the Delta table',
    ]


TEXTS = ["a", "B", "ä", "_", "A", "b", "Ä", "z", "Z", "0", "it's", "x y", "\\", "é", "ß", "ss", "-", "n1", "n2", "N3"]


def test_text_keys_in_the_order_of_another_collation(spark, tmp_path, create_table, monkeypatch, read):
    """The database's order of text is German, where a < A < ä < b; its ranges must take each row once."""
    monkeypatch.setattr(ranges, "ROWS_A_RANGE", 3)
    monkeypatch.setattr(checksums, "ROWS_A_BUCKET", 2)
    path = create_table("k STRING, v INT", [(key, 1) for key in TEXTS if key != "ä"])
    attributes = ";territory=de;collation=TERRITORY_BASED"
    with derby(spark, tmp_path / "derby.log", attributes=attributes) as database:
        database.execute("CREATE TABLE t (k VARCHAR(20) PRIMARY KEY, v INT)")
        database.execute("INSERT INTO t VALUES (?, 1)", rows=[(key,) for key in TEXTS])
        in_order = spark.read.jdbc(database.url, "(SELECT k FROM t WHERE k IN ('a', 'A', 'b', 'B') ORDER BY k) t")
        assert [row[0] for row in in_order.collect()] == ["a", "A", "b", "B"]

        waits, read_before = [], DatabaseTable.read

        def read_while_it_arrives(*arguments):
            if waits:
                merge_sink(path, keys=["k"]).merge(spark.createDataFrame([("ä", 1)], "k STRING, v INT"))
            return read_before(*arguments)

        # The Delta table is looked at last: a pipeline that goes on may have the row by then.
        monkeypatch.setattr(DatabaseTable, "read", read_while_it_arrives)
        found = compared(database, path, "APP.T", wait=waits.append)
    assert (found.is_equal, found.num_source, found.num_equal, found.num_settled) == (True, 20, 20, 1)
    # Its key is none that can be asked for alone.
    assert waits == [12.0]
    assert [len(conditions) for conditions in read] == [6, 6, 6]
    assert read[0][0].endswith(" IS NULL)")


@pytest.mark.long
def test_only_ranges_and_keys_that_differ_are_read_again(spark, database, create_table, monkeypatch, read):
    monkeypatch.setattr(ranges, "ROWS_A_RANGE", 10)
    monkeypatch.setattr(checksums, "ROWS_A_BUCKET", 2)
    database.execute("CREATE TABLE t (id BIGINT PRIMARY KEY, v VARCHAR(9))")
    database.execute("INSERT INTO t VALUES (?, ?)", rows=[(number, str(number)) for number in range(-20, 21)])
    rows = [(number, "other" if number in (19, 20) else str(number)) for number in range(-20, 21)]
    path = create_table("id INT, v STRING", rows)

    waits = []

    def change(seconds):
        if not waits:
            merge_sink(path, keys=["id"]).merge(spark.createDataFrame([(20, "20")], "id INT, v STRING"))
        waits.append(seconds)

    found = compared(database, path, "APP.T", wait=change)
    assert (found.num_equal, found.num_settled, found.differences.num_differing) == (40, 1, 1)
    assert [sample.key for sample in found.differences.samples] == [("19",)]
    assert waits == [5.0, 5.0, 2.0]
    first, second, third, *later = read
    assert len(first) == 4
    assert second == first[-1:]
    assert sorted(third[0].split(" OR ")) == ['("k0" = 19)', '("k0" = 20)']
    assert later == [['("k0" = 19)']] * 2


@pytest.mark.long
def test_rows_without_a_key_and_empty_tables(spark, database, create_table):
    database.execute("CREATE TABLE visits (page VARCHAR(9), n INT)")
    pages = [("/", 1), ("/", 1), ("/", 1), (None, 2), (None, 2), (None, None)]
    database.execute("INSERT INTO visits VALUES (?, ?)", rows=pages)
    path = create_table("page STRING, n INT", [("/", 1), ("/", 1), (None, 2), (None, None), (None, None)])
    found = compared(database, path, "APP.VISITS", keys=())
    differences = found.differences
    assert (found.num_equal, differences.num_missing, differences.num_extra) == (4, 2, 1)
    assert '  3 in the database, 2 in the Delta table: page = "/", n = 1' in list(lines_of(found))

    database.execute("CREATE TABLE nothing (id INT PRIMARY KEY)")
    empty = create_table("id INT", [], path=f"{path}-empty")
    assert list(lines_of(compared(database, empty, "APP.NOTHING"))) == [f"{empty} and APP.NOTHING: equal, 0 rows"]


TYPES = {
    "id": ("INT", "DECIMAL(20, 0)"),
    "s": ("SMALLINT", "BIGINT"),
    "d": ("DATE", "DATE"),
    "t": ("TIME", "STRING"),
    "ts": ("TIMESTAMP", "TIMESTAMP_NTZ"),
    "tz": ("TIMESTAMP", "TIMESTAMP"),
    "f": ("DOUBLE", "DOUBLE"),
    "r": ("REAL", "FLOAT"),
    "b": ("BOOLEAN", "BOOLEAN"),
    "c": ("CHAR(5)", "STRING"),
    "l": ("CLOB", "STRING"),
    "y": ("VARCHAR(9) FOR BIT DATA", "BINARY"),
    "n": ("DECIMAL(31, 10)", "DECIMAL(38, 10)"),
    "q": ("DECIMAL(9, 4)", "STRING"),
    "m": ("TIMESTAMP", "STRING"),
}
OF_DERBY = (
    "1, -5, '1815-06-18', '23:59:59', '1880-02-29 23:59:59.999999', '1969-12-31 23:59:59.000001', -0.0, 1.1, TRUE, "
    "'ab', 'long\nétext', X'00FF', -123456789012345678901.0123456789, 1.5, '2026-01-01 10:00:00.5'",
    "2, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL",
)
OF_DELTA = (
    "1, -5, DATE'1815-06-18', '23:59:59.000000', TIMESTAMP_NTZ'1880-02-29 23:59:59.999999', "
    "TIMESTAMP'1969-12-31 23:59:59.000001Z', {zero}, 1.1, true, 'ab   ', 'long\\nétext', X'00FF', "
    "-123456789012345678901.0123456789, '1.50', '2026-01-01T10:00:00.500000Z'",
    "2" + ", NULL" * 14,
)


@pytest.mark.long
@pytest.mark.parametrize("zero", ["-0.0D", "0.0D"])
def test_values_of_all_types(spark, database, create_table, zero):
    database.execute(f"CREATE TABLE t ({', '.join(f'{name} {ours}' for name, (ours, _) in TYPES.items())})")
    database.execute(*[f"INSERT INTO t VALUES ({row})" for row in OF_DERBY])
    path = create_table(", ".join(f"{name} {theirs}" for name, (_, theirs) in TYPES.items()))
    values = [row.format(zero=zero) for row in OF_DELTA]
    spark.sql(f"INSERT INTO delta.`{path}` VALUES ({values[0]}), ({values[1]})")
    found = compared(database, path, "APP.T", keys=("id",))
    assert len(found.columns.compared) == len(TYPES)
    [stored] = spark.read.format("delta").load(path).where("id = 1").select(F.expr("CAST(f AS STRING)")).collect()
    # Derby stores 0.0 for -0.0.
    assert [name for name, _ in [(found.columns.compared[n].name, c) for n, c in found.differences.columns]] == (
        [] if stored[0] == "0.0" else ["f"]
    )


def test_what_the_delta_table_rounds_or_cuts_off_is_not_equal(spark, database, create_table):
    columns = {
        "day": ("TIMESTAMP", "DATE", "'2026-01-02 03:04:05'", "DATE'2026-01-02'"),
        "big": ("BIGINT", "DOUBLE", "9007199254740993", "9007199254740992D"),
        "num": ("DECIMAL(20, 0)", "DOUBLE", "9007199254740993", "9007199254740992D"),
        "small": ("INT", "FLOAT", "16777217", "16777216F"),
        "huge": ("DOUBLE", "FLOAT", "1e300", "FLOAT('Infinity')"),
    }
    midnight = ("'2026-01-02 00:00:00'", "4611686018427387904", "0.0", "16777216", "1.5")
    database.execute(f"CREATE TABLE t (id INT, {', '.join(f'{n} {c[0]}' for n, c in columns.items())})")
    database.execute(f"INSERT INTO t VALUES (1, {', '.join(c[2] for c in columns.values())})")
    database.execute(f"INSERT INTO t VALUES (2, {', '.join(midnight)})")
    path = create_table(f"id INT, {', '.join(f'{n} {c[1]}' for n, c in columns.items())}")
    there = "2, DATE'2026-01-02', 4611686018427387904D, 0.0D, 16777216F, 1.5F"
    spark.sql(f"INSERT INTO delta.`{path}` VALUES (1, {', '.join(c[3] for c in columns.values())}), ({there})")
    found = compared(database, path, "APP.T", keys=("id",))
    assert {found.columns.compared[n].name: count for n, count in found.differences.columns} == dict.fromkeys(
        columns, 1
    )


@pytest.mark.every_case
@pytest.mark.parametrize("keys", [("id",), ()], ids=["key", "no key"])
def test_a_text_that_is_no_utf_8_does_not_settle(spark, database, create_table, keys):
    database.execute("CREATE TABLE t (id VARCHAR(9), n INT)", "INSERT INTO t VALUES ('a', 1), ('b', NULL)")
    path = create_table("id STRING, n INT")
    spark.sql(f"INSERT INTO delta.`{path}` VALUES ('a', 1), ('b', NULL), (CAST(X'FF' AS STRING), NULL)")
    found = compared(database, path, "APP.T", keys=keys, wait=lambda _: None)
    assert (found.is_equal, found.differences.num_extra, found.num_settled) == (False, 1, 0)


def request(database, **given):
    values = {
        "target": None,
        "table": None,
        "loaded": None,
        "only": (),
        "keys": None,
        "access": database.access,
        "seconds": 0.0,
        "num_samples": 0,
        "all_columns": False,
    }
    return Request(**{**values, **given})


def test_the_command_tells_by_its_code_and_refuses_by_name(spark, database, create_table):
    database.execute("CREATE TABLE t (id INT PRIMARY KEY, v INT)")
    database.execute("INSERT INTO t VALUES (?, ?)", rows=[(1, 1)])
    path = create_table("id INT", [(1,)])
    told = []
    asked = {"target": path, "table": "APP.T"}
    assert diff(spark, request(database, **asked), told.append) is ExitCode.OK
    assert told == [f"{path} and APP.T: equal, 1 row", "  not compared, only in the database: V"]
    assert diff(spark, request(database, **asked, all_columns=True), told.append) is ExitCode.DIFFERS
    for given, says in [
        ({"table": "APP.t"}, "The database's table APP.t cannot be read: .* Names are taken exactly"),
        ({"target": f"{path}-none"}, "There is no Delta table"),
        ({"keys": ("nr",)}, "by their key: nr is not on both sides"),
    ]:
        with pytest.raises(PipelineError, match=says):
            diff(spark, request(database, **{**asked, **given}), told.append)


def test_tables_of_a_pipeline_follow_those_of_their_topics(spark, make_pipeline, tmp_path):
    def pipeline(topics, *tables, decode="debezium"):
        source = {"format": "kafka", "bootstrap_servers": "localhost:9092", "topics": topics}
        return make_pipeline(source, *tables, decode=decode, pipeline={"checkpoint": str(tmp_path / "checkpoint")})

    both = pipeline(
        ["shop.public.customers", "shop.public.orders"],
        {"source": "shop.public.orders", "target": "./lake/o", "keys": ["nr"], "rename": {"mail": "email"}},
        {"source": r"re:shop\.public\.(?P<table>\w+)", "target": "./lake/{table}", "except_columns": ["secret"]},
    )
    orders = TableName(schema="public", name="orders")
    customers = TableName(schema="public", name="customers")
    assert pairs_of(spark, both) == [
        Pair(target="./lake/o", source=orders, keys=("nr",), renamed={"mail": "email"}),
        Pair(target="./lake/customers", source=customers, left_out=("secret",)),
    ]
    assert [pair.target for pair in pairs_of(spark, both, ["lake/customers/"])] == ["./lake/customers"]
    other = TableName(schema="a", name="b")
    assert [pair.source for pair in pairs_of(spark, both, ["./lake/o"], other)] == [other]
    for given, says in [
        ((both, ["./lake/x"]), "no table ./lake/x; it has ./lake/o, ./lake/customers"),
        ((both, [], other), "name that with --only"),
        ((pipeline(["a.b.c", "a.b.d"], {"target": "./t"}),), "rows of several sources, a.b.c, a.b.d"),
        ((pipeline(["a.b.c"], {"target": "./t", "keys": ["i"]}, decode="json"),), "no topic tells its table"),
        ((pipeline(["t"], {"source": "re:x(?P<n>.*)", "target": "./{n}"}),), "has no table yet"),
    ]:
        with pytest.raises(PipelineError, match=says):
            pairs_of(spark, *given)


def test_json_is_the_same_but_for_what_its_text_does_not_say(spark):
    def texts(*values):
        frame = spark.createDataFrame([(value,) for value in values], "v STRING")
        return [row[0] for row in frame.select(comparable("v", Kind.JSON, StringType())).collect()]

    one, other = texts('{"b": 1, "a": [ 1.5, null ]}', '{"a":[1.5,null],"b":1}')
    assert one == other
    # As DOUBLE the first two are infinite, the next 0, and the last the same number.
    numbers = ["1e400", "1e401", "1E-400", "1e-401", "9007199254740993", "9007199254740992"]
    assert len({*texts(*numbers)}) == len(numbers)
