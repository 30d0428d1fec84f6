"""From the sections of the file to the options of the library."""

from datetime import timedelta

import pytest

from stream_merge import MergeRouter
from stream_merge.cli.errors import ExitCode, PipelineError
from stream_merge.cli.query.sink_options import sink_options
from stream_merge.cli.query.sources import (
    check_brokers,
    file_options,
    file_schema,
    kafka_options,
    keeps_corrupt_records,
)
from stream_merge.cli.query.tables import (
    Decoders,
    build_sink,
    find_table,
    known_tables,
    known_targets,
    make_sink,
    make_sinks,
    router_of,
)
from stream_merge.debezium import KEYLESS_MERGE_OPTIONS, MERGE_OPTIONS, learn_options

FILES = {"format": "files", "path": "./landing", "schema": "id BIGINT, name STRING"}
FEED = {"format": "delta", "table": "./lake/orders"}
KAFKA = {"format": "kafka", "bootstrap_servers": "localhost:9092", "topics": ["orders"]}


def test_every_option_of_a_table_reaches_its_sink(make_pipeline):
    table = {
        "target": "./lake/orders",
        "keys": ["id"],
        "sequence_by": ["updated_at", "lsn"],
        "tie_break_by": "offset",
        "delete_when": "op = 'd'",
        "ignore_null_updates": ["name"],
        "null_keys": "quarantine",
        "merge_schema": True,
        "partition_by": ["day"],
        "table_properties": {"delta.appendOnly": "false"},
        "strategy": "merge_on_read",
        "locator": "scan",
        "tombstone_retention": "36 hours",
        "skip_unchanged": True,
        "single_writer": True,
        "quarantine": "./lake/rejected",
        "expect": {"positive": "price > 0"},
        "max_quarantined_share": 0.5,
        "max_commit_retries": 3,
        "except_columns": ["op"],
    }
    config = make_sink(make_pipeline(KAFKA, table), 0, None).config
    assert config.target == "./lake/orders"
    assert config.keys == ("id",)
    assert config.sequence_by == ("updated_at", "lsn")
    assert config.tie_break_by == ("offset",)
    assert config.delete_when == "op = 'd'"
    assert config.ignore_null_updates == ("name",)
    assert config.null_keys == "quarantine"
    assert config.merge_schema is True
    assert config.create_if_missing is True
    assert config.partition_by == ("day",)
    assert config.table_properties == {"delta.appendOnly": "false"}
    assert config.strategy == "merge_on_read"
    assert config.locator == "scan"
    assert config.tombstone_retention == timedelta(hours=36)
    assert config.skip_unchanged is True
    assert config.single_writer is True
    assert config.quarantine == "./lake/rejected"
    assert config.expect == {"positive": "price > 0"}
    assert config.max_quarantined_share == 0.5
    assert config.max_commit_retries == 3
    assert config.except_columns == ("op",)


def test_a_table_that_is_not_created_is_not_described(make_pipeline):
    options = sink_options(make_pipeline(KAFKA, {"target": "./t", "keys": ["id"], "create_if_missing": False}), 0)
    assert "table_properties" not in options
    assert options["create_if_missing"] is False


@pytest.mark.parametrize(("keys", "brought"), [(["id"], MERGE_OPTIONS), ([], KEYLESS_MERGE_OPTIONS)])
def test_debezium_brings_its_own_options(make_pipeline, keys, brought):
    table = {"target": "./t", "keys": keys, "except_columns": ["notes"]}
    options = sink_options(make_pipeline(KAFKA, table, decode="debezium"), 0)
    assert options.get("keys", []) == keys
    assert {name: options[name] for name in brought if name != "except_columns"} == {
        name: value for name, value in brought.items() if name != "except_columns"
    }
    assert options["except_columns"] == ["notes", "_change"]


def test_columns_that_are_written_make_those_that_are_not_superfluous(make_pipeline):
    table = {"target": "./t", "keys": ["id"], "write_columns": ["name"]}
    options = sink_options(make_pipeline(KAFKA, table, decode="json"), 0)
    assert options["columns"] == ["name"]
    assert "except_columns" not in options
    assert options["error_column"] == "_change.error"


def test_a_change_feed_brings_order_and_deletes(make_pipeline):
    options = sink_options(make_pipeline(FEED, {"target": "./copy", "keys": ["id"]}), 0)
    assert options["sequence_by"] == ("_commit_version", "IF(_change_type IN ('insert', 'update_postimage'), 1, 0)")
    assert options["delete_when"] == "_change_type IN ('delete', 'update_preimage')"
    assert options["except_columns"] == ["_change_type", "_commit_version", "_commit_timestamp"]


def test_an_order_of_its_own_goes_before_that_of_the_feed(make_pipeline):
    table = {"target": "./copy", "keys": ["id"], "sequence_by": "updated_at", "delete_when": "gone"}
    options = sink_options(make_pipeline(FEED, table), 0)
    assert options["sequence_by"] == "updated_at"
    assert options["tie_break_by"] == ("_commit_version", "IF(_change_type IN ('insert', 'update_postimage'), 1, 0)")
    assert options["delete_when"] == "_change_type IN ('delete', 'update_preimage') OR (gone)"


def test_records_that_do_not_fit_the_schema_of_files_are_errors(make_pipeline):
    pipeline = make_pipeline(FILES)
    assert file_schema(pipeline.source) == "id BIGINT, name STRING, _corrupt_record STRING"
    options = sink_options(pipeline, 0)
    assert options["error_column"] == "'the record does not fit the schema: ' || left(_corrupt_record, 80)"
    assert options["except_columns"] == ["_corrupt_record"]
    for further in ({"file_format": "parquet"}, {"options": {"mode": "FAILFAST"}}):
        other = make_pipeline({**FILES, **further})
        assert not keeps_corrupt_records(other.source)
        assert file_schema(other.source) == "id BIGINT, name STRING"
        assert "error_column" not in sink_options(other, 0)


@pytest.mark.parametrize(
    ("schema", "is_declared"),
    [
        ("id BIGINT, is_corrupt_record BOOLEAN", False),
        ("id BIGINT, row STRUCT<_corrupt_record: STRING, n: INT>", False),
        ("id BIGINT COMMENT 'no, _corrupt_record STRING'", False),
        ("id BIGINT, `_corrupt_record` STRING", True),
        ("_corrupt_record: STRING, id: BIGINT", True),
        ("id DECIMAL(9, 2), _Corrupt_Record STRING", True),
    ],
)
def test_only_a_column_of_this_name_takes_records_that_do_not_fit(make_pipeline, schema, is_declared):
    source = make_pipeline({**FILES, "schema": schema}).source
    assert file_schema(source) == (schema if is_declared else f"{schema}, _corrupt_record STRING")


def test_spark_is_told_how_the_schema_spells_the_column_for_records_that_do_not_fit(make_pipeline):
    spelt = {"schema": "id BIGINT, _Corrupt_Record STRING"}
    assert file_options(make_pipeline({**FILES, **spelt}).source) == {"columnNameOfCorruptRecord": "_Corrupt_Record"}
    assert file_options(make_pipeline({**FILES, **spelt, "file_format": "parquet"}).source) == {}


@pytest.mark.parametrize(
    ("file_format", "options", "added"),
    [
        ("csv", {"Header": "TRUE"}, {"enforceSchema": "false"}),
        ("csv", {"header": "true", "enforceschema": "true"}, {}),
        ("csv", {"header": "false"}, {}),
        ("csv", {}, {}),
        ("json", {"header": "true"}, {}),
    ],
)
def test_the_header_of_a_csv_file_has_to_fit_the_schema(make_pipeline, file_format, options, added):
    source = make_pipeline({**FILES, "file_format": file_format, "options": options}).source
    assert file_options(source) == {**options, **added}


def test_a_table_without_keys_is_refused_unless_they_can_be_learnt(make_pipeline):
    with pytest.raises(PipelineError) as caught:
        build_sink(make_pipeline(KAFKA, {"target": "./t"}), None)
    assert str(caught.value) == "tables[0].keys (./t): name the columns that identify a row."
    assert caught.value.exit_code is ExitCode.USAGE
    options = sink_options(make_pipeline(KAFKA, {"target": "./t", "except_columns": ["x"]}, decode="debezium"), 0)
    assert (options["learn"], options["except_columns"]) == (learn_options, ["x"])
    assert "keys" not in options


def test_a_fault_of_the_sink_names_the_table(make_pipeline):
    with pytest.raises(PipelineError) as caught:
        build_sink(make_pipeline(KAFKA, {"target": "./t", "keys": ["id"], "quarantine": "./t"}), None)
    assert str(caught.value) == "tables[0] (./t): quarantine is the target."


def test_several_tables_are_a_router(make_pipeline):
    pipeline = make_pipeline(
        KAFKA,
        {"source": "shop.orders", "target": "./lake/orders", "keys": ["id"]},
        {
            "source": "re:shop[.](?P<table>\\w+)",
            "target": "./lake/{table}",
            "keys": ["id"],
            "quarantine": "./bad/{table}",
        },
        pipeline={"max_parallel": 2, "unknown": "ignore"},
    )
    router = router_of(build_sink(pipeline, None))
    assert router is not None
    assert router.config.by == "topic"
    assert router.config.max_parallel == 2
    assert router.config.unknown == "ignore"
    found = find_table(pipeline, "shop.customers")
    assert (found.number, found.target, found.quarantine) == (1, "./lake/customers", "./bad/customers")
    assert find_table(pipeline, "shop.orders").number == 0
    assert find_table(pipeline, "elsewhere") is None


def test_sources_that_fill_one_table_share_its_sink(make_pipeline):
    common = {"keys": ["id"], "sequence_by": "at"}
    sinks = make_sinks(
        make_pipeline(
            KAFKA,
            {"source": "a", "target": "./lake/t", "columns": "id INT", **common},
            {"source": "b", "target": "lake/t", "columns": "id BIGINT", **common},
            {"source": "c", "target": "./lake/u", **common},
        ),
        None,
    )
    assert sinks["a"] is sinks["b"]
    assert sinks["a"] is not sinks["c"]


def test_tables_of_a_database_that_would_become_one_are_told(make_pipeline, caplog):
    pipeline = make_pipeline(KAFKA, {"source": r"re:.*\.(?P<table>\w+)", "target": "./lake/{table}"}, decode="debezium")
    decoders = Decoders(pipeline)
    for source in ("shop.public.a", "shop.public.b", "shop.public.a", "shop.archive.a"):
        decoders.decoder_of(source)
    assert [message.split(", where")[0] for message in caplog.messages] == [
        "shop.public.a and shop.archive.a go to the same table, ./lake/a"
    ]


def test_files_with_several_tables_need_to_be_routed(make_pipeline):
    pipeline = make_pipeline(FILES, {"source": "a", "target": "./t", "keys": ["id"]})
    with pytest.raises(PipelineError) as caught:
        build_sink(pipeline, None)
    assert (
        str(caught.value) == 'pipeline.route_by is missing: tables with a source need it if source.format is "files".'
    )


def test_kafka_is_read_with_headers_and_no_loss(make_pipeline):
    assert kafka_options(make_pipeline().source) == {
        "kafka.bootstrap.servers": "localhost:9092",
        "subscribe": "orders",
        "includeHeaders": "true",
        "failOnDataLoss": "true",
    }
    pattern = {"format": "kafka", "bootstrap_servers": "b:1", "topic_pattern": "shop[.].*"}
    assert kafka_options(make_pipeline(pattern).source)["subscribePattern"] == "shop[.].*"
    with pytest.raises(PipelineError) as caught:
        kafka_options(make_pipeline({**KAFKA, "options": {"FailOnDataLoss": "false"}}).source)
    assert str(caught.value) == (
        "source.options: FailOnDataLoss is always true in a pipeline, so that no record and no change of a key is "
        "lost; leave the option out."
    )


def test_a_broker_that_is_not_there_is_told_without_spark(make_pipeline):
    source = {**KAFKA, "bootstrap_servers": "127.0.0.1:1, nowhere.invalid:9092,odd"}
    with pytest.raises(PipelineError) as caught:
        check_brokers(make_pipeline(source).source)
    assert str(caught.value) == (
        "No Kafka broker answers at 127.0.0.1:1 (Connection refused), nowhere.invalid:9092 (no such host), odd (not "
        "written as host:port): start it, or correct bootstrap_servers in [source]."
    )
    assert caught.value.exit_code is ExitCode.CANNOT_START
    check_brokers(make_pipeline(FILES).source)


def test_tables_of_topics_that_were_seen(make_pipeline):
    tables = [
        {"source": "orders", "target": "./lake/orders", "keys": ["id"], "quarantine": "./rejected"},
        {
            "source": r"re:shop\.(?P<table>\w+)",
            "target": "./lake/{table}",
            "keys": ["id"],
            "quarantine": "./{table}_bad",
        },
    ]
    pattern = {"format": "kafka", "bootstrap_servers": "localhost:9092", "topic_pattern": ".*"}
    pipeline = make_pipeline(pattern, *tables)
    assert [(table.target, table.quarantine) for table in known_tables(pipeline)] == [("./lake/orders", "./rejected")]
    seen = ["shop.lines", "shop.orders", "elsewhere"]
    assert [(table.target, table.quarantine) for table in known_tables(pipeline, seen)] == [
        ("./lake/orders", "./rejected"),
        ("./lake/lines", "./lines_bad"),
    ]


def test_targets_that_are_known_before_the_first_rows(make_pipeline):
    assert known_targets(make_pipeline(FILES)) == {"./lake/orders": 0}
    tables = [
        {"source": "orders", "target": "./lake/orders", "keys": ["id"]},
        {"source": "old_orders", "target": "lake/orders/", "keys": ["id"]},
        {"source": "re:log_.*", "target": "./lake/log", "keys": ["id"]},
        {"source": r"re:shop\.(?P<table>\w+)", "target": "./lake/{table}", "keys": ["id"]},
    ]
    topics = {"topics": ["shop.lines", "shop.orders", "orders", "other"]}
    assert list(known_targets(make_pipeline({**KAFKA, **topics}, *tables))) == [
        "./lake/orders",
        "./lake/log",
        "./lake/lines",
    ]
    pattern = {"format": "kafka", "bootstrap_servers": "localhost:9092", "topic_pattern": ".*"}
    assert list(known_targets(make_pipeline(pattern, *tables))) == ["./lake/orders", "./lake/log"]
    by_column = make_pipeline({**KAFKA, **topics}, *tables, pipeline={"route_by": "kind"})
    assert list(known_targets(by_column)) == ["./lake/orders", "./lake/log"]


def test_a_registry_that_cannot_be_is_refused(make_pipeline):
    pipeline = make_pipeline(KAFKA, decode="debezium", registry={"url": "registry:8081"})
    with pytest.raises(
        PipelineError, match=r"^registry: url is not an address that begins with http:// or https://\.$"
    ):
        build_sink(pipeline, None)


def test_a_router_is_found_behind_the_decoding_of_avro(make_pipeline):
    tables = [{"source": f"t{number}", "target": f"./lake/t{number}", "keys": ["id"]} for number in (1, 2)]
    source = {**KAFKA, "topics": ["t1", "t2"]}
    registry = {"url": "http://registry:8081"}
    assert isinstance(router_of(build_sink(make_pipeline(source, *tables, decode="debezium"), None)), MergeRouter)
    decoding = build_sink(make_pipeline(source, *tables, decode="debezium", registry=registry), None)
    assert isinstance(router_of(decoding), MergeRouter)
    assert router_of(build_sink(make_pipeline(source, decode="debezium", registry=registry), None)) is None
