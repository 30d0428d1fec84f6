"""Reads and writes deletion vectors in Delta's format on the driver, without a JVM call for each file.

The format is that of the Delta protocol ("Deletion Vectors", "Deletion Vector Format"): a 64-bit Roaring bitmap in the
portable serialisation after a magic number, in a file that the vectors of one commit share. The log itself may hold
small vectors; they are read but not written, since Delta's VACUUM fails on a table with one.
"""

from __future__ import annotations

import json
import struct
import uuid
import zlib
from collections import OrderedDict
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from pyroaring import BitMap, BitMap64

MAGIC = struct.pack("<I", 1681511377)
NATIVE_MAGICS = {struct.pack(f"{order}I", 1681511376): order for order in "<>"}
"""Marks Delta's older serialisation, which is read but not written, with the byte order of its numbers.

Delta's code writes it in little-endian order; the example of the protocol is in big-endian order.
"""

FILE_FORMAT_VERSION = b"\x01"
MAX_CACHED_BYTES = 64 * 1024 * 1024

_Z85 = b"0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ.-:+=^!/*?&<>()[]{}@%$#"
_Z85_VALUES = {character: value for value, character in enumerate(_Z85)}


def z85_encode(data: bytes) -> str:
    """Encode bytes, whose number is a multiple of four, as Z85 (ZeroMQ RFC 32)."""
    encoded = bytearray()
    for (word,) in struct.iter_unpack(">I", data):
        digits = bytearray(5)
        for place in range(4, -1, -1):
            word, digit = divmod(word, 85)
            digits[place] = _Z85[digit]
        encoded += digits
    return encoded.decode("ascii")


def z85_decode(text: str) -> bytes:
    """Decode Z85 text, whose length is a multiple of five."""
    words = []
    for start in range(0, len(text), 5):
        word = 0
        for character in text[start : start + 5].encode("ascii"):
            word = word * 85 + _Z85_VALUES[character]
        words.append(struct.pack(">I", word))
    return b"".join(words)


def serialize(rows: BitMap64) -> bytes:
    """Return the bitmap as Delta stores it."""
    return MAGIC + rows.serialize()


def deserialize(data: bytes) -> BitMap64:
    """Return the bitmap from bytes that Delta stored.

    Raises:
        ValueError: The bytes are not a bitmap in this format.
    """
    if data[:4] in NATIVE_MAGICS:
        return _deserialize_native(data, NATIVE_MAGICS[data[:4]])
    if data[:4] != MAGIC:
        raise ValueError(f"unknown deletion vector format {data[:4].hex()}")
    return BitMap64.deserialize(data[4:])


def _deserialize_native(data: bytes, order: str) -> BitMap64:
    """Read one 32-bit bitmap, preceded by its size, for each value of the upper 32 bits, counting from 0."""
    (count,) = struct.unpack_from(f"{order}I", data, 4)
    rows, offset = BitMap64(), 8
    for upper in range(count):
        (size,) = struct.unpack_from(f"{order}I", data, offset)
        offset += 4
        rows |= BitMap64((upper << 32) + lower for lower in BitMap.deserialize(data[offset : offset + size]))
        offset += size
    return rows


@dataclass(frozen=True, slots=True)
class StoredVector:
    """The location of a deletion vector: the descriptor of the Delta protocol."""

    storage_type: str
    path_or_inline: str
    size_in_bytes: int
    cardinality: int
    offset: int | None = None

    @classmethod
    def of(cls, descriptor: Mapping[str, Any]) -> StoredVector:
        """Read a descriptor as the log writes it."""
        return cls(
            storage_type=descriptor["storageType"],
            path_or_inline=descriptor["pathOrInlineDv"],
            size_in_bytes=int(descriptor["sizeInBytes"]),
            cardinality=int(descriptor["cardinality"]),
            offset=descriptor.get("offset"),
        )

    def to_descriptor(self) -> dict[str, Any]:
        """Return the descriptor as the log writes it."""
        descriptor: dict[str, Any] = {"storageType": self.storage_type, "pathOrInlineDv": self.path_or_inline}
        if self.offset is not None:
            descriptor["offset"] = self.offset
        return descriptor | {"sizeInBytes": self.size_in_bytes, "cardinality": self.cardinality}

    def path(self) -> str:
        """Return the path of the vector's file, relative to the table; absolute for storage type p."""
        if self.storage_type == "p":
            return self.path_or_inline
        prefix, encoded = self.path_or_inline[:-20], self.path_or_inline[-20:]
        name = f"deletion_vector_{uuid.UUID(bytes=z85_decode(encoded))}.bin"
        return f"{prefix}/{name}" if prefix else name


@dataclass(slots=True)
class VectorCache:
    """Caches bitmaps by descriptor, so that a stream does not read what its last batch wrote; bounded in bytes."""

    _bitmaps: OrderedDict[StoredVector, bytes] = field(default_factory=OrderedDict)
    _bytes: int = 0

    def load(self, vector: StoredVector, read_range: Callable[[str, int, int], bytes]) -> BitMap64:
        """Return the bitmap of a stored vector.

        Args:
            vector: The vector's location.
            read_range: Reads `length` bytes at `offset` of a file of the table.
        """
        cached = self._bitmaps.get(vector)
        if cached is not None:
            self._bitmaps.move_to_end(vector)
            return deserialize(cached)
        if vector.storage_type == "i":
            return deserialize(z85_decode(vector.path_or_inline)[: vector.size_in_bytes])
        # The four bytes at the offset repeat the size, which the descriptor has already.
        data = read_range(vector.path(), (vector.offset or 0) + 4, vector.size_in_bytes)
        self.keep(vector, data)
        return deserialize(data)

    def keep(self, vector: StoredVector, data: bytes) -> None:
        """Remember the bytes of a vector."""
        if vector.storage_type == "i" or len(data) > MAX_CACHED_BYTES:
            return
        self._bitmaps[vector] = data
        self._bytes += len(data)
        while self._bytes > MAX_CACHED_BYTES:
            _, dropped = self._bitmaps.popitem(last=False)
            self._bytes -= len(dropped)


@dataclass(slots=True)
class VectorWriter:
    """Collects the vectors of one commit, which share one file."""

    cache: VectorCache
    prefix: str = ""
    _content: bytearray = field(default_factory=lambda: bytearray(FILE_FORMAT_VERSION))
    _id: uuid.UUID = field(default_factory=uuid.uuid4)

    def add(self, rows: BitMap64) -> StoredVector:
        """Store a bitmap and return its location."""
        data = serialize(rows)
        offset = len(self._content)
        self._content += struct.pack(">I", len(data)) + data + struct.pack(">I", zlib.crc32(data))
        vector = StoredVector("u", self.prefix + z85_encode(self._id.bytes), len(data), len(rows), offset)
        self.cache.keep(vector, data)
        return vector

    def file(self) -> tuple[str, bytes] | None:
        """Return path and content of the file that must exist before the commit; None if there are no vectors."""
        if len(self._content) == len(FILE_FORMAT_VERSION):
            return None
        name = f"deletion_vector_{self._id}.bin"
        return (f"{self.prefix}/{name}" if self.prefix else name, bytes(self._content))


def delete_rows(
    add: Mapping[str, Any], vector: StoredVector, *, now_ms: int, num_rows: int | None = None
) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the AddFile with the new vector and the RemoveFile of the old one, as Delta's `removeRows` does.

    Args:
        add: The file as in the log.
        vector: The location of the vector of all its deleted rows.
        now_ms: The time of the removal, in milliseconds since the epoch.
        num_rows: The file's number of rows if its statistics lack it; Delta requires it of a file with a vector.
    """
    stats = with_wide_bounds(add.get("stats") or "{}")
    if num_rows is not None:
        rest = stats.lstrip()[1:]
        stats = f'{{"numRecords":{num_rows},{rest}'
    added = {**add, "deletionVector": vector.to_descriptor(), "dataChange": True, "stats": stats}
    return added, remove_file(add, now_ms=now_ms)


def with_wide_bounds(stats: str) -> str:
    """Return a file's statistics with the note that its bounds may be wider than the remaining rows.

    Everything else stays the same, byte for byte: decimals have more digits than Python's floats, and rounded bounds
    would hide rows from every reader.

    Args:
        stats: The statistics as in the log, a JSON object.
    """
    decoder = json.JSONDecoder()

    def beyond_space(place: int) -> int:
        while stats[place] in " \t\r\n":
            place += 1
        return place

    place = beyond_space(beyond_space(0) + 1)
    if stats[place] == "}":
        return '{"tightBounds":false}'
    while True:
        name, place = decoder.raw_decode(stats, place)
        start = beyond_space(beyond_space(place) + 1)
        _, end = decoder.raw_decode(stats, start)
        if name == "tightBounds":
            return f"{stats[:start]}false{stats[end:]}"
        place = beyond_space(end)
        if stats[place] == "}":
            return f'{stats[:place]},"tightBounds":false{stats[place:]}'
        place = beyond_space(place + 1)


def remove_file(add: Mapping[str, Any], *, now_ms: int) -> dict[str, Any]:
    """Return the RemoveFile of an AddFile, as Delta's `removeWithTimestamp` does."""
    kept = (
        "path",
        "partitionValues",
        "size",
        "tags",
        "deletionVector",
        "baseRowId",
        "defaultRowCommitVersion",
        "stats",
    )
    removed = {name: add[name] for name in kept if add.get(name) is not None}
    return {**removed, "deletionTimestamp": now_ms, "dataChange": True, "extendedFileMetadata": True}
