"""Turns Debezium's Kafka records into changes that a sink can merge: types, order, deletes, missing values.

```python
from stream_merge import debezium

changes = debezium.changes(records, columns="id BIGINT, name STRING, balance DECIMAL(12, 2)", keys=["id"])
```

All decoding is done by Spark's own expressions; no Python runs on the data. Only to learn columns and keys from the
records (`columns=None`, `keys=None`, `learn_columns`, `learn_keys`, `table_schema`) are their distinct schemas and the
names in their keys collected. Of records in Avro, the ids of their schemas are collected, and a registry is asked.
"""

from stream_merge.debezium.changes import changes
from stream_merge.debezium.fields import Columns, Field, table_fields
from stream_merge.debezium.keys import learn_keys
from stream_merge.debezium.registry import SchemaRegistry
from stream_merge.debezium.schemas import LearntColumns, learn_columns, table_schema
from stream_merge.debezium.settings import CHANGE_COL, KEYLESS_MERGE_OPTIONS, MERGE_OPTIONS, learn_options
from stream_merge.debezium.wire_format import from_registry

__all__ = [
    "CHANGE_COL",
    "KEYLESS_MERGE_OPTIONS",
    "MERGE_OPTIONS",
    "Columns",
    "Field",
    "LearntColumns",
    "SchemaRegistry",
    "changes",
    "from_registry",
    "learn_columns",
    "learn_keys",
    "learn_options",
    "table_fields",
    "table_schema",
]
