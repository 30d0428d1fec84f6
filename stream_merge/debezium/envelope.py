"""Parses messages: envelopes and flattened events, with and without the schema part."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from pyspark.sql import Column
from pyspark.sql import functions as F
from pyspark.sql import types as T

from stream_merge.debezium.spelling import lambda_name, rarely, text
from stream_merge.sql import quote

POSITION_FIELDS = (
    "lsn",
    "sequence",
    "file",
    "pos",
    "row",
    "change_lsn",
    "commit_lsn",
    "event_serial_no",
    "scn",
    "commit_scn",
    "ssn",
    "snapshot",
)
"""Fields of `source` that hold a change's position in the source's log."""

DELETED = "__deleted"
"""The field in which ExtractNewRecordState marks deletes; `add.fields.prefix` does not apply to it."""

_ENVELOPE_FIELDS = ("before", "after", "source", "transaction")
CORRUPT = "corrupt"
"""The field of parsed JSON with its text if it is malformed."""


@dataclass(frozen=True, slots=True)
class ParsedJson:
    """JSON with positions in place of names, since names may contain anything and may differ only in case.

    Attributes:
        struct: The parsed JSON: fields f0, f1, ... for the names; `payload` with the same fields; `corrupt`, the text
            if it is malformed.
        names: The names, in the order of their positions.
    """

    struct: Column
    names: tuple[str, ...]

    def body(self, parsed: str) -> str:
        """Return SQL for the struct of the positions, with or without a schema part around it."""
        fields = ", ".join(f"'f{position}', {parsed}.f{position}" for position in range(len(self.names)))
        plain = f"named_struct({fields})"
        return f"CASE WHEN {parsed}.payload IS NOT NULL THEN {parsed}.payload ELSE {plain} END"

    def path(self, body: str, name: str) -> str:
        """Return SQL for the field with this name."""
        return f"{body}.f{self.names.index(name)}"


def parse_json(json: Column, names: Sequence[str], leniency: Mapping[str, str] | None = None) -> ParsedJson:
    """Parse JSON with fields of these names, wrapped in "payload" or not, in one pass.

    Values are read as text, arrays and objects as their JSON, so that an unexpected type fails only its value and not
    the whole record. If a field is called "payload", it is the wrapper only beside a schema of Kafka Connect.
    `leniency` are Spark's options for JSON that is not strictly valid.
    """
    body = _texts(names)
    corrupt = next(name for name in _unused_names(names) if name not in names)
    payload = [] if "payload" in names else [T.StructField("payload", body)]
    schema = T.StructType([*body.fields, *payload, T.StructField(corrupt, T.StringType())])

    placed_body = _texts([f"f{position}" for position in range(len(names))])
    placed_payload = [T.StructField("payload", placed_body)] if payload else []
    placed = T.StructType([*placed_body.fields, *placed_payload, T.StructField(CORRUPT, T.StringType())])
    options = {"mode": "PERMISSIVE", "columnNameOfCorruptRecord": corrupt, **(leniency or {})}
    if not payload:
        wrapped = F.when(F.get_json_object(json, "$.schema.type") == "struct", F.get_json_object(json, "$.payload"))
        json = F.when(wrapped.startswith("{"), wrapped).otherwise(json)
    parsed = F.from_json(json, schema, options).cast(placed)
    if not payload:
        parsed = parsed.withField("payload", F.lit(None).cast(placed_body))
    return ParsedJson(parsed, tuple(names))


def parse_envelope(json: Column, columns: Sequence[str], *, with_before: bool) -> Column:
    """Parse an envelope, wrapped in "payload" or not, in one pass; `corrupt` is the text if it is malformed."""
    image = _texts(columns)
    body = [
        *(T.StructField(name, image) for name in (("after", "before") if with_before else ("after",))),
        T.StructField("source", _texts(POSITION_FIELDS)),
        T.StructField("transaction", _texts(["total_order"])),
        T.StructField("op", T.StringType()),
    ]
    wrapped = T.StructField("payload", T.StructType(body))
    schema = T.StructType([*body, wrapped, T.StructField(CORRUPT, T.StringType())])
    return F.from_json(json, schema, {"mode": "PERMISSIVE", "columnNameOfCorruptRecord": CORRUPT})


def is_envelope(schema: Mapping[str, Any]) -> bool:
    """Return whether a schema part is that of an envelope."""
    types = {member["field"]: member["type"] for member in schema.get("fields", ())}
    return {"op", "source", "after"} <= types.keys() and types["after"] == "struct"


def can_detect_flattened(columns: Collection[str]) -> bool:
    """Return whether a flattened event can be told from an envelope: no column has the name of one of its structs."""
    return not set(columns).intersection((*_ENVELOPE_FIELDS, "payload"))


def flattened_names(columns: Collection[str], meta_prefix: str) -> tuple[str, ...]:
    """Return the names of a flattened event's fields: the columns, and what the flattening adds."""
    return tuple(dict.fromkeys((*columns, *meta_names(meta_prefix))))


def image_fields(columns: Sequence[str]) -> tuple[str, ...]:
    """Return the names of the fields of an image: the columns' own unless these differ only in case."""
    names = tuple(columns)
    is_plain = len({name.lower() for name in names}) == len(names)
    return names if is_plain else tuple(f"f{position}" for position in range(len(names)))


def meta_names(prefix: str) -> list[str]:
    """Return the names under which ExtractNewRecordState's `add.fields` adds the fields that this module reads."""
    names = [f"{prefix}op", *_deleted_names(prefix)]
    names += [f"{prefix}{part}{name}" for name in POSITION_FIELDS for part in ("", "source_")]
    return [*names, f"{prefix}transaction_total_order"]


def header(headers: str, name: str) -> str:
    """Return SQL for the text of a record's header."""
    return _header_value(headers, text(name))


def first_known(values: Iterable[str]) -> str:
    """Return SQL for the first value that is not NULL."""
    known = list(values)
    return f"coalesce({', '.join(known)})" if known else "CAST(NULL AS STRING)"


@dataclass(frozen=True, slots=True, kw_only=True)
class Message:
    """SQL for the parts of a message.

    It reads what was parsed, `envelope` and `flattened`, and the columns that are made of it: `sent_op` and so on,
    `body`, `meta_headers` and `op`.

    Attributes:
        columns: The names of the data columns.
        layout: "envelope", "flattened", or None to detect it.
        meta_prefix: `add.fields.prefix` and `add.headers.prefix` of the flattening.
        has_headers: Whether the records have headers.
        with_before: Whether the row before the change is read.
        flattened: The fields of a flattened event; None if there are none.
    """

    columns: Sequence[str]
    layout: str | None
    meta_prefix: str
    has_headers: bool
    with_before: bool
    flattened: ParsedJson | None

    @property
    def has_envelope(self) -> bool:
        """Whether messages may be envelopes."""
        return self.layout != "flattened"

    @property
    def may_be_flattened(self) -> str:
        """SQL for whether a message is to be parsed as a flattened event, over `envelope`."""
        if not self.has_envelope:
            return "true"
        op, source = self._sent("op"), self._sent("source")
        return f"NOT ({op} IS NOT NULL AND {source} IS NOT NULL)"

    def sent_sql(self) -> dict[str, str]:
        """Return SQL for the parts of an envelope, over `envelope`."""
        if not self.has_envelope:
            return {}
        names = ("op", "source", "after", *(("before",) if self.with_before else ()))
        return {
            **{f"sent_{name}": self._sent(name) for name in names},
            "sent_order": self._sent("transaction.total_order"),
        }

    def meta_headers_sql(self) -> str:
        """Return SQL for the flattening's headers, an array in the order of `meta_names`; NULL for an envelope."""
        if not (self.has_headers and self.flattened):
            return "CAST(NULL AS ARRAY<STRING>)"
        name = lambda_name()
        values = (
            f"transform(array({', '.join(map(text, self._meta_names))}), {name} -> {_header_value('headers', name)})"
        )
        return f"CASE WHEN {self.may_be_flattened} THEN {values} END"

    def op_sql(self) -> str:
        """Return SQL for Debezium's op; a flattened event without one is an upsert, or a delete if marked as one.

        It is NULL if the message is neither an envelope nor flattened.
        """
        if not self.flattened:
            return self.by_layout("sent_op", "NULL")
        deleted = f"CASE WHEN {first_known(self._deleted)} = 'true' THEN 'd' ELSE 'u' END"
        op = first_known([*self._meta("op"), deleted])
        if self.layout is None:
            op = f"CASE WHEN {first_known([*self._meta('op'), *self._deleted])} IS NOT NULL THEN {op} END"
        else:
            op = f"CASE WHEN body IS NOT NULL THEN {op} END"
        return self.by_layout("sent_op", op)

    def image_sql(self, name: str) -> str:
        """Return SQL for an image of the row, "after" or "before", as a struct of texts by `image_fields`, over `op`.

        Other operations than inserts and updates have no row after them.
        """
        places = image_fields(self.columns)
        types = ", ".join(f"{quote(place)}: STRING" for place in places)
        image, texts = "NULL", "NULL"
        if self.has_envelope:
            image = f"sent_{name}" if places == tuple(self.columns) else f"CAST(sent_{name} AS STRUCT<{types}>)"
        if self.flattened:
            values = ", ".join(
                f"{text(p)}, {self._field(column)}" for p, column in zip(places, self.columns, strict=True)
            )
            # A flattened delete is the row that was there, or what is made up of it.
            condition = "<>" if name == "after" else "="
            texts = f"CASE WHEN op {condition} 'd' AND NOT is_tombstone THEN named_struct({values}) END"
        found = f"CAST({self.by_layout(image, texts)} AS STRUCT<{types}>)"
        conditions = ["op IN ('r', 'c', 'u')"] if name == "after" else []
        # Spark moves a condition on columns below the steps that compute them, with each step's SQL in the place of its
        # names: below ten steps it would be longer than memory. It moves none below a step that is not deterministic.
        conditions.append("spark_partition_id() >= 0")
        return f"CASE WHEN {' AND '.join(conditions)} THEN {found} END"

    def position_sql(self) -> dict[str, str]:
        """Return SQL for the fields that hold a change's position in the source's log, as text.

        They are `position`, a struct, and `total_order`, the change's number in its transaction.
        """
        found = ", ".join(f"{text(name)}, {first_known(self._meta(name))}" for name in POSITION_FIELDS)
        return {
            # The struct as it is: to make one of its fields would copy them.
            "position": self.by_layout("sent_source", f"named_struct({found})"),
            "total_order": self.by_layout("sent_order", first_known(self._meta("transaction_total_order"))),
        }

    def by_layout(self, of_envelope: str, of_flattened: str) -> str:
        """Return SQL for what is one thing in an envelope and another in a flattened event, over `sent_op` and so on.

        It is NULL for what is neither, if there are no flattened events.
        """
        if not self.has_envelope:
            return of_flattened
        # An envelope has both.
        is_envelope = "sent_op IS NOT NULL" + ("" if self.layout else " AND sent_source IS NOT NULL")
        if not self.flattened:
            return f"CASE WHEN {is_envelope} THEN {of_envelope} END"
        # Most messages are envelopes.
        return f"CASE WHEN {is_envelope} THEN {of_envelope} ELSE {rarely(f'NOT ({is_envelope})', of_flattened)} END"

    @property
    def _meta_names(self) -> list[str]:
        return meta_names(self.meta_prefix)

    @property
    def _deleted(self) -> list[str]:
        return self._found(_deleted_names(self.meta_prefix))

    def _sent(self, name: str) -> str:
        return f"CASE WHEN envelope.payload IS NOT NULL THEN envelope.payload.{name} ELSE envelope.{name} END"

    def _field(self, name: str) -> str:
        assert self.flattened is not None
        return self.flattened.path("body", name)

    def _meta(self, name: str) -> list[str]:
        return self._found([f"{self.meta_prefix}{name}", f"{self.meta_prefix}source_{name}"])

    def _found(self, names: Sequence[str]) -> list[str]:
        if self.flattened is None:
            return []
        known = self._meta_names if self.has_headers else []
        found = [self._field(full) for full in names if full in self.flattened.names]
        return [*found, *(f"get(meta_headers, {known.index(full)})" for full in names if full in known)]


def sequence_sql(order: str, *, snapshot_first: bool | None) -> str:
    """Return SQL for the struct that orders the changes of one key, over `op`, `position` and `offset`.

    `phase` is 0 for rows of a snapshot that rank before all changes, else 1. `position`, `part` and `event` are the
    position in the source's log: for PostgreSQL the lsn of the last commit before the change, the change's own lsn, and
    its order in the transaction; for MySQL the number of the binlog file, position and its order in the transaction, or
    row where that is not sent; for SQL Server the two halves of the commit's lsn, and the change's lsn and number of
    the event in one number; for Db2 the two halves of the change's lsn and the number of the event; for Oracle the scn
    of the commit, that of the change, and the change's number in its transaction, or ssn where that is not sent;
    otherwise the record's offset. `half` puts a delete before a create that has everything else in common with it, as
    when a primary key changes, and the row of an incremental snapshot before both.
    """
    if order == "offset":
        half = "IF(op = 'd', 0L, 1L)"
        return f"named_struct('phase', 1L, 'position', CAST(offset AS BIGINT), 'part', 0L, 'event', 0L, 'half', {half})"
    number = "coalesce(try_cast({} AS BIGINT), 0L)".format
    of_chunk = "coalesce(position.snapshot = 'incremental', false)"
    is_incremental = f"(op = 'r' AND {of_chunk})"
    # A chunk of an incremental snapshot may be sent in the place of the change that ends it, which is newer.
    half = f"CASE WHEN op = 'd' THEN 0L WHEN {is_incremental} THEN -1L ELSE 1L END"
    # Logs have changes in the order in which they were made, but a reader gets them in the order of their commits. The
    # latter counts: a row is written before it waits for the transaction that deletes the other row of its key, and an
    # incremental snapshot does not contain what was written before it and committed after it.
    # PostgreSQL's `source.sequence` has the lsn of the last commit before the change, and its own. The first changes of
    # a connector have no commit before them; their own lsn is lower than that of any later commit. The rows of an
    # incremental snapshot may be sent at a commit, with its lsn, before all changes that follow it.
    own_lsn = "try_cast(position.lsn AS BIGINT)"
    last_commit = """try_cast(regexp_extract(position.sequence, '^[^"n]*"([0-9]+)"', 1) AS BIGINT)"""
    commit_lsn = f"IF({own_lsn} IS NULL, NULL, coalesce({last_commit}, {own_lsn}))"
    lsn_in_commit = f"IF(position.sequence LIKE '[%' AND NOT {is_incremental}, {own_lsn}, NULL)"
    file_number = "try_cast(regexp_extract(position.file, '([0-9]+)$', 1) AS BIGINT)"
    # With compressed transactions, changes have the position of their transaction in the binlog.
    in_file = "IF(position.file IS NULL, NULL, coalesce(total_order, position.row))"
    high, low, in_commit = _lsn_sql()
    commit_scn = "try_cast(position.commit_scn AS BIGINT)"
    major = f"coalesce({commit_lsn}, {file_number}, {high}, {commit_scn}, try_cast(position.scn AS BIGINT), offset, 0L)"
    scn_in_commit = f"IF({commit_scn} IS NULL, NULL, try_cast(position.scn AS BIGINT))"
    minor = f"coalesce(try_cast(position.pos AS BIGINT), {low}, {lsn_in_commit}, {scn_in_commit}, 0L)"
    # Of Oracle ssn is 0 for most changes, and several of one transaction may have one scn.
    in_scn = "IF(position.scn IS NULL, NULL, coalesce(total_order, position.ssn))"
    event = number(f"coalesce({in_file}, {in_commit}, position.row, position.event_serial_no, {in_scn}, total_order)")
    is_snapshot = f"op = 'r' AND NOT {of_chunk}"
    # MySQL's log stands still while a snapshot reads its position, so this is the row's place among the changes. A
    # connector that is killed before it has committed any offset starts again with a snapshot, which is newer than some
    # changes.
    is_first = is_snapshot if snapshot_first else f"{is_snapshot} AND {file_number} IS NULL"
    phase = "1L" if snapshot_first is False else f"IF({is_first}, 0L, 1L)"
    return (
        f"named_struct('phase', {phase}, 'position', CAST({major} AS BIGINT), 'part', {minor}, "
        f"'event', {event}, 'half', {half})"
    )


def _lsn_sql() -> tuple[str, str, str]:
    """Return SQL for a change's position among the commits of SQL Server, and its place in its own.

    SQL Server's lsn has the numbers of a log file (32 bits), a block (32) and a slot (16). Db2's looks otherwise.

    Returns:
        File and block of the commit; its slot; and the change's lsn and number of the event, as text. The first two are
        those of the change, and the last is NULL, where the records do not have both lsn.
    """
    pattern = "'^[0-9A-Fa-f]{8}:[0-9A-Fa-f]{8}:[0-9A-Fa-f]{4}$'"
    both = f"(position.change_lsn RLIKE {pattern} AND position.commit_lsn RLIKE {pattern})"

    def part(lsn: str, number: int) -> str:
        return f"try_cast(conv(get(split({lsn}, ':'), {number}), 16, 10) AS BIGINT)"

    lsn = f"IF({both}, position.commit_lsn, coalesce(position.change_lsn, position.commit_lsn))"
    parts = f"split({lsn}, ':')"
    high = f"try_cast(conv(concat(get({parts}, 0), get({parts}, 1)), 16, 10) AS BIGINT)"
    change, commit = "position.change_lsn", "position.commit_lsn"
    # How many log files the transaction has gone through since (13 bits, the last first), block, slot and event (2).
    num_files = f"least(greatest({part(commit, 0)} - {part(change, 0)}, 0L), 8191L)"
    event = "least(coalesce(try_cast(position.event_serial_no AS BIGINT), 0L), 3L)"
    block_and_slot = f"shiftleft({part(change, 1)}, 18) + shiftleft({part(change, 2)}, 2)"
    in_commit = f"shiftleft(8191L - {num_files}, 50) + {block_and_slot} + {event}"
    return high, part(lsn, 2), f"IF({both}, CAST({in_commit} AS STRING), NULL)"


def _deleted_names(prefix: str) -> list[str]:
    return list(dict.fromkeys((DELETED, f"{prefix}deleted")))


def _header_value(headers: str, name: str) -> str:
    return f"CAST(get(filter({headers}, header -> header.key = {name}), 0).value AS STRING)"


def _texts(names: Iterable[str]) -> T.StructType:
    return T.StructType([T.StructField(name, T.StringType()) for name in names])


def _unused_names(fields: Collection[str]) -> Iterable[str]:
    return (f"_corrupt_{number}" for number in range(len(fields) + 2))
