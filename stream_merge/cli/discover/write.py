"""Writes the pipeline file of a plan, with comments that say what was found and what could not be told."""

from __future__ import annotations

import json
import re
import textwrap
import unicodedata
from collections.abc import Iterator, Mapping

from stream_merge.cli.discover.columns import ddl_of
from stream_merge.cli.discover.connection import Connection
from stream_merge.cli.discover.findings import Family, Finding
from stream_merge.cli.discover.plan import Group, Plan
from stream_merge.cli.show.formats import plural

_WIDTH = 120
_MODES = ("decimal.handling.mode", "binary.handling.mode", "time.precision.mode")
_SHARED_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]*")
_WORDS = {
    Family.DETECTED: "events of Debezium that tell what they are",
    Family.FLATTENED: "rows that carry no mark, each a flattened event",
    Family.OBJECTS: "plain JSON objects",
}


def written(plan: Plan, connection: Connection) -> str:
    """Return the text of a pipeline file; it has no secret."""
    sections = [
        _head(plan, connection),
        _pipeline(plan, connection),
        _source(plan, connection),
        _decode(plan),
        _registry(plan, connection),
        *(_table(group, plan, connection) for group in plan.groups),
        *(_refused(group, connection) for group in plan.refused),
        _spark(connection),
    ]
    return "\n".join("\n".join(lines) + "\n" for section in sections if (lines := list(section)))


def pipeline_name(plan: Plan) -> str:
    """Return the first part of the topics' names if they share it."""
    names = {topic.partition(".")[0] for topic in plan.topics}
    name = names.pop() if len(names) == 1 else ""
    return name if _SHARED_NAME.fullmatch(name) else "pipeline"


def toml_text(value: str) -> str:
    """Return a text in TOML. What it has of `${` stays a reference to the environment."""
    return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007F")


def comment(text: str, *, indent: str = "") -> list[str]:
    """Return a text as lines of a comment; characters that a comment cannot have are question marks."""
    plain = "".join("?" if unicodedata.category(each)[0] == "C" else each for each in " ".join(text.split()))
    return textwrap.wrap(
        plain,
        _WIDTH,
        initial_indent=f"# {indent}",
        subsequent_indent=f"# {indent}",
        break_long_words=False,
        break_on_hyphens=False,
    )


def _head(plan: Plan, connection: Connection) -> Iterator[str]:
    yield from comment(
        "Written by stream-merge init --from kafka, from the newest records of each topic: "
        f"{plural(len(plan.topics), 'topic')} of {_WORDS[plan.family]}. Check what the comments say before you run it:"
    )
    yield "#"
    yield "#   stream-merge validate FILE"
    yield "#   stream-merge run FILE"
    if connection.to_set:
        yield "#"
        yield from comment(
            f"It needs in the environment what was given for init: {', '.join(sorted(connection.to_set))}."
        )
    if plan.others:
        yield "#"
        yield from comment(
            "These topics need another section [decode], so they need a pipeline file of their own: run init with "
            "--topics for them."
        )
        for finding in plan.others:
            yield from comment(f"{finding.topic}: {finding.summary}", indent="  ")
    if plan.foreign:
        yield "#"
        yield from comment("These topics have no rows of tables, and are left out:")
        for finding in plan.foreign:
            yield from comment(f"{finding.topic}: {finding.foreign}", indent="  ")


def _pipeline(plan: Plan, connection: Connection) -> Iterator[str]:
    name, lake = pipeline_name(plan), connection.written["lake"]["lake"]
    folder = f"{lake.rstrip('/')}/_checkpoints" if "://" in lake or "${" in lake else "./checkpoints"
    yield "[pipeline]"
    yield f"name = {toml_text(name)}"
    yield f"checkpoint = {toml_text(f'{folder}/{name}')}"
    if len(plan.groups) > 1 or plan.groups[0].is_pattern:
        yield "# Where the records of a table go that cannot be merged, so that the others go on; else the query stops."
        yield f"#parking = {toml_text(_in(lake, '_parked'))}"


def _source(plan: Plan, connection: Connection) -> Iterator[str]:
    yield "[source]"
    yield 'format = "kafka"'
    yield f"bootstrap_servers = {toml_text(connection.written['source']['bootstrap_servers'])}"
    if plan.topic_pattern is not None:
        yield "# All topics that match are taken, and new ones as soon as they are there."
        yield f"topic_pattern = '{plan.topic_pattern}'"
    else:
        yield "topics = ["
        yield from (f"    {toml_text(topic)}," for topic in plan.topics)
        left = [topic for group in plan.groups for topic in group.empty]
        left += [group.findings[0].topic for group in plan.refused]
        if left:
            yield "    # Those that are not taken, see below:"
            yield from (f"    #{toml_text(topic)}," for topic in left)
        yield "]"
    yield from _options("source.options", connection.written["source.options"])


def _options(section: str, values: Mapping[str, str]) -> Iterator[str]:
    if values:
        yield ""
        yield f"[{section}]"
        yield from (f"{toml_text(name)} = {toml_text(value)}" for name, value in values.items())


def _decode(plan: Plan) -> Iterator[str]:
    yield "[decode]"
    if plan.family is Family.OBJECTS:
        yield 'format = "json"'
        return
    yield 'format = "debezium"'
    told = [finding.modes for finding in plan.findings if finding.modes is not None]
    if told:
        found = {mode: sorted({modes[mode] for modes in told if mode in modes}) for mode in _MODES}
        shown = [f"{mode} {' and '.join(values)}" for mode, values in found.items() if values]
        untold = [mode for mode, values in found.items() if not values]
        if shown:
            yield from comment(f"The types in the messages tell of the connector: {', '.join(shown)}.")
        if untold:
            yield from comment(f"No column tells {' or '.join(untold)}, and none needs it.")
    if any(finding.sent is not None for finding in plan.findings):
        yield from comment(
            "Messages without a schema part do not tell decimal.handling.mode, binary.handling.mode and the unit of "
            "times. The columns of such tables are taken as they were sent, which needs none of these; for columns of "
            "other types, say what the connector is set to."
        )
        yield from ('#decimals = "precise"', '#binary = "base64"', '#timestamp_unit = "us"')
    if plan.family is Family.FLATTENED:
        yield "# Nothing in the messages tells that they are rows, and not envelopes."
        yield 'layout = "flattened"'
        if any(finding.has_unmarked_deletes for finding in plan.findings):
            yield "# There are records without a value, and no other record marks a delete."
            yield "keep_tombstones = true"
        else:
            yield "# No record without a value was seen. If there will be some, they are deletes only with this:"
            yield "#keep_tombstones = true"


def _registry(plan: Plan, connection: Connection) -> Iterator[str]:
    given = connection.written["registry"]
    if given:
        yield "[registry]"
        for name, value in given.items():
            is_number = name == "id_size" and value.isdigit()
            yield f"{name} = {value if is_number else toml_text(value)}"
        return
    avro = [finding for group in plan.refused for finding in group.findings if finding.is_avro]
    if avro:
        yield from comment("Topics in Avro need the registry that has their schemas: run init again with --registry.")
        yield "#[registry]"
        yield '#url = "http://localhost:8081"'
        if any(finding.has_wide_ids for finding in avro):
            yield "#id_size = 8"


def _table(group: Group, plan: Plan, connection: Connection) -> Iterator[str]:
    for finding in group.findings:
        yield from _found(finding, connection)
    for topic in group.empty:
        yield from comment(f"{topic}: no records, so nothing could be told.")
    yield "[[tables]]"
    yield from _place(group, connection)
    if group.is_pattern:
        return
    [finding] = group.findings
    if plan.family is Family.OBJECTS:
        yield f"keys = [{', '.join(map(toml_text, finding.keys or ()))}]"
        yield "# Records of one key are in one partition, in the order of their changes."
        yield 'sequence_by = "_change.offset"'
    if finding.sent is not None:
        yield from _sent(finding)


def _place(group: Group, connection: Connection) -> Iterator[str]:
    yield f"source = '{group.source}'" if group.is_pattern else f"source = {toml_text(group.source)}"
    yield f"target = {toml_text(_in(connection.written['lake']['lake'], group.target))}"


def _sent(finding: Finding) -> Iterator[str]:
    """Yield the columns as they were sent, and, commented out, as what they may be."""
    assert finding.sent is not None
    yield "# As they were sent. Columns that the source gets later are left out, with a warning."
    yield f"columns = {toml_text(ddl_of({name: column.type for name, column in finding.sent.items()}))}"
    for name, column in finding.sent.items():
        if column.doubt is not None:
            yield from comment(f"{name} {column.doubt}.")
    units = {column.time_unit for column in finding.sent.values() if column.time_unit is not None}
    if len(units) == 1 and finding.family is not Family.OBJECTS:
        [unit] = units
        kinds = {
            name: "TIMESTAMP_NTZ" if column.time_unit is not None else column.type
            for name, column in finding.sent.items()
        }
        yield from comment(f'If these are times, in the place of columns, with timestamp_unit = "{unit}" in [decode]:')
        yield f"#columns = {toml_text(ddl_of(kinds))}"


def _refused(group: Group, connection: Connection) -> Iterator[str]:
    [finding] = group.findings
    mask = connection.secrets.mask
    yield from comment(f"{finding.topic} is not taken: {mask('; '.join(finding.faults))}.")
    if not finding.is_empty:
        yield from comment(f"Found: {finding.summary}, in {plural(finding.num_records, 'record')}.")
    yield "#[[tables]]"
    yield from (f"#{line}" for line in _place(group, connection))


def _found(finding: Finding, connection: Connection) -> Iterator[str]:
    keys = "none" if not finding.keys else ", ".join(finding.keys)
    yield from comment(f"{finding.topic}: {finding.summary}, in {plural(finding.num_records, 'record')}. Key: {keys}.")
    if finding.columns is not None:
        yield from comment(f"Columns: {ddl_of(finding.columns)}.", indent="  ")
    for note in finding.notes:
        yield from comment(f"Note: {connection.secrets.mask(note)}.", indent="  ")


def _spark(connection: Connection) -> Iterator[str]:
    values = connection.written["spark.conf"]
    if values:
        yield "[spark.conf]"
        yield from (f"{toml_text(name)} = {toml_text(value)}" for name, value in values.items())


def _in(lake: str, name: str) -> str:
    return f"{lake.rstrip('/')}/{name}"
