"""Topics that were made anew under a pipeline, told by the ids that a checkpoint keeps; on a real Kafka in
tests/end_to_end."""

import json
from contextlib import suppress

import pytest

from stream_merge.cli.errors import ExitCode, PipelineError, StopNow
from stream_merge.cli.file.pipeline import KafkaSource
from stream_merge.cli.query.sources import kafka_stream_options
from stream_merge.cli.query.topics import FILE, ReadTopics, client_options, watched_topics


@pytest.fixture
def checkpoint(tmp_path):
    """Return the folder of a checkpoint with two batches, of one topic and of two."""
    folder = tmp_path / "checkpoint"
    (folder / "offsets").mkdir(parents=True)
    for batch_id, topics in enumerate((["orders"], ["orders", "items"])):
        offsets = {topic: {"0": 5} for topic in topics}
        (folder / "offsets" / str(batch_id)).write_text(f'v1\n{{"batchWatermarkMs":0}}\n{json.dumps(offsets)}')
    return folder


def test_a_topic_that_was_made_anew_is_refused(spark, checkpoint):
    ids = {"orders": "A", "items": "B", "visits": "C"}
    asked = []

    def read_ids(topics):
        asked.append(topics)
        return {topic: ids[topic] for topic in topics if topic in ids}

    def opened():
        return ReadTopics(spark, f"{checkpoint}/", read_ids)

    topics = opened()
    assert topics.made_anew([]) == []
    topics.check_batch(0)
    assert json.loads((checkpoint / FILE).read_text()) == {"orders": "A"}
    ids["items"] = "D"  # before the first batch that reads it
    topics.check_batch(1)
    kept = (checkpoint / FILE).read_text()
    assert json.loads(kept) == {"orders": "A", "items": "D"}
    assert asked == [[], ["orders"], ["items", "orders"]]

    ids["items"] = "E"
    with pytest.raises(PipelineError, match="The topic items was deleted and recreated") as caught:
        topics.check_batch(1)
    assert caught.value.exit_code is ExitCode.FAILED
    assert opened().made_anew([]) == opened().made_anew(["items", "visits"]) == ["items"]
    assert opened().made_anew(["orders"]) == [], "the pipeline reads the other one no more"
    # One that is gone is Spark's to tell.
    del ids["items"]
    opened().check_batch(1)
    assert (checkpoint / FILE).read_text() == kept


def test_what_cannot_be_read_keeps_no_pipeline_from_running(spark, checkpoint):
    topics = ReadTopics(spark, str(checkpoint), lambda _: {})
    topics.check_batch(1)
    topics.check_batch(7)
    assert not (checkpoint / FILE).exists()
    (checkpoint / FILE).write_text('{"orders": ')
    assert ReadTopics(spark, str(checkpoint), lambda topics: dict.fromkeys(topics, "Z")).made_anew([]) == []


def test_a_client_that_cannot_be_had_tells_no_ids(spark):
    """The session of the tests has no connector, so no client either."""
    from stream_merge.bridge.kafka_topics import TopicIds

    ids = TopicIds(spark, {"bootstrap.servers": "127.0.0.1:1"})
    assert ids.read(["orders"]) == {}
    ids.close()


def test_the_client_is_closed_but_where_the_process_ends_at_once(spark, make_pipeline, monkeypatch):
    """The JVM may still be busy with the call that the second signal came into."""
    closed = []
    monkeypatch.setattr("stream_merge.bridge.kafka_topics.TopicIds.close", lambda _: closed.append(True))
    for error in (None, ValueError(), StopNow(2)):
        with suppress(ValueError, StopNow), watched_topics(spark, make_pipeline()):
            if error is not None:
                raise error
    assert closed == [True, True]


def test_the_client_has_the_options_of_the_source():
    source = KafkaSource(
        format="kafka",
        bootstrap_servers="localhost:9092",
        topics=["orders"],
        options={"kafka.security.protocol": "SSL", "Kafka.ssl.truststore.password": "x", "minPartitions": "8"},
    )
    assert client_options(source) == {
        "bootstrap.servers": "localhost:9092",
        "security.protocol": "SSL",
        "ssl.truststore.password": "x",
    }


def test_a_task_reads_so_many_records_unless_the_file_says_otherwise(make_pipeline):
    def division(**options):
        source = {"format": "kafka", "bootstrap_servers": "b:9092", "topics": ["orders"], "options": options}
        found = kafka_stream_options(make_pipeline(source).source)
        return {name: value for name, value in found.items() if "Partition" in name or "partition" in name}

    assert division() == {"maxRecordsPerPartition": "10000"}
    assert division(minpartitions="8") == {"minpartitions": "8"}
    assert division(maxRecordsPerPartition="7") == {"maxRecordsPerPartition": "7"}
