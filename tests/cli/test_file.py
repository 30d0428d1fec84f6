"""Pipeline files: what is read, and that every fault comes with its line and in a sentence."""

import os
from pathlib import Path

import pytest

from stream_merge.cli.file.load import Fault, PipelineFileError, load_pipeline
from stream_merge.cli.file.pipeline import FilesSource, KafkaSource, TableSettings

PIPELINE = '[pipeline]\ncheckpoint = "./checkpoints/shop"\n'
KAFKA = '[source]\nformat = "kafka"\nbootstrap_servers = "localhost:9092"\ntopics = ["orders"]\n'
FILES = '[source]\nformat = "files"\npath = "./landing"\nschema = "id BIGINT, name STRING"\n'
DEBEZIUM = '[decode]\nformat = "debezium"\n'
TABLE = '[[tables]]\ntarget = "./lake/orders"\nkeys = ["id"]\n'


@pytest.fixture
def load(tmp_path, monkeypatch):
    """Return a function that loads a file of this text, from the folder that it is in."""
    monkeypatch.chdir(tmp_path)

    def load_text(text, **environ):
        path = Path("pipeline.toml")
        path.write_bytes(text if isinstance(text, bytes) else text.encode())
        return load_pipeline(path, environ)

    return load_text


@pytest.fixture
def faults_of(load):
    """Return a function that gives the lines that are said of a text."""

    def find(text, **environ):
        try:
            load(text, **environ)
        except PipelineFileError as error:
            return str(error).splitlines()
        return []

    return find


# Reading


def test_a_file_becomes_a_pipeline(load):
    loaded = load(PIPELINE + KAFKA + DEBEZIUM + TABLE)
    assert loaded.pipeline.pipeline.checkpoint == "./checkpoints/shop"
    assert loaded.pipeline.source == KafkaSource(format="kafka", bootstrap_servers="localhost:9092", topics=["orders"])
    assert loaded.pipeline.tables == [TableSettings(target="./lake/orders", keys=["id"])]
    assert loaded.path == Path("pipeline.toml")


def test_what_windows_writes_is_read(load):
    loaded = load(b"\xef\xbb\xbf" + (PIPELINE + FILES + TABLE).replace("\n", "\r\n").encode())
    assert isinstance(loaded.pipeline.source, FilesSource)
    assert loaded.line_of(("tables", 0, "keys")) == 9


def test_lines_of_options_and_of_what_a_file_does_not_have(load):
    loaded = load(PIPELINE + FILES + TABLE)
    assert loaded.line_of(("pipeline", "checkpoint")) == 2
    assert loaded.line_of(("tables", 0, "keys", 0)) == 9
    assert loaded.line_of(("tables", 0, "columns")) == 7
    assert loaded.line_of(("pipeline", "trigger")) == 1
    assert loaded.line_of(("spark", "conf")) is None
    assert loaded.line_of(()) is None
    assert loaded.fault(("tables", 0, "keys"), "is odd") == Fault(9, "tables[0].keys", "is odd")


def test_the_environment_fills_values(load):
    text = (
        PIPELINE.replace("shop", "${NAME}${NAME:-x}$${NAME}")
        + "trigger = '${EVERY:-1 minute}'\nmax_parallel = '${N}'\n"
    )
    settings = load(text + FILES + TABLE, NAME="shop", N="3").pipeline.pipeline
    assert settings.checkpoint == "./checkpoints/shopshop${NAME}"
    assert settings.trigger == "1 minute"
    assert settings.max_parallel == 3


def test_an_empty_variable_takes_the_default(load):
    text = PIPELINE + "trigger = '${EVERY:-1 minute}'\nroute_by = 'a${EMPTY}b'\n" + FILES + TABLE + 'source = "x"'
    settings = load(text, EVERY="", EMPTY="").pipeline.pipeline
    assert (settings.trigger, settings.route_by) == ("1 minute", "ab")


# Files that are none


def test_a_missing_file_a_folder_and_other_encodings_are_said_in_one_sentence(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("folder").mkdir()
    Path("latin.toml").write_bytes('[pipeline]\nname = "Zürich"'.encode("latin-1"))

    def said_of(name):
        with pytest.raises(PipelineFileError) as raised:
            load_pipeline(Path(name), {})
        return str(raised.value)

    assert said_of("none.toml") == "none.toml: there is no such file; stream-merge init writes an example"
    assert said_of("folder") == "folder: this is a folder; name a pipeline file"
    assert said_of("latin.toml") == "latin.toml:2: the file is not in UTF-8; save it in that encoding"
    assert said_of("latin.toml/x") == "latin.toml/x: the file cannot be read: Not a directory"


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read every file")
def test_a_file_that_may_not_be_read(tmp_path):
    path = tmp_path / "pipeline.toml"
    path.touch(mode=0o200)
    with pytest.raises(PipelineFileError, match="the file cannot be read: Permission denied"):
        load_pipeline(path, {})


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        (
            "[pipeline]\nname = shop\n",
            '2: this is not TOML: a value is missing or not valid; write text in quotes: name = "value"',
        ),
        ("[pipeline]\nname\n", "2: this is not TOML: an option is written name = value"),
        ('[pipeline]\nname = "a"\n\nname = "b"\n', "4: this is not TOML: this option or section appears twice"),
        ("[pipeline\n", "1: this is not TOML: a section is written [name]"),
        ('[source]\ntopics = ["a", "b"', "2: this is not TOML: the list is not closed: a ] or a comma is missing"),
        ("[pipeline]\n[source]\n[pipeline]\n", "3: this is not TOML: the section [pipeline] appears twice"),
    ],
)
def test_syntax_errors_say_their_line(faults_of, text, fault):
    assert faults_of(text) == [f"pipeline.toml:{fault}"]


# Faults of single options


def test_an_empty_file_lacks_its_sections(faults_of):
    assert faults_of("") == [
        "pipeline.toml: pipeline: is missing; a file has a section [pipeline]",
        "pipeline.toml: source: is missing; a file has a section [source]",
        "pipeline.toml: tables: is missing; a file has a section [[tables]] for each target",
    ]


def test_all_faults_come_at_once_in_the_order_of_the_file(faults_of):
    text = """
name = "x"
[pipeline]
checkpont = "./c"
stop_timeout = 0

[source]
format = "kafka"
bootstrap_servers = 9092
topics = "orders"

[[tables]]
target = "./lake/orders"
keys = ["id",
  5]
stratgy = "copy_on_write"

[[tables]]
target = "lake/orders/"
source = "re:(a"

[spark.conf]
"spark.memory" = 1.5
"""
    assert faults_of(text) == [
        "pipeline.toml:2: name: is an option of [pipeline]",
        "pipeline.toml:3: pipeline.checkpoint: is missing",
        "pipeline.toml:4: pipeline.checkpont: there is no such option; did you mean checkpoint?",
        "pipeline.toml:5: pipeline.stop_timeout: must be at least 1, but is 0",
        "pipeline.toml:9: source.bootstrap_servers: must be text in quotes, but is 9092",
        'pipeline.toml:10: source.topics: must be a list: ["orders"]',
        "pipeline.toml:15: tables[0].keys[1]: must be text in quotes, but is 5",
        "pipeline.toml:16: tables[0].stratgy: there is no such option; did you mean strategy?",
        "pipeline.toml:20: tables[1].source: is not a valid pattern: missing ), unterminated subpattern at position 0",
        'pipeline.toml:23: spark.conf."spark.memory": must be text in quotes, a whole number or true or false, '
        "but is 1.5",
    ]


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        (PIPELINE + KAFKA.replace("kafka", "kafak") + DEBEZIUM + TABLE,
         '4: source.format: must be "kafka", "files" or "delta", but is "kafak"; did you mean kafka?'),
        (PIPELINE + KAFKA.replace('format = "kafka"\n', "") + DEBEZIUM + TABLE,
         '3: source.format: is missing; it can be "kafka", "files" or "delta"'),
        (PIPELINE + KAFKA.replace('"kafka"', '["kafka"]') + DEBEZIUM + TABLE,
         '4: source.format: must be "kafka", "files" or "delta", but is ["kafka"]'),
        (PIPELINE + KAFKA.replace("topics", "#") + DEBEZIUM + TABLE, "3: source: give either topics or topic_pattern"),
        (PIPELINE + KAFKA + 'path = "x"\n' + DEBEZIUM + TABLE, '7: source.path: is an option of format = "files"'),
        (PIPELINE + KAFKA + DEBEZIUM + TABLE.replace("[[tables]]", "[tables]"),
         "9: tables: is written in double brackets, [[tables]]: there may be several"),
        (PIPELINE + KAFKA.replace("[source]", "[[source]]") + DEBEZIUM + TABLE,
         "3: source: is written in single brackets, [source]: there is one"),
        ("spark = 5\n" + PIPELINE + FILES + TABLE, "1: spark: is a section: [spark]"),
        (PIPELINE + FILES + TABLE + "[metric]\n", "10: metric: there is no such section; did you mean metrics?"),
        (PIPELINE + FILES + TABLE + "[tabel]\n", "10: tabel: there is no such section; did you mean tables?"),
        (PIPELINE + FILES + TABLE + "ignore_null_updates = 1.5\n",
         "10: tables[0].ignore_null_updates: must be true or false or a list, but is 1.5"),
        (PIPELINE + FILES + TABLE + "ignore_null_updates = [1]\n",
         "10: tables[0].ignore_null_updates[0]: must be text in quotes, but is 1"),
        (PIPELINE + FILES + TABLE + "sequence_by = 5\n",
         "10: tables[0].sequence_by: must be text in quotes or a list, but is 5"),
        (PIPELINE + FILES + TABLE + 'strategy = "copy_on_writ"\n',
         '10: tables[0].strategy: must be "insert_only", "merge_on_read" or "copy_on_write", but is "copy_on_writ"; '
         "did you mean copy_on_write?"),
        (PIPELINE + FILES + TABLE + "expect = 'a > 0'\n",
         '10: tables[0].expect: must be a table: { name = "value" }, but is "a > 0"'),
        (PIPELINE + FILES + TABLE.replace('"id"', '""'), "9: tables[0].keys[0]: must not be empty"),
        (PIPELINE + 'name = "a b"\n' + FILES + TABLE,
         '3: pipeline.name: must begin with a letter or digit and have only letters, digits, _ . -, but is "a b"'),
        (PIPELINE + FILES + TABLE + "max_quarantined_share = 2\nquarantine = './q'\n",
         "10: tables[0].max_quarantined_share: must be at most 1, but is 2"),
        (PIPELINE + FILES + TABLE + "[metrics]\nprometheus_port = 'http'\n",
         '11: metrics.prometheus_port: must be a whole number, but is "http"'),
        (PIPELINE + "max_parallel = true\n" + FILES + TABLE,
         "3: pipeline.max_parallel: must be a number, but is true"),
        (PIPELINE + FILES + TABLE + "max_quarantined_share = true\nquarantine = './q'\n",
         "10: tables[0].max_quarantined_share: must be a number, but is true"),
        (PIPELINE + "spark = 1\n" + FILES + TABLE, "3: pipeline.spark: is a section of its own: [spark]"),
        ("tables = []\n" + PIPELINE + FILES, "1: tables: must have at least 1"),
    ],
)  # fmt: skip
def test_faults_of_an_option(faults_of, text, fault):
    assert faults_of(text) == [f"pipeline.toml:{fault}"]


# The environment


def test_missing_variables_are_faults_with_their_lines(faults_of):
    text = PIPELINE.replace("shop", "${SHOP}") + KAFKA.replace("localhost", "${a-b}") + DEBEZIUM + TABLE
    text += '[source.options]\n"kafka.sasl.jaas.config" = """\nx ${PASSWORD}"""\n"kafka.open" = "${OPEN"\n'
    syntax = "${ begins the name of an environment variable, ${NAME} or ${NAME:-default}; write $${ for a plain ${"
    assert faults_of(text) == [
        "pipeline.toml:2: pipeline.checkpoint: the environment has no variable SHOP; set it, or give a default: "
        "${SHOP:-default}",
        f"pipeline.toml:5: source.bootstrap_servers: {syntax}",
        'pipeline.toml:13: source.options."kafka.sasl.jaas.config": the environment has no variable PASSWORD; set it, '
        "or give "
        "a default: ${PASSWORD:-default}",
        f'pipeline.toml:15: source.options."kafka.open": {syntax}',
    ]


def test_a_missing_variable_is_one_fault(faults_of):
    text = (
        PIPELINE + "max_parallel = '${N}'\ntrigger = '${T}'\n" + KAFKA.replace("orders", "${TOPIC}") + DEBEZIUM + TABLE
    )
    text += "source = 'x'\n"
    assert [line.split(": the ")[1].split(";")[0] for line in faults_of(text)] == [
        "environment has no variable N",
        "environment has no variable T",
        "environment has no variable TOPIC",
    ]


def test_faults_do_not_tell_what_the_environment_has(faults_of):
    text = PIPELINE + "max_parallel = '${N}'\ntrigger = '${N}'\n" + FILES + TABLE + "source = 're:${N}('\n"
    found = faults_of(text, N="topsecret")
    assert found[0] == 'pipeline.toml:3: pipeline.max_parallel: must be a whole number, but is "${N}"'
    assert "topsecret" not in "".join(found)


# Faults between options

SEVERAL = (
    '[[tables]]\nsource = "a"\ntarget = "./lake/a"\nkeys = ["id"]\n'  # from line 9
    '[[tables]]\nsource = "{}"\ntarget = "{}"\nkeys = ["id"]\n'  # from line 13
)


def kafka_tables(tables, topics='["a", "b"]'):
    return PIPELINE + KAFKA.replace('["orders"]', topics) + DEBEZIUM + tables


@pytest.mark.parametrize(
    ("text", "faults"),
    [
        (kafka_tables(SEVERAL.format("b", "./lake/b")), []),
        (kafka_tables(SEVERAL.format("a", "./lake/b")),
         ['6: source.topics[1]: no table takes "b"; add a [[tables]] with this source, or set unknown = "ignore" in '
          "[pipeline]",
          "14: tables[1].source: is also that of tables[0]; the rows of a source go to one table"]),
        (kafka_tables(SEVERAL.format("b", "lake//a/")), []),
        (kafka_tables(SEVERAL.format("b", "lake//a/") + "skip_unchanged = true\n"),
         ["15: tables[1].target: is also that of tables[0]; to share a target, all options but source and columns must "
          "be equal"]),
        (kafka_tables(SEVERAL.format("c", "./lake/b"), '["a", "b", "c"]')
         .replace("[source]", 'unknown = "ignore"\n[source]'), []),
        (kafka_tables(SEVERAL.format("c", "./lake/b")),
         ['6: source.topics[1]: no table takes "b"; add a [[tables]] with this source, or set unknown = "ignore" in '
          "[pipeline]",
          "14: tables[1].source: is none of the topics of [source]: a, b"]),
        (kafka_tables(SEVERAL.format("re:c.*", "./lake/b"), '["a"]'),
         ["14: tables[1].source: matches none of the topics of [source]: a"]),
        (kafka_tables(SEVERAL.format("re:b|c", "./lake/b").replace('source = "a"', 'source = "re:a|b"')),
         ['6: source.topics[1]: the patterns of tables[0] and tables[1] both match "b"']),
        (kafka_tables(SEVERAL.format("re:[ab]", "./lake/b")), []),
        (kafka_tables(SEVERAL.format("b", "./lake/b").replace('source = "a"\n', "")),
         ["9: tables[0].source: is missing; with several tables, each must name its source"]),
        (kafka_tables(SEVERAL.format("b", "./lake/b") + 'quarantine = "./lake/a"\n'),
         ["17: tables[1].quarantine: is the target of tables[0]; it needs a table of its own"]),
        (kafka_tables(SEVERAL.format("b", "./lake/b")).replace("[pipeline]", '[pipeline]\nparking = "./lake/./b"', 1),
         ["2: pipeline.parking: is the target of tables[1]; it needs a table of its own"]),
        (kafka_tables(SEVERAL.format("b", "./lake/./a/b")),
         ["15: tables[1].target: lies in the folder of the target of tables[0], where Delta's VACUUM deletes it; give "
          "it one beside that"]),
        (kafka_tables(SEVERAL.format("b", "./lake/ab") + 'quarantine = "./lake/ab/rejected"\n')
         .replace("[pipeline]", '[pipeline]\nparking = "./lake/a/parked"', 1),
         ["2: pipeline.parking: lies in the folder of the target of tables[0], where Delta's VACUUM deletes it; give "
          "it one beside that",
          "18: tables[1].quarantine: lies in the folder of the target of tables[1], where Delta's VACUUM deletes it; "
          "give it one beside that"]),
        (kafka_tables(SEVERAL.format("re:(?P<t>b)", "./lake/{t}") + 'quarantine = "./lake/{t}/rejected"\n'),
         ["17: tables[1].quarantine: lies in the folder of the target of tables[1], where Delta's VACUUM deletes it; "
          "give it one beside that"]),
        (kafka_tables(SEVERAL.format("b", "./checkpoints/shop/")),
         ["15: tables[1].target: is the folder of the checkpoint; each needs a folder of its own"]),
        (kafka_tables(SEVERAL.format("b", "./lake/{table}")),
         ["15: tables[1].target: has a placeholder {table}, which only a source with a pattern fills: re:..."]),
        (kafka_tables(SEVERAL.format("re:(?P<name>b)", "./lake/{table}")),
         ["15: tables[1].target: has a placeholder {table} that is not a named group of the source's pattern; it has "
          "name"]),
        (kafka_tables(SEVERAL.format("re:(b)", "./lake/{table")),
         ["15: tables[1].target: has an unmatched brace; placeholders are written {name}"]),
        (kafka_tables(SEVERAL.format("re:(b)", "./lake/{table}")),
         ["15: tables[1].target: has a placeholder {table} that is not a named group of the source's pattern; it has "
          "none; a group is written (?P<name>...)"]),
        (kafka_tables(SEVERAL.format("re:(?P<name>b)", "./lake/{name}") + 'quarantine = "./bad/{name}"\n'), []),
        (kafka_tables(
            SEVERAL.format("re:(?P<name>b)", "./lake/{name}").replace('source = "a"\ntarget = "./lake/a"',
                'source = "re:(?P<name>a)"\ntarget = "./lake/{name}"') + 'skip_unchanged = true\n'), []),
        (PIPELINE + FILES + SEVERAL.format("b", "./lake/b"),
         ["1: pipeline.route_by: is missing; name the column that holds the source of a row"]),
        (PIPELINE + 'route_by = "name"\n' + FILES + TABLE,
         ["3: pipeline.route_by: is for tables with a source; the only table has none and takes all rows; leave it "
          "out"]),
        (PIPELINE + 'route_by = "name"\n' + FILES + TABLE + "source = 'x'\n", []),
    ],
)  # fmt: skip
def test_faults_between_tables(faults_of, text, faults):
    assert faults_of(text) == [f"pipeline.toml:{fault}" for fault in faults]


RECORDS = "key STRING, value STRING, topic STRING, partition INT, offset BIGINT"


@pytest.mark.parametrize(
    ("text", "faults"),
    [
        (PIPELINE + FILES + DEBEZIUM + TABLE,
         ['6: source.schema: has no column key, value, topic, partition, offset; format = "debezium" of [decode] reads '
          "key, value, topic, partition, offset, as in Kafka's records"]),
        (PIPELINE + FILES + '[decode]\nformat = "json"\n' + TABLE,
         ['6: source.schema: has no column value; format = "json" of [decode] reads value, as in Kafka\'s records']),
        (PIPELINE + FILES.replace("id BIGINT, name STRING", RECORDS) + DEBEZIUM + TABLE, []),
        (PIPELINE + FILES.replace("id BIGINT, name STRING", "value STRING") + '[decode]\nformat = "json"\n' + TABLE,
         []),
        (PIPELINE + '[source]\nformat = "delta"\ntable = "lake.orders"\n' + '[decode]\nformat = "json"\n' + TABLE,
         ['7: decode.format: "json" decodes records of Kafka; use "none" with a source of format "delta"']),
        (PIPELINE + FILES + TABLE + '[registry]\nurl = "http://registry:8081"\n',
         ['10: registry: belongs to format = "debezium" of [decode], and "none" would ignore it; leave it out']),
        (PIPELINE + FILES + '[decode]\ndecimals = "string"\nkeep_tombstones = true\n' + TABLE,
         ['8: decode.decimals: belongs to format = "debezium", and "none" would ignore it; leave it out',
          '9: decode.keep_tombstones: belongs to format = "debezium", and "none" would ignore it; leave it out']),
        (PIPELINE + FILES + TABLE.replace('keys = ["id"]', ""),
         ["7: tables[0].keys: is missing: the columns that identify a row"]),
        (PIPELINE + FILES + TABLE.replace('["id"]', "[]"),
         ['9: tables[0].keys: must name at least one column; tables without a key need format = "debezium" in '
          "[decode]"]),
        (PIPELINE + KAFKA + DEBEZIUM + TABLE.replace('keys = ["id"]', ""), []),
        (PIPELINE + KAFKA + DEBEZIUM + "keep_tombstones = true\n" + TABLE.replace('keys = ["id"]', ""), []),
        (PIPELINE + KAFKA + DEBEZIUM + TABLE.replace('["id"]', "[]") + 'columns = "id INT"\n', []),
        (PIPELINE + KAFKA + DEBEZIUM + "keep_tombstones = true\n" + TABLE.replace('["id"]', "[]"),
         ["12: tables[0].keys: must name at least one column for keep_tombstones of [decode]: a tombstone has only a "
          "key"]),
        (PIPELINE + KAFKA + DEBEZIUM + TABLE + 'sequence_by = "a"\ndelete_when = "b"\n',
         ['12: tables[0].sequence_by: is set by format = "debezium" of [decode], which would ignore it; leave it out',
          '13: tables[0].delete_when: is set by format = "debezium" of [decode], which would ignore it; leave it out']),
        (PIPELINE + '[source]\nformat = "delta"\ntable = "lake.orders"\n' + TABLE + 'tie_break_by = "x"\n', []),
        (PIPELINE + FILES + TABLE + 'columns = "id INT"\n',
         ['10: tables[0].columns: says what to decode, and format = "none" of [decode] would ignore it; choose the '
          "columns to write with write_columns or except_columns"]),
        (PIPELINE + FILES + TABLE + 'tombstone_retention = "7 weeks"\n',
         ['10: tables[0].tombstone_retention: must be a number and seconds, minutes, hours or days, such as "7 days" '
          'or "12 hours"']),
        (PIPELINE + 'trigger = "often"\n' + FILES + TABLE,
         ['3: pipeline.trigger: must be an interval such as "10 seconds" or "1 minute"']),
        (PIPELINE + FILES + TABLE + 'partition_by = ["a"]\ncluster_by = ["b"]\n',
         ["11: tables[0].cluster_by: excludes partition_by; give one of them"]),
        (PIPELINE + FILES + TABLE + 'write_columns = ["a"]\nexcept_columns = ["b"]\n',
         ["11: tables[0].except_columns: excludes write_columns; give one of them"]),
        (PIPELINE + FILES + TABLE + 'schema_changes = "evolve"\nmerge_schema = true\n',
         ["11: tables[0].merge_schema: excludes schema_changes, which says what is done with new columns; give one of "
          "them"]),
        (PIPELINE + FILES + TABLE + 'partition_by = ["a"]\ncreate_if_missing = false\n',
         ["10: tables[0].partition_by: describes a new table; set create_if_missing = true, or leave it out"]),
        (PIPELINE + FILES + TABLE + "create_if_missing = false\n", []),
        (PIPELINE + FILES + TABLE + 'tie_break_by = "offset"\n',
         ["10: tables[0].tie_break_by: decides between changes with the same sequence; give sequence_by too"]),
        (PIPELINE + FILES + TABLE + 'null_keys = "quarantine"\nmax_quarantined_share = 0.5\n',
         ["10: tables[0].null_keys: needs quarantine: the table that takes the rows",
          "11: tables[0].max_quarantined_share: needs quarantine: the table that takes the rows"]),
    ],
)  # fmt: skip
def test_faults_between_options(faults_of, text, faults):
    assert faults_of(text) == [f"pipeline.toml:{fault}" for fault in faults]


def test_sections_that_are_right_are_checked_though_others_are_wrong(faults_of):
    text = PIPELINE + "max_parallel = 0\n" + FILES + TABLE + 'partition_by = ["a"]\ncluster_by = ["b"]\n'
    assert [line.split(": ")[1] for line in faults_of(text)] == ["pipeline.max_parallel", "tables[0].cluster_by"]


def test_a_pattern_without_its_prefix_is_told_where_topics_match_a_pattern(faults_of):
    kafka = KAFKA.replace('topics = ["orders"]', "topic_pattern = 'shop\\..*'")

    def faults(*sources):
        tables = [TABLE.replace("[[tables]]", f"[[tables]]\nsource = '{source}'") for source in sources]
        return faults_of(PIPELINE + kafka + DEBEZIUM + "".join(tables))

    assert faults("shop.public.orders_2-b", r"re:shop\.(.*)") == []
    assert faults("shop.public.*") == [
        "pipeline.toml:10: tables[0].source: is not the name of a topic, which has letters, digits, ., _ and - only; "
        'a pattern for several topics begins with "re:"'
    ]
