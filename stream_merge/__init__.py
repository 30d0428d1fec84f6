"""The upsert sink for Spark Structured Streaming and Delta Lake."""

from stream_merge.errors import (
    AmbiguousMatchError,
    BatchIdRegressionError,
    CommitConflictError,
    ConfigError,
    StreamMergeError,
    UnsupportedTableError,
)
from stream_merge.metrics import MergeResult
from stream_merge.sink import MergeSink, merge_sink

__version__ = "0.1.0"

__all__ = [
    "AmbiguousMatchError",
    "BatchIdRegressionError",
    "CommitConflictError",
    "ConfigError",
    "MergeResult",
    "MergeSink",
    "StreamMergeError",
    "UnsupportedTableError",
    "merge_sink",
]
