"""The ids of rows without a key are in tables, so that they may never change.

Those below were given by the version before the canonical form of values had a module of its own.
"""

from pyspark.sql import Window
from pyspark.sql import functions as F

from stream_merge import merge_sink
from stream_merge.column_names import ROW_ID

COLUMNS = """
    b BOOLEAN, ti TINYINT, i INT, l BIGINT, f FLOAT, d DOUBLE, dec DECIMAL(38,10), s STRING, bin BINARY, da DATE,
    ts TIMESTAMP, tn TIMESTAMP_NTZ, a ARRAY<INT>, m MAP<STRING,INT>,
    st STRUCT<x: DECIMAL(10,2), y: ARRAY<STRUCT<z: MAP<INT, DECIMAL(5,1)>>>>,
    mm MAP<STRUCT<p: INT>, ARRAY<STRING>>, nt STRUCT<q: STRING>
"""
ROWS = {
    ", ".join(["NULL"] * 17): "01+44136fa355b3678a1146ad16f7e8649e",
    """
    false, -1Y, -5, -7L, float('NaN'), double('-0.0'), -0.0000000001BD, '', X'', DATE'9999-12-31',
    TIMESTAMP'9999-12-31 23:59:59.999999', TIMESTAMP_NTZ'0001-01-01 00:00:00', array(), map(),
    named_struct('x', null, 'y', array()), map(), null
    """: "02+bf15475904484f52458069ea3da3a9ac",
    """
    true, 1Y, 5, 7L, float(1.5), 2.25D, 1234567890123456789.0123456789BD, 'ä"x', X'00FF', DATE'1850-01-01',
    TIMESTAMP'1880-01-01 00:00:00.123456', TIMESTAMP_NTZ'2024-03-31 02:30:00', array(1, null, 3), map('b', 2, 'a', 1),
    named_struct('x', 1.50BD, 'y', array(named_struct('z', map(2, 1.5BD, 1, 2.0BD)), null)),
    map(named_struct('p', 1), array('u', null)), named_struct('q', null)
    """: "03+a800d949d73f80a1715478f3e73808dd",
    """
    true, 127Y, 2147483647, 9223372036854775807L, float('inf'), 1e300D, 10BD, '1.50', X'31', DATE'2024-02-29',
    TIMESTAMP'1900-01-01 00:00:00', TIMESTAMP_NTZ'2024-01-01 00:00:00', array(0), map('x', null),
    named_struct('x', 100BD, 'y', null), map(named_struct('p', null), null), named_struct('q', 'v')
    """: "04+115b56306aa83e421c6c1272444117de",
}


def test_rows_of_all_types_keep_their_ids(spark, create_table, tmp_path):
    source, target = (create_table(COLUMNS, path=str(tmp_path / name)) for name in ("source", "target"))
    spark.sql(f"INSERT INTO delta.`{source}` SELECT {' UNION ALL SELECT '.join(ROWS)}")
    rows = spark.read.format("delta").load(source)
    changes = rows.select(
        "*",
        F.lit(None).cast(rows.schema).alias("before"),
        F.row_number().over(Window.orderBy("l")).alias("seq"),
        F.lit("c").alias("op"),
    )
    options = {"sequence_by": "seq", "delete_when": "op = 'd'", "except_columns": ["before", "seq", "op"]}
    merge_sink(target, before="before", **options).merge(changes)
    found = spark.read.format("delta").load(target).select(ROW_ID).orderBy(ROW_ID).collect()
    assert [row[ROW_ID] for row in found] == list(ROWS.values())
