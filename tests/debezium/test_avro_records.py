"""Records in Avro are decoded as the same records in JSON are: real logs, and what can be wrong with a record."""

import fcntl
import gzip
import json
import math
import tempfile
from datetime import datetime, timezone
from decimal import Decimal
from pathlib import Path

import pyspark
import pytest

from stream_merge import ConfigError, debezium, merge_sink
from tests.debezium.avro import encode, in_avro
from tests.debezium.captures import CAPTURES
from tests.debezium.records import SCHEMA, envelope, frame_of, record, with_schema
from tests.debezium.registry_server import serving
from tests.debezium.test_learnt_columns import ID, KEY, decimal, field, wrapped

AVRO = f"org.apache.spark:spark-avro_2.13:{pyspark.__version__}"


@pytest.fixture(scope="module")
def spark(spark):
    """Return the session with Spark's Avro package."""
    with (Path(tempfile.gettempdir()) / "stream_merge-tests.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        spark.sql(f"ADD JAR 'ivy://{AVRO}?transitive=false'")
    return spark


@pytest.fixture
def server():
    with serving() as registry:
        yield registry


def decoded(spark, server, *records, **options):
    return debezium.from_registry(frame_of(spark, *records), debezium.SchemaRegistry(url=server.url, **options))


def changes_of(records, *, keys=None):
    """Return the changes in the order of the records, without the text that was sent."""
    learnt = debezium.learn_columns(records)
    rows = debezium.changes(records, learnt, keys).collect()
    found = [(*row[:-1], *(None if name == "raw" else row[-1][name] for name in row[-1].__fields__)) for row in rows]
    return learnt.fields, sorted(found, key=repr)


def captured(capture):
    """Return the records of a log by their topic."""
    found = {}
    with gzip.open(CAPTURES / capture / "events.jsonl.gz", "rt", encoding="utf-8") as lines:
        for each in map(json.loads, lines):
            key, value = ((each[name] and each[name].encode()) for name in ("key", "value"))
            headers = [(name, text and text.encode()) for name, text in each["headers"] or ()]
            at = datetime.fromtimestamp(each["timestamp"] / 1000, timezone.utc)
            found.setdefault(each["topic"], []).append(
                (key, value, each["topic"], each["partition"], each["offset"], at, 0, headers)
            )
    return found


LOGS = ["mys.shop.zoo", "mys.shop.odd_keys", "mys.shop.altered", "mys.shop.nokey"]
LOGS = [("mariadb-schema", topic) for topic in LOGS]
LOGS += [("odd-schema", f"schema.public.{table}") for table in ("evolving", "k_numeric", "pairs", "payload")]
LONG = [("odd-schema", "schema.public.Order_Lines")]
LONG += [("small-schema", f"shopschema.public.{table}") for table in ("customers", "orders", "order_items", "products")]


@pytest.mark.every_case
@pytest.mark.parametrize(
    ("capture", "topic"), [*LOGS, *(pytest.param(*each, marks=pytest.mark.long) for each in LONG)]
)
def test_a_log_in_avro_makes_the_changes_that_it_makes_in_json(spark, server, capture, topic):
    records = captured(capture)[topic]
    avro = decoded(spark, server, *[in_avro(server, each) for each in records]).persist()
    sent = [tuple(part and json.loads(part) for part in each[:2]) for each in records]
    rows = avro.collect()
    # The documentation of a type is left out.
    assert [tuple(part and json.loads(part)["payload"] for part in row[:2]) for row in rows] == [
        tuple(part and part["payload"] for part in each) for each in sent
    ]
    assert {row["_decode_error"] for row in rows} == {None}
    keys = [] if topic.endswith("nokey") else None
    assert changes_of(avro, keys=keys) == changes_of(frame_of(spark, *records), keys=keys)
    avro.unpersist()
