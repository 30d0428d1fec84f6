"""Why a query ended, in one sentence, and whether it is started again.

Retried, after 1 second, then 2, 4 and so on up to 60, until it works or the pipeline is stopped:

- errors of this library that say so themselves (`retriable`): commits that lost against other writers or whose outcome is unknown;
- Kafka's brokers: no connection, no answer in time, a partition without a leader;
- storage that cannot be read or written: no permission, no space, read-only, no connection, a service that is unavailable.

Never retried, because the next attempt would meet the same: rows that cannot be merged, a configuration that is wrong, a checkpoint
that does not fit, credentials that are refused, topics and tables that do not exist, and records that Kafka has dropped before they
were read, which are never skipped either.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, replace

from stream_merge.bridge.jvm import throwables
from stream_merge.cli.errors import ExitCode, PipelineError
from stream_merge.cli.query.tables import CHANGE_COL
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
"""Longer messages are cut: Spark puts whole plans into some."""

_MAX_ERRORS = 50


@dataclass(frozen=True, slots=True, kw_only=True)
class Failure:
    """What ended a query.

    Attributes:
        sentence: What is wrong, and what to do.
        is_retriable: Whether the query is started again.
        exit_code: With what the command ends if it is not.
    """

    sentence: str
    is_retriable: bool = False
    exit_code: ExitCode = ExitCode.FAILED


@dataclass(frozen=True, slots=True, kw_only=True)
class _Rule:
    """How errors of one kind are told: `{detail}` is the line that the pattern was found in."""

    pattern: re.Pattern[str]
    sentence: str
    is_retriable: bool = False
    exit_code: ExitCode = ExitCode.FAILED


_RULES = (
    _Rule(
        pattern=re.compile(r"Added partition \S+ starts from \d+ instead of 0"),
        sentence="Kafka had dropped records of a topic or partition before the pipeline first looked at it, and they are not "
        "skipped: {detail}. Give the topic a pipeline of its own with a new checkpoint, which starts at its oldest record, and let "
        "the source send what is missing; or give this pipeline a new checkpoint folder.",
    ),
    _Rule(
        pattern=re.compile(
            r"KAFKA_DATA_LOSS|OffsetOutOfRangeException|[Oo]ffset was changed from|failOnDataLoss"
            r"|[Ss]ome data may have been lost|out of range with no configured reset policy"
        ),
        sentence="Kafka has dropped records before the pipeline read them, or the topic was made anew, and they are not skipped: "
        "{detail}. Give the topic a longer retention. To go on, take a new checkpoint folder and let the source send a new "
        "snapshot, or set starting_offsets after having restored what is missing.",
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
        sentence="Kafka refuses access: {detail}. Check the options kafka.security.* and kafka.sasl.* in [source.options].",
        exit_code=ExitCode.CANNOT_START,
    ),
    _Rule(
        pattern=re.compile(r"[Mm]ultiple streaming queries are concurrently using|CONCURRENT_STREAM_LOG_UPDATE"),
        sentence="Another pipeline uses this checkpoint: stop it, or give each pipeline a checkpoint of its own.",
    ),
    _Rule(
        pattern=re.compile(r"java\.lang\.OutOfMemoryError"),
        sentence='Spark is out of memory: give "spark.driver.memory" in [spark.conf] more, or lower the records or files that '
        "one micro-batch takes in [source].",
    ),
    _Rule(
        pattern=re.compile(r"Py4JNetworkError|Answer from Java side is empty|ConnectionRefusedError"),
        sentence="Spark's Java process has ended without a word, killed or out of memory: look at the system's log, and give "
        '"spark.driver.memory" in [spark.conf] a value that the machine has.',
    ),
    _Rule(
        pattern=re.compile(r"PATH_NOT_FOUND"),
        sentence="The source is not there: {detail}. Make it, or correct [source].",
        exit_code=ExitCode.CANNOT_START,
    ),
    _Rule(
        pattern=re.compile(
            r"org\.apache\.kafka\.common\.errors\.(Timeout|Disconnect|Network|BrokerNotAvailable|CoordinatorNotAvailable"
            r"|NotLeaderOrFollower|LeaderNotAvailable|NotCoordinator|KafkaStorage|NotEnoughReplicas)Exception"
            r"|Timed out waiting for a node assignment|No resolvable bootstrap urls|bootstrap broker|Cannot fetch record"
            r"|Failed to (construct kafka consumer|create new KafkaAdminClient)"
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
        sentence="Storage refuses the login: {detail}. Check the settings spark.hadoop.fs.* in [spark.conf], and the environment.",
        exit_code=ExitCode.CANNOT_START,
    ),
    _Rule(
        pattern=re.compile(r"java\.net\.(URISyntax|MalformedURL)Exception"),
        sentence="An address in the pipeline file is not one: {detail}. Correct it.",
        exit_code=ExitCode.USAGE,
    ),
    _Rule(
        # By the class of the exception: what a message says may come from the rows.
        pattern=re.compile(
            r"java\.net\.\w+Exception|java\.io\.(IO|UncheckedIO|EOF)Exception|java\.nio\.file\.(AccessDenied|FileSystem)Exception"
            r"|java\.io\.\w+Exception: .*\((Permission denied|No space left on device|Read-only file system|Not a directory"
            r"|Input/output error|Stale file handle|Disk quota exceeded)\)"
            r"|org\.apache\.hadoop\.\S*(AccessControl|ParentNotDirectory|FileAlreadyExists|PathIO|AWS\w*|NoRouteToHost|ConnectTimeout)"
            r"\w*Exception|org\.apache\.spark\.sql\.delta\.DeltaIOException"
            r"|(amazonaws|awssdk|azure|cloud\.google)\S*Exception: .*(Status Code: 5\d\d|SlowDown|Service ?Unavailable)"
        ),
        sentence="Storage cannot be read or written: {detail}.",
        is_retriable=True,
    ),
)


def describe(error: BaseException) -> Failure:
    """Return what an error of the query, or of the merge in it, means for the pipeline."""
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
            # The innermost exception says it most plainly.
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
    """Return what an error of this library means, in the words of the pipeline file."""
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
                f"No table takes {describe_sources(error.sources)}, so nothing of this micro-batch was merged: add a [[tables]] "
                'with this source, or set unknown = "ignore" in [pipeline].'
            )
            return Failure(sentence=sentence)
        case ConfigError():
            return Failure(sentence=f"{sentence}. Correct the pipeline file.", exit_code=ExitCode.USAGE)
        case UnresolvedColumnError():
            # The column of the decoded change is no column of the user's.
            sentence = re.sub(rf"\b{CHANGE_COL}, |, {CHANGE_COL}\b", "", sentence)
            return Failure(sentence=sentence, exit_code=ExitCode.USAGE)
        case _:
            return Failure(sentence=sentence)


def _describe_router(error: RouterError) -> Failure:
    """Return what the failures of a router's tables mean: one that would fail again decides for all."""
    failures = [_describe_source(name, each) for name, each in error.failures.items()]
    for failure in failures:
        if not failure.is_retriable:
            return replace(failure, sentence=_short(str(error)) if len(failures) > 1 else failure.sentence)
    return Failure(sentence=failures[0].sentence if failures else _short(str(error)), is_retriable=bool(failures))


def _describe_source(name: str, error: Exception) -> Failure:
    failure = describe(error)
    # The only error that names no table.
    return replace(failure, sentence=f"{name}: {failure.sentence}") if isinstance(error, ConfigError) else failure


def _errors(error: BaseException) -> Iterator[BaseException]:
    """Iterate over an error, those of a router's tables, and what they were raised from."""
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
    """Iterate over what an error and the JVM exceptions behind it say, each with the name of its class."""
    yield f"{type(error).__name__}: {error}"
    try:
        for throwable in throwables(error):
            yield f"{throwable.getClass().getName()}: {throwable.getMessage()}"
    except Exception as unreachable:  # noqa: BLE001 - the JVM may be gone, which is what is to be told
        yield f"{type(unreachable).__name__}: {unreachable}"


def _last_message(error: BaseException) -> str:
    """Return what the innermost JVM exception says, which is mostly the plainest."""
    lines = list(_lines(error))
    return _without_class(lines[-1]) or lines[0]


def _without_class(line: str) -> str:
    return re.sub(r"^([\w.$]*(Exception|Error): )+", "", line)


def _short(text: str) -> str:
    """Return a message in one line, without what Spark puts into some: stack traces, plans, and the advice to accept a loss."""
    text = re.sub(r"Some data may have been lost because.*?Reason:\s*", "", text, flags=re.DOTALL)
    text = re.split(r"\n\s+at |\n\s*Driver stacktrace|\n\s*(?:JVM stacktrace|== )|Some data may have been lost", text)[
        0
    ]
    text = re.sub(r"\s*SQLSTATE: \w{5}", "", " ".join(text.split()))
    return text if len(text) <= MAX_LENGTH else f"{text[: MAX_LENGTH - 3]}..."
