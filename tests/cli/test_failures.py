"""What is said of the failure of a query, and whether it is tried again."""

import pytest
from pyspark.errors import StreamingQueryException

from stream_merge.cli.errors import ExitCode, PipelineError
from stream_merge.cli.query.failures import describe
from stream_merge.cli.query.sources import read_stream
from stream_merge.errors import (
    CommitConflictError,
    ConfigError,
    MergeExecutionError,
    NullKeyError,
    RouterError,
    SchemaMismatchError,
    TargetNotFoundError,
    UnknownSourceError,
    UnresolvedColumnError,
)


class JvmError(Exception):
    """An error of PySpark: its text is that of the JVM's exception."""


def raised_from(error, cause):
    error.__cause__ = error.__context__ = cause
    return error


def test_errors_that_say_so_are_retried():
    failure = describe(CommitConflictError("./t: batch 3", 10, "ConcurrentAppendException"))
    assert failure.is_retriable
    assert failure.sentence.startswith("./t: batch 3: the commit conflicted with other writers 10 time(s)")


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        (
            "org.apache.kafka.common.errors.TimeoutException: Timed out waiting for a node assignment. Call: "
            "describeTopics",
            "Kafka does not answer: Timed out waiting for a node assignment. Call: describeTopics.",
        ),
        (
            "java.util.concurrent.TimeoutException: Cannot fetch record for offset 5 in 120000 milliseconds",
            "Kafka does not answer: Cannot fetch record for offset 5 in 120000 milliseconds.",
        ),
        (
            "java.io.FileNotFoundException: /lake/orders/part-0.parquet (Permission denied)",
            "Storage cannot be read or written: /lake/orders/part-0.parquet (Permission denied).",
        ),
        (
            "java.io.IOException: No space left on device\n\tat java.base/sun.nio.ch.Write(Native)\nDriver stacktrace:",
            "Storage cannot be read or written: No space left on device.",
        ),
        (
            "java.nio.file.AccessDeniedException: s3a://lake/orders: getFileStatus: Forbidden (Service: S3, Status "
            "Code: 403)",
            "Storage cannot be read or written: s3a://lake/orders: getFileStatus: Forbidden (Service: S3, Status "
            "Code: 403).",
        ),
        (
            "java.net.ConnectException: Connection refused",
            "Storage cannot be read or written: Connection refused.",
        ),
        (
            "org.apache.hadoop.fs.ParentNotDirectoryException: Parent path is not a directory: file:/lake",
            "Storage cannot be read or written: Parent path is not a directory: file:/lake.",
        ),
    ],
)
def test_a_broker_or_storage_that_is_away_is_retried(text, sentence):
    for error in (
        JvmError(text),
        raised_from(MergeExecutionError("Job aborted."), JvmError(text)),
        RouterError("router: batch 1", {"a": raised_from(MergeExecutionError("Job aborted."), JvmError(text))}, []),
    ):
        failure = describe(error)
        assert failure.is_retriable
        assert failure.sentence == sentence


@pytest.mark.parametrize(
    ("text", "begins", "exit_code"),
    [
        (
            "org.apache.spark.SparkException: [KAFKA_DATA_LOSS.COULD_NOT_READ_OFFSET_RANGE] Cannot read offsets 5 to "
            "9.",
            "Kafka has dropped records before the pipeline read them, or the topic was recreated, and the pipeline "
            "does not skip records: ",
            ExitCode.FAILED,
        ),
        (
            "org.apache.spark.SparkException: [KAFKA_DATA_LOSS.COULD_NOT_READ_OFFSET_RANGE] Some data may have "
            "been lost because they "
            "are not available in Kafka any more; either the data was aged out by Kafka or the topic may have been "
            "deleted. If you don't want your streaming query to fail on such cases, set the source option "
            "failOnDataLoss to false.\nReason: Could not read records in offset [5, 9) for topic partition orders-0.",
            "Kafka has dropped records before the pipeline read them, or the topic was recreated, and the pipeline "
            "does not skip records: Could not read records in offset [5, 9) for topic partition orders-0. Give the "
            "topic a longer retention.",
            ExitCode.FAILED,
        ),
        (
            "java.lang.IllegalStateException: Partition orders-0's offset was changed from 9 to 2, some data may have "
            "been missed.",
            "Kafka has dropped records before the pipeline read them",
            ExitCode.FAILED,
        ),
        (
            "org.apache.kafka.common.errors.UnknownTopicOrPartitionException: This server does not host this "
            "topic-partition.",
            "A topic of [source] does not exist: create it, or correct topics.",
            ExitCode.CANNOT_START,
        ),
        (
            "org.apache.kafka.common.errors.SaslAuthenticationException: Authentication failed",
            "Kafka refuses access: ",
            ExitCode.CANNOT_START,
        ),
        (
            "java.lang.IllegalStateException: [KAFKA_DATA_LOSS.ADDED_PARTITION_DOES_NOT_START_FROM_OFFSET_ZERO] Some "
            "data may have been lost because they are not available in Kafka any more; [...] Reason: Added partition "
            "items-0 starts from 120 instead of 0.",
            "Kafka had dropped records of a topic or partition before the pipeline first read it, and the pipeline "
            "does not skip them: Added partition items-0 starts from 120 instead of 0. Give the topic a pipeline of "
            "its own ",
            ExitCode.FAILED,
        ),
        (
            "java.nio.file.AccessDeniedException: s3a://lake/orders: "
            "org.apache.hadoop.fs.s3a.auth.NoAuthWithAWSException: No AWS Credentials provided by "
            "TemporaryAWSCredentialsProvider",
            "Storage refuses the login: s3a://lake/orders: ",
            ExitCode.CANNOT_START,
        ),
        (
            "java.nio.file.AccessDeniedException: s3a://lake/orders: getFileStatus on s3a://lake/orders: "
            "software.amazon.awssdk.services.s3.model.S3Exception: The AWS Access Key Id you provided does not "
            "exist in our records. "
            "(Service: S3, Status Code: 403, Request ID: 1):InvalidAccessKeyId",
            "Storage refuses the login: s3a://lake/orders: getFileStatus on s3a://lake/orders: ",
            ExitCode.CANNOT_START,
        ),
        (
            "com.amazonaws.services.s3.model.AmazonS3Exception: The request signature we calculated does not "
            "match (Service: Amazon "
            "S3; Status Code: 403; Error Code: SignatureDoesNotMatch)",
            "Storage refuses the login: The request signature we calculated does not match",
            ExitCode.CANNOT_START,
        ),
        (
            "java.lang.IllegalArgumentException: java.net.URISyntaxException: Relative path in absolute URI: "
            "lake:orders",
            "An address in the pipeline file is not valid: Relative path in absolute URI: lake:orders. Correct it.",
            ExitCode.USAGE,
        ),
        (
            "java.net.MalformedURLException: unknown protocol: s4",
            "An address in the pipeline file is not valid: unknown protocol: s4. Correct it.",
            ExitCode.USAGE,
        ),
        (
            "org.apache.spark.SparkIllegalArgumentException: CSV header does not conform to the schema.\n Header: "
            "name, id\n Schema: id, name\nExpected: id but found: name\nCSV file: file:///landing/1.csv",
            "A CSV file has other columns in its header than schema in [source], or has them in another order: CSV "
            "header does not conform to the schema. Header: name, id Schema: id, name Expected: id but found: name CSV "
            "file: file:///landing/1.csv. Correct the file, or schema if all files are like that; ",
            ExitCode.FAILED,
        ),
        (
            "org.apache.spark.SparkIllegalArgumentException: Number of column in CSV header is not equal to number of "
            "fields in the schema:\n Header length: 1, schema size: 2\nCSV file: file:///landing/1.csv",
            "A CSV file has other columns in its header than schema in [source], or has them in another order: ",
            ExitCode.FAILED,
        ),
        ("java.lang.OutOfMemoryError: Java heap space", "Spark is out of memory: ", ExitCode.FAILED),
    ],
)
def test_what_would_fail_again_is_not_retried(text, begins, exit_code):
    failure = describe(JvmError(text))
    assert not failure.is_retriable
    assert failure.sentence.startswith(begins)
    assert failure.exit_code is exit_code


def test_a_table_that_is_missing_keeps_the_pipeline_from_starting():
    failure = describe(TargetNotFoundError("./lake/orders: there is no Delta table"))
    assert (failure.is_retriable, failure.exit_code) == (False, ExitCode.CANNOT_START)


@pytest.mark.parametrize(
    ("error", "sentence", "exit_code"),
    [
        (
            TargetNotFoundError("./t is not a Delta table. Create it first, or set create_if_missing=True."),
            "./t is not a Delta table. Create it first, or set create_if_missing = true for this table.",
            ExitCode.CANNOT_START,
        ),
        (
            UnknownSourceError("router: batch 0", {"visits": 2, None: 1}),
            "No table takes 'visits' (2 row(s)), NULL (1 row(s)), so nothing of this micro-batch was merged: add a "
            "[[tables]] with "
            'this source, or set unknown = "ignore" in [pipeline].',
            ExitCode.FAILED,
        ),
        (
            RouterError("router: batch 0", {"orders": ConfigError(["key 'x' is not among the columns id"])}, ["..."]),
            "orders: key 'x' is not among the columns id. Correct the pipeline file.",
            ExitCode.USAGE,
        ),
        (UnresolvedColumnError("./t: keys names x."), "./t: keys names x.", ExitCode.USAGE),
        (
            UnresolvedColumnError(
                "./t: keys names x, and the source has no such column. Name some of those that it has: a, _change."
            ),
            "./t: keys names x, and the source has no such column. Name some of those that it has: a.",
            ExitCode.USAGE,
        ),
    ],
)
def test_errors_of_the_library_are_told_in_the_words_of_the_file(error, sentence, exit_code):
    failure = describe(error)
    assert (failure.sentence, failure.exit_code, failure.is_retriable) == (sentence, exit_code, False)


def test_rows_that_speak_of_storage_are_no_failure_of_storage():
    error = SchemaMismatchError("the value 'java.io.IOException: No space left on device' is no INT")
    assert not describe(error).is_retriable
    assert describe(error).sentence == str(error)


def test_one_table_that_would_fail_again_decides_for_all():
    away = raised_from(MergeExecutionError("x"), JvmError("java.io.IOException: Input/output error"))
    error = RouterError(
        "router: batch 4",
        {"a": away, "b": NullKeyError("./b: batch 4", ["id"], 3)},
        ["a (table ./a): MergeExecutionError: x", "b (table ./b): NullKeyError: 3 source row(s) have NULL in a key"],
    )
    failure = describe(error)
    assert not failure.is_retriable
    assert failure.sentence.startswith("Storage cannot be read or written: Input/output error. ./b: batch 4: 3 source")


def test_plans_are_cut_off():
    plan = "'Project ['lower('nme) AS x#1]\n+- Relation [k#2] parquet\n"
    for place in ("; line 1 pos 0;\n", ";\n"):
        error = UnresolvedColumnError(
            f"./t: batch 1: [UNRESOLVED_COLUMN] No column `nme`. SQLSTATE: 42703{place}{plan}"
        )
        assert describe(error).sentence == "./t: batch 1: [UNRESOLVED_COLUMN] No column `nme`."


def test_a_mistake_in_the_file_is_told_without_its_surroundings():
    mistake = PipelineError("The columns of orders are not known.", ExitCode.USAGE)
    failure = describe(RouterError("router: batch 0", {"orders": mistake}, ["orders (table ./t): PipelineError: x"]))
    assert (failure.sentence, failure.exit_code) == ("The columns of orders are not known.", ExitCode.USAGE)


def test_a_csv_file_whose_header_does_not_fit_the_schema(spark, make_pipeline, tmp_path):
    (tmp_path / "1.csv").write_text("name,id\n7,1\n")
    schema = {"format": "files", "path": str(tmp_path), "file_format": "csv", "schema": "id BIGINT, name STRING"}
    stream = read_stream(spark, make_pipeline({**schema, "options": {"header": "true"}}).source)
    query = stream.writeStream.format("noop").option("checkpointLocation", str(tmp_path / "checkpoint"))
    with pytest.raises(StreamingQueryException) as caught:
        query.trigger(availableNow=True).start().awaitTermination()
    failure = describe(caught.value)
    assert not failure.is_retriable
    assert failure.sentence.startswith("A CSV file has other columns in its header than schema in [source], or has ")
    told = f"Header: name, id Schema: id, name Expected: id but found: name CSV file: file://{tmp_path}/1.csv. Correct "
    assert told in failure.sentence
