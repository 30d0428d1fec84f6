"""The file that `init --from kafka` writes of what topics have, without Kafka and Spark."""

import re
import sys

import pytest

from stream_merge.cli.discover.connection import read_connection
from stream_merge.cli.discover.discover import check_file, describe
from stream_merge.cli.discover.findings import examine
from stream_merge.cli.discover.plan import make_plan
from stream_merge.cli.discover.write import written
from stream_merge.cli.errors import ExitCode, PipelineError
from stream_merge.cli.file.option_checks import ddl_names
from stream_merge.cli.init_arguments import InitArguments, InitSource
from tests.cli.sampled_records import ID, ID_KEY, ROW, captured, described, envelope, record
from tests.debezium.records import with_schema

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib


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
    findings = [examine("shop.public.t", [record(ID_KEY, described([ID], after={"id": 1}))])]
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


@pytest.mark.parametrize(
    ("ids", "is_wide"),
    [((bytes(4) + b"\0\0\0\7", bytes(4) + b"\0\0\1\0"), True), ((b"\0\0\0\7", bytes(4) + b"\0\0\0\7"), False)],
    ids=["8 bytes", "4 bytes"],
)
def test_ids_of_eight_bytes_are_proposed_with_the_registry(ids, is_wide):
    avro = [record(None, b"\0" + each + b"rest", "shop.a") for each in ids]
    text, _ = file_of({"shop.a": avro, "shop.public.t": [record({"id": 1}, envelope())]})
    assert "#[registry]" in text
    assert ("#id_size = 8" in text) is is_wide


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
