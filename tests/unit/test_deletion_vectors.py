"""Deletion vectors in the format of the Delta protocol."""

import json
import struct
import uuid
import zlib

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyroaring import BitMap64

from stream_merge.table.deletion_vectors import (
    StoredVector,
    VectorCache,
    VectorWriter,
    delete_rows,
    deserialize,
    remove_file,
    serialize,
    with_wide_bounds,
    z85_decode,
    z85_encode,
)


def test_z85_is_that_of_the_rfc():
    # The test vector of ZeroMQ RFC 32.
    assert z85_encode(bytes([0x86, 0x4F, 0xD2, 0x6F, 0xB5, 0x59, 0xF7, 0x5B])) == "HelloWorld"
    assert z85_decode("HelloWorld") == bytes([0x86, 0x4F, 0xD2, 0x6F, 0xB5, 0x59, 0xF7, 0x5B])


@given(st.binary(max_size=64).filter(lambda data: len(data) % 4 == 0))
def test_z85_comes_back(data):
    assert z85_decode(z85_encode(data)) == data


def test_the_protocols_example_of_an_inline_vector():
    # PROTOCOL.md, "Deletion Vectors", example of JSON encoding: rows 3, 4, 7, 11, 18, 29.
    data = z85_decode("wi5b=000010000siXQKl0rr91000f55c8Xg0@@D72lkbi5=-{L")[:40]
    assert list(deserialize(data)) == [3, 4, 7, 11, 18, 29]


def test_the_protocols_example_of_a_path():
    relative = StoredVector("u", "ab^-aqEH.-t@S}K{vb[*k^", 36, 2, 4)
    assert relative.path() == "ab/deletion_vector_d2c639aa-8816-431a-aaf6-d3fe2512ff61.bin"


def test_an_unknown_format_is_refused():
    with pytest.raises(ValueError, match="unknown deletion vector format 01020304"):
        deserialize(b"\x01\x02\x03\x04" + serialize(BitMap64([1]))[4:])


def test_the_vectors_of_a_commit_share_a_file():
    cache, files = VectorCache(), {}
    writer = VectorWriter(cache, prefix="xy")
    small, large, larger = BitMap64([1, 2**33]), BitMap64(range(0, 9000, 7)), BitMap64(range(0, 90000, 11))
    vectors = [writer.add(rows) for rows in (small, large, larger)]
    path, content = writer.file()
    files[path] = content
    assert [vector.storage_type for vector in vectors] == ["u", "u", "u"]
    assert {vector.path() for vector in vectors} == {path}
    assert path.startswith("xy/deletion_vector_")
    assert uuid.UUID(path.removeprefix("xy/deletion_vector_").removesuffix(".bin"))
    for vector in vectors:
        data = content[vector.offset + 4 : vector.offset + 4 + vector.size_in_bytes]
        assert struct.unpack(">I", content[vector.offset : vector.offset + 4]) == (len(data),)
        end = vector.offset + 4 + len(data)
        assert struct.unpack(">I", content[end : end + 4]) == (zlib.crc32(data),)

    def read_range(name, offset, length):
        return files[name][offset : offset + length]

    for vector, rows in zip(vectors, (small, large, larger), strict=True):
        again = StoredVector.of(json.loads(json.dumps(vector.to_descriptor())))
        assert again == vector
        assert again.cardinality == len(rows)
        assert VectorCache().load(again, read_range) == rows
        assert cache.load(again, lambda *_: pytest.fail("a vector that was just written is read")) == rows


def test_no_file_without_a_vector():
    assert VectorWriter(VectorCache()).file() is None


def test_a_vector_in_the_log_is_read():
    data = serialize(BitMap64([5, 2**33]))
    vector = StoredVector("i", z85_encode(data + bytes(-len(data) % 4)), len(data), 2)
    assert VectorCache().load(vector, lambda *_: pytest.fail("nothing is to be read")) == BitMap64([5, 2**33])


def test_delete_rows_keeps_the_file_and_widens_its_bounds():
    add = {
        "path": "a.parquet",
        "partitionValues": {"p": "1"},
        "size": 10,
        "modificationTime": 5,
        "dataChange": False,
        "stats": '{"numRecords":3,"minValues":{"k":1},"tightBounds":true}',
        "baseRowId": 7,
        "deletionVector": StoredVector("i", "old", 4, 1).to_descriptor(),
    }
    vector = StoredVector("i", "new", 8, 2)
    added, removed = delete_rows(add, vector, now_ms=99)
    assert added["deletionVector"] == vector.to_descriptor()
    assert json.loads(added["stats"]) == {"numRecords": 3, "minValues": {"k": 1}, "tightBounds": False}
    assert added["dataChange"] is True
    assert added["baseRowId"] == 7
    assert removed == remove_file(add, now_ms=99)
    assert removed["deletionVector"]["pathOrInlineDv"] == "old"
    assert (removed["deletionTimestamp"], removed["dataChange"], removed["extendedFileMetadata"]) == (99, True, True)
    assert "modificationTime" not in removed


SPACE = st.text(" \t\r\n", max_size=2)
NUMBERS = st.decimals(allow_nan=False, allow_infinity=False).map(str) | st.integers().map(str)
NUMBERS |= st.sampled_from(
    ["0E-18", "-0.0", "1.7976931348623157E308", "99999999999999999999.999999999999999999", "1e-7"]
)
NAMES = st.sampled_from(
    ["tightBounds", "minValues", '"tightBounds":true', "a\\\\", "}", "tight\\u0042ounds"]
) | st.text(max_size=4)


@st.composite
def texts_of_values(draw, depth=2):
    """Draw the text of a JSON value, as nobody would write it."""
    kind = draw(st.sampled_from(["text", "number", "word", *(["object", "array"] if depth else [])]))
    if kind == "text":
        return json.dumps(draw(NAMES), ensure_ascii=draw(st.booleans()))
    if kind == "number":
        return draw(NUMBERS)
    if kind == "word":
        return draw(st.sampled_from(["true", "false", "null"]))
    if kind == "array":
        items = draw(st.lists(texts_of_values(depth=depth - 1), max_size=3))
        return f"[{draw(SPACE)}{f'{draw(SPACE)},'.join(items)}]"
    names = draw(st.lists(NAMES, max_size=3, unique=True))
    return (
        "{" + ",".join(member(draw, name, draw(texts_of_values(depth=depth - 1))) for name in names) + draw(SPACE) + "}"
    )


def member(draw, name, text):
    """Return name and value as an object has them, with space around each."""
    return f"{draw(SPACE)}{json.dumps(name)}{draw(SPACE)}:{draw(SPACE)}{text}{draw(SPACE)}"


@given(st.data())
def test_only_the_note_on_bounds_changes(data):
    """Every other byte stays, whatever the values are and wherever else the name of the note stands."""
    draw = data.draw
    names = draw(st.lists(NAMES.filter(lambda name: name != "tightBounds"), max_size=4, unique=True))
    members = [member(draw, name, draw(texts_of_values())) for name in names]
    before, after = draw(SPACE) + "{", "}" + draw(SPACE)
    if draw(st.booleans()):
        place = draw(st.integers(0, len(members)))
        told = member(draw, "tightBounds", "@")
        written = ",".join([*members[:place], told, *members[place:]])
        left, right = before + written.partition(told)[0], written.partition(told)[2] + after
        told_left, _, told_right = told.partition("@")
        old = draw(st.sampled_from(["true", "false", "null"]))
        assert (
            with_wide_bounds(f"{left}{told_left}{old}{told_right}{right}")
            == f"{left}{told_left}false{told_right}{right}"
        )
        return
    stats = before + ",".join(members) + after
    widened = with_wide_bounds(stats)
    if not members:
        assert widened == '{"tightBounds":false}'
        return
    end = stats.rindex("}")
    assert widened == f'{stats[:end]},"tightBounds":false{stats[end:]}'
    assert json.loads(widened, parse_float=str) == json.loads(stats, parse_float=str) | {"tightBounds": False}
