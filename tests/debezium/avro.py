"""Encodes records with a schema part in Avro, as Confluent's AvroConverter does: `AvroData.fromConnectSchema`."""

from __future__ import annotations

import base64
import io
import json
from typing import Any

import fastavro

from tests.debezium.registry_server import Registry

_TYPES = {
    "int8": {"type": "int", "connect.type": "int8"},
    "int16": {"type": "int", "connect.type": "int16"},
    "int32": "int",
    "int64": "long",
    "float": "float",
    "double": "double",
    "boolean": "boolean",
    "string": "string",
    "bytes": "bytes",
}
_LOGICAL = {"Decimal": "decimal", "Date": "date", "Time": "time-millis", "Timestamp": "timestamp-millis"}


def in_avro(registry: Registry, record: tuple[Any, ...]) -> tuple[Any, ...]:
    """Return a record with its key and value in Avro, as far as they have a schema part; the registry learns it."""
    key, value, topic, *rest = record
    return (_part(registry, f"{topic}-key", key), _part(registry, f"{topic}-value", value), topic, *rest)


def avro_of(schema: dict[str, Any], seen: dict[str, Any] | None = None) -> Any:
    """Return the Avro schema of a schema part. A type with a name is defined where it comes first."""
    seen = {} if seen is None else seen
    kind, name = schema["type"], schema.get("name")
    notes = {
        **({"connect.name": name} if name else {}),
        **({"connect.version": schema["version"]} if "version" in schema else {}),
        **({"connect.parameters": schema["parameters"]} if schema.get("parameters") else {}),
        **({"connect.default": _default(schema)} if schema.get("default") is not None else {}),
    }
    if kind == "struct":
        full_name = name or f"io.confluent.connect.avro.ConnectDefault{len(seen) or ''}"
        if full_name in seen:
            found: Any = full_name
        else:
            seen[full_name] = None
            space, _, own = full_name.rpartition(".")
            fields = [_field(member, seen) for member in schema["fields"]]
            found = {"type": "record", "name": own, "namespace": space, "fields": fields, **notes}
    elif kind == "array":
        found = {"type": "array", "items": avro_of(schema["items"], seen), **notes}
    elif kind == "map":
        found = {"type": "map", "values": avro_of(schema["values"], seen), **notes}
    else:
        plain = _TYPES[kind]
        if (name or "").startswith("org.apache.kafka.connect.data."):
            notes["logicalType"] = _LOGICAL[name.rpartition(".")[2]]
            if notes["logicalType"] == "decimal":
                notes["scale"] = int(schema["parameters"]["scale"])
                notes["precision"] = int(schema["parameters"].get("connect.decimal.precision", 64))
        found = {**(plain if isinstance(plain, dict) else {"type": plain}), **notes} if notes else plain
    if schema.get("optional"):
        return [found, "null"] if schema.get("default") is not None else ["null", found]
    return found


def encode(schema: Any, value: Any) -> bytes:
    """Return a value in Avro."""
    out = io.BytesIO()
    fastavro.schemaless_writer(out, fastavro.parse_schema(json.loads(json.dumps(schema))), value)
    return out.getvalue()


def value_of(schema: dict[str, Any], payload: Any) -> Any:
    """Return a value of a payload as fastavro takes it."""
    if payload is None:
        return None
    match schema["type"]:
        case "struct":
            return {member["field"]: value_of(member, payload[member["field"]]) for member in schema["fields"]}
        case "array":
            return [value_of(schema["items"], each) for each in payload]
        case "map":
            return {name: value_of(schema["values"], each) for name, each in payload.items()}
        case "bytes":
            return base64.b64decode(payload)
        case "float" | "double":
            return float(payload)
        case _:
            return payload


def _part(registry: Registry, subject: str, sent: bytes | None) -> bytes | None:
    try:
        found = json.loads(sent) if sent is not None else None
    except ValueError:
        return sent
    if not isinstance(found, dict) or not isinstance(found.get("schema"), dict):
        return sent
    schema = avro_of(found["schema"])
    number = registry.add(json.dumps(schema), subject)
    return b"\0" + number.to_bytes(4, "big") + encode(schema, value_of(found["schema"], found["payload"]))


def _field(member: dict[str, Any], seen: dict[str, Any]) -> dict[str, Any]:
    field = {"name": member["field"], "type": avro_of(member, seen)}
    if member.get("default") is not None:
        field["default"] = _default(member)
    elif member.get("optional"):
        field["default"] = None
    return field


def _default(schema: dict[str, Any]) -> Any:
    value = schema["default"]
    return base64.b64decode(value).decode("latin-1") if schema["type"] == "bytes" else value
