"""`init --from kafka` without Kafka and Spark: what sampled records tell, and the file that is written of it."""

import gzip
import json
import re
import sys

import pytest

from stream_merge.cli.discover.columns import sent_columns
from stream_merge.cli.discover.connection import read_connection
from stream_merge.cli.discover.discover import check_file, describe
from stream_merge.cli.discover.findings import Family, examine
from stream_merge.cli.discover.messages import SampledRecord
from stream_merge.cli.discover.plan import make_plan
from stream_merge.cli.discover.sample import is_chosen, sample_ranges
from stream_merge.cli.discover.write import written
from stream_merge.cli.errors import ExitCode, PipelineError
from stream_merge.cli.file.option_checks import ddl_names
from stream_merge.cli.init_arguments import InitArguments, InitSource
from tests.debezium.captures import CAPTURES

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

POSTGRES = {"connector": "postgresql", "lsn": 7}
ROW = {"id": 1, "name": "a"}
ID_KEY = {"schema": {"type": "struct", "fields": [{"field": "id", "type": "int64"}]}, "payload": {"id": 1}}
ID = {"field": "id", "type": "int64"}


def as_bytes(value):
    return value if value is None or isinstance(value, bytes) else json.dumps(value, ensure_ascii=False).encode()


def record(key, value, topic="shop.public.t", **headers):
    pairs = tuple((name, header) for name, header in headers.items())
    return SampledRecord(topic=topic, key=as_bytes(key), value=as_bytes(value), headers=pairs)


def envelope(op="c", after=ROW, before=None, source=POSTGRES):
    return {"before": before, "after": after, "source": source, "op": op, "ts_ms": 1}


def with_schema(fields, payload):
    return {"schema": {"type": "struct", "fields": fields, "optional": False}, "payload": payload}


def described(fields, **message):
    """Return an envelope with a schema part."""
    image = {"type": "struct", "fields": fields}
    parts = [{**image, "field": "before"}, {**image, "field": "after"}]
    parts += [{"type": "struct", "fields": [], "field": "source"}, {"type": "string", "field": "op"}]
    return with_schema(parts, envelope(**message))


def found(*records):
    return examine("shop.public.t", records)


def captured(name):
    """Return the records of a captured log, by topic."""
    by_topic = {}
    with gzip.open(CAPTURES / name / "events.jsonl.gz", "rt", encoding="utf-8", newline="\n") as lines:
        for event in map(json.loads, lines):
            topic, key, value = (event[part] for part in ("topic", "key", "value"))
            headers = tuple((each, text and text.encode()) for each, text in event["headers"] or ())
            one = SampledRecord(topic=topic, key=key and key.encode(), value=value and value.encode(), headers=headers)
            by_topic.setdefault(topic, []).append(one)
    return by_topic


def connection(*options, servers="localhost:9092", registry=None, lake="./lake", environ=None):
    return read_connection(
        bootstrap_servers=servers, options=options, registry=registry, lake=lake, environ=environ or {}
    )


def file_of(by_topic, *others, given=None):
    """Return the file for some topics, as text and as TOML; it loads without a fault."""
    given = given or connection()
    findings = [examine(topic, records) for topic, records in by_topic.items()]
    text = written(make_plan(findings, [*by_topic, *others]), given)
    check_file(text, given.to_set)
    assert max(len(line) for line in text.splitlines() if line.startswith("# ")) <= 120
    return text, tomllib.loads(text)


@pytest.mark.parametrize("name", ["odd", "odd-schema", "odd-text"])
def test_the_keys_of_captured_tables_are_told(name):
    tables = json.loads((CAPTURES / name / "capture.json").read_text())["tables"]
    findings = {topic: examine(topic, records) for topic, records in captured(name).items()}
    told = {topic: found for topic, found in findings.items() if topic in tables and not found.faults}
    assert {topic: sorted(finding.keys) for topic, finding in told.items()} == {
        topic: sorted(tables[topic]["key"]) for topic in told
    }
    assert len(told) >= len(tables) - 2
    assert {finding.family for finding in told.values()} == {Family.DETECTED}
    assert {finding.columns is not None for finding in told.values()} == {name == "odd-schema"}


def test_a_captured_database_with_schemas_is_one_section():
    text, file = file_of(captured("small-schema"))
    assert file == {
        "pipeline": {"name": "shopschema", "checkpoint": "./checkpoints/shopschema"},
        "source": {
            "format": "kafka",
            "bootstrap_servers": "localhost:9092",
            "topic_pattern": r"shopschema\.public\.[^.]+",
        },
        "decode": {"format": "debezium"},
        "tables": [{"source": r"re:shopschema\.public\.(?P<table>[^.]+)", "target": "./lake/{table}"}],
    }
    flat = " ".join(line.lstrip("# ") for line in text.splitlines())
    assert (
        "shopschema.public.order_items: envelopes of Debezium with a schema part of postgresql, in 634 records. "
        "Key: order_id, line_no. Columns: order_id STRING, line_no INT, sku STRING, qty BIGINT, price DECIMAL(10,2)."
    ) in flat
    assert (
        "tell of the connector: decimal.handling.mode precise, binary.handling.mode bytes, time.precision.mode "
        "adaptive, adaptive_time_microseconds or microseconds."
    ) in flat


def test_a_captured_database_without_schemas_has_its_columns_as_they_were_sent():
    text, file = file_of(captured("small-flat"))
    assert file["source"]["topics"] == [f"shopflat.public.{table['target'][7:]}" for table in file["tables"]]
    columns = {table["source"].rpartition(".")[2]: table["columns"] for table in file["tables"]}
    assert columns["orders"] == (
        "order_id STRING, customer_id BIGINT, status STRING, placed_at BIGINT, total STRING, note STRING, "
        "channel STRING"
    )
    assert "# price may be base64 of a decimal, of bytes or of bits." in text.splitlines()
    assert "keep_tombstones" not in file["decode"]


def test_the_messages_of_all_shapes():
    plain = {"op": None, "id": 1}
    marked = {**ROW, "__op": "u", "__deleted": "false"}
    told = {
        "envelope": found(record({"id": 1}, envelope())),
        "described": found(record(ID_KEY, described([ID], after={"id": 1}))),
        "flattened": found(record({"id": 1}, marked)),
        "by a header": found(record({"id": 1}, ROW, __op=b"u")),
        "rows": found(record(ID_KEY, with_schema([ID], {"id": 1}))),
        "objects": found(record({"id": 1}, plain)),
    }
    assert {name: finding.faults for name, finding in told.items()} == dict.fromkeys(told, ())
    assert {name: finding.keys for name, finding in told.items()} == dict.fromkeys(told, ("id",))
    assert {name: finding.family for name, finding in told.items()} == {
        "envelope": Family.DETECTED,
        "described": Family.DETECTED,
        "flattened": Family.DETECTED,
        "by a header": Family.DETECTED,
        "rows": Family.FLATTENED,
        "objects": Family.OBJECTS,
    }
    assert told["described"].columns == told["rows"].columns == {"id": "BIGINT"}
    assert list(told["flattened"].sent) == ["id", "name"]


@pytest.mark.parametrize(
    ("records", "reason"),
    [
        ([], "it has no records to tell by"),
        ([record({"id": 1}, None)], "it has only records without a value, which do not tell its columns"),
        ([record({"id": 1}, envelope()), record(None, b"\xff")], "1 of 2 records are no JSON objects"),
        ([record(None, b"a,b")], "1 of 1 records are no JSON objects"),
        ([record(None, [1])], "1 of 1 records are no JSON objects"),
        (
            [record(b"\0\0\0\0\7x", b"\0\0\0\0\7x")],
            "1 of 1 records are in Avro, whose schemas a registry has; name it with --registry, and run init again",
        ),
        (
            [record({"id": 1}, envelope()), record({"id": 1}, ROW)],
            "its records differ: 1 are envelopes of Debezium and 1 are plain JSON objects; let one pipeline take those "
            "of one kind, from a topic of their own",
        ),
        (
            [record(b"17", envelope())],
            "keys of the records of shop.public.t are not JSON objects of the key columns: 17; let the connector send "
            "such keys (key.converter JsonConverter, no ExtractField), or set keys=[] for a table without a key",
        ),
        (
            [record(None, envelope(source={"connector": "x"}))],
            "keys of shop.public.t are not sent, and its events have no place in the source's log, by which events of "
            "a table without a key are told apart; let the connector send a key (message.key.columns)",
        ),
        (
            [record({"id": 1}, envelope()), record({"no": 1}, envelope())],
            "keys differ among the records of shop.public.t: id and no; name the keys of this table, or decode the "
            "records before and after the change separately",
        ),
        ([record({"x": 1}, envelope())], "its key has x, which is no column of its rows; give it keys"),
        ([record(None, ROW)], "keys of shop.public.t are not sent, and its messages are not envelopes with the row "),
        (
            [record({"id": 1}, envelope(after={"id": 1, "ID": 2}))],
            "its columns id and ID differ only in upper and lower case; let the connector leave one of them out "
            "(column.exclude.list)",
        ),
        (
            [record({"id": 1}, envelope(after={"id": 1, "${HOME}": 2}))],
            "Spark takes ${HOME} for a reference to a setting; let the connector rename the column",
        ),
        ([record({"id": 1}, envelope(after={"id": 1, "_CHANGE": 2}))], "a column is called _change, as the struct"),
        ([record(None, envelope("t", None))], "none of its records has a row, so its columns are not known"),
        (
            [record({"id": 1}, b'{"id": 1, "n": 0.12345678901234567890123}')],
            "its column n has numbers of more digits than are read from a number in JSON",
        ),
        (
            [record({"id": 1}, with_schema([{"field": "id", "type": "int63"}], {"id": 1}))],
            "its schema part cannot be read: field 'id' has Kafka Connect's unknown type 'int63'; give the columns",
        ),
        (
            [SampledRecord(topic="t", is_too_large=True)],
            "it has only records that are too large to be looked at, which do not tell its columns",
        ),
        (
            [
                SampledRecord(
                    topic="t", value=b"\0", decode_error="the value cannot be decoded: the registry has no schema 9"
                )
            ],
            "1 of 1 records are in Avro, and the value cannot be decoded: the registry has no schema 9",
        ),
    ],
)
def test_what_keeps_a_topic_from_being_taken(records, reason):
    finding = found(*records)
    assert not finding.is_taken
    assert any(fault.startswith(reason) for fault in finding.faults), finding.faults


@pytest.mark.parametrize(
    ("kind", "key", "value"),
    [
        ("the configuration of Kafka Connect", b"connector-shop", {"properties": {"database.password": "secret"}}),
        ("the configuration of Kafka Connect", b"session-key", {"key": "x"}),
        ("the offsets of Kafka Connect", b'["shop",{"server":"shop"}]', {"lsn": 1}),
        ("the status of Kafka Connect", b"status-connector-shop", {"state": "RUNNING"}),
        ("the schemas of a registry", {"keytype": "SCHEMA", "subject": "x", "magic": 1}, {"schema": "{}"}),
        ("Debezium's changes of schemas", {"databaseName": "x"}, {"source": {}, "databaseName": "x", "ddl": "CREATE"}),
        ("Debezium's heartbeats", {"serverName": "x"}, {"ts_ms": 1}),
        ("Debezium's transactions", {"id": "1"}, {"status": "BEGIN", "id": "1", "event_count": None}),
        (
            "Debezium's notifications",
            None,
            {"id": "1", "aggregate_type": "Initial Snapshot", "type": "STARTED", "additional_data": {}, "timestamp": 1},
        ),
        ("signals to Debezium", b"shop", {"type": "execute-snapshot", "data": {}}),
    ],
)
def test_topics_without_rows_are_recognised_by_their_records(kind, key, value):
    finding = found(record(key, value))
    assert finding.foreign == kind
    assert not finding.is_taken
    in_connects_json = found(record(key, with_schema([], value)))
    assert in_connects_json.foreign == kind
    # One record that is a row, and it is a table.
    assert found(record(key, value), record({"id": 1}, envelope())).foreign is None


@pytest.mark.parametrize("key", [b"task-17", b"status-task-x", b"connector-a", {"serverName": "a"}])
def test_rows_with_such_keys_are_rows(key):
    assert found(record(key, {"id": 17, "state": "open"})).foreign is None


def test_one_pipeline_takes_the_topics_of_one_kind_and_says_what_it_leaves():
    by_topic = {
        "shop.public.a": [record(ID_KEY, described([ID], after={"id": 1}))],
        "shop.public.b": [record(ID_KEY, described([ID], after={"id": 1}))],
        "shop.public.empty": [],
        "shop.public.raw": [record(None, b"?")],
        "clicks": [record({"id": 1}, ROW)],
        "connect-status": [record(b"status-task-x-0", {"state": "RUNNING"})],
    }
    text, file = file_of(by_topic)
    assert file["source"]["topics"] == ["shop.public.a", "shop.public.b"]
    assert file["tables"] == [{"source": r"re:shop\.public\.(?P<table>[^.]+)", "target": "./lake/{table}"}]
    lines = text.splitlines()
    assert "#   clicks: plain JSON objects" in lines
    assert "#   connect-status: the status of Kafka Connect" in lines
    assert "# shop.public.empty: no records, so nothing could be told." in lines
    assert "# shop.public.raw is not taken: 1 of 1 records are no JSON objects." in lines
    assert lines[lines.index('#source = "shop.public.raw"') - 1] == "#[[tables]]"
    assert {'    #"shop.public.empty",', '    #"shop.public.raw",'} <= {*lines}


def test_a_pattern_of_topics_matches_none_that_is_not_taken():
    two = {f"shop.public.{name}": [record(ID_KEY, described([ID], after={"id": 1}))] for name in ("a", "b")}
    _, file = file_of(two, "other", "shop.public.a.b")
    assert file["source"]["topic_pattern"] == r"shop\.public\.[^.]+"
    _, file = file_of(two, "shop.public.c")
    assert file["source"]["topics"] == ["shop.public.a", "shop.public.b"]
    of_two = {**two, **{f"erp.dbo.{name}": two["shop.public.a"] for name in ("a", "b")}}
    _, file = file_of(of_two)
    assert file["source"]["topic_pattern"] == r"(shop\.public|erp\.dbo)\.[^.]+"
    # Tables of one name are not mixed.
    assert {table["target"] for table in file["tables"]} == {"./lake/{topic}"}
    assert len(file["tables"]) == 2


def test_flattened_events_whose_deletes_have_no_value():
    rows = [record(ID_KEY, with_schema([ID], {"id": 1})), record(ID_KEY, None)]
    _, file = file_of({"shop.public.t": rows})
    assert file["decode"] == {"format": "debezium", "layout": "flattened", "keep_tombstones": True}
    text, file = file_of({"shop.public.t": rows[:1]})
    assert file["decode"] == {"format": "debezium", "layout": "flattened"}
    assert "#keep_tombstones = true" in text.splitlines()
    marked = [record(ID_KEY, with_schema([ID], {"id": 1, "__op": "u"})), record(ID_KEY, None)]
    _, file = file_of({"shop.public.t": marked})
    assert file["decode"]["keep_tombstones"] is True
    rewritten = [record(ID_KEY, with_schema([ID], {"id": 1, "__deleted": "true"})), record(ID_KEY, None)]
    _, file = file_of({"shop.public.t": rewritten})
    assert file["decode"] == {"format": "debezium"}


def test_plain_objects():
    rows = [record({"id": 1}, {"id": 1, "x": 1.5, "s": None, "o": {"a": 1}}), record({"id": 1}, None)]
    text, file = file_of({"clicks": rows})
    assert file["decode"] == {"format": "json"}
    assert file["tables"] == [
        {
            "source": "clicks",
            "target": "./lake/clicks",
            "keys": ["id"],
            "sequence_by": "_change.offset",
            "columns": "id BIGINT, x DOUBLE, s STRING, o STRING",
        }
    ]
    assert "# s is NULL in all of them, so its type is not known." in text.splitlines()


def test_names_that_are_hostile():
    names = ["a b", "a`b", 'a"b', "a\\b", "a'b", "Größe", "$HOME", "{a}", "a\nb", "a,b", "a.b", "b\x7f", "a\u2028b"]
    row = {"id": 1, **dict.fromkeys(names, "x")}
    text, file = file_of({"shop.public.t": [record({"id": 1}, envelope(after=row))]})
    assert ddl_names(file["tables"][0]["columns"]) == ["id", *names]
    assert "\x7f" not in text


def test_columns_as_they_were_sent():
    values = {
        "i": [1, None, -3],
        "big": [2**63],
        "b": [True, False],
        "x": [1, 2.5],
        "micros": [1700000000000000, 1700000000000001],
        "millis": [1700000000000],
        "mixed": [1, "a"],
        "listed": [[1], None],
        "n": [None],
        "price": ["AN3V", "Bg=="],
        "word": ["abcd"],
        "phone": ["+4930123"],
        "unsent": ["__debezium_unavailable_value", 4],
    }
    found = sent_columns({name: value} for name, each in values.items() for value in each)
    assert {name: column.type for name, column in found.items()} == {
        "i": "BIGINT",
        "big": "STRING",
        "b": "BOOLEAN",
        "x": "DOUBLE",
        "micros": "BIGINT",
        "millis": "BIGINT",
        "mixed": "STRING",
        "listed": "STRING",
        "n": "STRING",
        "price": "STRING",
        "word": "STRING",
        "phone": "STRING",
        "unsent": "BIGINT",
    }
    assert {name for name, column in found.items() if column.doubt} == {
        "big",
        "micros",
        "millis",
        "mixed",
        "listed",
        "n",
        "price",
    }


def test_times_without_a_schema_are_offered_and_not_guessed():
    row = {"id": 1, "at": 1700000000000}
    text, file = file_of({"shop.public.t": [record({"id": 1}, envelope(after=row))]})
    assert file["tables"][0]["columns"] == "id BIGINT, at BIGINT"
    assert '#columns = "id BIGINT, at TIMESTAMP_NTZ"' in text.splitlines()
    assert 'with timestamp_unit = "ms" in [decode]' in text


SECRETS = {
    "KAFKA_PASSWORD": "from-environment",
    "REGISTRY_PASSWORD": "also-from-environment",
    "KEY": "line 1\nline 2",
}


@pytest.mark.parametrize(
    ("option", "text", "to_set"),
    [
        ("kafka.security.protocol=SASL_SSL", '"kafka.security.protocol" = "SASL_SSL"', None),
        (
            'kafka.sasl.jaas.config=a.B required username="u" password="hunter22";',
            '"kafka.sasl.jaas.config" = "${KAFKA_SASL_JAAS_CONFIG}"',
            "KAFKA_SASL_JAAS_CONFIG",
        ),
        (
            'kafka.sasl.jaas.config=a.B required username="u" password="${KAFKA_PASSWORD}";',
            r'"kafka.sasl.jaas.config" = "a.B required username=\"u\" password=\"${KAFKA_PASSWORD}\";"',
            None,
        ),
        (
            'kafka.sasl.jaas.config=a.B required password="${KAFKA_PASSWORD}" hidden="hunter22";',
            '"kafka.sasl.jaas.config" = "${KAFKA_SASL_JAAS_CONFIG}"',
            "KAFKA_SASL_JAAS_CONFIG",
        ),
        (
            'kafka.sasl.jaas.config=a.B required userSecrets="hunter22" password="${KAFKA_PASSWORD}";',
            '"kafka.sasl.jaas.config" = "${KAFKA_SASL_JAAS_CONFIG}"',
            "KAFKA_SASL_JAAS_CONFIG",
        ),
        ("kafka.ssl.key.password=12345", '"kafka.ssl.key.password" = "${KAFKA_SSL_KEY_PASSWORD}"', "K"),
        ("kafka.ssl.key.password=from-environment", '"kafka.ssl.key.password" = "${KAFKA_PASSWORD}"', None),
        ("kafka.ssl.key.password=x${KAFKA_PASSWORD}", '"kafka.ssl.key.password" = "${KAFKA_SSL_KEY_PASSWORD}"', "K"),
        ("kafka.ssl.keystore.key=hunter22", '"kafka.ssl.keystore.key" = "${KAFKA_SSL_KEYSTORE_KEY}"', "K"),
        ("registry.password=hunter22", 'password = "${REGISTRY_PASSWORD}"', "REGISTRY_PASSWORD"),
        ("registry.id_size=8", "id_size = 8", None),
        (
            "spark.hadoop.fs.s3a.secret.key=hunter22",
            '"spark.hadoop.fs.s3a.secret.key" = "${SPARK_HADOOP_FS_S3A_SECRET_KEY}"',
            "S",
        ),
        ("spark.driver.memory=2g", '"spark.driver.memory" = "2g"', None),
    ],
)
def test_no_secret_is_written(option, text, to_set):
    options = [option, *(["registry.user=u"] if option.startswith("registry.p") else [])]
    given = connection(*options, registry="http://localhost:8081", environ=SECRETS)
    findings = [found(record(ID_KEY, described([ID], after={"id": 1})))]
    file = written(make_plan(findings, []), given)
    check_file(file, {**SECRETS, **given.to_set})
    assert text in file.splitlines()
    assert not [secret for secret in (*SECRETS.values(), "hunter22") if secret in file]
    assert bool(given.to_set) == (to_set is not None)
    said = describe(make_plan(findings, []), given, "p.toml")
    assert ("No secret is written. Set " in said) == (to_set is not None)
    assert "hunter22" not in said
    value = option.partition("=")[2].replace("${KAFKA_PASSWORD}", SECRETS["KAFKA_PASSWORD"])
    if to_set is not None:
        assert given.secrets.mask(value) == "***"


def test_a_registry_with_a_login_in_its_address():
    given = connection(registry="http://u:hunter22@localhost:8081")
    assert given.written["registry"] == {"url": "${REGISTRY_URL}"}
    assert given.registry.url == "http://u:hunter22@localhost:8081"
    kept = connection(registry="http://u:${REGISTRY_PASSWORD}@localhost:8081", environ=SECRETS)
    assert kept.written["registry"] == {"url": "http://u:${REGISTRY_PASSWORD}@localhost:8081"}


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        (["kafka.x"], "--option kafka.x is not written as NAME=VALUE"),
        (["=x"], "--option ? is not written as NAME=VALUE"),
        (["kafka.bootstrap.servers=x"], "--option kafka.bootstrap.servers is given by --bootstrap-servers; leave"),
        (["Subscribe=x"], "--option Subscribe is given by --topics; leave it out."),
        (["registry.user=u"], "An option of the registry needs its address: --registry URL."),
        (["kafka.x=${GONE}"], "kafka.x: the environment has no variable GONE; set it, or give a default"),
    ],
)
def test_options_that_are_refused(options, reason):
    with pytest.raises(PipelineError) as raised:
        connection(*options)
    assert str(raised.value).startswith(reason)
    assert raised.value.exit_code is ExitCode.USAGE


@pytest.mark.parametrize("lake", ["", "./{table}", "s3a://key:secret@bucket/lake"])
def test_lakes_that_are_refused(lake):
    with pytest.raises(PipelineError, match=r"^--lake "):
        connection(lake=lake)


def test_a_lake_elsewhere_has_its_checkpoint_beside_it():
    _, file = file_of({"t": [record({"id": 1}, envelope())]}, given=connection(lake="s3a://bucket/lake/"))
    assert file["pipeline"]["checkpoint"] == "s3a://bucket/lake/_checkpoints/t"
    assert file["tables"][0]["target"] == "s3a://bucket/lake/t"


def test_nothing_can_be_taken():
    with pytest.raises(PipelineError) as raised:
        file_of({"a": [], "b": [record(b"status-connector-x", {"state": "RUNNING"})]})
    assert str(raised.value) == (
        "No topic can be taken as it is, so no file is written.\n"
        "  a: it has no records to tell by\n"
        "  b: the status of Kafka Connect"
    )
    assert raised.value.exit_code is ExitCode.CANNOT_START


def test_the_sample_is_the_end_of_each_partition():
    ranges = sample_ranges({("a", 0): (0, 1000), ("a", 1): (990, 1000), ("b", 0): (7, 7), ("c", 0): (5, 8)})
    assert [(each.topic, each.partition, each.first, each.last) for each in ranges] == [
        ("a", 0, 950, 999),
        ("a", 1, 990, 999),
        ("c", 0, 5, 7),
    ]
    many = sample_ranges({("m", number): (0, 1000) for number in range(50)})
    assert {each.last - each.first + 1 for each in many} == {5}


def test_which_topics_are_looked_at():
    names = ["__consumer_offsets", "__debezium-heartbeat.shop", "shop.public.a", "shop.public.ab"]
    assert [name for name in names if is_chosen(name, None)] == names[2:]
    assert [name for name in names if is_chosen(name, r"shop\.public\.a")] == ["shop.public.a"]
    assert [name for name in names if is_chosen(name, "__.*")] == names[:2]


@pytest.mark.parametrize(
    ("arguments", "source", "reason"),
    [
        (InitArguments(topics="a"), None, "need --from kafka."),
        (InitArguments(), InitSource.KAFKA, "--from kafka needs the brokers: --bootstrap-servers HOST:PORT."),
        (InitArguments("x:1", topics="("), InitSource.KAFKA, "--topics is not a valid pattern: "),
    ],
)
def test_arguments_that_do_not_go_together(arguments, source, reason):
    with pytest.raises(PipelineError, match=re.escape(reason)):
        arguments.check(source)
