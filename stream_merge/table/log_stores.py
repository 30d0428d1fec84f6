"""Names the Delta log stores that keep the commits of several writers apart."""

from __future__ import annotations

from stream_merge.errors import UnsupportedTableError

S3_SCHEMES = ("s3", "s3a", "s3n")
CONDITIONAL_CREATE = "streammerge.ConditionalCreateLogStore"
"""The log store of this library, whose commits are conditional PUTs."""

_SINGLE_DRIVER = "S3SingleDriverLogStore"
# They ask Hadoop for a file that must not replace another. On S3 that is a look, and then a plain PUT, between which another writer
# may come; with fs.s3a.create.performance it is the PUT alone.
_UNCONDITIONAL_ON_S3 = (
    "AzureLogStore",
    "GCSLogStore",
    "HDFSLogStore",
    "HadoopFileSystemLogStore",
    "LocalLogStore",
)
_DELTA = ("io.delta.storage.", "org.apache.spark.sql.delta.storage.")


def find_log_store_fault(scheme: str, log_store: str, *, single_writer: bool) -> str | None:
    """Return why commits of two writers to one table could overwrite each other; None where they cannot.

    A log store that is neither Delta's nor ours is trusted.

    Args:
        scheme: The scheme of the table's path; "file" for one without.
        log_store: The full name of the class that writes the table's commits.
        single_writer: Whether the user has said that no other process writes to the table.
    """
    if single_writer:
        return None
    package = next((prefix for prefix in _DELTA if log_store.startswith(prefix)), None)
    name = log_store.removeprefix(package or "")
    is_shared_by_nobody = name == _SINGLE_DRIVER or (scheme in S3_SCHEMES and name in _UNCONDITIONAL_ON_S3)
    if package is None or not is_shared_by_nobody:
        return None
    return (
        f"its LogStore for {scheme}: is {log_store}, with which two writers overwrite each other's commits. Set "
        f"spark.delta.logStore.{scheme}.impl to one that keeps them apart (see Object stores in docs/operations.md), or say "
        "single_writer=True if no other process, OPTIMIZE and DELETE included, ever writes to the table"
    )


def check_log_store(target: str, scheme: str, log_store: str, *, single_writer: bool) -> None:
    """Raise if commits of two writers to the table could overwrite each other; see `find_log_store_fault`.

    Raises:
        UnsupportedTableError: Names the log store and the ways out.
    """
    fault = find_log_store_fault(scheme, log_store, single_writer=single_writer)
    if fault is not None:
        raise UnsupportedTableError(f"{target}: {fault}")
