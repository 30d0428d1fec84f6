"""Provides an upsert sink for Spark Structured Streaming and Delta Lake."""

from stream_merge.errors import (
    AmbiguousMatchError,
    BatchIdRegressionError,
    CommitConflictError,
    ConfigError,
    RouterError,
    StreamMergeError,
    UnsupportedTableError,
)
from stream_merge.metrics import MergeResult
from stream_merge.router import MergeRouter, merge_router
from stream_merge.sink import MergeSink, merge_sink

__version__ = "0.1.0"

__all__ = [
    "AmbiguousMatchError",
    "BatchIdRegressionError",
    "CommitConflictError",
    "ConfigError",
    "MergeResult",
    "MergeRouter",
    "MergeSink",
    "RouterError",
    "StreamMergeError",
    "UnsupportedTableError",
    "merge_router",
    "merge_sink",
]
