"""Decodes the images of a row into typed columns, and describes the change."""

from __future__ import annotations

from collections.abc import Sequence

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from stream_merge.debezium.cloud_events import is_left_event, left_event_fault
from stream_merge.debezium.envelope import image_fields, sequence_sql
from stream_merge.debezium.fields import Field
from stream_merge.debezium.header_keys import decode_key, unmarked
from stream_merge.debezium.settings import CHANGE_COL, Settings
from stream_merge.debezium.spelling import NUL, rarely, text
from stream_merge.debezium.unavailable import is_unavailable
from stream_merge.debezium.values import decode, is_text
from stream_merge.sql import quote

_UNLEARNT = (
    "the record's schema was not learnt: "
    "for each batch, pass to changes() what learn_columns(records, known=...) returns"
)

# Only inserts and updates have a row after them, so it is lacking with any op that is unknown, too.
_LACKS_ROW = "(after IS NULL AND coalesce(op, '') <> 'd')"
_LACKS_OLD_ROW = "(before IS NULL AND op IN ('u', 'd'))"

_IN_AVRO = (
    "the value begins like Avro with the id of a schema: decode it with from_registry, or [registry] in a pipeline file"
)
_ENVELOPE = "the message is an envelope, and not flattened: correct format=, or layout in a pipeline file"
_NO_KEY = "the record has no key, and no other record tells the keys"


def decode_values(frame: DataFrame, settings: Settings) -> DataFrame:
    """Add the texts of each column to the frame, then its values.

    t0, v0: of the row after the change. b0, bv0: before it. u0, bu0: whether the value was not sent. unavailable: the
    names of the columns that the row was sent without. old, new: the values of the old and the new key, by position.
    Without a key, lacks_row and lacks_old_row: not NULL if the record may be faulty in this way.
    """
    keys = settings.key_positions
    places = [quote(place) for place in image_fields(settings.sent_names)]
    texts: dict[str, str] = {}
    flags: dict[str, str] = {}
    values: dict[str, str] = {}
    for position, field in enumerate(settings.fields.values()):

        def value(name: str, field: Field = field) -> str:
            return decode(name, field, settings.handling)

        of_image = f"after.{places[position]}"
        of_before = of_old_image = f"before.{places[position]}"
        if field.default_as_sent is not None:
            default = text(field.default_as_sent)
            of_image = f"coalesce({of_image}, {default})"
            of_before = f"CASE WHEN before IS NOT NULL THEN coalesce({of_before}, {default}) END"
        of_row = of_image if field.default_as_sent is None else f"CASE WHEN after IS NOT NULL THEN {of_image} END"
        if position in keys:
            member = f"f{keys.index(position)}"
            texts[f"t{position}"] = f"CASE WHEN op IN ('r', 'c', 'u', 'd') THEN coalesce(key.{member}, {of_row}) END"
            values[f"v{position}"] = value(f"t{position}")
        else:
            if settings.is_by_contents:
                # REPLICA IDENTITY FULL sends the whole row before the change.
                was = is_unavailable(f"({of_row})", field, settings.placeholder)
                of_row = f"CASE WHEN {was} AND before IS NOT NULL THEN {of_old_image} ELSE {of_row} END"
            texts[f"t{position}"] = of_row
            flags[f"u{position}"] = is_unavailable(f"t{position}", field, settings.placeholder)
            values[f"v{position}"] = f"CASE WHEN NOT u{position} THEN {value(f't{position}')} END"
        if settings.before:
            texts[f"b{position}"] = of_before
            flags[f"bu{position}"] = is_unavailable(f"b{position}", field, settings.placeholder)
            values[f"bv{position}"] = f"CASE WHEN NOT bu{position} THEN {value(f'b{position}')} END"
    # With a lambda function in it, Spark compiles a step in short methods, however many columns there are.
    if settings.keys:
        flags |= _other_keys(settings)
    else:
        texts["lacks_row"] = rarely(_LACKS_ROW, "true")
        flags["lacks_old_row"] = rarely(_LACKS_OLD_ROW if settings.before else "false", "true")
    unsent = {f"u{p}": text(name) for p, name in enumerate(settings.names) if p not in keys}
    listed = ", ".join(f"CASE WHEN {flag} THEN {name} END" for flag, name in unsent.items())
    values["unavailable"] = rarely(" OR ".join(unsent) or "false", f"array_compact(array({listed}))")
    for step in (texts, flags, values):
        frame = frame.withColumns({name: F.expr(sql) for name, sql in step.items()})
    return frame


def _other_keys(settings: Settings) -> dict[str, str]:
    """Return SQL for the values of the old and the new key, which few records have."""
    fields = [settings.fields[name] for name in settings.keys]
    found = {}
    for other in ("old", "new"):
        decoded = [
            # What the rows do not have was not changed.
            decode(f"t{position}", field, settings.handling)
            if field.is_in_key_only
            else decode_key(f"{other}_key.f{p}", field, settings.handling)
            for p, (position, field) in enumerate(zip(settings.key_positions, fields, strict=True))
        ]
        values = ", ".join(f"'f{p}', {value}" for p, value in enumerate(decoded))
        found[other] = rarely(f"{other}_key IS NOT NULL", f"named_struct({values})")
    return found


def select_changes(frame: DataFrame, settings: Settings) -> DataFrame:
    """Return the data columns and the struct that describes the change."""
    keys = settings.key_positions
    data, old = [], []
    for position, (name, field) in enumerate(settings.fields.items()):
        value, was = F.col(f"v{position}"), F.col(f"bv{position}")
        if field.default is not None:
            default = F.lit(field.default).cast(field.data_type)
            was_there = F.expr(f"t{position} IS NULL AND op IN ('r', 'c', 'u')")
            value = F.when(was_there, default).otherwise(value)
            if settings.is_by_contents:
                # It must be the value with which the row was inserted.
                was = F.when(F.col(f"b{position}").isNull(), default).otherwise(was)
        data.append(value.alias(name))
        old.append(was.alias(name))
    parts = {
        "op": F.col("op"),
        "sequence": F.expr(sequence_sql(settings.order, snapshot_first=settings.snapshot_first)),
        "unavailable": F.expr("coalesce(unavailable, array())").cast("array<string>"),
        "key_only": F.expr("coalesce(op = 'd', false)" if keys else "false"),
    }
    for other in ("old", "new") if keys else ():
        pairs = ", ".join(f"{text(name)}, {other}.f{p}" for p, name in enumerate(settings.keys))
        parts[f"{other}_key"] = F.expr(f"CASE WHEN {other} IS NOT NULL THEN named_struct({pairs}) END")
    if settings.before:
        parts["before"] = F.when(F.col("before").isNotNull(), F.struct(*old))
    parts |= {name: F.col(name) for name in ("topic", "partition", "offset", "timestamp")}
    # A column of its own; otherwise Spark would compute the error twice.
    frame = frame.withColumn("error", F.expr(rarely(_may_fail(settings), _error_sql(settings))))
    parts["error"] = F.col("error")
    base64 = "base64(CAST(value AS BINARY))"
    if settings.keep_raw:
        raw = f"coalesce({rarely('is_no_text', base64)}, value)"
    else:
        raw = rarely("error IS NOT NULL", f"CASE WHEN is_no_text THEN {base64} ELSE value END")
    parts["raw"] = F.expr(raw)
    change = F.struct(*[part.alias(name) for name, part in parts.items()])
    return frame.select(*data, change.alias(CHANGE_COL))


def _may_fail(settings: Settings) -> str:
    """Return SQL for whether a record may have a fault: true for all that have one, and for few others."""
    signs = ["is_no_text", "is_malformed", "is_unlearnt", "is_envelope_after_all", "is_event_after_all"]
    if settings.is_untold:
        signs.append("true")
    if settings.may_have_decode_errors:
        signs.append("decode_error IS NOT NULL")
    if settings.keys:
        signs += ["is_key_malformed", "old_key IS NOT NULL", "new_key IS NOT NULL", _LACKS_ROW]
        signs += [f"key.f{p} IS NULL" for p in range(len(settings.keys))]
    else:
        signs += ["lacks_row IS NOT NULL", "lacks_old_row IS NOT NULL"]
    for position, field in enumerate(settings.fields.values()):
        signs += _signs_of_column(position, settings, is_text=is_text(field, settings.handling))
    return f"({' OR '.join(signs)})"


def _signs_of_column(position: int, settings: Settings, *, is_text: bool) -> list[str]:
    # Of the row after the change, and of the one before it.
    of_after, of_before = ("u", "t", "v"), ("bu", "b", "bv")
    signs = []
    if position in settings.key_positions:
        signs.append(f"v{position} IS NULL")
        images = [of_before] if settings.before else []
    else:
        images = [of_after, of_before] if settings.before else [of_after]
    for flag, sent, value in images:
        if settings.is_by_contents:
            signs.append(f"{flag}{position}")
        if not is_text:
            signs.append(f"NOT {flag}{position} AND ({sent}{position} IS NULL) <> ({value}{position} IS NULL)")
    return signs


def _error_sql(settings: Settings) -> str:
    """Return SQL for the faults of a record: of the whole message, else of each of its values."""
    names, keys = settings.names, settings.key_positions
    ops = "'r', 'c', 'u', 'd', 't'" + (", 'm'" if settings.keep_messages else "")
    faults = [
        ("decode_error IS NOT NULL", "decode_error")
        if settings.may_have_decode_errors
        else (f"startswith(value, {NUL})", text(_IN_AVRO)),
        ("is_no_text", "'the value is not UTF-8'"),
        (f"is_event_after_all OR (op IS NULL AND {is_left_event('value')})", left_event_fault("value")),
        ("NOT is_tombstone AND is_malformed", "concat('the value is not the JSON of a change: ', left(value, 80))"),
        ("is_unlearnt", text(_UNLEARNT)),
        ("is_envelope_after_all", text(_ENVELOPE)),
        (
            "NOT is_tombstone AND op IS NULL",
            "concat('neither an envelope nor a flattened event (set format=): ', left(value, 80))",
        ),
        (f"op NOT IN ({ops})", "concat('unknown op: ', op)"),
        ("is_key_malformed", "concat('the key is not the JSON of a key: ', left(key_text, 80))") if keys else None,
        ("op IN ('r', 'c', 'u', 'd')", text(_NO_KEY)) if settings.is_untold else None,
        ("op IN ('r', 'c', 'u') AND after IS NULL", "concat('no image of the row after op ', op)"),
        (
            "op IN ('u', 'd') AND before IS NULL",
            "concat('no image of the row before op ', op, ' (REPLICA IDENTITY FULL sends it)')",
        )
        if settings.is_by_contents
        else None,
        ("op = 'u' AND key_text IS NULL", text(_keyless_update([names[p] for p in keys]))) if keys else None,
        *(
            (f"op = 'u' AND key.f{p} IS NULL AND t{position} IS NOT NULL", _lacking_key_sql(names[position]))
            for p, position in enumerate(keys)
        ),
    ]
    whole = " ".join(f"WHEN {condition} THEN {reason}" for condition, reason in filter(None, faults))
    parts = [
        f"CASE WHEN op IN ('r', 'c', 'u', 'd') AND t{position} IS NULL "
        f"THEN {text(f'key column {names[position]} is missing')} END"
        for position in keys
    ]
    columns = [(p, f"t{p}", f"v{p}", f"NOT u{p}" if p not in keys else "true", name) for p, name in enumerate(names)]
    columns += [
        (position, f"{other}_key.f{p}", f"{other}.f{p}", "true", f"{other} key's {names[position]}")
        for p, position in enumerate(keys)
        for other in ("old", "new")
    ]
    if settings.before:
        columns += [(p, f"b{p}", f"bv{p}", f"NOT bu{p}", f"before's {name}") for p, name in enumerate(names)]
    if settings.is_by_contents:
        # The contents need every column.
        unsent = [(f"u{p}", name) for p, name in enumerate(names)]
        unsent += [(f"bu{p}", f"before's {name}") for p, name in enumerate(names)]
        parts += [f"CASE WHEN {flag} THEN {text(f'{name} was not sent')} END" for flag, name in unsent]
    types = [field.data_type.simpleString() for field in settings.fields.values()]
    for position, raw, value, condition, name in columns:
        is_misfit = f"{raw} IS NOT NULL AND {value} IS NULL AND {condition}"
        reason = text(f"{name} is not a valid {types[position]}: ")
        sent = unmarked(raw) if raw.startswith(("old", "new")) else raw
        parts.append(f"CASE WHEN {is_misfit} THEN concat({reason}, left({sent}, 80)) END")
    return f"CASE {whole} ELSE nullif(concat_ws('; ', {', '.join(parts)}), '') END"


def _lacking_key_sql(key: str) -> str:
    """Return SQL for the fault of an update whose record has another key than the table."""
    which = text("the record's key ")
    reason = (
        f" has no {key}, so an update of {key} would keep the old row: let the connector send it "
        "(message.key.columns), or let keys name the columns of the record's key"
    )
    return f"concat({which}, left(key_text, 80), {text(reason)})"


def _keyless_update(keys: Sequence[str]) -> str:
    # The row does not contain its previous key.
    return (
        f"the record has no key, so an update of {', '.join(keys)} would keep the old row: let the connector send the "
        "key (message.key.columns), or treat the table as one without a key (keys=[])"
    )
