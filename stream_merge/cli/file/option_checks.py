"""Checks the options of a pipeline file against each other, without Spark."""

from __future__ import annotations

import re
import string
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, TypeAlias, TypeVar

from pydantic import BaseModel, TypeAdapter, ValidationError

from stream_merge.cli.file.durations import parse_duration, parse_interval
from stream_merge.cli.file.pipeline import (
    PATTERN_PREFIX,
    DecodeSettings,
    DeltaSource,
    FilesSource,
    KafkaSource,
    PipelineSettings,
    Source,
    TableSettings,
)
from stream_merge.cli.file.positions import Location
from stream_merge.target_names import table_key

Found: TypeAlias = Iterator[tuple[Location, str]]

KAFKA_COLUMNS = ("key", "value", "topic", "partition", "offset")
"""The columns of Kafka's records, which a files source must have to replace them."""

_FILLED = ("target", "quarantine")
_DEBEZIUM_ONLY = ("placeholder", "layout", "decimals", "binary", "timestamp_unit", "keep_tombstones")
_TOPIC = re.compile(r"[A-Za-z0-9._-]+")
_DDL_NAME = re.compile(r"\s*(?:`((?:[^`]|``)+)`|([^\s:,`]+))")

Model = TypeVar("Model", bound=BaseModel)


@dataclass(frozen=True, slots=True)
class _Sections:
    """The sections that are valid by themselves; None for the others."""

    pipeline: PipelineSettings | None
    source: Source | None
    decode: DecodeSettings | None
    has_registry: bool
    tables: list[TableSettings | None]

    @property
    def known_tables(self) -> list[tuple[int, TableSettings]]:
        return [(index, table) for index, table in enumerate(self.tables) if table is not None]


def find_contradictions(data: Mapping[str, Any]) -> list[tuple[Location, str]]:
    """Return location and sentence of every fault between options; sections with faults of their own are skipped.

    Args:
        data: The file's values with the environment filled in.
    """
    tables = data.get("tables")
    sections = _Sections(
        pipeline=_model(PipelineSettings, data.get("pipeline")),
        source=_source(data.get("source")),
        decode=_model(DecodeSettings, data.get("decode", {})),
        has_registry="registry" in data,
        tables=[_model(TableSettings, table) for table in tables] if isinstance(tables, list) else [],
    )
    return [
        *_pipeline_faults(sections),
        *_decode_faults(sections),
        *_routing_faults(sections),
        *_topic_faults(sections),
        *_name_faults(sections),
        *_shared_targets(sections),
        *_nested_folders(sections),
        *(fault for index, table in sections.known_tables for fault in _table_faults(index, table, sections)),
    ]


def ddl_names(ddl: str) -> list[str]:
    """Return the column names of a DDL text, as far as they show without Spark's parser."""
    matches = [_DDL_NAME.match(column) for column in _split_columns(ddl)]
    return [match[2] or match[1].replace("``", "`") for match in matches if match]


def _model(model: type[Model], value: object) -> Model | None:
    try:
        return model.model_validate(value)
    except ValidationError:
        return None


def _source(value: object) -> Source | None:
    adapter: TypeAdapter[Source] = TypeAdapter(Source)
    try:
        return adapter.validate_python(value)
    except ValidationError:
        return None


def _pipeline_faults(sections: _Sections) -> Found:
    pipeline = sections.pipeline
    if pipeline is None:
        return
    if parse_interval(pipeline.trigger) is None and _is_filled(pipeline.trigger):
        yield ("pipeline", "trigger"), 'must be an interval such as "10 seconds" or "1 minute"'
    checkpoint = table_key(pipeline.checkpoint)
    for index, table in sections.known_tables:
        for option in _FILLED:
            if (name := getattr(table, option)) is not None and table_key(name) == checkpoint:
                yield ("tables", index, option), "is the folder of the checkpoint; each needs a folder of its own"
    if pipeline.parking is not None:
        for fault in _parking_faults(pipeline.parking, checkpoint, sections):
            yield ("pipeline", "parking"), fault


def _parking_faults(parking: str, checkpoint: str, sections: _Sections) -> Iterator[str]:
    tables = sections.known_tables
    if len(sections.tables) == 1 and tables and tables[0][1].source is None:
        yield "is for tables with a source; the only table has none, and nothing goes on without it; leave it out"
    if table_key(parking) == checkpoint:
        yield "is the folder of the checkpoint; each needs a folder of its own"
    for index, table in tables:
        for option in _FILLED:
            if (name := getattr(table, option)) is not None and table_key(name) == table_key(parking):
                yield f"is the {option} of tables[{index}]; it needs a table of its own"


def _decode_faults(sections: _Sections) -> Found:
    decode, source = sections.decode, sections.source
    if decode is None:
        return
    if decode.format != "debezium":
        for option in _DEBEZIUM_ONLY:
            if option in decode.model_fields_set:
                yield (
                    ("decode", option),
                    f'belongs to format = "debezium", and "{decode.format}" would ignore it; leave it out',
                )
        if sections.has_registry:
            yield (
                ("registry",),
                f'belongs to format = "debezium" of [decode], and "{decode.format}" would ignore it; leave it out',
            )
    if decode.format == "none" or source is None or isinstance(source, KafkaSource):
        return
    if isinstance(source, FilesSource):
        needed = KAFKA_COLUMNS if decode.format == "debezium" else ("value",)
        names = ddl_names(source.schema_)
        missing = [name for name in needed if name not in names]
        if missing and _is_filled(source.schema_):
            yield (
                ("source", "schema"),
                f'has no column {", ".join(missing)}; format = "{decode.format}" of [decode] reads '
                f"{', '.join(needed)}, as in Kafka's records",
            )
        return
    yield (
        ("decode", "format"),
        f'"{decode.format}" decodes records of Kafka; use "none" with a source of format "{source.format}"',
    )


def _routing_faults(sections: _Sections) -> Found:
    tables, pipeline, source = sections.known_tables, sections.pipeline, sections.source
    if len(sections.tables) > 1:
        for index, table in tables:
            if table.source is None:
                yield ("tables", index, "source"), "is missing; with several tables, each must name its source"
    sources: dict[str, int] = {}
    for index, table in tables:
        if table.source is not None and (first := sources.setdefault(table.source, index)) != index:
            yield ("tables", index, "source"), f"is also that of tables[{first}]; the rows of a source go to one table"
    if pipeline is None:
        return
    is_routed = len(sections.tables) > 1 or any(table.source is not None for _, table in tables)
    if pipeline.route_by is not None and tables and not is_routed:
        yield (
            ("pipeline", "route_by"),
            "is for tables with a source; the only table has none and takes all rows; leave it out",
        )
    if is_routed and pipeline.route_by is None and source is not None and not isinstance(source, KafkaSource):
        yield ("pipeline", "route_by"), "is missing; name the column that holds the source of a row"


def _topic_faults(sections: _Sections) -> Found:
    """Yield tables that no topic fills and topics that no table takes, if the file names topics."""
    source, pipeline, tables = sections.source, sections.pipeline, sections.known_tables
    if not isinstance(source, KafkaSource) or pipeline is None or pipeline.route_by is not None:
        return
    if not source.topics or len(tables) < len(sections.tables) or not all(map(_is_filled, source.topics)):
        return
    if not tables or any(table.source is None for _, table in tables):
        return
    taken: dict[str, list[int]] = {topic: [] for topic in source.topics}
    for index, table in tables:
        name = table.source or ""
        topics = [topic for topic in source.topics if _takes(name, topic)]
        for topic in topics:
            taken[topic].append(index)
        if not topics and _is_filled(name):
            verb = "matches" if name.startswith(PATTERN_PREFIX) else "is"
            yield ("tables", index, "source"), f"{verb} none of the topics of [source]: {', '.join(source.topics)}"
    for place, topic in enumerate(source.topics):
        patterns = [index for index in taken[topic] if (tables[index][1].source or "").startswith(PATTERN_PREFIX)]
        if not taken[topic] and pipeline.unknown == "error":
            yield (
                ("source", "topics", place),
                f'no table takes "{topic}"; add a [[tables]] with this source, or set unknown = "ignore" in [pipeline]',
            )
        elif len(patterns) == len(taken[topic]) > 1:
            yield (
                ("source", "topics", place),
                f'the patterns of {" and ".join(f"tables[{index}]" for index in patterns)} both match "{topic}"',
            )


def _name_faults(sections: _Sections) -> Found:
    """Yield sources that no topic can have as its name, such as patterns without their prefix."""
    source, pipeline = sections.source, sections.pipeline
    if not isinstance(source, KafkaSource) or source.topics or pipeline is None or pipeline.route_by is not None:
        return
    for index, table in sections.known_tables:
        name = table.source or "any"
        if not name.startswith(PATTERN_PREFIX) and _is_filled(name) and not _TOPIC.fullmatch(name):
            yield (
                ("tables", index, "source"),
                "is not the name of a topic, which has letters, digits, ., _ and - only; a pattern for several topics "
                f'begins with "{PATTERN_PREFIX}"',
            )


def _takes(source: str, topic: str) -> bool:
    if source.startswith(PATTERN_PREFIX):
        return re.fullmatch(source.removeprefix(PATTERN_PREFIX), topic) is not None
    return source == topic


def _shared_targets(sections: _Sections) -> Found:
    targets: dict[str, int] = {}
    for index, table in sections.known_tables:
        if not _is_filled(table.target) or _placeholders(table.target):
            # A target with placeholders differs by name; only the names tell whether two are the same.
            continue
        first = targets.setdefault(table_key(table.target), index)
        if first != index and _merge_options(table) != _merge_options(sections.tables[first]):
            yield (
                ("tables", index, "target"),
                f"is also that of tables[{first}]; to share a target, all options but source and columns must be equal",
            )
    for index, table in sections.known_tables:
        if table.quarantine is not None and (first := targets.get(table_key(table.quarantine), -1)) >= 0:
            yield ("tables", index, "quarantine"), f"is the target of tables[{first}]; it needs a table of its own"


def _nested_folders(sections: _Sections) -> Found:
    """Refuse a folder inside a table's: Delta does not take it for a table, or deletes what is in it with VACUUM."""
    folders: list[tuple[Location, str, str]] = [
        (("tables", index, option), name, f"the {option} of tables[{index}]")
        for index, table in sections.known_tables
        for option in _FILLED
        if (name := getattr(table, option)) is not None
    ]
    others = list(folders)
    if sections.pipeline is not None:
        others.append((("pipeline", "checkpoint"), sections.pipeline.checkpoint, "the checkpoint"))
        if sections.pipeline.parking is not None:
            parking = (("pipeline", "parking"), sections.pipeline.parking, "the parking table")
            folders, others = [*folders, parking], [*others, parking]
    for where, name, _ in others:
        outer = [what for _, other, what in folders if "/" in other and _is_inside(name, other)]
        if outer:
            yield where, f"lies in the folder of {outer[0]}, where Delta's VACUUM deletes it; give it one beside that"


def _is_inside(name: str, folder: str) -> bool:
    return "/" in name and table_key(name).startswith(table_key(folder).rstrip("/") + "/")


def _merge_options(table: TableSettings | None) -> dict[str, Any]:
    options = {} if table is None else table.model_dump(exclude={"source", "columns"})
    return {**options, "target": table_key(options.get("target", ""))}


def _table_faults(index: int, table: TableSettings, sections: _Sections) -> Found:
    for option, fault in (
        *_placeholder_faults(table),
        *_option_faults(table),
        *_decoding_faults(table, sections),
    ):
        yield ("tables", index, option), fault


def _placeholder_faults(table: TableSettings) -> Iterator[tuple[str, str]]:
    if table.source is None or not table.source.startswith(PATTERN_PREFIX):
        yield from (
            (option, f"has a placeholder {name}, which only a source with a pattern fills: {PATTERN_PREFIX}...")
            for option in _FILLED
            for name in _placeholders(getattr(table, option))
        )
        return
    groups = re.compile(table.source.removeprefix(PATTERN_PREFIX)).groupindex
    for option in _FILLED:
        text = getattr(table, option)
        try:
            parts = list(string.Formatter().parse(text or ""))
        except ValueError:
            yield option, "has an unmatched brace; placeholders are written {name}"
            continue
        for _, name, spec, conversion in parts:
            if name is not None and (name not in groups or spec or conversion):
                known = f"it has {', '.join(groups)}" if groups else "it has none; a group is written (?P<name>...)"
                yield option, f"has a placeholder {{{name}}} that is not a named group of the source's pattern; {known}"


def _placeholders(text: str | None) -> list[str]:
    return re.findall(r"(?<!\$)\{\w*\}", text or "")


def _option_faults(table: TableSettings) -> Iterator[tuple[str, str]]:
    try:
        parse_duration(table.tombstone_retention)
    except ValueError as error:
        if _is_filled(table.tombstone_retention):
            yield "tombstone_retention", str(error)
    if table.partition_by and table.cluster_by:
        yield "cluster_by", "excludes partition_by; give one of them"
    if table.schema_changes is not None and table.merge_schema:
        yield "merge_schema", "excludes schema_changes, which says what is done with new columns; give one of them"
    if table.write_columns and table.except_columns:
        yield "except_columns", "excludes write_columns; give one of them"
    for option in ("partition_by", "cluster_by", "table_properties"):
        if not table.create_if_missing and option in table.model_fields_set and getattr(table, option):
            yield option, "describes a new table; set create_if_missing = true, or leave it out"
    if table.quarantine is None and table.null_keys == "quarantine":
        yield "null_keys", "needs quarantine: the table that takes the rows"
    if table.quarantine is None and table.max_quarantined_share != 1:
        yield "max_quarantined_share", "needs quarantine: the table that takes the rows"


def _decoding_faults(table: TableSettings, sections: _Sections) -> Iterator[tuple[str, str]]:
    decode, source = sections.decode, sections.source
    if decode is None:
        return
    if decode.format == "debezium":
        yield from _debezium_faults(table, decode)
        return
    if table.rename:
        yield "rename", 'needs format = "debezium" in [decode], whose messages tell their columns'
    if table.keys is None:
        yield "keys", "is missing: the columns that identify a row"
    elif not table.keys:
        yield "keys", 'must name at least one column; tables without a key need format = "debezium" in [decode]'
    if decode.format == "none" and table.columns is not None:
        yield (
            "columns",
            'says what to decode, and format = "none" of [decode] would ignore it; choose the columns to write with '
            "write_columns or except_columns",
        )
    brings_order = isinstance(source, DeltaSource) and source.change_feed
    if table.tie_break_by is not None and table.sequence_by is None and source is not None and not brings_order:
        yield "tie_break_by", "decides between changes with the same sequence; give sequence_by too"


def _debezium_faults(table: TableSettings, decode: DecodeSettings) -> Iterator[tuple[str, str]]:
    if table.keys is not None and not table.keys and decode.keep_tombstones:
        yield "keys", "must name at least one column for keep_tombstones of [decode]: a tombstone has only a key"
    if table.rename and table.columns is not None:
        yield "rename", "needs columns from the messages' schema part; leave columns out"
    for option in ("sequence_by", "delete_when"):
        if getattr(table, option) is not None:
            yield option, 'is set by format = "debezium" of [decode], which would ignore it; leave it out'


def _is_filled(text: str) -> bool:
    """Return whether the environment had all values of a text; if not, that is the fault to report."""
    return "${" not in text


def _split_columns(ddl: str) -> Iterable[str]:
    """Yield the parts of a DDL text between commas outside brackets and quotes."""
    depth, start = 0, 0
    for match in re.finditer(r"`[^`]*`|'(?:\\.|[^'\\])*'|\"(?:\\.|[^\"\\])*\"|[<>(),]", ddl):
        if match[0] in ("<", "("):
            depth += 1
        elif match[0] in (">", ")"):
            depth -= 1
        elif match[0] == "," and depth == 0:
            yield ddl[start : match.start()]
            start = match.end()
    yield ddl[start:]
