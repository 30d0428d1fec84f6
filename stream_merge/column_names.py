"""Names of the columns that the sink adds to a target or a batch; users may not use their prefix."""

RESERVED_PREFIX = "_stream_merge_"

SOURCE_ID = RESERVED_PREFIX + "source_id"

FILE = RESERVED_PREFIX + "file"

ROW = RESERVED_PREFIX + "row"

SEQUENCE = RESERVED_PREFIX + "sequence"
"""Added to a target that has no column of its own for the sequence."""

IS_TIED = RESERVED_PREFIX + "is_tied"

NUM_SUPERSEDED = RESERVED_PREFIX + "num_superseded"

COLUMN_SEQUENCES = RESERVED_PREFIX + "column_sequences"
"""Added to the target: a map from column name to the sequence of its value, for the columns that are older than the
row.

The sequence is NULL for a column that no change has set; the map is NULL where all columns are as new as the row."""

UNSET = RESERVED_PREFIX + "unset"
"""Lower-case names of the columns that a change leaves unchanged."""

IS_DELETE = RESERVED_PREFIX + "is_delete"

IS_CARRIED_OVER = RESERVED_PREFIX + "is_fill"
"""Whether a change carries values for a row without stating that the row exists."""

NEWEST_DELETE = RESERVED_PREFIX + "newest_delete"
"""The sequence of the newest delete of a key in the batch; older values of the target do not count."""

DELETED = RESERVED_PREFIX + "deleted"
"""The sequence of the newest delete of a key among the table's tombstones."""

IS_OUTDATED = RESERVED_PREFIX + "is_outdated"
"""Whether a change is older than that delete."""

IS_UNRESOLVED = RESERVED_PREFIX + "is_unresolved"
"""Whether the batch lacks a value for a column that a change did not send."""

OLD_KEY = RESERVED_PREFIX + "old_key"

NEW_KEY = RESERVED_PREFIX + "new_key"

ROW_ID = RESERVED_PREFIX + "row_id"
"""Added to a target without a key."""

IS_REMOVED = RESERVED_PREFIX + "is_removed"
"""Whether a change of the batch leaves no row; NULL while the batch is as it arrived."""

ACTION = RESERVED_PREFIX + "action"
"""The number of the clause that applies; NULL if none does."""

COMPLETED = RESERVED_PREFIX + "completed"
"""The number of a source row that lacks a value which its change did not send, and has a match to take it from."""
