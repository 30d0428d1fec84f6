"""Provides the session in which a merge is executed: that of the batch, or a clone of it with other settings."""

from __future__ import annotations

import logging
from dataclasses import dataclass, field

from pyspark.sql import SparkSession

from stream_merge.bridge.jvm import items, optional
from stream_merge.bridge.sessions import ADAPTIVE, ADAPTIVE_CACHE, clone_of, session_id, settings_fingerprint

logger: logging.Logger = logging.getLogger("stream_merge")

_TIMESTAMPS_WRITTEN = "spark.sql.parquet.outputTimestampType"
_UNREADABLE_FILES = {"spark.sql.files.ignoreCorruptFiles", "spark.sql.files.ignoreMissingFiles"}
_FIXED = {
    **dict.fromkeys(_UNREADABLE_FILES, "false"),
    "spark.sql.retainGroupColumns": "true",
    "spark.sql.parser.quotedRegexColumnNames": "false",
}
_TRANSACTION_IDS = ("spark.databricks.delta.write.txnAppId", "spark.databricks.delta.write.txnVersion")


def functions_fingerprint(spark: SparkSession) -> int:
    """Return a number that changes when a function is registered in the session, also anew under the same name."""
    # The hash of a Scala map depends only on its entries, and that of a function's builder on which object it is.
    return int(spark._jsparkSession.sessionState().functionRegistry().functionBuilders().hashCode())


@dataclass(slots=True)
class ExecutionSessions:
    """Keeps the session of a merge's own jobs from batch to batch; a new clone would have to analyse everything again.

    It is the given session, or a clone of it with the same functions and settings but these, made anew when they
    change or another catalog or database becomes the current one. It has the temporary views of the batch's session.

    - Adaptive execution is on. Spark switches it off in a streaming query's session (in all of them in 4.0 and 4.1, in
      stateful ones later), where every shuffle of the merge would run the default 200 tasks.
    - There is no transaction id for Delta's own writes. Delta would skip the second of a batch: to the quarantine, say.
    - Timestamps are not written in milliseconds, since the rows would be older than their changes.
    - Files that cannot be read are no empty files: rows that are not found would be inserted once more.
    - Grouping keeps the columns by which it groups, and a name in backticks is no regular expression.
    """

    _made: dict[str, tuple[tuple[int, int], SparkSession]] = field(default_factory=dict)

    def session_for(self, spark: SparkSession) -> SparkSession:
        """Return the session in which to execute frames of this session, with what it has now."""
        key, fingerprint = session_id(spark), (settings_fingerprint(spark), functions_fingerprint(spark))
        known, session = self._made.get(key, (None, spark))
        if known != fingerprint or not _is_at_same_place(session, spark):
            session = _execution_session(spark)
            self._made = {key: (fingerprint, session)}
        elif session is not spark:
            _forget_loaded_functions(session, spark)
            _renew_views(session, spark)
        return session


def _is_at_same_place(clone: SparkSession, spark: SparkSession) -> bool:
    """Return whether both have the same current catalog and database, in which tables and functions are looked for."""
    if clone is spark:
        return True
    one, other = (each._jsparkSession.sessionState().catalogManager() for each in (clone, spark))
    if str(one.currentCatalog().name()) != str(other.currentCatalog().name()):
        return False
    return list(one.currentNamespace()) == list(other.currentNamespace())


def _renew_views(clone: SparkSession, spark: SparkSession) -> None:
    """Give a clone the session's temporary views, of which many are made anew in each batch."""
    given, original = (each._jsparkSession.sessionState().catalog() for each in (clone, spark))
    names = {str(name.table()) for name in items(original.listLocalTempViews("*"))}
    for name in {str(name.table()) for name in items(given.listLocalTempViews("*"))} - names:
        given.dropTempView(name)
    for name in names:
        view = optional(original.getRawTempView(name))
        if view is not None:
            given.createTempView(name, view, True)


def _forget_loaded_functions(clone: SparkSession, spark: SparkSession) -> None:
    """Let a clone load the catalog's functions anew: it is not told if one is replaced in the session of the batch."""
    registry, original = (each._jsparkSession.sessionState().functionRegistry() for each in (clone, spark))
    if registry.functionBuilders().size() == original.functionBuilders().size():
        return
    for name in items(registry.listFunction().diff(original.listFunction())):
        registry.dropFunction(name)


def _execution_session(spark: SparkSession) -> SparkSession:
    settings = {} if spark.conf.get(ADAPTIVE) == "true" else {**ADAPTIVE_CACHE}
    if spark.conf.get(_TIMESTAMPS_WRITTEN) == "TIMESTAMP_MILLIS":
        settings[_TIMESTAMPS_WRITTEN] = "TIMESTAMP_MICROS"
    settings |= {name: value for name, value in _FIXED.items() if spark.conf.get(name, value) != value}
    unset = [name for name in _TRANSACTION_IDS if spark.conf.get(name, None) is not None]
    if not unset and not settings:
        return spark
    for name in _UNREADABLE_FILES & settings.keys():
        logger.warning(
            "%s does not count in a merge: rows in files that cannot be read would be inserted once more. If the "
            "source needs it, give it to the source's reader as the option %s",
            name,
            name.rpartition(".")[2],
        )
    clone = clone_of(spark, settings)
    for name in unset:
        clone.conf.unset(name)
    return clone
