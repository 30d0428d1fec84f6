"""Explains in one sentence why a query ended, and decides whether to restart it.

Retried after 1 second, then 2, 4 and so on up to 60, until it works or the pipeline is stopped:

- errors of this library that say so themselves (`retriable`): commits that lost against other writers or whose outcome
  is unknown;
- Kafka's brokers: no connection, no timely answer, a partition without a leader;
- storage that cannot be read or written: no permission, no space, read-only, no connection, an unavailable service.

Never retried, because the next attempt would fail in the same way: rows that cannot be merged, a wrong configuration, a
checkpoint that does not fit, refused credentials, missing topics and tables, and records that Kafka dropped before they
were read. Such records are never skipped either.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, replace

from stream_merge.bridge.jvm import throwables
from stream_merge.cli.errors import ExitCode, PipelineError
from stream_merge.cli.query.sink_options import CHANGE_COL
from stream_merge.errors import (
    ConfigError,
    MergeExecutionError,
    RouterError,
    StreamMergeError,
    TargetNotFoundError,
    UnknownSourceError,
    UnresolvedColumnError,
    describe_sources,
)

MAX_LENGTH = 1200
"""Longer messages are truncated, since Spark puts whole plans into some."""

_MAX_ERRORS = 50
_NOISE = re.compile(
    r"\n\s+at |\n\s*Driver stacktrace|\n\s*(?:JVM stacktrace|== )|Some data may have been lost"
    # A plan, after the place in an expression.
    r"|(?:; line \d+ pos \d+)?;\n"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Failure:
    """Why a query ended.

    Attributes:
        sentence: What is wrong and what to do.
        is_retriable: Whether to restart the query.
        exit_code: The exit code of the command if the query is not restarted.
    """

    sentence: str
    is_retriable: bool = False
    exit_code: ExitCode = ExitCode.FAILED


@dataclass(frozen=True, slots=True, kw_only=True)
class _Rule:
    """A sentence for one kind of error; `{detail}` is the line in which the pattern was found."""

    pattern: re.Pattern[str]
    sentence: str
    is_retriable: bool = False
    exit_code: ExitCode = ExitCode.FAILED


_RULES = (
    _Rule(
        pattern=re.compile(r"Added partition \S+ starts from \d+ instead of 0"),
        sentence="Kafka had dropped records of a topic or partition before the pipeline first read it, and the "
        "pipeline does not skip them: {detail}. Give the topic a pipeline of its own with a new checkpoint, which "
        "starts at its "
        "oldest record, and let the source send what is missing; or give this pipeline a new checkpoint folder.",
    ),
    _Rule(
        pattern=re.compile(
            r"KAFKA_DATA_LOSS|OffsetOutOfRangeException|[Oo]ffset was changed from|failOnDataLoss"
            r"|[Ss]ome data may have been lost|out of range with no configured reset policy"
        ),
        sentence="Kafka has dropped records before the pipeline read them, or the topic was recreated, and the "
        "pipeline does not skip records: {detail}. Give the topic a longer retention. To continue, use a new "
        "checkpoint folder and let the source send a new snapshot, or restore what is missing and set "
        "starting_offsets.",
    ),
    _Rule(
        pattern=re.compile(r"UnknownTopicOrPartition|This server does not host this topic"),
        sentence="A topic of [source] does not exist: create it, or correct topics.",
        exit_code=ExitCode.CANNOT_START,
    ),
    _Rule(
        pattern=re.compile(
            r"(Sasl|Ssl)AuthenticationException|(Topic|Group|Cluster)AuthorizationException|SSLHandshakeException"
        ),
        sentence="Kafka refuses access: {detail}. Check the options kafka.security.* and kafka.sasl.* in "
        "[source.options].",
        exit_code=ExitCode.CANNOT_START,
    ),
    _Rule(
        pattern=re.compile(r"[Mm]ultiple streaming queries are concurrently using|CONCURRENT_STREAM_LOG_UPDATE"),
        sentence="Another pipeline uses this checkpoint: stop it, or give each pipeline its own checkpoint.",
    ),
    _Rule(
        pattern=re.compile(r"java\.lang\.OutOfMemoryError"),
        sentence='Spark is out of memory: raise "spark.driver.memory" in [spark.conf], or lower the records or files '
        "of one micro-batch in [source].",
    ),
    _Rule(
        pattern=re.compile(r"Py4JNetworkError|Answer from Java side is empty|ConnectionRefusedError"),
        sentence="Spark's Java process ended without an error, killed or out of memory: look at the system's log, and "
        'set "spark.driver.memory" in [spark.conf] to what the machine has.',
    ),
    _Rule(
        pattern=re.compile(r"IllegalArgumentException: (CSV header does not|Number of column in CSV header is not)"),
        sentence="A CSV file has other columns in its header than schema in [source], or has them in another order: "
        '{detail}. Correct the file, or schema if all files are like that; enforceSchema = "true" in [source.options] '
        "takes the columns by their place, whatever the header says.",
    ),
    _Rule(
        pattern=re.compile(r"PATH_NOT_FOUND"),
        sentence="The source does not exist: {detail}. Create it, or correct [source].",
        exit_code=ExitCode.CANNOT_START,
    ),
    _Rule(
        pattern=re.compile(
            r"org\.apache\.kafka\.common\.errors\.(Timeout|Disconnect|Network|BrokerNotAvailable"
            r"|CoordinatorNotAvailable|NotLeaderOrFollower|LeaderNotAvailable|NotCoordinator|KafkaStorage"
            r"|NotEnoughReplicas)Exception"
            r"|Timed out waiting for a node assignment|No resolvable bootstrap urls|bootstrap broker"
            r"|Cannot fetch record|Failed to (construct kafka consumer|create new KafkaAdminClient)"
        ),
        sentence="Kafka does not answer: {detail}.",
        is_retriable=True,
    ),
    _Rule(
        pattern=re.compile(
            r"NoAuthWithAWSException"
            r"|(AccessDenied|amazonaws|awssdk|hadoop\.fs\.s3a)\S*Exception: .*"
            r"(InvalidAccessKeyId|SignatureDoesNotMatch|No AWS Credentials)"
        ),
        sentence="Storage refuses the login: {detail}. Check the settings spark.hadoop.fs.* in [spark.conf] and the "
        "environment.",
        exit_code=ExitCode.CANNOT_START,
    ),
    _Rule(
        pattern=re.compile(r"java\.net\.(URISyntax|MalformedURL)Exception"),
        sentence="An address in the pipeline file is not valid: {detail}. Correct it.",
        exit_code=ExitCode.USAGE,
    ),
    _Rule(
        # By the class of the exception, since a message may contain text from the rows.
        pattern=re.compile(
            r"java\.net\.\w+Exception|java\.io\.(IO|UncheckedIO|EOF)Exception"
            r"|java\.nio\.file\.(AccessDenied|FileSystem)Exception"
            r"|java\.io\.\w+Exception: .*\((Permission denied|No space left on device|Read-only file system"
            r"|Not a directory|Input/output error|Stale file handle|Disk quota exceeded)\)"
            r"|org\.apache\.hadoop\.\S*(AccessControl|ParentNotDirectory|FileAlreadyExists|PathIO|AWS\w*|NoRouteToHost"
            r"|ConnectTimeout)\w*Exception|org\.apache\.spark\.sql\.delta\.DeltaIOException"
            r"|(amazonaws|awssdk|azure|cloud\.google)\S*Exception: .*(Status Code: 5\d\d|SlowDown|Service ?Unavailable)"
        ),
        sentence="Storage cannot be read or written: {detail}.",
        is_retriable=True,
    ),
)


def describe(error: BaseException) -> Failure:
    """Return the failure for an error of the query, or of the merge in it."""
    errors = list(_errors(error))
    mistake = next((each for each in errors if isinstance(each, PipelineError)), None)
    if mistake is not None:
        return Failure(sentence=str(mistake), exit_code=mistake.exit_code)
    own = next((each for each in errors if isinstance(each, StreamMergeError)), None)
    if own is not None and (own.retriable or not isinstance(own, MergeExecutionError)):
        return _describe_own(own)
    lines = [line for each in errors if each is not own for line in _lines(each)]
    for rule in _RULES:
        matching = [line for line in lines if rule.pattern.search(line)]
        if matching:
            # The innermost exception is usually the plainest.
            detail = re.sub(r"^\[[A-Z_.]+\] ", "", _short(_without_class(matching[-1]))).rstrip(".")
            return Failure(
                sentence=rule.sentence.format(detail=detail),
                is_retriable=rule.is_retriable,
                exit_code=rule.exit_code,
            )
    if own is not None:
        return Failure(sentence=_short(str(own)))
    return Failure(sentence=f"The query failed: {_short(_last_message(error))}")


def _describe_own(error: StreamMergeError) -> Failure:
    """Return the failure for an error of this library, in terms of the pipeline file."""
    sentence = _short(str(error))
    if error.retriable:
        return Failure(sentence=sentence, is_retriable=True)
    match error:
        case RouterError():
            return _describe_router(error)
        case TargetNotFoundError():
            sentence = sentence.replace("create_if_missing=True", "create_if_missing = true for this table")
            return Failure(sentence=sentence, exit_code=ExitCode.CANNOT_START)
        case UnknownSourceError():
            sentence = (
                f"No table takes {describe_sources(error.sources)}, so nothing of this micro-batch was merged: "
                'add a [[tables]] with this source, or set unknown = "ignore" in [pipeline].'
            )
            return Failure(sentence=sentence)
        case ConfigError():
            return Failure(sentence=f"{sentence}. Correct the pipeline file.", exit_code=ExitCode.USAGE)
        case UnresolvedColumnError():
            # The user does not know the column of the decoded change.
            sentence = re.sub(rf"\b{CHANGE_COL}, |, {CHANGE_COL}\b", "", sentence)
            return Failure(sentence=sentence, exit_code=ExitCode.USAGE)
        case _:
            return Failure(sentence=sentence)


def _describe_router(error: RouterError) -> Failure:
    """Return the failure for a router's failed tables: one failure that is not retriable decides for all."""
    failures = [_describe_source(name, each) for name, each in error.failures.items()]
    for failure in failures:
        if not failure.is_retriable:
            sentences = dict.fromkeys(each.sentence for each in failures)
            return replace(failure, sentence=_short(" ".join(map(_ended, sentences))))
    return Failure(sentence=failures[0].sentence if failures else _short(str(error)), is_retriable=bool(failures))


def _describe_source(name: str, error: Exception) -> Failure:
    failure = describe(error)
    # Errors of the file, of storage and of Kafka name no table.
    return replace(failure, sentence=f"{name}: {failure.sentence}") if isinstance(error, ConfigError) else failure


def _ended(sentence: str) -> str:
    return sentence if sentence.endswith((".", "...")) else f"{sentence}."


def _errors(error: BaseException) -> Iterator[BaseException]:
    """Iterate over an error, the errors of a router's tables, and their causes."""
    waiting: list[BaseException] = [error]
    seen: set[int] = set()
    while waiting and len(seen) < _MAX_ERRORS:
        each = waiting.pop(0)
        if id(each) in seen:
            continue
        seen.add(id(each))
        yield each
        waiting += each.failures.values() if isinstance(each, RouterError) else ()
        waiting += [cause for cause in (each.__cause__, each.__context__) if cause is not None]


def _lines(error: BaseException) -> Iterator[str]:
    """Iterate over the messages of an error and the JVM exceptions behind it, each with the name of its class."""
    yield f"{type(error).__name__}: {error}"
    try:
        for throwable in throwables(error):
            yield f"{throwable.getClass().getName()}: {throwable.getMessage()}"
    except Exception as unreachable:  # noqa: BLE001 - the JVM may be gone; report that
        yield f"{type(unreachable).__name__}: {unreachable}"


def _last_message(error: BaseException) -> str:
    """Return the message of the innermost JVM exception, which is usually the plainest."""
    lines = list(_lines(error))
    return _without_class(lines[-1]) or lines[0]


def _without_class(line: str) -> str:
    return re.sub(r"^([\w.$]*(Exception|Error): )+", "", line)


def _short(text: str) -> str:
    """Return a message in one line, without stack traces, plans, and Spark's advice to accept the loss of data."""
    text = re.sub(r"Some data may have been lost because.*?Reason:\s*", "", text, flags=re.DOTALL)
    text = _NOISE.split(text, maxsplit=1)[0]
    text = re.sub(r"\s*SQLSTATE: \w{5}", "", " ".join(text.split()))
    return text if len(text) <= MAX_LENGTH else f"{text[: MAX_LENGTH - 3]}..."
