"""Recognises topics without rows of a table: those that Kafka Connect, registries and Debezium have for themselves."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from stream_merge.cli.query.messages import SampledRecord, is_wrapped, parsed

HIDDEN_PREFIX = "__"
"""Begins the names of Kafka's own topics, and those of Debezium's heartbeats."""

_CONNECT_CONFIG = re.compile(rb"(connector|task|commit|target-state|logger-cluster)-.+|session-key")
_CONNECT_STATUS = re.compile(rb"status-(connector|task|topic)-.+")
_SIGNALS = {
    "execute-snapshot",
    "stop-snapshot",
    "pause-snapshot",
    "resume-snapshot",
    "schema-changes",
    "log",
    "set-binlog-position",
}


def find_foreign(records: Sequence[SampledRecord]) -> str | None:
    """Return what the records of a topic are if each of them is of one of these kinds, else None."""
    if not records:
        return None
    kinds = {_kind_of(record) for record in records}
    return kinds.pop() if len(kinds) == 1 else None


def _kind_of(record: SampledRecord) -> str | None:
    key, value = _object(record.key), _object(record.value)
    for kind, (is_kind, names) in _BY_KEY.items():
        if is_kind(record.key or b"") and (names is None or value.keys() <= names):
            return kind
    if key.get("keytype") in ("SCHEMA", "CONFIG", "NOOP", "DELETE_SUBJECT", "CLEAR_SUBJECT", "MODE"):
        return "the schemas of a registry"
    return next((kind for kind, is_kind in _BY_VALUE.items() if is_kind(value)), None)


def _object(text: bytes | None) -> Mapping[str, Any]:
    found = parsed(text) if text is not None else None
    if isinstance(found, dict) and is_wrapped(found):
        found = found["payload"]
    return found if isinstance(found, dict) else {}


def _is_offset_key(key: bytes) -> bool:
    found = parsed(key) if key.startswith(b"[") else None
    return isinstance(found, list) and len(found) == 2 and isinstance(found[0], str) and isinstance(found[1], dict)


_CONFIG_NAMES = frozenset(
    ("properties", "tasks", "state", "state.v2", "key", "algorithm", "creation-timestamp", "level", "modified")
)
_STATUS_NAMES = frozenset(("state", "trace", "worker_id", "generation", "version", "topic"))

_BY_KEY: Mapping[str, tuple[Callable[[bytes], bool], frozenset[str] | None]] = {
    "the configuration of Kafka Connect": (lambda key: _CONNECT_CONFIG.fullmatch(key) is not None, _CONFIG_NAMES),
    "the status of Kafka Connect": (lambda key: _CONNECT_STATUS.fullmatch(key) is not None, _STATUS_NAMES),
    "the offsets of Kafka Connect": (_is_offset_key, None),
}
"""What their keys are, and the names that their values have at most."""
_BY_VALUE: Mapping[str, Callable[[Mapping[str, Any]], bool]] = {
    "Debezium's changes of schemas": lambda value: "ddl" in value and "source" in value and "databaseName" in value,
    "Debezium's heartbeats": lambda value: value.keys() == {"ts_ms"},
    "Debezium's transactions": lambda value: (
        value.get("status") in ("BEGIN", "END") and "id" in value and "event_count" in value
    ),
    "Debezium's notifications": lambda value: {"id", "aggregate_type", "type", "additional_data"} <= value.keys(),
    "signals to Debezium": lambda value: value.get("type") in _SIGNALS and value.keys() <= {"id", "type", "data"},
}
