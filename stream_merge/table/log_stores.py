"""Finds Delta log stores that let several writers overwrite each other's commits."""

from __future__ import annotations

from stream_merge.errors import UnsupportedTableError

S3_SCHEMES = ("s3", "s3a", "s3n")
CONDITIONAL_CREATE = "streammerge.ConditionalCreateLogStore"
"""The log store of this library, which commits with conditional PUTs."""

_SINGLE_DRIVER = "S3SingleDriverLogStore"
# They create a file that must not replace another one. On S3, Hadoop then checks whether the file exists and PUTs it,
# so another writer may come between; with fs.s3a.create.performance it does not even check.
_UNCONDITIONAL_ON_S3 = (
    "AzureLogStore",
    "GCSLogStore",
    "HDFSLogStore",
    "HadoopFileSystemLogStore",
    "LocalLogStore",
)
_DELTA = ("io.delta.storage.", "org.apache.spark.sql.delta.storage.")


def find_log_store_fault(scheme: str, log_store: str, *, single_writer: bool) -> str | None:
    """Return why two writers could overwrite each other's commits to a table; None if they cannot.

    The check trusts log stores that are neither Delta's nor this library's.

    Args:
        scheme: The scheme of the table's path; "file" for a path without one.
        log_store: The full name of the class that writes the table's commits.
        single_writer: Whether the user has said that no other process writes to the table.
    """
    if single_writer:
        return None
    package = next((prefix for prefix in _DELTA if log_store.startswith(prefix)), None)
    name = log_store.removeprefix(package or "")
    can_overwrite = name == _SINGLE_DRIVER or (scheme in S3_SCHEMES and name in _UNCONDITIONAL_ON_S3)
    if package is None or not can_overwrite:
        return None
    return (
        f"its LogStore for {scheme}: is {log_store}, with which two writers overwrite each other's commits. Set "
        f"spark.delta.logStore.{scheme}.impl to one that prevents this (see Object stores in docs/operations.md), or "
        "set single_writer=True if no other process ever writes to the table, not even OPTIMIZE or DELETE"
    )


def check_log_store(target: str, scheme: str, log_store: str, *, single_writer: bool) -> None:
    """Raise if two writers could overwrite each other's commits to the table; see `find_log_store_fault`.

    Raises:
        UnsupportedTableError: They could; the error names the log store and the ways out.
    """
    fault = find_log_store_fault(scheme, log_store, single_writer=single_writer)
    if fault is not None:
        raise UnsupportedTableError(f"{target}: {fault}")
