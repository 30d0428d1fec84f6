"""Converts values between Python and the JVM, in bulk where their number can grow, and translates errors."""

from __future__ import annotations

import json
import re
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any
from weakref import WeakKeyDictionary

from py4j.protocol import Py4JJavaError
from pyspark.errors import PySparkException

from stream_merge.errors import (
    LOSS,
    ClauseError,
    ConstraintViolationError,
    MergeExecutionError,
    SchemaMismatchError,
    SourceLostError,
    StreamMergeError,
    UnresolvedColumnError,
    UnsupportedTableError,
)

JVM_ERRORS: tuple[type[Exception], ...] = (Py4JJavaError, PySparkException)
"""Raised by a failed call into the JVM, whether or not PySpark or delta-spark translates it."""
_NO_FILE: tuple[type[Exception], ...] = (OSError, *JVM_ERRORS)

_PIECE = 4096
"""Bytes: base64-encoded, less than the 8 KB that py4j sends at a time."""
_MAX_IN_PIECES = 4 * _PIECE
"""Bytes; to write a file and read it takes as long as some five calls."""

CONFLICTS = (
    "ConcurrentAppendException",
    "ConcurrentDeleteDeleteException",
    "ConcurrentDeleteReadException",
    "ConcurrentTransactionException",
    "ConcurrentWriteException",
    "MetadataChangedException",
    "ProtocolChangedException",
)
"""Delta's names for a commit that lost against another."""

# Delta's and Spark's conditions by what the user has to change; the first pattern that matches decides.
_CONDITIONS: tuple[tuple[type[StreamMergeError], str], ...] = (
    (UnsupportedTableError, r"DELTA_UNSUPPORTED_FEATURES\w*|DELTA_INVALID_PROTOCOL_VERSION"),
    (
        ClauseError,
        r"(DELTA_)?NON_LAST_\w+_OMIT_CONDITION|DELTA_MERGE_MISSING_WHEN|DELTA_NON_DETERMINISTIC_FUNCTION_NOT_SUPPORTED"
        r"|DELTA_AGGREGATION_NOT_SUPPORTED|DELTA_CONFLICT_SET_COLUMN|DELTA_DUPLICATE_COLUMNS_ON_INSERT"
        r"|(DELTA_)?UNSUPPORTED_EXPR\w*|DELTA_NESTED_FIELD\w*|DELTA_UNSUPPORTED_NESTED_FIELD_IN_OPERATION"
        r"|DELTA_INVALID_COLUMN_NAMES\w*|INVALID_NON_DETERMINISTIC_EXPRESSIONS"
        r"|GROUP_BY_AGGREGATE|DELTA_INVALID_MERGE_CLAUSE\w*|PARSE_SYNTAX_ERROR|DUPLICATE_ASSIGNMENTS"
        r"|INVALID_WHERE_CONDITION|UNSUPPORTED_MERGE_CONDITION.*|UNSUPPORTED_SQL_UDF_USAGE",
    ),
    (
        UnresolvedColumnError,
        r"DELTA_MERGE_UNRESOLVED_EXPRESSION|UNRESOLVED_COLUMN.*|AMBIGUOUS_REFERENCE.*|FIELD_NOT_FOUND"
        r"|MISSING_ATTRIBUTES.*|DELTA_MISSING_COLUMN|UNRESOLVED_FIELD.*|AMBIGUOUS_COLUMN_OR_FIELD"
        r"|CANNOT_RESOLVE_STAR_EXPAND|UNRESOLVED_ROUTINE"
        # Delta's builder leaves a subquery unresolved, so its users know this kind of error.
        r"|DELTA_\w*SUBQUERY\w*|UNSUPPORTED_SUBQUERY_EXPRESSION_CATEGORY.*",
    ),
    (
        ConstraintViolationError,
        r"DELTA_VIOLATE_CONSTRAINT\w*|DELTA_NOT_NULL_\w+|EXCEED_LIMIT_LENGTH|DELTA_EXCEED_CHAR_VARCHAR_LIMIT"
        r"|NOT_NULL_ASSERT_VIOLATION|DELTA_CANNOT_MODIFY_APPEND_ONLY|DELTA_GENERATED_COLUMN\w*",
    ),
    (
        SchemaMismatchError,
        r"DELTA_FAILED_TO_MERGE_FIELDS|JOIN_CONDITION_IS_NOT_BOOLEAN_TYPE|DELTA_MERGE_INCOMPATIBLE_\w+"
        r"|DELTA_UPDATE_SCHEMA_MISMATCH_EXPRESSION|DATATYPE_MISMATCH.*|CANNOT_UP_CAST_DATATYPE|DELTA_INVALID_SCHEMA\w*"
        r"|INCOMPATIBLE_DATA_FOR_TABLE.*|DELTA_CANNOT_UPDATE_\w+|DELTA_ADDING_COLUMN_WITH_INTERNAL_NAME\w*"
        r"|DELTA_UNSUPPORTED_DATA_TYPES|DELTA_CANNOT_CHANGE_DATA_TYPE|DELTA_UPDATE_NON_STRUCT\w*"
        r"|DELTA_UNSUPPORTED_NESTED_FIELD_IN_UPDATE|DELTA_UNSUPPORTED_FIELD_UPDATE_NON_STRUCT"
        r"|DELTA_DUPLICATE_COLUMNS_FOUND|COLUMN_ALREADY_EXISTS|DELTA_METADATA_MISMATCH"
        r"|_LEGACY_ERROR_TEMP_DELTA_000[79]|DELTA_SCHEMA_\w+",
    ),
)
_WAYS_OUT = {
    "UNSUPPORTED_SQL_UDF_USAGE": (
        " (a MERGE, Delta's own included, cannot call SQL functions: compute the value in the source)"
    )
}
_LOST_BLOCK = "CHECKPOINT_RDD_BLOCK_ID_NOT_FOUND"
_LOST = re.compile(rf"\[USER_RAISED_EXCEPTION\] (.*{re.escape(LOSS)})", re.DOTALL)
_MAX_CAUSES = 8
_KEPT: WeakKeyDictionary[Any, dict[str, Any]] = WeakKeyDictionary()


def seq(jvm: Any, items: Iterable[Any] = ()) -> Any:
    """Return a Scala Seq of the items."""
    return java_class(jvm, "org.apache.spark.api.python.PythonUtils").toSeq(java_list(jvm, items))


def java_list(jvm: Any, items: Iterable[Any] = ()) -> Any:
    """Return a Java List of the items."""
    found = java_class(jvm, "java.util.ArrayList")()
    for item in items:
        found.add(item)
    return found


def scala_map(jvm: Any, values: Mapping[str, Any]) -> Any:
    """Return an immutable Scala Map."""
    java_map = java_class(jvm, "java.util.HashMap")()
    for name, value in values.items():
        java_map.put(name, value)
    return java_class(jvm, "org.apache.spark.api.python.PythonUtils").toScalaMap(java_map)


def items(scala_seq: Any) -> Iterator[Any]:
    """Iterate over a Scala Seq, one call for each element."""
    for index in range(scala_seq.size()):
        yield scala_seq.apply(index)


def optional(scala_option: Any) -> Any:
    """Return the content of a Scala Option, or None."""
    return scala_option.get() if scala_option.isDefined() else None


def option(jvm: Any, value: Any) -> Any:
    """Return a Scala Option of a value that may be None."""
    return java_class(jvm, "scala.Option").apply(value)


def java_class(jvm: Any, name: str) -> Any:
    """Return a class by its full name. Attributes of `jvm` would cost a call for each part of the name, every time."""
    return _once(jvm, name, lambda: getattr(jvm, name))


def _once(jvm: Any, name: str, make: Callable[[], Any]) -> Any:
    """Return what is made for a JVM once, since it stays the same."""
    kept = _KEPT.setdefault(jvm, {})
    if name not in kept:
        kept[name] = make()
    return kept[name]


def scala_object(jvm: Any, name: str) -> Any:
    """Return the singleton of a Scala object that has no static methods."""
    return getattr(java_class(jvm, name + "$"), "MODULE$")


def mapper(jvm: Any) -> Any:
    """Return Delta's JSON mapper."""
    return _once(jvm, "mapper", lambda: java_class(jvm, "org.apache.spark.sql.delta.util.JsonUtils").mapper())


def to_python(jvm: Any, scala_value: Any) -> Any:
    """Return a Scala collection or case class as JSON-like Python values."""
    written = _byte_stream(jvm)
    mapper(jvm).writeValue(written, scala_value)
    return json.loads(_all_bytes(jvm, written))


def lines_to_python(jvm: Any, scala_lines: Any) -> list[str]:
    """Return a Scala Seq of strings without line feeds as a list."""
    written = _byte_stream(jvm)
    lines = java_class(jvm, "scala.jdk.javaapi.CollectionConverters").asJava(scala_lines)
    utf_8 = java_class(jvm, "java.nio.charset.StandardCharsets").UTF_8
    java_class(jvm, "org.apache.commons.io.IOUtils").writeLines(lines, "\n", written, utf_8)
    # Not splitlines(): statistics may contain U+2028 and the like.
    return _all_bytes(jvm, written).decode().split("\n")[:-1]


def _byte_stream(jvm: Any) -> Any:
    return java_class(jvm, "org.apache.commons.io.output.ByteArrayOutputStream")()


def _all_bytes(jvm: Any, written: Any) -> bytes:
    """Return the written bytes, in pieces that py4j answers with one packet each, or through a file if they are many.

    Of a longer answer, the operating system delays the second packet until the first is acknowledged, and the
    acknowledgement for 40 ms (Nagle's algorithm, delayed acknowledgement).
    """
    size = int(written.size())
    if size > _MAX_IN_PIECES and (content := _through_a_file(jvm, written, size)) is not None:
        return content
    stream = written.toInputStream()
    return b"".join(iter(lambda: bytes(stream.readNBytes(_PIECE)), b""))


def _through_a_file(jvm: Any, written: Any, size: int) -> bytes | None:
    """Return the written bytes by a file that nobody else may read; None if none can be written, or read here."""
    try:
        with tempfile.NamedTemporaryFile(prefix="stream_merge-") as file:
            stream = java_class(jvm, "java.io.FileOutputStream")(file.name)
            try:
                written.writeTo(stream)
            finally:
                stream.close()
            content = file.read()
    except _NO_FILE:  # a full disk, say, which the merge may not need
        return None
    # The JVM might have a file system of its own.
    return content if len(content) == size else None


def actions(jvm: Any, kind: str, values: Sequence[dict[str, Any]]) -> Any:
    """Return a Java list of Delta's AddFile or RemoveFile actions, in a constant number of calls."""
    if not values:
        return java_list(jvm)

    def list_type() -> Any:
        action = load_class(jvm, f"org.apache.spark.sql.delta.actions.{kind}")
        return mapper(jvm).getTypeFactory().constructCollectionType(load_class(jvm, "java.util.ArrayList"), action)

    return mapper(jvm).readValue(json.dumps(values), _once(jvm, f"list of {kind}", list_type))


def load_class(jvm: Any, name: str) -> Any:
    """Return a class by name, whichever class loader Spark put its JAR into."""
    return java_class(jvm, "org.apache.spark.util.Utils").classForName(name, True, False)


def set_field(jvm_object: Any, name: str, value: Any) -> None:
    """Set a field that Scala declares as an overridable val; Python cannot make a subclass that overrides it."""
    cls = jvm_object.getClass()
    while cls is not None:
        for declared in cls.getDeclaredFields():
            if declared.getName() == name:
                declared.setAccessible(True)
                declared.set(jvm_object, value)
                return
        cls = cls.getSuperclass()
    raise AttributeError(name)


def throwables(error: BaseException) -> Iterator[Any]:
    """Iterate over the JVM exceptions behind a Python exception, and their causes.

    PySpark fails to convert errors whose condition only Delta knows, and raises an internal error whose context is the
    true one.
    """
    shown: BaseException | None = error
    for _ in range(_MAX_CAUSES):
        if shown is None:
            return
        throwable = getattr(shown, "java_exception", None) or getattr(shown, "_origin", None)
        for _ in range(_MAX_CAUSES):
            if throwable is None:
                break
            yield throwable
            throwable = throwable.getCause()
        shown = shown.__context__


def conflict_name(error: BaseException) -> str | None:
    """Return Delta's name of the conflict if the error is one, else None."""
    for throwable in throwables(error):
        name = str(throwable.getClass().getSimpleName())
        if name in CONFLICTS:
            return name
    return None


def condition_of(throwable: Any) -> str | None:
    """Return the error condition that Spark or Delta gave a JVM exception."""
    if not hasattr(throwable, "getMessage"):
        return None
    for method in ("getCondition", "getErrorClass"):
        if any(m.getName() == method for m in throwable.getClass().getMethods()):
            name = getattr(throwable, method)()
            if name:
                return str(name)
    return None


def translate(error: BaseException) -> StreamMergeError:
    """Return this library's error for one raised by a call into the JVM; the caller chains it."""
    found: list[str] = []
    messages: list[str] = []
    for throwable in throwables(error):
        message = str(throwable.getMessage() or throwable.getClass().getName())
        messages.append(message)
        condition = condition_of(throwable)
        found += [condition] if condition else []
        found += re.findall(r"Cannot find main error class '([A-Z][A-Z0-9_.]+)'", message)
        found += re.findall(r"\[([A-Z][A-Z0-9_]+(?:\.[A-Z0-9_]+)*)\]", message)
    if any(_LOST_BLOCK in text for text in (*found, *messages)):
        return SourceLostError(
            "rows of the micro-batch were lost with the executor that kept them. Nothing was committed. "
            "Restart the query; if this happens often, find out why executors die.",
            condition=_LOST_BLOCK,
        )
    lost = next((match for match in map(_LOST.search, messages) if match), None)
    if lost is not None:
        return SchemaMismatchError(lost[1])
    for name in found:
        for kind, pattern in _CONDITIONS:
            if re.fullmatch(pattern, name):
                named = [message for message in messages if name in message]
                text = next((m for m in named if "INTERNAL_ERROR" not in m), (named or messages)[0])
                return kind(text + _WAYS_OUT.get(name, ""), condition=name)
    named = [name for name in found if name != "INTERNAL_ERROR"]
    return MergeExecutionError(messages[-1] if messages else str(error), condition=named[0] if named else None)
