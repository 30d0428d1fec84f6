"""Finds the manifest of a table version, also after RESTORE or REPLACE."""

from __future__ import annotations

import logging
from collections.abc import Collection, Iterator, Sequence
from dataclasses import replace
from typing import Any, TypeAlias

from pyspark.sql import SparkSession
from pyspark.sql import functions as F

from stream_merge.bridge.table import Table, open_table
from stream_merge.bridge.transaction import Transaction
from stream_merge.column_names import COLUMN_SEQUENCES, ROW_ID
from stream_merge.errors import TargetNotFoundError, UnsupportedTableError
from stream_merge.table.files import now_ms
from stream_merge.tombstones.manifest import (
    DOMAIN,
    FOLDER,
    RetiredFile,
    TombstoneManifest,
)

logger: logging.Logger = logging.getLogger("stream_merge")

_MAX_OFFSET_MS = 14 * 3600 * 1000
"""No time zone is further from UTC."""

_REPLACING = frozenset(
    {
        "CREATE OR REPLACE TABLE",
        "CREATE OR REPLACE TABLE AS SELECT",
        "REPLACE TABLE",
        "REPLACE TABLE AS SELECT",
        "CLONE",
    }
)


def older_columns(table: Table, transaction: Transaction) -> tuple[str, ...]:
    """Return the columns that are older than their row in some row of the version that is read."""
    rows = table.spark.read.format("delta").option("versionAsOf", transaction.version).load(table.path())
    if COLUMN_SEQUENCES not in rows.columns:
        return ()
    names = rows.select(F.explode(F.map_keys(COLUMN_SEQUENCES)).alias("name")).distinct().collect()
    return tuple(sorted(row["name"] for row in names))


def remembered_keys(spark: SparkSession, target: str) -> tuple[str, ...] | None:
    """Return the keys that a table was written with: none for a table without a key.

    Returns:
        The keys; None if there is no such table, or it remembers nothing.
    """
    try:
        table = open_table(spark, target)
        transaction = table.begin()
    except TargetNotFoundError:
        return None
    text = transaction.domain_metadata(DOMAIN)
    if text is None:
        return None
    manifest = _manifest_at(table, transaction.version, TombstoneManifest.from_json(text))
    return None if manifest is None else tuple(key for key in manifest.keys if key != ROW_ID)


def columns_of_batches(table: Table, transaction: Transaction, names: Collection[str]) -> set[str]:
    """Return which of some columns, by lower-case names, batches had before the version that is read."""
    text = transaction.domain_metadata(DOMAIN)
    manifest = None
    if text is not None:
        # A RESTORE may have gone to a version that has had other columns.
        manifest = _manifest_at(table, transaction.version, TombstoneManifest.from_json(text))
    return set() if manifest is None else {*manifest.columns}.intersection(names)


def manifest_of(table: Table, transaction: Transaction, fresh: TombstoneManifest) -> TombstoneManifest:
    """Return the state of the version that is read.

    RESTORE does not change a table's metadata domains, so this looks for one in the commits since the state was
    written; if there is one, the state of the restored version counts.
    """
    text = transaction.domain_metadata(DOMAIN)
    if text is None:
        # The table was replaced, or made to forget; a RESTORE may need its earlier tombstones.
        found = table.list_folder(FOLDER)
        return replace(fresh, retired=tuple(RetiredFile(path=f"{FOLDER}/{name}", since_ms=now_ms()) for name in found))
    newest = TombstoneManifest.from_json(text)
    state = _manifest_at(table, transaction.version, newest) or fresh
    if state is newest:
        return newest
    # A RESTORE to an earlier version may need files that the newest version no longer names.
    left = [*newest.retired, *(RetiredFile(path=file.path, since_ms=now_ms()) for file in newest.files)]
    named = {file.path for file in state.files} | {file.path for file in state.retired}
    return replace(state, retired=(*state.retired, *(file for file in left if file.path not in named)))


def _manifest_at(table: Table, version: int, known: TombstoneManifest | None) -> TombstoneManifest | None:
    """Return the state as of a version, from the commits up to it.

    Args:
        table: The table.
        version: The version.
        known: The state to return if no commit after the version that it was based on says otherwise.
    """
    while version > (known.read_version if known else -1):
        try:
            commit = table.read_commit(version)
        except FileNotFoundError:
            # The log no longer has the commit: the sink has not run for long, or a RESTORE went to the oldest versions.
            if known is None:
                logger.warning(
                    "%s: the log of version %d is gone, and with it the deletes that the version remembered",
                    table.name,
                    version,
                )
            return known
        for action in commit:
            metadata = action.get("domainMetadata", {})
            if metadata.get("domain") == DOMAIN:
                return None if metadata.get("removed") else TombstoneManifest.from_json(metadata["configuration"])
        info: dict[str, Any] = next((action["commitInfo"] for action in commit if "commitInfo" in action), {})
        if info.get("operation") in _REPLACING:
            return None
        if info.get("operation") == "RESTORE":
            version, known = _restored_version(table, version, info), None
            logger.info("%s: was restored to version %d; its remembered deletes apply", table.name, version)
        else:
            version -= 1
    return known


def _restored_version(table: Table, version: int, info: dict[str, Any]) -> int:
    """Return the version that a RESTORE went to.

    Of a timestamp the log has the text, in the time zone of the process that ran the RESTORE. So this looks for a
    version with the same files, near that time in some zone.

    Raises:
        UnsupportedTableError: There is none.
    """
    parameters = info.get("operationParameters", {})
    if parameters.get("version") is not None:
        return int(parameters["version"])
    text = F.lit(parameters["timestamp"])
    times = table.history().where(F.col("version") < version)
    row = times.select(
        F.map_from_entries(F.collect_list(F.struct("version", F.unix_millis("timestamp")))).alias("begins"),
        F.unix_millis(text.cast("timestamp_ltz")).alias("here"),
        F.unix_millis(F.to_timestamp_ltz(F.concat(text, F.lit("Z")))).alias("in_utc"),
    ).head()
    assert row is not None
    begins: dict[int, int] = row["begins"]
    here = max((number for number, begin in begins.items() if begin <= row["here"]), default=None)
    candidates = []
    for number in _with_the_same_files(table, version):
        if begins.get(number + 1, row["in_utc"]) < row["in_utc"] - _MAX_OFFSET_MS:
            break
        if begins.get(number, row["in_utc"]) <= row["in_utc"] + _MAX_OFFSET_MS:
            candidates.append(number)
    if here is not None and (here in candidates or not candidates):
        return here
    if not candidates:
        raise UnsupportedTableError(
            f"{table.name}: a RESTORE to {parameters['timestamp']} went to a version that cannot be found in the log, "
            "so the deletes that it remembered are not known. Call reset_state() of the sink to forget all"
        )
    return candidates[0]


def _with_the_same_files(table: Table, version: int) -> Iterator[int]:
    """Yield the versions before a version that have the same files, the newest first, as far as the log tells."""
    wanted = _files_in(table.read_commit(version), "add"), _files_in(table.read_commit(version), "remove")
    # What each version has, and what it does not have, compared with the one right before `version`.
    more, fewer = set[_File](), set[_File]()
    for number in range(version - 1, -1, -1):
        if (more, fewer) == wanted:
            yield number
        try:
            commit = table.read_commit(number)
        except FileNotFoundError:
            return
        added, removed = _files_in(commit, "add"), _files_in(commit, "remove")
        more, fewer = (more - added) | (removed - fewer), (fewer - removed) | (added - more)


_File: TypeAlias = "tuple[str, tuple[Any, ...]]"
"""A file's path, and what tells its deletion vector."""


def _files_in(commit: Sequence[dict[str, Any]], kind: str) -> set[_File]:
    files = [action[kind] for action in commit if kind in action]
    vectors = [file.get("deletionVector") or {} for file in files]
    parts = ("storageType", "pathOrInlineDv", "offset")
    return {(file["path"], tuple(map(vector.get, parts))) for file, vector in zip(files, vectors, strict=True)}
