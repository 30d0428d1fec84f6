"""How many records a micro-batch may have, by how long those before it took."""

import json
from datetime import timedelta

import pytest

from stream_merge.bridge.read_limit import limit_rows
from stream_merge.cli.run.batch_size import LARGEST, SMALLEST, BatchSize
from stream_merge.cli.run.offsets import records_behind, records_read


def report(*sources, seconds=1.0):
    """Return the report of a micro-batch; each source is its start, end and latest offsets."""
    names = ("startOffset", "endOffset", "latestOffset")
    return {
        "durationMs": {"triggerExecution": int(seconds * 1000)},
        "numInputRows": 3,
        "sources": [dict(zip(names, offsets, strict=True)) for offsets in sources],
    }


def read(num_records, seconds, *, behind=10_000_000):
    return report(
        ({"t": {"0": 500}}, {"t": {"0": 500 + num_records}}, {"t": {"0": 500 + num_records + behind}}), seconds=seconds
    )


def sizes(reports, trigger=timedelta(seconds=10)):
    """Return the size after each report."""
    size = BatchSize(trigger)
    found = []
    for each in reports:
        before = size.num_records
        assert size.adapt(each) is (size.num_records != before)
        found.append(size.num_records)
    return found


def test_offsets():
    progress = report(
        ({"a": {"0": 5, "1": 0}, "b": {"0": 7}}, {"a": {"0": 9, "1": 2}, "b": {"0": 7}}, {"a": {"0": 9, "1": 10}}),
        (json.dumps({"c": {"0": 1}}), json.dumps({"c": {"0": 2}}), json.dumps({"c": {"0": 2}, "d": {"0": 4}})),
    )
    assert records_read(progress) == 4 + 2 + 0 + 1
    assert records_behind(progress) == {"a": 8, "c": 0, "d": 4}


@pytest.mark.parametrize(
    "start", [None, {}, {"a": {"0": 5}}, {"b": {"0": 5}}, "no JSON"], ids=["none", "no topic", "new", "other", "text"]
)
def test_what_began_at_an_unknown_offset_is_not_counted(start):
    progress = report((start, {"a": {"0": 9, "1": 3}}, {"a": {"0": 9, "1": 30}}))
    assert records_read(progress) is None
    assert records_behind(progress) == {"a": 27}
    assert sizes([progress]) == [SMALLEST]


@pytest.mark.parametrize("offset", [0, "0", None, {"logOffset": 3}])
def test_sources_without_offsets_of_topics(offset):
    progress = report((offset, offset, offset))
    assert records_read(progress) is None
    assert records_behind(progress) == {}
    assert sizes([progress]) == [SMALLEST]


def test_it_doubles_while_micro_batches_end_early():
    reports = [read(50_000, 4), read(100_000, 9.9), read(200_000, 10), read(200_000, 30)]
    assert sizes(reports) == [100_000, 200_000, 200_000, 200_000]


def test_it_ends_at_the_largest_and_the_smallest():
    grown = [read(min(LARGEST, 50_000 * 2**step), 1) for step in range(6)]
    assert sizes(grown)[-2:] == [LARGEST, LARGEST]
    shrunk = [read(max(SMALLEST, LARGEST // 2**step), 31) for step in range(6)]
    assert sizes(grown + shrunk)[-6:] == [500_000, 250_000, 125_000, 62_500, SMALLEST, SMALLEST]


def test_several_micro_batches_of_one_size_change_it_once():
    """Some are planned before the change is known."""
    assert sizes([read(50_000, 1)] * 4) == [100_000] * 4
    assert sizes([read(200_000, 1)] + [read(400_000, 31)] * 3)[1:] == [200_000] * 3


def test_a_micro_batch_that_left_nothing_behind_tells_nothing():
    assert sizes([read(50_000, 1, behind=0), read(20, 100, behind=0), read(0, 0.1)]) == [SMALLEST] * 3
    assert sizes([{"durationMs": {}, "sources": read(50_000, 1)["sources"]}]) == [SMALLEST]


def test_a_longer_trigger_is_the_target():
    """A pipeline that is behind does not wait for the next trigger."""
    reports = [read(50_000, 59), read(100_000, 61), read(100_000, 179), read(100_000, 181)]
    assert sizes(reports, timedelta(minutes=1)) == [100_000, 100_000, 100_000, 50_000]
    assert sizes([read(50_000, 9)], timedelta(0)) == [100_000]


def test_the_limit_of_a_running_query(spark, create_table, tmp_path):
    path = create_table("id INT", [(1,)])
    stream = spark.readStream.format("delta").load(path)
    query = stream.writeStream.foreachBatch(lambda *_: None).option("checkpointLocation", str(tmp_path / "c")).start()
    try:
        query.processAllAvailable()
        assert limit_rows(spark, query, 123_456)
        limits = query._jsq.streamingQuery().uniqueSources()
        assert limits.size() == 1
        assert limits.head()._2().maxRows() == 123_456
    finally:
        query.stop()


def test_a_query_whose_limit_cannot_be_changed(spark):
    assert not limit_rows(spark, object(), 5)
