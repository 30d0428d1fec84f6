"""Changes that are filtered by what was decoded, as one filters any frame."""

import pytest

from stream_merge import debezium
from tests.debezium.records import envelope, frame_of, record

COLUMNS = (
    "id BIGINT, name STRING, price DECIMAL(5, 2), at TIMESTAMP, day DATE, active BOOLEAN, tags ARRAY<STRING>, "
    "place STRUCT<x: DOUBLE, y: DOUBLE>, score DOUBLE, n INT"
)
CONDITIONS = {
    "name IS NULL": [2, 4],
    "price > 1.00 AND NOT active AND at < TIMESTAMP'1970-01-02' AND day = DATE'1970-01-02'": [3],
    "place.x = 1 AND tags[0] = 'a' AND score > 0.5 AND n IS NOT NULL": [1],
    "id > 2 AND _change.sequence IS NOT NULL AND _change.offset >= 3": [3, 4],
    "_change.error IS NOT NULL": [4],
}


def row(number, name, price, active, n):
    """Return the row as Debezium sends it: decimals in base64, days and microseconds as numbers."""
    place = {"x": float(number), "y": None, "wkb": None, "srid": None}
    given = {"id": number, "name": name, "price": price, "active": active, "n": n}
    return {**given, "at": 1_000_000, "day": 1, "tags": ["a"], "place": place, "score": number + 0.5}


ROWS = [
    ("c", row(1, "a", "AQ==", True, 1)),
    ("u", row(2, None, "AQ==", True, None)),
    ("r", row(3, "c", "AMg=", False, 3)),
    ("c", {**row(4, None, "AQ==", True, "no number"), "at": 10**12, "day": 9}),
]


def records(spark, *, is_flattened):
    def message(op, image):
        if is_flattened:
            return {**image, "__op": op, "__lsn": 100, "__deleted": "false"}
        return envelope(op, image, before=image if op == "u" else None)

    given = enumerate(ROWS, start=1)
    return frame_of(spark, *[record({"id": image["id"]}, message(op, image), n) for n, (op, image) in given])


def count_parses(frame):
    """Return how often the plan parses envelopes, flattened events and keys."""
    plan = frame._jdf.queryExecution().optimizedPlan().toString()
    return sum(plan.count(f"from_json(StructField({first}") for first in ("after", "id"))


@pytest.mark.core
@pytest.mark.parametrize(
    ("keys", "layout"), [(["id"], None), (["id"], "flattened"), ([], "envelope")], ids=["keys", "flattened", "keyless"]
)
def test_changes_are_filtered_by_any_column(spark, keys, layout):
    """Spark moves a condition below a projection by putting the SQL of each name in its place.

    Below all steps of the decoding such a condition is longer than memory: planning it did not end.
    """
    given = records(spark, is_flattened=layout == "flattened")
    changes = debezium.changes(given, COLUMNS, keys, format=layout)
    num_parses = count_parses(changes)
    assert num_parses
    for condition, found in CONDITIONS.items():
        filtered = changes.where(condition)
        assert sorted(row["id"] for row in filtered.collect()) == found, condition
        assert count_parses(filtered) == num_parses, condition
        # Of what is not asked for, Spark drops the steps of the decoding.
        assert sorted(row["id"] for row in filtered.select("id").collect()) == found, condition


def test_changes_of_a_stream_are_filtered(spark, tmp_path):
    records(spark, is_flattened=False).write.parquet(f"{tmp_path}/records")
    stream = spark.readStream.schema(records(spark, is_flattened=False).schema).parquet(f"{tmp_path}/records")
    changes = debezium.changes(stream, COLUMNS, ["id"]).where("name IS NOT NULL AND price < 2.00").select("id", "name")
    writer = changes.writeStream.format("memory").queryName("filtered").trigger(availableNow=True)
    writer.option("checkpointLocation", f"{tmp_path}/checkpoint").start().awaitTermination()
    assert [tuple(row) for row in spark.table("filtered").collect()] == [(1, "a")]
