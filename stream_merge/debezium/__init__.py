"""Turns Debezium's Kafka records into changes that a sink can merge: types, order, deletes, missing values.

```python
from stream_merge import debezium

changes = debezium.changes(records, columns="id BIGINT, name STRING, balance DECIMAL(12, 2)", keys=["id"])
```

All decoding is done by Spark's own expressions; no Python runs on the data. Only to learn columns and keys from the
records (`columns=None`, `keys=None`, `learn_columns`, `learn_keys`, `table_schema`) are their distinct schemas and the
names in their keys collected.
"""

from stream_merge.debezium.changes import changes
from stream_merge.debezium.fields import Columns, Field, table_fields
from stream_merge.debezium.keys import learn_keys
from stream_merge.debezium.schemas import LearntColumns, learn_columns, table_schema
from stream_merge.debezium.settings import CHANGE_COL, KEYLESS_MERGE_OPTIONS, MERGE_OPTIONS, learn_options

__all__ = [
    "CHANGE_COL",
    "KEYLESS_MERGE_OPTIONS",
    "MERGE_OPTIONS",
    "Columns",
    "Field",
    "LearntColumns",
    "changes",
    "learn_columns",
    "learn_keys",
    "learn_options",
    "table_fields",
    "table_schema",
]
