"""What a compaction rewrites, and when there is time for it; no Spark."""

from __future__ import annotations

import json
import random
from typing import Any

import pytest

from stream_merge.maintenance.account import LEAST_BYTES_PER_SECOND, SHARE, Account
from stream_merge.maintenance.policy import MIN_FILES, bins, live_bytes, target_bytes_of, within
from stream_merge.maintenance.upkeep import account_from_log
from stream_merge.table.files import DataFile

KB, MB = 1024, 1024 * 1024


def data_file(
    name: str,
    size: int,
    *,
    rows: int | None = 1000,
    dead: int = 0,
    partition: str | None = None,
    clustered: bool = False,
) -> DataFile:
    add: dict[str, Any] = {"path": name, "size": size, "partitionValues": {} if partition is None else {"p": partition}}
    if rows is not None:
        add["stats"] = json.dumps({"numRecords": rows})
    if dead:
        add["deletionVector"] = {"cardinality": dead}
    if clustered:
        add |= {"clusteringProvider": "liquid", "tags": {"ZCUBE_ID": "1"}}
    return DataFile(add)


def paths(found):
    return [sorted(file.path for file in one.files) for one in found]


def chosen(files, *, work=1e12, **options):
    return paths(bins(files, max_work_bytes=work, **options))


def test_small_files_of_a_tier_become_one_with_the_smaller_ones():
    three = [data_file(name, 100 * KB) for name in "abc"]
    assert chosen(three) == []
    assert chosen([*three, data_file("d", 100 * KB)]) == [["a", "b", "c", "d"]]
    assert chosen([*three, data_file("d", 100 * KB), data_file("e", 2 * KB)]) == [["a", "b", "c", "d", "e"]]
    large = [data_file(name, 2 * MB) for name in "wxyz"]
    assert chosen([*three, *large]) == [["a", "b", "c", "w", "x", "y", "z"]]


def test_a_large_file_is_not_rewritten_for_each_small_one():
    files = [data_file("large", 50 * MB), *(data_file(name, 100 * KB) for name in "abcd")]
    assert chosen(files) == [["a", "b", "c", "d"]]
    assert chosen([data_file(str(n), 64 * MB) for n in range(9)]) == []


def test_a_file_with_many_deleted_rows_is_rewritten_alone():
    files = [
        data_file("few", 100 * MB, dead=150),
        data_file("many", 100 * MB, dead=300),
        data_file("unknown", 100 * MB, rows=None, dead=1),
    ]
    assert chosen(files) == [["unknown"], ["many"]]


def test_a_large_file_with_deleted_rows_does_not_wait_for_ever_behind_small_ones():
    small = [data_file(name, 200 * KB) for name in "abcdefgh"]
    for dead, expected in ((300, [[*"abcdefgh"], ["large"]]), (600, [["large"], [*"abcdefgh"]])):
        files = [data_file("large", 10 * MB, dead=dead), *small, data_file("whole", 5 * MB)]
        assert chosen(files, work=4 * MB) == expected
    # More than so many do not wait, however few of them one compaction merges, unless they are few for the table.
    many = [data_file(f"s{n:02}", 200 * KB) for n in range(50)]
    dead = [data_file("large", 1000 * MB, dead=600), data_file("whole", 500 * MB)]
    assert chosen([data_file("large", 10 * MB, dead=600), *many], work=4 * MB)[0] == [f"s{n:02}" for n in range(10)]
    assert chosen([*dead, *many], work=4 * MB)[0] == ["large"]


def test_deleted_rows_go_with_the_small_files_that_have_them():
    files = [data_file(name, 100 * KB, dead=500) for name in "abcd"]
    assert chosen(files) == [["a", "b", "c", "d"]]
    assert chosen(files[:2]) == [["a", "b"]]
    assert chosen([*files[:2], *(data_file(name, 2 * KB) for name in "wxyz")]) == [["a", "b", "w", "x", "y", "z"]]
    assert chosen(files, work=350 * KB) == [["a", "b", "c", "d"]]
    assert chosen(files[:3], work=350 * KB) == [["a", "b"], ["c"]]
    assert chosen(files, merges_small=False) == [["a"], ["b"], ["c"], ["d"]]


def test_partitions_are_not_mixed():
    files = [data_file(f"{p}{n}", 100 * KB, partition=p) for p in "xy" for n in range(MIN_FILES)]
    assert sorted(chosen([*files, data_file("z0", KB, partition="z")])) == [
        ["x0", "x1", "x2", "x3"],
        ["y0", "y1", "y2", "y3"],
    ]


def test_clustered_files_keep_to_themselves():
    files = [data_file(str(n), 100 * KB, clustered=True) for n in range(8)]
    assert chosen(files) == []
    assert chosen([*files, data_file("dead", 100 * KB, dead=400, clustered=True)]) == [["dead"]]


def test_a_bin_is_as_large_as_a_file_may_be_and_as_there_is_time_for():
    files = [data_file(f"{n:02}", 10 * MB) for n in range(40)]
    assert [len(one) for one in chosen(files, target_bytes=128 * MB)] == [12]
    assert [len(one) for one in chosen(files, target_bytes=128 * MB, work=130 * MB)] == [6]
    # It waits until there is time for as many as make a file of the next tier.
    assert [len(one) for one in chosen(files, target_bytes=128 * MB, work=1)] == [MIN_FILES]


def test_what_saves_readers_most_for_its_cost_comes_first():
    small = [data_file(f"small{n}", 10 * KB) for n in range(20)]
    dead = [data_file("half", 200 * MB, dead=500), data_file("third", 200 * MB, dead=333)]
    found = bins([*small, *dead, data_file("whole", 600 * MB)], max_work_bytes=1e12)
    assert [len(one.files) for one in found] == [20, 1, 1]
    assert [found[1].files[0].path, found[2].files[0].path] == ["half", "third"]
    worths = [one.worth for one in found]
    assert worths == sorted(worths, reverse=True)


def test_a_large_piece_waits_until_it_was_saved_up():
    found = bins([data_file("half", 100 * MB, dead=500)], max_work_bytes=1)
    account = Account()
    while not account.is_due:
        account.merged(0.5)
    assert within(found, account.cost, piece=account.piece_seconds, balance=account.balance) == []
    for _ in range(500):
        account.merged(0.5)
    assert within(found, account.cost, piece=account.piece_seconds, balance=account.balance) == found


def test_further_bins_do_not_make_a_piece_longer():
    found = bins([data_file(f"f{n}", 4 * MB, dead=500) for n in range(3)], max_work_bytes=1, merges_small=False)
    assert len(within(found, lambda work: work / MB, piece=13, balance=1000)) == 2
    assert len(within(found, lambda work: work / MB, piece=1, balance=1000)) == 1
    assert within(found, lambda work: work / MB, piece=1, balance=5) == []


@pytest.mark.parametrize(
    ("text", "expected"),
    [("64mb", 64 * MB), ("1g", 1024 * MB), ("4096", 4096), ("32 MiB", 32 * MB), ("", 128 * MB), ("much", 128 * MB)],
)
def test_the_size_of_a_file_is_the_tables(text, expected):
    assert target_bytes_of({"delta.targetFileSize": text} if text else {}) == expected


class TestAccount:
    def test_maintenance_gets_a_share_of_the_time_of_the_merges(self):
        account, spent = Account(), 0.0
        for _ in range(1000):
            account.merged(0.4)
            if account.is_due:
                account.maintained(0.7, 1e6)
                spent += 0.7
        assert SHARE * 0.8 < spent / (1000 * 0.4) <= SHARE

    def test_what_took_longer_than_expected_is_paid_later(self):
        account = Account()
        for _ in range(21):
            account.merged(1.0)
        assert account.is_due
        account.maintained(30.0)
        for _ in range(290):
            account.merged(1.0)
        assert not account.is_due
        for _ in range(16):
            account.merged(1.0)
        assert account.is_due

    def test_the_cost_is_learnt_from_what_was_measured(self):
        account = Account()
        before = account.cost(100e6)
        account.maintained(60.0, 50e6)
        assert account.cost(100e6) == before, "the first piece, which compiles what all others use, says little"
        account.maintained(10.0, 50e6)
        assert before < account.cost(100e6) == pytest.approx(20.0)
        assert account.affordable_bytes(account.cost(7e6)) == pytest.approx(7e6)

    def test_fixed_costs_that_are_larger_than_thought_do_not_make_pieces_smaller_and_smaller(self):
        account = Account()
        for _ in range(2000):
            account.merged(1.0)
            if account.is_due:
                work = account.affordable_bytes(account.piece_seconds)
                account.maintained(2.0 + work / 20e6, work)
        assert account.affordable_bytes(account.piece_seconds) == pytest.approx(0.7 * LEAST_BYTES_PER_SECOND)

    def test_one_slow_batch_does_not_put_maintenance_off(self):
        account = Account()
        account.merged(20.0)
        for _ in range(4):
            account.merged(0.5)
        assert account.is_due

    def test_the_account_of_an_earlier_process_is_in_the_log(self):
        def commit(ms, **metrics):
            return [{"commitInfo": {"operationMetrics": {"executionTimeMs": str(ms), **metrics}}}]

        own = {"numSupersededRows": "0"}
        log = [commit(9000, **own), [{"commitInfo": {"operationMetrics": {"maintenanceTimeMs": "700"}}}]]
        log += [commit(1000, **own) for _ in range(21)] + [commit(70_000), [{"add": {}}]]
        account = account_from_log(log.__getitem__, len(log) - 1)
        assert account.balance == pytest.approx(2.1)
        assert account.is_due

        def gone(_):
            raise FileNotFoundError

        assert account_from_log(gone, 7).balance == 0


def test_hundreds_of_batches_leave_few_files_and_few_deleted_rows():
    """The goal, played with a machine of which the speed is known: half a second a batch, 20 MB a second."""
    rng, account = random.Random(5), Account()
    files: dict[str, list[int]] = {"f": [200_000, 200_000]}
    written = spent = 0.0
    longest = 0.0
    for number in range(500):
        for _ in range(250):
            # Ten live rows of the table, each as likely, are updated.
            name = rng.choices(list(files), [live for _, live in files.values()])[0]
            files[name][1] -= min(10, files[name][1])
        files = {name: counts for name, counts in files.items() if counts[1]}
        files[f"b{number}"] = [5000, 5000]
        account.merged(0.5)
        if not account.is_due:
            continue
        adds = [data_file(name, 25 * n, rows=n, dead=n - live) for name, (n, live) in files.items()]
        found = bins(adds, max_work_bytes=account.affordable_bytes(account.piece_seconds))
        for one in (taken := within(found, account.cost, piece=account.piece_seconds, balance=account.balance)):
            live = sum(files.pop(file.path)[1] for file in one.files)
            files[f"c{number}{one.files[0].path}"] = [live, live]
            written += live
        if taken:
            work = sum(one.work_bytes for one in taken)
            seconds = 0.35 + work / 20e6
            account.maintained(seconds, work)
            spent, longest = spent + seconds, max(longest, seconds)
    rows = sum(n for n, _ in files.values())
    assert 1 - sum(live for _, live in files.values()) / rows <= 0.2
    assert len(files) <= 40
    assert longest <= 1.5
    assert spent <= SHARE * 500 * 0.5
    assert written <= 3 * 500 * 5000


def test_rewriting_for_size_is_bounded_by_the_tiers():
    files = {f"b{n}": n for n in range(4096)}
    sizes, rewrites, most = {}, {}, 0
    for name in files:
        sizes[name], rewrites[name] = 10 * KB, 0
        adds = [data_file(path, size) for path, size in sizes.items()]
        for one in bins(adds, max_work_bytes=1e12):
            new = "c" + name
            rewrites[new] = 1 + max(rewrites[file.path] for file in one.files)
            sizes[new] = sum(int(live_bytes(file)) for file in one.files)
            most = max(most, rewrites[new])
            for file in one.files:
                del sizes[file.path]
    assert sum(sizes.values()) == 4096 * 10 * KB
    assert most <= 7
    assert len(sizes) <= 3 * 8
