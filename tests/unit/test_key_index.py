"""The key index against a dictionary."""

import gc
import random

import numpy as np

from stream_merge.merge.locate import key_index
from stream_merge.merge.locate.key_index import MAX_SEGMENTS, KeyIndex


def entries(keys):
    """Return made-up hashes: the first half is the same for several keys, so that the second has to decide."""
    high = np.array([key // 3 for key in keys], dtype=np.uint64)
    low = np.array([key * 2**40 + 1 for key in keys], dtype=np.uint64)
    return high, low


def found(index, keys):
    paths = index.paths()
    probes, files, rows = index.look_up(*entries(keys))
    hits = zip(probes.tolist(), files.tolist(), rows.tolist(), strict=True)
    return {(keys[probe], paths[file], row) for probe, file, row in hits if file in paths}


def add(index, files):
    """Add files: path to its keys by position."""
    numbered = {100 + number: path for number, path in enumerate(files)}
    numbers = np.array([number for number, path in numbered.items() for _ in files[path]], dtype=np.int64)
    rows = np.array([row for path in files for row in range(len(files[path]))], dtype=np.int64)
    index.add(numbered, numbers, rows, *entries([key for path in files for key in files[path]]))


def test_finds_what_a_dictionary_finds():
    rng = random.Random(7)
    index = KeyIndex()
    expected = {}
    for number in range(3 * MAX_SEGMENTS):
        path = f"part-{number}"
        expected[path] = [rng.randrange(500) for _ in range(rng.randrange(40))]
        add(index, {path: expected[path]})
        if number % 5 == 4:
            del expected[rng.choice(sorted(expected))]
            index.retain(expected.keys())
        wanted = [rng.randrange(600) for _ in range(50)]
        assert found(index, wanted) == {
            (key, path, row) for path, keys in expected.items() for row, key in enumerate(keys) if key in wanted
        }
    assert all(index.has(path) for path in expected)
    assert not index.has("part-none")


def test_several_files_come_in_one_call_and_empty_files_are_known():
    index = KeyIndex()
    add(index, {"a": [1, 2], "b": [], "c": [2]})
    assert index.has("b")
    assert found(index, [2, 9]) == {(2, "a", 1), (2, "c", 0)}


def test_entries_of_forgotten_files_go_when_segments_are_merged():
    index = KeyIndex()
    add(index, {"old": list(range(1000))})
    index.retain([])
    for number in range(2 * MAX_SEGMENTS):
        add(index, {f"new-{number}": list(range(300))})
        index.retain([f"new-{number}"])
    assert len(index) < 300 * (MAX_SEGMENTS + 2)


def test_many_small_files_are_few_segments_and_a_large_one_is_left_as_it_is():
    index = KeyIndex()
    add(index, {"large": list(range(1000))})
    (large,) = index._segments
    for number in range(3 * MAX_SEGMENTS):
        add(index, {f"small-{number}": [number]})
        assert len(index._segments) <= MAX_SEGMENTS
    assert any(segment is large for segment in index._segments)


def test_another_table_or_other_keys_empty_the_index():
    index = KeyIndex()
    index.reset(("table", "k"))
    add(index, {"a": [1]})
    index.reset(("table", "k"))
    assert index.has("a")
    index.reset(("table", "j"))
    assert not index.has("a")
    assert len(index) == 0


def test_files_are_familiar_when_the_batch_before_asked_for_them_or_they_are_known():
    index = KeyIndex()
    assert index.note_asked(["a", "b"]) == {"a", "b"}
    assert index.note_asked(["a", "b", "c"]) == {"c"}
    add(index, {"a": [1]})
    assert index.note_asked(["d"]) == {"d"}
    assert index.note_asked(["a", "b"]) == {"b"}
    index.reset(("another table", "k"))
    assert index.note_asked(["a", "b"]) == {"a", "b"}


def test_all_indexes_of_the_process_share_the_room(monkeypatch):
    one, other = KeyIndex(), KeyIndex()
    add(one, {"a": list(range(60))})
    add(other, {"b": list(range(30))})
    gc.collect()  # the indexes of other tests
    monkeypatch.setattr(key_index, "MAX_ROWS_OF_ALL", sum(map(len, key_index._indexes)) + 10)
    assert one.has_room(10)
    assert not one.has_room(11)
    other.clear()
    assert one.has_room(40)
    assert not one.has_room(41)
    del other, one
    gc.collect()
    assert KeyIndex().has_room(100)


def test_room_is_made_by_forgetting_what_the_batch_cannot_match(monkeypatch):
    monkeypatch.setattr(key_index, "MAX_ROWS", 100)
    index = KeyIndex()
    add(index, {"cold": list(range(60))})
    add(index, {"hot": list(range(30))})
    index.make_room(10, {"hot"})
    assert (index.has("cold"), len(index)) == (True, 90)
    index.make_room(11, {"hot"})
    assert (index.has("cold"), index.has("hot"), len(index)) == (False, True, 30)
    assert found(index, [5, 50]) == {(5, "hot", 5)}
    index.make_room(101, set())
    assert len(index) == 0
    index.make_room(101, set())
    assert found(index, [5]) == set()
