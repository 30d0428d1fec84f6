"""The names of all columns that the sink adds to a target or to a batch. They share a prefix that users may not use."""

RESERVED_PREFIX = "_stream_merge_"

SOURCE_ID = RESERVED_PREFIX + "source_id"

FILE = RESERVED_PREFIX + "file"

ROW = RESERVED_PREFIX + "row"

SEQUENCE = RESERVED_PREFIX + "sequence"
"""The column that the sink adds to a target which has no column of its own for the sequence."""

IS_TIED = RESERVED_PREFIX + "is_tied"

NUM_SUPERSEDED = RESERVED_PREFIX + "num_superseded"

COLUMN_SEQUENCES = RESERVED_PREFIX + "column_sequences"
"""The column that the sink adds to the target: name of a column to the sequence of its value, for the columns whose value is
older than the row; NULL for the sequence of a column that no change has set. NULL where all columns are as new as the row."""

UNSET = RESERVED_PREFIX + "unset"
"""Names, in lower case, of the columns that a change leaves alone."""

IS_DELETE = RESERVED_PREFIX + "is_delete"

IS_CARRIED_OVER = RESERVED_PREFIX + "is_fill"
"""Whether a change gives values to a row without saying that the row is there."""

NEWEST_DELETE = RESERVED_PREFIX + "newest_delete"
"""The sequence of the newest delete of a key in the batch: what the target has from before it does not count."""

DELETED = RESERVED_PREFIX + "deleted"
"""The sequence of the newest delete of a key that the table remembers."""

IS_OUTDATED = RESERVED_PREFIX + "is_outdated"
"""Whether a change is older than that delete."""

IS_UNRESOLVED = RESERVED_PREFIX + "is_unresolved"
"""Whether the batch has no value for a column that a change did not send."""

OLD_KEY = RESERVED_PREFIX + "old_key"

NEW_KEY = RESERVED_PREFIX + "new_key"

ROW_ID = RESERVED_PREFIX + "row_id"
"""The column that the sink adds to a target without a key."""

IS_REMOVED = RESERVED_PREFIX + "is_removed"
"""Whether a change of the batch is one that leaves no row; NULL as long as the batch is as it arrived."""

ACTION = RESERVED_PREFIX + "action"
"""The number of the clause that applies, null where none does."""

COMPLETED = RESERVED_PREFIX + "completed"
"""The number of a source row that lacks a value which its change did not send, and has a match to take it from."""
