"""Public calls as users write them. mypy and pyright check this file; nothing runs it."""

import re
from collections.abc import Callable
from datetime import timedelta

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F
from pyspark.sql.streaming.query import StreamingQuery

from stream_merge import (
    AmbiguousMatchError,
    BatchIdRegressionError,
    CommitConflictError,
    ConfigError,
    MergeResult,
    MergeRouter,
    MergeSink,
    RouterError,
    StreamMergeError,
    UnsupportedTableError,
    debezium,
    merge_router,
    merge_sink,
)
from stream_merge.java import find_java_fault
from stream_merge.packages import delta_package


def keyed() -> MergeSink:
    return merge_sink("lake.customers", keys=["id"], sequence_by="updated_at", delete_when="op = 'd'")


def one_key_and_columns_as_expressions() -> MergeSink:
    deleted: Column = F.col("source.op") == "d"
    return merge_sink("lake.customers", keys="id", sequence_by=("updated_at", "lsn"), delete_when=deleted)


def without_keys() -> MergeSink:
    options = debezium.KEYLESS_MERGE_OPTIONS
    merge_sink("lake.visits", before=F.col("old"), sequence_by="lsn", delete_when="op = 'd'")
    return merge_sink("lake.visits", quarantine="lake.rejected", **options)


def any_keys() -> MergeSink:
    def by_id(rows: DataFrame, remembered: Callable[[], tuple[str, ...] | None]) -> dict[str, object]:
        return {"keys": remembered() or rows.columns[:1]}

    merge_sink("/data/{table}", learn=by_id)
    return merge_sink("/data/{table}", learn=debezium.learn_options, quarantine="lake.rejected")


def every_option(report: Callable[[MergeResult], None]) -> MergeSink:
    return merge_sink(
        "/data/customers",
        keys=["id"],
        on=None,
        sequence_by=["updated_at", F.col("lsn")],
        tie_break_by="offset",
        tombstone_retention=timedelta(days=1),
        delete_when="op = 'd'",
        source_alias="s",
        target_alias="t",
        merge_schema=True,
        overwrite_schema=False,
        create_if_missing=True,
        partition_by="region",
        cluster_by=None,
        table_properties={"delta.enableChangeDataFeed": "true"},
        app_id="customers",
        output_mode="update",
        strategy="merge_on_read",
        locator="scan",
        null_keys="quarantine",
        check_cardinality=True,
        skip_unchanged=True,
        single_writer=False,
        maintenance=True,
        quarantine="/data/customers_rejected",
        error_column="_change.error",
        expect={"positive": "price > 0", "named": F.col("name").isNotNull()},
        max_quarantined_share=0.1,
        max_commit_retries=3,
        user_metadata="from the shop",
        on_result=report,
    )


def every_clause() -> MergeSink:
    return (
        merge_sink("/data/stock", on=F.expr("target.sku = source.sku"))
        .when_matched_delete(condition="source.qty = 0")
        .when_matched_update(set={"qty": "target.qty + source.qty"}, condition=F.expr("source.qty > 0"))
        .when_matched_update(set={"qty": F.expr("source.qty")})
        .when_matched_update_all(condition="source.qty > 10")
        .when_not_matched_insert(values={"sku": "source.sku", "qty": F.lit(0)}, condition="source.qty < 0")
        .when_not_matched_insert()
        .when_not_matched_insert_all(condition="source.qty > 0")
        .when_not_matched_by_source_update(set={"stale": "true"}, condition="target.stale = false")
        .when_not_matched_by_source_delete()
    )


def as_a_stream(changes: DataFrame) -> StreamingQuery:
    writer = changes.writeStream.foreachBatch(keyed()).option("checkpointLocation", "checkpoints/customers")
    return writer.outputMode("update").start()


def once(batch_df: DataFrame) -> tuple[int | None, str, int, dict[str, object]]:
    sink = keyed()
    result = sink.merge(batch_df)
    explained: str = sink.explain(batch_df)
    return result.version, explained, result.num_target_rows_inserted + result.num_unchanged_rows, result.to_dict()


def drop_topic(name: str, rows: DataFrame) -> DataFrame:
    return rows.drop("topic").filter(F.lit(name) != "")


def routers(sink_of: Callable[[str], MergeSink | None]) -> list[MergeRouter]:
    by_name = {"orders": keyed(), "items": keyed()}
    by_pattern = {re.compile("(?P<table>.*)"): keyed()}
    return [
        merge_router(by_name),
        merge_router(by_pattern, by=F.col("table"), prepare=drop_topic),
        merge_router({"orders": keyed(), re.compile("i.*"): keyed()}, max_parallel=8, unknown="ignore"),
        merge_router(sink_of, by="coalesce(topic, 'none')", parking="lake.parked"),
    ]


def many_tables(changes: DataFrame, router: MergeRouter) -> StreamingQuery:
    return changes.writeStream.foreachBatch(router).option("checkpointLocation", "checkpoints/shop").start()


def many_tables_once(batch_df: DataFrame, router: MergeRouter) -> tuple[dict[str, MergeResult], list[str]]:
    try:
        return router.merge(batch_df), []
    except RouterError as error:
        done: dict[str, MergeResult] = error.results
        return done, [f"{name}: {cause}" for name, cause in error.failures.items()] + list(error.pending)


def errors(batch_df: DataFrame) -> str:
    try:
        keyed().merge(batch_df)
    except ConfigError as error:
        return ", ".join(error.faults)
    except AmbiguousMatchError as error:
        return f"{error.count} {error.example}"
    except BatchIdRegressionError as error:
        return f"{error.batch_id} < {error.recorded} of {error.app_id}"
    except CommitConflictError as error:
        return f"{error.attempts} attempts, retriable: {error.retriable}"
    except UnsupportedTableError as error:
        return error.condition or str(error)
    except StreamMergeError as error:
        return str(error)
    return delta_package() + (find_java_fault() or "")


def changes_of_debezium(records: DataFrame) -> DataFrame:
    registry = debezium.SchemaRegistry(url=["https://a.example", "https://b.example"], token="...", timeout=30)
    learnt: DataFrame = debezium.changes(debezium.from_registry(records, registry))
    columns: debezium.Columns = {"id": "BIGINT", "at": debezium.Field("TIMESTAMP_NTZ", "io.debezium.time.Timestamp")}
    keys: tuple[str, ...] | None = debezium.learn_keys(records, known=["id"])
    given = debezium.changes(records, columns, keys, format="flattened", keep_tombstones=True)
    of_table = debezium.table_fields(debezium.table_schema(records), except_columns=["loaded_at"])
    return learnt.unionByName(given).unionByName(debezium.changes(records, of_table, keys=[], decimals="string"))
