"""Learns the key columns of a table from the keys of its records."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from pyspark.sql import DataFrame, Row
from pyspark.sql import functions as F

from stream_merge.debezium.cloud_events import from_cloud_events
from stream_merge.debezium.decode_errors import decodable
from stream_merge.debezium.spelling import IS_TOMBSTONE, text
from stream_merge.errors import ConfigError

KEY_PARTS = ("key_schema", "key_names", "is_odd_key", "row_kind")
"""What of a record tells the keys: the columns that `with_key_parts` adds."""

NO_KEYS_TOLD = "no record tells the keys, since a TRUNCATE has none; give keys=, or an earlier result of learn_columns"

NO_KEYS = ("null", '{"schema":null,"payload":null}')
"""How converters write that there is no key, besides not writing one."""
ROUTED_FROM = "__dbz__physicalTableIdentifier"
"""What Debezium's ByLogicalTableRouter adds to a record's key: the table of the source, one of several of a topic."""
_HAS_NO_KEY = "key_text IS NULL AND NOT is_tombstone"
POSITIONS = ("lsn", "pos", "change_lsn", "commit_lsn", "scn")
"""Fields of `source` of which each connector that knows the place of a change in the source's log sends one."""


@dataclass(frozen=True, slots=True)
class ToldKeys:
    """What records tell of the keys of their table.

    Attributes:
        names: The key columns; none for a table without a key; None if the records do not tell.
        fault: Why they cannot be learnt from these records; None if nothing is wrong with them.
    """

    names: tuple[str, ...] | None = None
    fault: str | None = None

    def checked(self) -> tuple[str, ...] | None:
        """Return the names.

        Raises:
            ConfigError: They cannot be learnt from these records.
        """
        if self.fault is not None:
            raise ConfigError([self.fault])
        return self.names


def learn_keys(records: DataFrame, known: Sequence[str] | None = None) -> tuple[str, ...] | None:
    """Return the key columns from the records' keys, for `changes(keys=)`; reads the records.

    A record's key is a JSON object of the key columns, with or without Kafka Connect's schema part. If the records have
    no key, their table has none, as far as the connector gives what such a table needs: envelopes with a place in the
    source's log.

    Args:
        records: Records of one table, as in Kafka.
        known: The result for the previous batch.

    Returns:
        The columns from the records, else `known`; empty for a table without a key; None if nobody tells: a TRUNCATE
        has no key.

    Raises:
        ConfigError: The records have different keys, or keys that are not JSON objects; or the table has no key and
            cannot be merged without one.
    """
    if records.isStreaming:
        raise ConfigError(
            ["keys cannot be learnt from a stream before it runs; give them, or call this in foreachBatch"]
        )
    texts = decodable(from_cloud_events(records)).select(
        "topic", "key", "value", "offset", F.expr(IS_TOMBSTONE).alias("is_tombstone")
    )
    groups = with_key_parts(texts).groupBy("topic", *KEY_PARTS)
    rows = (
        groups.agg(F.min("offset").alias("offset"), F.first("key_text").alias("key_text")).orderBy("offset").collect()
    )
    return told_keys(rows, None if known is None else tuple(known)).checked()


def with_key_parts(records: DataFrame) -> DataFrame:
    """Return records with the columns `KEY_PARTS` and `key_text`, over `key`, `value` and `is_tombstone`.

    key_schema: the schema part of the key. key_names: the names in a key without one. is_odd_key: whether the key is
    neither. row_kind: what a record without a key tells of a row; see `_row_kind`.
    """
    key = "CAST(key AS STRING)"
    no_keys = ", ".join(map(text, NO_KEYS))
    frame = records.withColumn("key_text", F.expr(f"CASE WHEN {key} NOT IN ({no_keys}) THEN {key} END"))
    schema = "get_json_object(key_text, '$.schema')"
    frame = frame.withColumn(
        "key_schema", F.expr(f"CASE WHEN contains(key_text, '\"schema\"') AND {schema} LIKE '{{%' THEN {schema} END")
    )
    frame = frame.withColumn("key_names", F.expr("CASE WHEN key_schema IS NULL THEN json_object_keys(key_text) END"))
    is_odd = "key_text IS NOT NULL AND key_schema IS NULL AND coalesce(size(key_names), 0) <= 0"
    frame = frame.withColumns(
        {"is_odd_key": F.expr(is_odd), "sent_op": F.expr(_in_value("op")), "sent_source": F.expr(_in_value("source"))}
    )
    return frame.withColumn("row_kind", F.expr(f"CASE WHEN {_HAS_NO_KEY} THEN {_row_kind()} END"))


def told_keys(rows: Sequence[Row], known: tuple[str, ...] | None) -> ToldKeys:
    """Return what groups of records tell, the oldest first, each with a topic, `KEY_PARTS` and an example of a key.

    Args:
        rows: The groups.
        known: The keys that earlier records told.
    """
    if not rows:
        return ToldKeys(known)
    topic = rows[0]["topic"]
    # The order in which a key names its columns is of no importance.
    keys = {frozenset(names): names for names in map(_names_in, reversed(rows)) if names}
    if len(keys) > 1:
        shown = " and ".join(", ".join(names) for names in reversed(keys.values()))
        return ToldKeys(
            fault=f"keys differ among the records of {topic}: {shown}; name the keys of this table, or decode the "
            "records before and after the change separately"
        )
    if keys:
        return ToldKeys(next(iter(keys.values())))
    if known:
        return ToldKeys(known)
    odd = next((row["key_text"] for row in rows if _is_odd(row)), None)
    if odd is not None:
        return ToldKeys(
            fault=f"keys of the records of {topic} are not JSON objects of the key columns: {odd[:80]}; let the "
            "connector send such keys (key.converter JsonConverter, no ExtractField), or set keys=[] for a table "
            "without a key"
        )
    told = _without_key(topic, {row["row_kind"] for row in rows})
    return ToldKeys(known) if told == ToldKeys() else told


def key_members(rows: Sequence[Row]) -> dict[str, dict[str, Any]]:
    """Return the columns in the newest key of groups of records, as Kafka Connect describes them.

    Args:
        rows: The groups, the oldest first, each with `KEY_PARTS`.
    """
    newest = next((row for row in reversed(rows) if _names_in(row)), None)
    if newest is None:
        return {}
    if newest["key_schema"] is None:
        return {name: {"field": name, "type": "string"} for name in newest["key_names"]}
    return {m["field"]: m for m in _schema(newest).get("fields", ()) if isinstance(m.get("type"), str)}


def _without_key(topic: str, kinds: set[str | None]) -> ToldKeys:
    """Return what records without keys tell: a table has no key, or nothing, if they are about no row."""
    remedy = "let the connector send a key (message.key.columns)"
    if "row" in kinds:
        return ToldKeys(())
    if "unplaced" in kinds:
        return ToldKeys(
            fault=f"keys of {topic} are not sent, and its events have no place in the source's log, by which events "
            f"of a table without a key are told apart; {remedy}"
        )
    if "flattened" in kinds:
        return ToldKeys(
            fault=f"keys of {topic} are not sent, and its messages are not envelopes with the row before the change, "
            f"which a table without a key needs; {remedy}, or leave out ExtractNewRecordState"
        )
    return ToldKeys()


def _row_kind() -> str:
    """Return SQL for what a record without a key tells.

    row: of a table without a key that can be merged. unplaced: its event has no place in the source's log. flattened:
    it is no envelope. NULL: it is about no row: a TRUNCATE, a logical message, or no message at all.
    """
    place = ", ".join(f"get_json_object(sent_source, '$.{name}')" for name in POSITIONS)
    placed = f"CASE WHEN coalesce({place}) IS NULL THEN 'unplaced' ELSE 'row' END"
    return (
        "CASE WHEN sent_op IS NOT NULL AND sent_source IS NOT NULL "
        f"THEN CASE WHEN sent_op NOT IN ('t', 'm') THEN {placed} END "
        "WHEN json_object_keys(CAST(value AS STRING)) IS NOT NULL THEN 'flattened' END"
    )


def _in_value(name: str) -> str:
    """Return SQL for a part of an envelope, which is looked for only in a record without a key."""
    paths = ", ".join(f"get_json_object(CAST(value AS STRING), '$.{path}{name}')" for path in ("payload.", ""))
    return f"CASE WHEN {_HAS_NO_KEY} THEN coalesce({paths}) END"


def _names_in(row: Row) -> tuple[str, ...]:
    if row["key_schema"] is None:
        return tuple(row["key_names"] or ())
    return tuple(member["field"] for member in _schema(row).get("fields", ()))


def _is_odd(row: Row) -> bool:
    return row["is_odd_key"] or (row["key_schema"] is not None and not _names_in(row))


def _schema(row: Row) -> dict[str, Any]:
    try:
        schema = json.loads(row["key_schema"])
    except json.JSONDecodeError:
        return {}
    return schema if isinstance(schema, dict) else {}
