"""The example of `init`: it loads as it stands, with the two edited lines, and with everything that is commented
out."""

import re
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest

from stream_merge.cli.errors import ExitCode, PipelineError
from stream_merge.cli.file.example import read_example, write_example
from stream_merge.cli.file.load import load_pipeline
from stream_merge.cli.file.model_faults import SECTIONS, SOURCES
from stream_merge.cli.file.pipeline import DeltaSource, FilesSource, KafkaSource

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

ENVIRON = {"KAFKA_USER": "shop", "KAFKA_PASSWORD": "hunter22"}
# Only prose has a space behind its #.
HEADER = re.compile(r"(?P<comment>#?)(?P<text>\[+(?P<name>[a-z.]+)\]+)")
OPTION = re.compile(r'(?P<comment>#?)(?P<text>(?P<name>[a-z_]+|".*?") = .*?)(?:  # (?P<remark>.*))?')
BROUGHT_BY_DEBEZIUM = 'not with format = "debezium"'


@dataclass(frozen=True)
class Option:
    section: str
    header: str
    name: str
    text: str
    is_commented: bool
    remark: str

    @property
    def value(self):
        return tomllib.loads(self.text)[self.name]


def read_options(text):
    """Return the options of the example, commented or not; those of each [source] in a section of their own."""
    options, section, header = [], "", ""
    for line in text.splitlines():
        if found := HEADER.fullmatch(line):
            section, header = found["name"], found["text"]
        elif found := OPTION.fullmatch(line):
            if header == "[source]" and found["name"] == "format":
                section = f"source {tomllib.loads(found['text'])['format']}"
            options.append(
                Option(section, header, found["name"], found["text"], bool(found["comment"]), found["remark"] or "")
            )
    return options


def written(options):
    """Return a pipeline file of these options."""
    lines, last = [], None
    for option in options:
        if (option.section, option.header) != last or (option.header == "[[tables]]" and option.name == "source"):
            lines.append(option.header)
        last = (option.section, option.header)
        lines.append(option.text)
    return "\n".join(lines) + "\n"


OPTIONS = read_options(read_example())
ALTERNATIVES = {
    option.name: option.remark.removeprefix("in the place of ")
    for option in OPTIONS
    if option.remark.startswith("in the place of ")
}


def load(text, tmp_path):
    path = tmp_path / "pipeline.toml"
    path.write_text(text)
    return load_pipeline(path, ENVIRON).pipeline


def with_topics(text, topics='["shop.public.customers", "shop.public.orders"]'):
    return re.sub(r"topics = \[.*?\]", lambda _: f"topics = {topics}", text)


def test_it_loads_as_it_stands(tmp_path):
    write_example(tmp_path / "pipeline.toml")
    pipeline = load_pipeline(tmp_path / "pipeline.toml", {}).pipeline
    assert pipeline.source == KafkaSource(
        format="kafka", bootstrap_servers="localhost:9092", topics=["shop.public.customers"]
    )
    assert pipeline.decode.format == "debezium"
    assert [(table.target, table.keys) for table in pipeline.tables] == [("./lake/{table}", None)]


def test_a_new_user_edits_two_lines(tmp_path):
    lines = read_example().splitlines()
    marked = [number for number, line in enumerate(lines) if "# <--" in line]
    assert len(marked) == 2
    lines[marked[0]] = 'bootstrap_servers = "broker-1:9092,broker-2:9092"'
    lines[marked[1]] = 'topics = ["erp.dbo.invoices", "invoice-lines"]'
    pipeline = load("\n".join(lines), tmp_path)
    assert pipeline.source == KafkaSource(
        format="kafka", bootstrap_servers="broker-1:9092,broker-2:9092", topics=["erp.dbo.invoices", "invoice-lines"]
    )
    pattern = re.compile(pipeline.tables[0].source.removeprefix("re:"))
    targets = [
        pipeline.tables[0].target.format_map(pattern.fullmatch(name).groupdict()) for name in pipeline.source.topics
    ]
    assert targets == ["./lake/invoices", "./lake/invoice-lines"]


def test_every_option_is_in_it():
    shown = {}
    for option in OPTIONS:
        shown.setdefault(option.section, set()).add(option.name)
    missing = []
    for section, models in SECTIONS.items():
        for model in models:
            kind = [kind for kind, source in SOURCES.items() if source is model]
            place = f"source {kind[0]}" if kind else section
            names = {field.alias or name for name, field in model.model_fields.items()} - {"options", "conf"}
            missing += [f"{place}: {name}" for name in sorted(names - shown[place])]
    assert missing == []
    assert {"source.options", "spark.conf"} <= set(shown)


def default_of(option):
    """Return the default of an option; None where it has none that could be written."""
    section, _, kind = option.section.partition(" ")
    models = [SOURCES[kind]] if kind else SECTIONS.get(section, ())
    fields = {field.alias or name: field for model in models for name, field in model.model_fields.items()}
    if option.name not in fields or fields[option.name].is_required():
        return None
    return fields[option.name].get_default(call_default_factory=True) or None


def test_what_is_commented_out_are_the_defaults():
    commented = [option for option in OPTIONS if option.is_commented and default_of(option) is not None]
    assert {option.text: option.value for option in commented} == {
        option.text: default_of(option) for option in commented
    }
    assert len(commented) > 15


def test_it_loads_with_everything_that_is_commented_out(tmp_path):
    chosen = [
        option
        for option in OPTIONS
        if option.section not in ("source files", "source delta") and option.name not in ALTERNATIVES
    ]
    pipeline = load(with_topics(written(o for o in chosen if o.remark != BROUGHT_BY_DEBEZIUM)), tmp_path)
    assert pipeline.source.options["kafka.sasl.jaas.config"].endswith('username="shop" password="hunter22";')
    assert pipeline.spark.conf == {"spark.driver.memory": "4g", "spark.sql.shuffle.partitions": 8}
    assert [table.target for table in pipeline.tables] == ["./lake/{table}", "./lake/all_orders"]
    assert pipeline.tables[0].expect == {"has_email": "email IS NOT NULL"}
    left_out = {"sequence_by", "tie_break_by", "delete_when", *ALTERNATIVES}
    assert pipeline.tables[0].model_fields_set == set(type(pipeline.tables[0]).model_fields) - left_out


@pytest.mark.parametrize("name", ALTERNATIVES)
def test_it_loads_with_each_alternative(tmp_path, name):
    replaced = ALTERNATIVES[name]
    assert any(option.name == replaced for option in OPTIONS)
    chosen = [
        option for option in OPTIONS if (not option.is_commented or option.name == name) and option.name != replaced
    ]
    assert name in written(chosen)
    load(written(chosen), tmp_path)


def test_it_loads_with_files_and_everything_that_goes_with_them(tmp_path):
    chosen = [
        option
        for option in OPTIONS
        if option.section not in ("source kafka", "source delta", "source.options")
        and option.name not in ALTERNATIVES
        and option.remark != BROUGHT_BY_DEBEZIUM
    ]
    pipeline = load(written(chosen), tmp_path)
    assert isinstance(pipeline.source, FilesSource)
    assert pipeline.source.max_files_per_trigger == 1000


def test_it_loads_with_a_delta_table_and_everything_that_goes_with_it(tmp_path):
    chosen = [
        option
        for option in OPTIONS
        if option.section not in ("source kafka", "source files", "source.options", "decode", "registry")
        and option.name not in {*ALTERNATIVES, "columns"}
    ]
    pipeline = load(written(chosen), tmp_path)
    assert isinstance(pipeline.source, DeltaSource)
    assert pipeline.source.starting_version == 0
    assert pipeline.tables[0].delete_when == "op = 'd'"


def test_a_file_that_is_there_is_kept(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    path = Path("pipeline.toml")
    path.write_text("mine")
    with pytest.raises(PipelineError) as raised:
        write_example(path)
    assert str(raised.value) == "pipeline.toml exists already; choose another file, or overwrite it with --force."
    assert raised.value.exit_code is ExitCode.USAGE
    assert path.read_text() == "mine"
    write_example(path, force=True)
    assert path.read_text() == read_example()


def test_places_where_nothing_can_be_written(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)

    def said_of(name):
        with pytest.raises(PipelineError) as raised:
            write_example(Path(name), force=True)
        return str(raised.value)

    Path("folder").mkdir()
    Path("file").touch()
    assert said_of("folder") == "folder is a folder; give the name of a file in it, such as folder/pipeline.toml."
    assert said_of("none/pipeline.toml") == "none/pipeline.toml cannot be written: there is no folder none; create it."
    assert said_of("file/pipeline.toml") == "file/pipeline.toml cannot be written: Not a directory."
