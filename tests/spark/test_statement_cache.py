"""A resolved statement is kept for later batches only if it is proved to mean the same in every moment."""

from __future__ import annotations

import datetime as dt
import time

import pytest

from stream_merge import merge_sink
from stream_merge.bridge.expressions import is_stable
from stream_merge.bridge.sessions import ADAPTIVE
from stream_merge.column_names import SEQUENCE
from stream_merge.errors import ClauseError

pytestmark = pytest.mark.any_strategy

NOWS = (
    "unix_timestamp()",
    "current_timestamp",
    "current_timestamp()",
    "now()",
    "localtimestamp",
    "curdate()",
    "current_time()",
    "to_timestamp('now')",
    "DATE'today'",
    "TIMESTAMP'now'",
    "TIMESTAMP'yesterday'",
    "CAST('now' AS TIMESTAMP)",
    "date('tomorrow')",
    "timestamp('now')",
    "uuid()",
    "rand()",
    "current_user()",
    "user()",
    "session_user",
    "getdate()",
    "from_unixtime(unix_timestamp())",
    "date_diff(DATE'2024-01-01', now())",
    "input_file_name()",
    "from_csv('now', 'a TIMESTAMP').a",
    "nobody_knows_this_one()",
)


def is_proved(spark, clause: str, source=("k", "v", "a", "user", "uuid", "now()"), target=("k", "v")) -> bool:
    statement = f"MERGE INTO t target USING s source ON target.k = source.k {clause}"
    return is_stable(spark, statement, ("source", source), ("target", target), {"fields": []})


@pytest.mark.core
@pytest.mark.parametrize("now", NOWS)
def test_what_gives_another_value_in_another_moment_is_not_kept(spark, now):
    assert not is_proved(spark, f"WHEN MATCHED THEN UPDATE SET v = {now}")
    assert not is_proved(spark, f"WHEN MATCHED AND {now} IS NOT NULL THEN DELETE")
    assert not is_proved(spark, f"WHEN NOT MATCHED THEN INSERT (v) VALUES ({now})")
    assert not is_proved(spark, f"WHEN NOT MATCHED BY SOURCE THEN UPDATE SET v = coalesce(target.v, {now})")


@pytest.mark.core
@pytest.mark.parametrize(
    "value",
    ["source.user", "source.uuid", "source.`now()`", "target.v + 1", "DATE'2024-01-01'", "'current_timestamp()'",
     "coalesce(source.v, 'now')", "CASE WHEN source.a THEN upper(source.v) END", "CAST(source.v AS BIGINT)",
     "transform(source.a, x -> x + 1)", "TIMESTAMP'2024-01-01 00:00:00Z'"],
)  # fmt: skip
def test_what_always_means_the_same_is_kept(spark, value):
    assert is_proved(spark, f"WHEN MATCHED THEN UPDATE SET v = {value}")


@pytest.mark.parametrize(
    ("clause", "is_kept"),
    [
        ("WHEN MATCHED THEN UPDATE SET v = user", True),
        ("WHEN NOT MATCHED THEN INSERT (v) VALUES (user)", True),
        ("WHEN NOT MATCHED THEN INSERT (v) VALUES (session_user)", False),
        ("WHEN NOT MATCHED BY SOURCE THEN UPDATE SET v = session_user", True),
        ("WHEN NOT MATCHED BY SOURCE THEN UPDATE SET v = user", False),
        ("WHEN MATCHED THEN UPDATE SET v = session.variable", False),
        ("WHEN MATCHED THEN UPDATE SET v = variable", False),
    ],
)
def test_a_name_is_a_column_where_its_side_is_seen(spark, clause, is_kept):
    assert is_proved(spark, clause, source=["k", "user"], target=["k", "v", "session_user"]) is is_kept


@pytest.mark.always
@pytest.mark.parametrize(
    "now", ["unix_timestamp()", "CAST(TIMESTAMP'now' AS BIGINT)", "unix_seconds(to_timestamp('now'))"]
)
def test_each_batch_has_its_own_time(create_table, create_source, read_rows, deletion_vectors, now):
    path = create_table("k INT, v BIGINT", [(1, 0)], deletion_vectors=deletion_vectors)
    sink = merge_sink(path, on="target.k = source.k").when_matched_update(set={"v": now})
    source = create_source("k INT", [(1,)])
    sink.merge(source)
    [first] = read_rows(path)
    time.sleep(2)
    sink.merge(source)
    [second] = read_rows(path)
    assert second["v"] - first["v"] >= 1


def test_a_default_that_is_the_time_is_taken_anew(spark, create_table, create_source, read_rows, deletion_vectors):
    path = create_table(
        "k INT, at TIMESTAMP DEFAULT current_timestamp()",
        deletion_vectors=deletion_vectors,
        properties={"delta.feature.allowColumnDefaults": "supported"},
    )
    sink = merge_sink(path, on="target.k = source.k").when_not_matched_insert(values={"k": "source.k"})
    for k in (1, 2):
        sink.merge(create_source("k INT", [(k,)]))
        time.sleep(0.1)
    first, second = (row["at"] for row in read_rows(path))
    assert first < second


def test_columns_with_names_of_functions_are_kept(create_table, create_source, deletion_vectors, monkeypatch):
    """A name in the schema says nothing of time: the second batch is resolved from the cache."""
    from stream_merge.batch import caches

    calls = []
    analyse = caches.analyse
    monkeypatch.setattr(caches, "analyse", lambda *args, **kwargs: calls.append(1) or analyse(*args, **kwargs))
    path = create_table("user INT, uuid STRING, current_date INT", deletion_vectors=deletion_vectors)
    sink = merge_sink(path, keys="user")
    for number in range(3):
        sink.merge(create_source("user INT, uuid STRING, current_date INT", [(1, "a", number)]))
    assert len(calls) == 1


def test_a_sql_function_is_refused_as_merge_refuses_it(spark, create_table, create_source, read_rows, deletion_vectors):
    """Spark takes SQL functions in queries alone; Delta's MERGE says the same."""
    spark.sql("CREATE OR REPLACE TEMPORARY FUNCTION stamp() RETURNS TIMESTAMP RETURN current_timestamp()")
    path = create_table("k INT, at TIMESTAMP", [(1, None)], deletion_vectors=deletion_vectors)
    source = create_source("k INT", [(1,)])
    source.createOrReplaceTempView("changes_with_function")
    with pytest.raises(Exception, match="UNSUPPORTED_SQL_UDF_USAGE"):
        spark.sql(
            f"MERGE INTO delta.`{path}` target USING changes_with_function source ON target.k = source.k "
            "WHEN MATCHED THEN UPDATE SET at = stamp()"
        )
    sink = merge_sink(path, on="target.k = source.k").when_matched_update(set={"at": "stamp()"})
    with pytest.raises(ClauseError, match=r"UNSUPPORTED_SQL_UDF_USAGE.*in the source"):
        sink.merge(source)
    # What it says to do.
    sink = merge_sink(path, on="target.k = source.k").when_matched_update(set={"at": "source.at"})
    sink.merge(source.selectExpr("k", "stamp() AS at"))
    assert read_rows(path)[0]["at"] is not None


@pytest.mark.parametrize("now", ["unix_timestamp()", "TIMESTAMP'now'", "to_timestamp('now')"])
def test_a_sequence_that_is_the_time_is_taken_anew(create_table, create_source, read_rows, deletion_vectors, now):
    path = create_table("k INT, v INT", deletion_vectors=deletion_vectors)
    sink = merge_sink(path, keys="k", sequence_by=f"CAST({now} AS DOUBLE)", delete_when="v < 0")
    places = []
    for number in range(4):
        sink.merge(create_source("k INT, v INT", [(1, number)]))
        [row] = read_rows(path)
        places.append((row[SEQUENCE], row["v"]))
        time.sleep(1.1)
    assert places == sorted(places)
    assert len({sequence for sequence, _ in places}) == 4


@pytest.mark.parametrize("adaptive", ["true", "false"])
def test_rows_are_taken_with_the_settings_of_their_own_batch(
    spark, create_table, create_source, read_rows, deletion_vectors, adaptive
):
    """A text is a moment in the session's zone, both as a sequence and as a key of the table's type."""
    path = create_table("k TIMESTAMP, v INT", deletion_vectors=deletion_vectors)
    sink = merge_sink(path, keys="k", sequence_by="CAST(s AS TIMESTAMP)", except_columns="s")
    before = {name: spark.conf.get(name) for name in ("spark.sql.session.timeZone", ADAPTIVE)}
    # Without, the merge's own jobs run in a clone of the session.
    spark.conf.set(ADAPTIVE, adaptive)
    try:
        for number, name in enumerate(("UTC", "UTC", "UTC", "Asia/Tokyo", "Asia/Tokyo", "UTC")):
            spark.conf.set("spark.sql.session.timeZone", name)
            text = f"2024-01-0{number + 1} 12:00:00"
            source = create_source("k STRING, v INT, s STRING", [(text, number, text)])
            sink.merge(source)
    finally:
        for name, value in before.items():
            spark.conf.set(name, value)
    found = {row["v"]: (row["k"], row[SEQUENCE]["s0"]) for row in read_rows(path)}
    noon = [
        dt.datetime.fromisoformat(f"2024-01-0{number + 1} {3 if number in (3, 4) else 12:02}:00") for number in range(6)
    ]
    assert found == {number: (moment, moment) for number, moment in enumerate(noon)}
