"""`quarantine replay`: the records of quarantined rows are read again, and merged by their sequence."""

from itertools import pairwise

import pytest

from stream_merge.cli.errors import PipelineError
from stream_merge.cli.query.sources import OffsetRange
from stream_merge.cli.run import replay as module
from stream_merge.cli.run.replay import Request, find_ranges, replay
from tests.cli.test_learnt_keys import land  # noqa: F401 - a fixture
from tests.debezium.records import envelope, record

STRICT, LOOSE = {"expect": {"known": "state IN ('a', 'b')"}}, {"expect": {"known": "state <> 'x'"}}
TOPIC = "shop.public.t"
EVERYTHING = Request()


def sent(offset, key, state, op="u"):
    after = None if op == "d" else {"id": key, "state": state}
    lsn = {"connector": "postgresql", "snapshot": "false", "lsn": 100 + offset}
    return record({"id": key}, envelope(op, after, {"id": key}, **lsn), offset)


@pytest.fixture
def shop(spark, run_pipeline, land, make_pipeline, tmp_path):  # noqa: F811 - the fixture
    """A pipeline into one table with a quarantine."""

    class Shop:
        target, quarantine = f"{tmp_path}/lake/it's", f"{tmp_path}/lake/rejected"
        source = None
        decode = "debezium"

        def table(self, **options):
            table = {"target": self.target, "keys": ["id"], "columns": "id INT, state STRING", **options}
            return {"quarantine": self.quarantine, **table}

        def run(self, *records, **options):
            self.source = land(*records)
            return run_pipeline(self.source, self.table(**options), decode=self.decode)

        def replay(self, request=EVERYTHING, **options):
            pipeline = make_pipeline(self.source, self.table(**options), decode=self.decode)
            return [str(each).replace(str(tmp_path), ".") for each in replay(spark, pipeline, request)]

        def rows(self):
            return {row["id"]: row["state"] for row in spark.read.format("delta").load(self.target).collect()}

        def rejected(self):
            rows = spark.read.format("delta").load(self.quarantine).orderBy("offset").collect()
            return [(row["offset"], row["reason"]) for row in rows]

    return Shop()


def test_the_sequence_decides_between_replayed_rows_and_newer_ones(shop, monkeypatch):
    shop.run(
        sent(1, 1, "c"),
        sent(2, 2, "c"),
        sent(3, 2, "a"),
        sent(4, 3, "c"),
        sent(5, 3, None, "d"),
        record({"id": 9}, b"{broken", 6),
        record({"id": 4}, envelope("u", {"id": 4, "state": "x"}, lsn=107), 7),
        **STRICT,
    )
    before = shop.rejected()
    assert shop.rows() == {2: "a"}
    assert [offset for offset, _ in before] == [1, 2, 4, 6, 7]
    assert shop.replay(Request(is_dry=True), **LOOSE) == [
        "./lake/it's: 5 rows in ./lake/rejected; 5 records can be read again."
    ]
    assert (shop.rows(), shop.rejected()) == ({2: "a"}, before)

    # The target is spelled otherwise, as the file is edited.
    (dry,) = shop.replay(Request(is_dry=True), target=shop.target.replace("/lake/", "/lake/./"), **LOOSE)
    assert dry.endswith("5 rows in ./lake/rejected; 5 records can be read again.")

    # The process dies after the merge: the rows are merged and set aside anew, and the old ones are there yet.
    with monkeypatch.context() as patched:
        patched.setattr(module, "_remove", lambda *_: 1 / 0)
        with pytest.raises(PipelineError, match="division by zero"):
            shop.replay(**LOOSE)
    assert shop.rows() == {1: "c", 2: "a"}
    assert [offset for offset, _ in shop.rejected()] == [1, 2, 4, 6, 6, 7, 7]

    assert shop.replay(**LOOSE) == [
        "./lake/it's: 7 rows in ./lake/rejected; 5 records were read again: 0 inserted, 1 updated, 0 deleted, "
        "2 set aside again."
    ]
    assert shop.rows() == {1: "c", 2: "a"}
    assert shop.rejected() == [each for each in before if each[0] > 5]


def test_only_what_is_asked_for(shop, make_pipeline, spark, tmp_path):
    shop.run(sent(1, 1, "c"), sent(2, "nine", "a"), **STRICT)
    reason = "expectation known failed"
    own, other = (f"('{reason}', {name}, now(), " for name in (f'"{shop.target}"', f"'{tmp_path}/lake/other'"))
    spark.sql(
        f"INSERT INTO delta.`{shop.quarantine}` (reason, target, quarantined_at, topic, `partition`, `offset`) VALUES "
        # Of another table; of a record that the source does not have any more; of a source without offsets.
        f"{other}'{TOPIC}', 0, 2L), {own}'{TOPIC}', 0, 77L), {own}NULL, NULL, NULL)"
    )

    def refusal(request=EVERYTHING, source=None, **options):
        pipeline = make_pipeline(source or shop.source, shop.table(**options), decode=shop.decode)
        with pytest.raises(PipelineError) as found:
            list(replay(spark, pipeline, request))
        return str(found.value).replace(str(tmp_path), ".")

    assert refusal(Request(table="./lake/orders")) == "The file has no table ./lake/orders; it has ./lake/it's."
    assert refusal(quarantine=None) == "./lake/it's: has no quarantine."
    assert "single_writer" in refusal(single_writer=True)
    feed = {"format": "delta", "table": "./bronze"}
    assert refusal(source=feed).startswith('source.format = "delta" has no records with topic, partition and offset')
    nowhere = {**shop.source, "schema": "key BINARY, value BINARY, topic STRING"}
    assert refusal(source=nowhere).startswith("The source has no column offset, partition")
    # Without a sequence an old row could replace a new one.
    shop.decode = "json"
    assert "has no sequence_by" in refusal()
    shop.decode = "debezium"
    assert [offset for offset, _ in shop.rejected()] == [None, 1, 2, 2, 77]

    assert shop.replay(Request(reason=reason), **LOOSE) == [
        "./lake/it's: 3 rows in ./lake/rejected; 1 records were read again: 1 inserted, 0 updated, 0 deleted, 0 set "
        "aside again; the source has 1 records no more, and their rows stay; 1 rows do not tell topic, partition and "
        "offset, and stay."
    ]
    assert shop.rows() == {1: "c"}
    assert [offset for offset, _ in shop.rejected()] == [None, 2, 2, 77]
    assert shop.replay(Request(reason="unheard of")) == ["./lake/it's: no such rows in ./lake/rejected."]

    # By now all records lead to another table; then back to this one, where all are set aside again.
    elsewhere = shop.table(source=TOPIC, target=f"{tmp_path}/lake/else"), shop.table(source="none")
    pipeline = make_pipeline(shop.source, *elsewhere, decode=shop.decode, pipeline={"route_by": "topic"})
    (_, stays) = map(str, replay(spark, pipeline, EVERYTHING))
    assert "1 of them do not lead to this table any more, and their rows stay" in stays
    assert [offset for offset, _ in shop.rejected()] == [None, 2, 2, 77]
    assert "1 set aside again" in shop.replay(max_quarantined_share=0.1, **LOOSE)[0]
    assert [offset for offset, _ in shop.rejected()] == [None, 2, 2, 77]
    assert shop.rows() == {1: "c"}


def test_ranges_hold_all_offsets_and_few_others(spark):
    wide = [(TOPIC, 1, 20_000 * number) for number in range(30)]
    rows = [("a", 0, 5), ("a", 0, 10_005), ("a", 0, 10_006), ("a", 0, 30_000), ("b", 0, 7), *wide]
    ranges = find_ranges(spark.createDataFrame(rows, "topic STRING, partition INT, offset BIGINT"))
    assert [each for each in ranges if each.topic != TOPIC] == [
        OffsetRange(topic="a", partition=0, first=5, last=10_006),
        OffsetRange(topic="a", partition=0, first=30_000, last=30_000),
        OffsetRange(topic="b", partition=0, first=7, last=7),
    ]
    wide_ranges = [each for each in ranges if each.topic == TOPIC]
    assert len(wide_ranges) == 20
    assert {offset for _, _, offset in wide} <= {n for each in wide_ranges for n in (each.first, each.last)} | {
        n for each in wide_ranges for n in range(each.first, each.last, 20_000)
    }
    assert all(one.last < other.first for one, other in pairwise(wide_ranges))
