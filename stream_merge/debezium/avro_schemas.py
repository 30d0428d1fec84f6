"""Translates Avro schemas of Kafka Connect's Avro converters: for Spark's decoder, and as JsonConverter writes them.

The converters note in an Avro schema what Avro has no word for, such as `connect.name`; Confluent's `AvroData` defines
the names, and Apicurio's converter writes the same ones.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import count
from typing import Any

from stream_merge.errors import StreamMergeError
from stream_merge.sql import quote

_PRIMITIVES = {
    # Avro's type: Kafka Connect's, and Spark's
    "boolean": ("boolean", "BOOLEAN"),
    "int": ("int32", "INT"),
    "long": ("int64", "BIGINT"),
    "float": ("float", "FLOAT"),
    "double": ("double", "DOUBLE"),
    "bytes": ("bytes", "BINARY"),
    "string": ("string", "STRING"),
}
_SMALL_INTEGERS = ("int8", "int16")
_NAMED = ("record", "error", "enum", "fixed")
_CONNECT = "org.apache.kafka.connect.data."
_LOGICAL = {
    ("int", "date"): "Date",
    ("int", "time-millis"): "Time",
    ("long", "timestamp-millis"): "Timestamp",
    ("bytes", "decimal"): "Decimal",
    ("fixed", "decimal"): "Decimal",
}
_UNNAMED = "io.confluent.connect.avro.ConnectDefault"
"""The name that the converter makes up for a struct without one."""
_MAX_TYPES = 100_000


class AvroSchemaError(StreamMergeError):
    """A schema is not Avro, or has a type that Kafka Connect's JSON has no word for."""


@dataclass(frozen=True, slots=True)
class Translated:
    """An Avro type in other words.

    Attributes:
        connect: The schema part that JsonConverter would write, as Python's JSON.
        plain: The same type for Spark's decoder: without logical types, so that its values are those of JsonConverter;
            without references; and with names by position, since Spark does not tell names apart by case.
        sql: Spark's type of a value, with the names of the schema.
    """

    connect: Mapping[str, Any]
    plain: Any
    sql: str


def translate(schema: str, references: Sequence[str] = ()) -> Translated:
    """Translate a schema.

    Args:
        schema: The schema's JSON.
        references: The schemas whose types it uses by their names.

    Raises:
        AvroSchemaError: It is not an Avro schema, refers to itself, or has a union of several types.
    """
    definitions: dict[str, _Definition] = {}
    for text in (*references, schema):
        definitions |= {found.name: found for found in _definitions(_parse(text), "")}
    return _Translator(definitions).translate(_parse(schema), "", ())


@dataclass(frozen=True, slots=True)
class _Definition:
    """A type with a name: its schema, and the namespace in which names in it are looked up."""

    name: str
    schema: Mapping[str, Any]
    namespace: str


def _parse(text: str) -> Any:
    try:
        return json.loads(text)
    except json.JSONDecodeError as error:
        # The type of a key may be written without quotes.
        if text.strip() in _PRIMITIVES:
            return text.strip()
        raise AvroSchemaError(f"it is not the JSON of a schema: {error}") from None


def _definitions(schema: Any, namespace: str) -> Iterator[_Definition]:
    """Yield the types with a name, however deep."""
    match schema:
        case list():
            for each in schema:
                yield from _definitions(each, namespace)
        case {"type": kind, "name": str(name)} if kind in _NAMED:
            full_name, inner = _full_name(name, schema.get("namespace"), namespace)
            yield _Definition(full_name, schema, inner)
            for member in _members(schema):
                yield from _definitions(member.get("type"), inner)
        case {"type": "array", "items": inner} | {"type": "map", "values": inner} | {"type": inner}:
            yield from _definitions(inner, namespace)
        case _:
            pass


def _full_name(name: str, own_namespace: object, namespace: str) -> tuple[str, str]:
    """Return the full name of a type that a schema defines, and its namespace."""
    if "." in name:
        return name, name.rpartition(".")[0]
    found = own_namespace if isinstance(own_namespace, str) else namespace
    return (f"{found}.{name}" if found else name), found


def _members(schema: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    fields = schema.get("fields", [])
    return [each for each in fields if isinstance(each, Mapping)] if isinstance(fields, list) else []


@dataclass(slots=True)
class _Translator:
    definitions: Mapping[str, _Definition]
    _numbers: Iterator[int] = field(default_factory=count)

    def translate(self, schema: Any, namespace: str, within: tuple[str, ...]) -> Translated:
        """Translate a type.

        Args:
            schema: The type.
            namespace: Where names in it are looked up.
            within: The names of the types around it.

        Raises:
            AvroSchemaError: As `translate` of the module.
        """
        match schema:
            case str():
                return self._named(schema, namespace, within)
            case list():
                return self._union(schema, namespace, within)
            case {"type": kind, "name": str(name)} if kind in _NAMED:
                full_name, inner = _full_name(name, schema.get("namespace"), namespace)
                return self._defined(schema, full_name, inner, within)
            case {"type": "array", "items": items}:
                item = self.translate(items, namespace, within)
                connect = _described({"type": "array", "items": item.connect}, schema)
                return Translated(connect, {"type": "array", "items": item.plain}, f"ARRAY<{item.sql}>")
            case {"type": "map", "values": values}:
                value = self.translate(values, namespace, within)
                connect = {"type": "map", "keys": {"type": "string", "optional": False}, "values": value.connect}
                plain = {"type": "map", "values": value.plain}
                return Translated(_described(connect, schema), plain, f"MAP<STRING, {value.sql}>")
            case {"type": str(kind)} if kind in _PRIMITIVES:
                connect_type, sql = _PRIMITIVES[kind]
                if kind == "int" and schema.get("connect.type") in _SMALL_INTEGERS:
                    connect_type = schema["connect.type"]
                return Translated(_described({"type": connect_type}, schema), kind, sql)
            case {"type": str() | list() | dict() as inner} if inner != "null" and inner not in _NAMED:
                return self.translate(inner, namespace, within)
        raise _no_type(schema, within)

    def _defined(self, schema: Mapping[str, Any], name: str, namespace: str, within: tuple[str, ...]) -> Translated:
        """Translate a type that has a name."""
        plain: dict[str, Any]
        match schema:
            case {"type": "record" | "error", "fields": list()}:
                return self._record(schema, name, namespace, within)
            case {"type": "enum", "symbols": list(symbols)}:
                plain = {"type": "enum", "name": self._new_name(), "symbols": symbols}
                return Translated(_described({"type": "string"}, schema, name), plain, "STRING")
            case {"type": "fixed", "size": int(size)}:
                plain = {"type": "fixed", "name": self._new_name(), "size": size}
                return Translated(_described({"type": "bytes"}, schema, name), plain, "BINARY")
            case _:
                raise _no_type(schema, within)

    def _named(self, name: str, namespace: str, within: tuple[str, ...]) -> Translated:
        if name in _PRIMITIVES:
            return self.translate({"type": name}, namespace, within)
        found = self.definitions.get(f"{namespace}.{name}" if "." not in name and namespace else name)
        found = found or self.definitions.get(name)
        if found is None:
            raise AvroSchemaError(f"{_place(within)}it has no type of the name {name!r}")
        # What is not looked up in the namespace of the definition has a full name, or none.
        schema = {**found.schema, "name": found.name}
        return self.translate(schema, found.namespace, within)

    def _record(self, schema: Mapping[str, Any], name: str, namespace: str, within: tuple[str, ...]) -> Translated:
        if name in within:
            raise AvroSchemaError(f"{_place(within)}{name} refers to itself, and Spark has no such type")
        connect_fields, plain_fields, sql_fields = [], [], []
        for position, member in enumerate(_members(schema)):
            member_name = str(member.get("name"))
            found = self.translate(member.get("type"), namespace, (*within, name))
            connect = dict(found.connect)
            default = _as_sent(member.get("default"), connect)
            if default is not None:
                connect["default"] = default
            connect_fields.append({**connect, "field": member_name})
            plain_fields.append({"name": f"f{position}", "type": found.plain})
            sql_fields.append(f"{quote(member_name)}: {found.sql}")
        connect = _described({"type": "struct", "fields": connect_fields}, schema, name)
        plain = {"type": "record", "name": self._new_name(), "fields": plain_fields}
        return Translated(connect, plain, f"STRUCT<{', '.join(sql_fields)}>")

    def _union(self, types: list[Any], namespace: str, within: tuple[str, ...]) -> Translated:
        others = [each for each in types if each not in ("null", {"type": "null"})]
        if len(others) != 1:
            raise AvroSchemaError(f"{_place(within)}a union of several types, {json.dumps(types)[:80]}, is no column")
        found = self.translate(others[0], namespace, within)
        if len(types) == 1:
            return found
        plain = [found.plain if each is others[0] else "null" for each in types]
        return Translated({**found.connect, "optional": True}, plain, found.sql)

    def _new_name(self) -> str:
        number = next(self._numbers)
        if number >= _MAX_TYPES:
            raise AvroSchemaError(f"it has more than {_MAX_TYPES} types")
        return f"T{number}"


def _no_type(schema: Any, within: tuple[str, ...]) -> AvroSchemaError:
    return AvroSchemaError(f"{_place(within)}{json.dumps(schema)[:80]} is not a type of Avro that has values")


def _place(within: tuple[str, ...]) -> str:
    return f"in {within[-1]}: " if within else ""


def _described(connect: dict[str, Any], schema: Mapping[str, Any], full_name: str | None = None) -> dict[str, Any]:
    """Return a schema of Kafka Connect with what the Avro schema notes of it."""
    described = {**connect, "optional": False}
    logical = _LOGICAL.get((str(schema["type"]), str(schema.get("logicalType"))))
    parameters = schema.get("connect.parameters")
    parameters = dict(parameters) if isinstance(parameters, Mapping) else {}
    if logical == "Decimal":
        precision = {"connect.decimal.precision": str(schema["precision"])} if "precision" in schema else {}
        parameters = {"scale": str(schema.get("scale", 0)), **precision, **parameters}
    name = schema.get("connect.name") or (_CONNECT + logical if logical else full_name)
    if isinstance(name, str) and name != _UNNAMED:
        described["name"] = name
    if isinstance(schema.get("connect.version"), int):
        described["version"] = schema["connect.version"]
    if parameters:
        described["parameters"] = parameters
    default = _as_sent(schema.get("connect.default"), described)
    if default is not None:
        described["default"] = default
    return described


def _as_sent(value: Any, connect: Mapping[str, Any]) -> Any:
    """Return a default as JsonConverter writes it: Avro has text with a character for each byte in place of base64."""
    match connect["type"], value:
        case "bytes", str():
            try:
                return base64.b64encode(value.encode("latin-1")).decode()
            except UnicodeEncodeError:
                return None
        case "struct", Mapping():
            types = {member["field"]: member for member in connect["fields"]}
            return {name: _as_sent(each, types[name]) for name, each in value.items() if name in types}
        case "array", list():
            return [_as_sent(each, connect["items"]) for each in value]
        case "map", Mapping():
            return {name: _as_sent(each, connect["values"]) for name, each in value.items()}
        case _:
            return value
