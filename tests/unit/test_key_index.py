"""The key index against a dictionary."""

import gc
import logging
import random
import shutil
from decimal import Decimal

import numpy as np
import pytest

from stream_merge.key_index import index as key_index
from stream_merge.key_index import runs, segment
from stream_merge.key_index.index import MAX_SEGMENTS, KeyIndex
from stream_merge.key_index.runs import map_run, write_run
from stream_merge.key_index.segment import Chunk


def entries(keys, *, are_numbers=False):
    """Return made-up hashes: the first half is the same for several keys, so that the second has to decide."""
    if are_numbers:
        return np.array(keys, dtype=np.int64).view(np.uint64), None
    high = np.array([key // 3 for key in keys], dtype=np.uint64)
    low = np.array([key * 2**40 + 1 for key in keys], dtype=np.uint64)
    return high, low


def found(index, keys, **kind):
    paths = index.paths()
    probes, files, rows = index.look_up(*entries(keys, **kind))
    hits = zip(probes.tolist(), files.tolist(), rows.tolist(), strict=True)
    return {(keys[probe], paths[file], row) for probe, file, row in hits if file in paths}


def add(index, files, newest=None, active=None, **kind):
    """Add files: path to its keys by position."""
    numbered = {100 + number: path for number, path in enumerate(files)}
    numbers = np.array([number for number, path in numbered.items() for _ in files[path]], dtype=np.int64)
    rows = np.array([row for path in files for row in range(len(files[path]))], dtype=np.int64)
    keys = entries([key for path in files for key in files[path]], **kind)
    sequences = {number: newest[path] for number, path in numbered.items() if path in newest} if newest else None
    index.add(numbered, numbers, rows, *keys, sequences, active)


def expected_of(files, wanted):
    return {(key, path, row) for path, keys in files.items() for row, key in enumerate(keys) if key in wanted}


class FolderStore:
    """Keeps runs in a folder, as `StoredRuns` does in the table's."""

    def __init__(self, folder):
        self.folder = folder
        folder.mkdir()

    def save(self, local):
        shutil.copy(local, self.folder / local.name)
        return local.name

    def remove(self, name):
        (self.folder / name).unlink()

    def load(self):
        return [(path.name, map_run(path)) for path in self.folder.iterdir()]


@pytest.fixture
def small(monkeypatch):
    """Make runs of few entries, in chunks of fewer."""
    monkeypatch.setattr(key_index, "RUN_ROWS", 100)
    monkeypatch.setattr(segment, "CHUNK_ROWS", 32)
    monkeypatch.setattr(segment, "_SAMPLE_STEP", 8)


@pytest.mark.parametrize("are_numbers", [False, True])
def test_finds_in_runs_what_a_dictionary_finds_and_the_next_process_does_too(small, tmp_path, are_numbers):
    rng = random.Random(3)
    store, index = FolderStore(tmp_path / "store"), KeyIndex(fingerprint="f")
    index.open(tmp_path, store)
    expected, newest = {}, {}
    for number in range(150):
        path = f"part-{number}"
        # Negative numbers too, and many entries of one key.
        expected[path] = [rng.choice([7, rng.randrange(-200 if are_numbers else 0, 500)]) for _ in range(30)]
        newest[path] = {"s0": number, "s1": None if number % 3 else Decimal(number).scaleb(-2)}
        add(index, {path: expected[path]}, newest, active=lambda: list(expected), are_numbers=are_numbers)
        if number % 5 == 4:
            del expected[rng.choice(sorted(expected))]
            index.retain(expected.keys())
        if number % 40 == 39:
            index.wait()
        wanted = rng.sample(range(-210 if are_numbers else 0, 510), 60)
        assert found(index, wanted, are_numbers=are_numbers) == expected_of(expected, wanted)
    index.wait()
    assert sum(map(len, index._segments)) < 100
    sizes = [len(run.segment) for run in index._runs]
    assert len(sizes) < 3 * key_index.RUNS_OF_A_SIZE
    assert max(sizes) > 400
    assert all(len(run.segment.chunks) > 1 for run in index._runs if len(run.segment) > 200)
    assert index.disk_bytes == sum(sizes) * (16 if are_numbers else 24)
    # Nothing is left on the disk of this process; everything is in the store, once.
    assert list(tmp_path.glob("*.arrow")) == []
    assert sorted(run.stored for run in index._runs) == sorted(path.name for path in store.folder.iterdir())

    after = KeyIndex(fingerprint="f")
    after.open(tmp_path, store, store.load())
    after.retain(expected.keys())
    known = {path: keys for path, keys in expected.items() if after.has(path)}
    assert len(known) > 100
    assert {path: after.newest(path) for path in known} == {path: newest[path] for path in known}
    wanted = list(range(-210 if are_numbers else 0, 510))
    assert found(after, wanted, are_numbers=are_numbers) == expected_of(known, wanted)


def test_files_that_two_stored_runs_have_count_once(small, tmp_path):
    store = FolderStore(tmp_path / "store")
    for paths in ({"a": [1] * 120, "b": [2, 3]}, {"b": [2, 3], "c": [3] * 110}):
        index = KeyIndex(fingerprint="f")
        index.open(tmp_path, store)
        add(index, paths)
        index.wait()
    both = KeyIndex(fingerprint="f")
    both.open(tmp_path, store, store.load())
    assert found(both, [2, 3]) == {(2, "b", 0), (3, "b", 1)} | {(3, "c", row) for row in range(110)}
    probes, files, _ = both.look_up(*entries([2]))
    assert [number in both.paths() for number in files.tolist()].count(True) == len(probes) - 1 == 1


def test_what_is_forgotten_while_a_run_is_written_stays_forgotten(small, tmp_path, monkeypatch):
    index = KeyIndex(fingerprint="f")
    index.open(tmp_path, None)

    def write(*arguments):
        index.retain(["b"])
        return write_run(*arguments)

    monkeypatch.setattr(key_index, "write_run", write)
    add(index, {"a": [1] * 60, "b": [1] * 60})
    index.wait()
    assert len(index._runs) == 1
    assert found(index, [1]) == {(1, "b", row) for row in range(60)}


def test_a_run_of_what_was_indexed_before_is_not_taken_over(small, tmp_path, monkeypatch):
    store, index = FolderStore(tmp_path / "store"), KeyIndex(fingerprint="f")
    index.open(tmp_path, store)

    def write(*arguments):
        written = write_run(*arguments)
        index.clear()
        return written

    monkeypatch.setattr(key_index, "write_run", write)
    add(index, {"a": [1] * 120})
    index.wait()
    assert (len(index), index._runs, list(tmp_path.glob("*.arrow"))) == (0, [], [])


def test_a_disk_that_is_full_costs_memory_and_no_merge(small, tmp_path, monkeypatch, caplog):
    index = KeyIndex(fingerprint="f")
    index.open(tmp_path / "gone", None)
    with caplog.at_level(logging.WARNING, "stream_merge"):
        add(index, {"a": list(range(150))})
        index.wait()
    assert "could not be written" in caplog.text
    assert found(index, [149]) == {(149, "a", 149)}
    assert (index.has_room(99), index.has_room(100)) == (True, False)
    monkeypatch.setattr(key_index, "MEMORY_ROWS", 150)
    assert not index.has_room(1)
    (tmp_path / "gone").mkdir()
    add(index, {"b": [149]})
    assert index.has_room(1)
    index.wait()
    assert len(index._runs) == 1
    assert found(index, [149]) == {(149, "a", 149), (149, "b", 0)}
    no_space = shutil.disk_usage(tmp_path)._replace(free=1000)
    monkeypatch.setattr(shutil, "disk_usage", lambda _: no_space)
    assert index.has_room(99)
    assert not index.has_room(100)


def test_sequences_that_arrow_changes_are_an_error(tmp_path):
    chunk = Chunk.sorted_from(*entries([1]), np.zeros(1, np.int32), np.zeros(1, np.uint32))
    with pytest.raises(ValueError, match="do not survive"):
        write_run(tmp_path / "run", "f", ["a", "b"], [(1, 2), None], [chunk])


@pytest.mark.parametrize("content", [b"", b"no run", b"ARROW1" + bytes(100)])
def test_a_file_that_is_no_run_is_an_error(tmp_path, content):
    path = tmp_path / "run.arrow"
    path.write_bytes(content)
    with pytest.raises(ValueError, match="not a run"):
        runs.map_run(path)


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
    index.reset("table k")
    add(index, {"a": [1]})
    index.reset("table k")
    assert index.has("a")
    index.reset("table j")
    assert not index.has("a")
    assert len(index) == 0


def test_files_are_familiar_when_the_batch_before_asked_for_them_or_they_are_known():
    index = KeyIndex()
    assert index.note_asked(["a", "b"]) == {"a", "b"}
    assert index.note_asked(["a", "b", "c"]) == {"c"}
    add(index, {"a": [1]})
    assert index.note_asked(["d"]) == {"d"}
    assert index.note_asked(["a", "b"]) == {"b"}
    index.reset("another table")
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


@pytest.mark.parametrize("with_runs", [False, True])
def test_room_is_made_by_forgetting_what_the_batch_cannot_match(monkeypatch, tmp_path, with_runs):
    monkeypatch.setattr(key_index, "MAX_ROWS_OF_ALL", 100)
    if with_runs:
        monkeypatch.setattr(key_index, "RUN_ROWS", 50)
    index = KeyIndex()
    index.open(tmp_path, None)
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


def test_many_small_indexes_move_to_disk_what_is_too_much_for_memory_together(monkeypatch, tmp_path):
    gc.collect()  # the indexes of other tests
    monkeypatch.setattr(key_index, "SMALL_RUN_ROWS", 20)
    others = sum(index.num_in_memory for index in key_index._indexes)
    monkeypatch.setattr(key_index, "MEMORY_ROWS_OF_ALL", others + 100)
    indexes = [KeyIndex() for _ in range(8)]
    for number, index in enumerate(indexes):
        index.open(tmp_path, None)
        add(index, {f"file-{number}": list(range(30))})
        index.wait()
    # The fourth would have made it more than 100.
    assert [len(index._runs) for index in indexes] == [0, 0, 0, 1, 1, 1, 1, 1]
    assert all(found(index, [29]) == {(29, f"file-{number}", 29)} for number, index in enumerate(indexes))
    add(indexes[0], {"small": list(range(10))})
    indexes[0].wait()
    assert len(indexes[0]._runs) == 0
    monkeypatch.setattr(key_index, "MEMORY_ROWS_OF_ALL", 45)
    assert not indexes[0].has_room(1)


def test_room_that_cannot_be_made_on_a_full_disk_costs_the_index_and_no_merge(small, monkeypatch, tmp_path):
    index = KeyIndex()
    index.open(tmp_path, None)
    add(index, {"a": list(range(150))})
    index.wait()

    def fail(*_):
        raise OSError("no space left on device")

    monkeypatch.setattr(key_index, "write_run", fail)
    monkeypatch.setattr(key_index, "MAX_ROWS_OF_ALL", 200)
    index.make_room(100, {"a"})
    assert (len(index), index.has("a")) == (0, False)


@pytest.mark.parametrize(("number", "newest"), [(2, [None, None]), (-1, [None, None]), (0, [None])])
def test_a_run_with_entries_of_files_that_it_does_not_name_is_none(tmp_path, number, newest):
    chunk = Chunk.sorted_from(*entries([1]), np.array([number], np.int32), np.zeros(1, np.uint32))
    write_run(tmp_path / "run", "f", ["a", "b"], newest, [chunk])
    with pytest.raises(ValueError, match="does not name"):
        map_run(tmp_path / "run")


def test_a_file_whose_entries_cannot_be_sorted_is_not_indexed(monkeypatch):
    index = KeyIndex()
    add(index, {"a": [1, 2]})

    def no_memory(*_):
        raise MemoryError

    with monkeypatch.context() as patched:
        patched.setattr(key_index.Chunk, "sorted_from", no_memory)
        with pytest.raises(MemoryError):
            add(index, {"b": [3, 4]})
    assert (index.has("a"), index.has("b")) == (True, False)
    add(index, {"b": [3, 4]})
    assert found(index, [2, 3]) == {(2, "a", 1), (3, "b", 0)}


def test_a_folder_that_is_gone_leaves_no_room(tmp_path):
    index = KeyIndex()
    index.open(tmp_path / "gone", FolderStore(tmp_path / "store"), [])
    shutil.rmtree(tmp_path / "gone", ignore_errors=True)
    assert index.has_room(key_index.RUN_ROWS - 1)
    assert not index.has_room(key_index.RUN_ROWS)
