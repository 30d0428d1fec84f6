"""Keeps large segments of the key index in files on the driver's disk, mapped into memory: runs.

A run is an Arrow file with a record batch for each chunk. The operating system reads the pages that are looked into,
keeps them in memory while there is room, and drops them when there is none.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa

from stream_merge.key_index.segment import Chunk

_HEADER = b"stream_merge.key_index"


@dataclass(frozen=True, slots=True)
class RunContent:
    """The content of a run.

    Attributes:
        fingerprint: What the hashes are made from.
        paths: The path of each file, by its number in the entries.
        newest: The newest sequence of each file, None where there is none.
        chunks: The entries.
    """

    fingerprint: str
    paths: Sequence[str]
    newest: Sequence[Any]
    chunks: Sequence[Chunk]


def write_run(
    path: Path, fingerprint: str, paths: Sequence[str], newest: Sequence[Any], chunks: Iterable[Chunk]
) -> int:
    """Write a run to a new file.

    Returns:
        The number of entries; without any, the file is no run.

    Raises:
        OSError: The file cannot be written.
        ValueError: Arrow cannot represent a sequence.
    """
    sequences = pa.array(newest, from_pandas=False)
    if sequences.to_pylist() != list(newest):
        raise ValueError("the newest sequences of the files do not survive the way to Arrow and back")
    header = {"fingerprint": fingerprint, "paths": list(paths), "newest": _encoded(sequences)}
    writer, num_rows = None, 0
    with pa.OSFile(str(path), "wb") as sink:
        for chunk in chunks:
            columns = {"high": chunk.high, "file": chunk.files, "row": chunk.rows}
            if chunk.low is not None:
                columns["low"] = chunk.low
            batch = pa.record_batch({name: pa.array(values) for name, values in columns.items()})
            if writer is None:
                schema = batch.schema.with_metadata({_HEADER: json.dumps(header).encode()})
                writer = pa.ipc.new_file(sink, schema)
            writer.write_batch(batch.replace_schema_metadata(schema.metadata))
            num_rows += len(chunk)
        if writer is not None:
            writer.close()
    return num_rows


def map_run(path: Path) -> RunContent:
    """Map a run into memory. Its file can be removed afterwards: its content stays until nothing refers to it.

    Raises:
        ValueError: It is no run.
    """
    try:
        reader = pa.ipc.open_file(pa.memory_map(str(path)))
        header = json.loads(reader.schema.metadata[_HEADER])
        batches = [reader.get_batch(number) for number in range(reader.num_record_batches)]
        chunks = [Chunk(*_columns(batch)) for batch in batches]
        content = RunContent(header["fingerprint"], header["paths"], _decoded(header["newest"]), chunks)
    except (pa.ArrowException, KeyError, TypeError) as error:
        raise ValueError(f"{path.name} is not a run of a key index: {error}") from error
    numbers = [number for chunk in chunks for number in (chunk.files.min(), chunk.files.max())]
    if len(content.paths) != len(content.newest) or any(not 0 <= number < len(content.paths) for number in numbers):
        raise ValueError(f"{path.name} is not a run of a key index: it has entries of files that it does not name")
    return content


def _columns(batch: Any) -> tuple[Any, Any, Any, Any]:
    arrays = {name: batch.column(name).to_numpy(zero_copy_only=True) for name in batch.schema.names}
    return arrays["high"], arrays.get("low"), arrays["file"], arrays["row"]


def _encoded(values: Any) -> str:
    sink = pa.BufferOutputStream()
    table = pa.table({"newest": values})
    with pa.ipc.new_stream(sink, table.schema) as writer:
        writer.write_table(table)
    return base64.b64encode(sink.getvalue()).decode()


def _decoded(text: str) -> list[Any]:
    with pa.ipc.open_stream(base64.b64decode(text)) as reader:
        values: list[Any] = reader.read_all()["newest"].to_pylist()
    return values
