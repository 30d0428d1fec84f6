"""What is parked outlives the query's run: restored checkpoints, respelled and replaced tables, records that change."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from pyspark.sql import functions as F

from stream_merge import MergeRouter, MergeSink, RouterError, merge_router, merge_sink
from tests.streaming.streams import (
    ROUTED,
    ChangeFiles,
    counting_sink,
    replace_folder,
    rows,
    run,
    run_to_failure,
)
from tests.streaming.test_parking import Shop

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

pytestmark = pytest.mark.filterwarnings("ignore:PySpark does not yet fully support pandas:FutureWarning")


@pytest.fixture
def changes(tmp_path: Path) -> ChangeFiles:
    """Return a folder of changes of several tables without any."""
    return ChangeFiles(tmp_path / "changes", ROUTED)


@pytest.fixture
def shop(spark: SparkSession, tables: dict[str, str], tmp_path: Path) -> Shop:
    """Return three tables, and a parking table that does not exist yet."""
    return Shop(spark, tables, str(tmp_path / "lake" / "parked"))


@pytest.fixture
def batch_of(create_source):
    """Return a function that makes the frame of a micro-batch."""
    return lambda *changed: create_source(ROUTED, changed)


def without_topic(_: str, changed: DataFrame) -> DataFrame:
    return changed.drop("topic")


def only_own_columns(_: str, changed: DataFrame) -> DataFrame:
    return changed.select("id", "n")


@pytest.mark.core
@pytest.mark.parametrize("is_mended", [False, True])
def test_an_older_copy_of_the_checkpoint_is_refused(
    shop: Shop, changes: ChangeFiles, checkpoint: Path, tmp_path: Path, is_mended: bool
):
    """The batch of its next number has other rows than the parked one, which nobody would merge or park."""
    stream = changes.stream(shop.spark).repartition(1)
    changes.add([("items", 1, 1)])
    run(stream, shop.router(), checkpoint)
    copy = tmp_path / "copy"
    shutil.copytree(checkpoint, copy)
    shop.damage()
    changes.add([("items", 2, 5)])
    run(stream, shop.router(), checkpoint)
    assert [batch_id for _, batch_id, _, _ in shop.parked()] == [1]
    replace_folder(checkpoint, copy)
    changes.add([("items", 3, 1)])
    if is_mended:
        shop.mend()
    error = run_to_failure(stream, shop.router(), checkpoint)
    assert "BatchIdRegressionError" in error
    assert f"what is parked for {shop.tables['items']} holds another batch of this number" in error
    assert rows(shop.spark, shop.tables["items"]) == [(1, 1)]
    assert [batch_id for _, batch_id, _, _ in shop.parked()] == [1]


@pytest.mark.parametrize(("is_mended", "holder"), [(False, "the parking table"), (True, "the target")])
def test_a_batch_behind_what_is_parked_is_refused(shop: Shop, batch_of, is_mended: bool, holder: str):
    shop.options = {"app_id": "shop"}
    shop.damage()
    shop.router()(batch_of(("items", 1, 5)), 3)
    if is_mended:
        shop.mend()
    with pytest.raises(RouterError, match=rf"BatchIdRegressionError: .* {holder} .*holds batch 3 of it already"):
        shop.router()(batch_of(("items", 2, 1)), 2)
    assert [batch_id for _, batch_id, _, _ in shop.parked()] == ([] if is_mended else [3])


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("at", "timestamp_ntz'2020-01-01 00:00:00'"),
        ("Order Id", "1"),
        ("more", "struct(timestamp_ntz'2020-01-01' AS `a b`)"),
    ],
)
def test_the_parking_table_gets_columns_that_need_a_feature(shop: Shop, batch_of, name: str, value: str):
    sinks = {"items": counting_sink(shop.tables["items"], app_id="shop")}

    def router() -> MergeRouter:
        return merge_router(sinks, prepare=only_own_columns, parking=shop.parking)

    shop.damage()
    router()(batch_of(("items", 1, 5)), 0)
    later = [batch_of(("items", 1, n)).withColumn(name, F.expr(value)) for n in (6, 7)]
    router()(later[0], 1)
    assert shop.parked() == [("items", 0, 1, 5), ("items", 1, 1, 6)]
    shop.mend()
    router()(later[1], 2)
    assert rows(shop.spark, shop.tables["items"]) == [(1, 18)]
    assert shop.parked() == []


def test_many_tables_at_rest_get_new_columns_at_a_time(shop: Shop, batch_of):
    """Each of them adds the columns to the parking table, and all but the first meet its commit."""
    names = ("orders", "items", "carts")
    sinks = {name: counting_sink(shop.tables[name], app_id="shop") for name in names}
    for name in names:
        shop.damage(name=name)
    router = merge_router(sinks, prepare=only_own_columns, parking=shop.parking)
    router(batch_of(*[(name, 1, 5) for name in names]), 0)
    for number in (1, 2):
        more = {f"new_{number}_{name}": F.lit(number) for name in names}
        router(batch_of(*[(name, 1, 5 + number) for name in names]).withColumns(more), number)
    assert [(batch_id, n) for _, batch_id, _, n in shop.parked()] == [(0, 5), (1, 6), (2, 7)] * 3
    for name in names:
        shop.mend(name)
    merge_router(sinks, prepare=only_own_columns, parking=shop.parking)(batch_of(("items", 2, 1)), 3)
    assert shop.contents() == {"orders": [(1, 18)], "items": [(1, 18), (2, 1)], "carts": [(1, 18)]}


def test_a_new_table_under_the_old_application_id_is_parked_for_anew(shop: Shop, batch_of):
    """A new checkpoint begins with batch 0; what was parked for the former table says nothing of this one."""
    shop.options = {"app_id": "shop"}
    shop.damage()
    for number in range(3):
        shop.router()(batch_of(("items", 1, 5)), number)
    shop.mend()
    shop.router()(batch_of(("items", 1, 5)), 3)
    assert (shop.parked(), rows(shop.spark, shop.tables["items"])) == ([], [(1, 20)])
    shutil.rmtree(shop.tables["items"])
    shop.spark._jvm.org.apache.spark.sql.delta.DeltaLog.clearCache()
    shop.spark.sql(f"CREATE TABLE delta.`{shop.tables['items']}` (id INT, n INT) USING delta")
    shop.damage()
    shop.router()(batch_of(("items", 1, 7)), 0)
    assert shop.parked() == [("items", 0, 1, 7)]
    shop.mend()
    shop.router()(batch_of(("items", 1, 1)), 1)
    assert rows(shop.spark, shop.tables["items"]) == [(1, 8)]


def test_another_spelling_of_the_table_takes_what_is_parked(shop: Shop, batch_of, caplog):
    shop.options = {"app_id": "shop"}
    shop.damage()
    shop.router()(batch_of(("items", 1, 5)), 0)
    path = shop.tables["items"]
    for number, spelling in ((1, f"{path}/"), (2, path)):
        respelled = merge_router(
            {"items": counting_sink(spelling, app_id="shop")}, prepare=without_topic, parking=shop.parking
        )
        if number == 2:
            shop.mend()
        respelled(batch_of(("items", 1, 5 + number)), number)
        assert (len(respelled.parked), len(shop.parked())) == ((1, 2) if number == 1 else (0, 0))
    assert rows(shop.spark, path) == [(1, 18)]
    assert not [record for record in caplog.records if "no sink merges" in record.getMessage()]


def test_a_function_s_sinks_with_an_application_id_are_tried_at_the_start_of_a_run(shop: Shop, batch_of):
    def router() -> MergeRouter:
        return merge_router(
            lambda name: counting_sink(shop.tables[name], app_id=f"of-{name}"),
            prepare=without_topic,
            parking=shop.parking,
        )

    shop.damage()
    router()(batch_of(("items", 1, 5)), 0)
    again = router()
    again(batch_of(("orders", 1, 1)), 1)
    assert [table.num_rows for table in again.parked] == [1], "shown, though it has no rows in the batch"
    shop.mend()
    router()(batch_of(("orders", 1, 1)), 2)
    assert (rows(shop.spark, shop.tables["items"]), shop.parked()) == ([(1, 5)], [])


def test_shards_of_one_table_with_sinks_of_their_own(shop: Shop, batch_of):
    """A function that makes a sink for each name: never two of them in one micro-batch."""

    def router() -> MergeRouter:
        def sink_of(name: str) -> Any:
            sink = merge_sink(shop.tables["items"], on="target.id = source.id", app_id="shop")
            factor = {"a": 1, "b": 10}[name]
            return sink.when_matched_update(set={"n": f"target.n + {factor} * source.n"}).when_not_matched_insert(
                values={"id": "source.id", "n": f"{factor} * source.n"}
            )

        return merge_router(sink_of, prepare=without_topic, parking=shop.parking)

    shop.damage("n < 3")
    resting = router()
    resting(batch_of(("a", 1, 5)), 0)
    resting(batch_of(("b", 1, 7)), 1)
    shop.mend()
    router()(batch_of(("a", 1, 1)), 2)
    assert rows(shop.spark, shop.tables["items"]) == [(1, 76)]
    assert shop.parked() == []


def test_records_that_were_parked_together_and_go_apart_by_now(shop: Shop, batch_of):
    """Neither sink may merge those of the other; nothing is lost, and one sink for both takes them."""

    def router(*, is_shared: bool) -> MergeRouter:
        def new() -> MergeSink:
            return counting_sink(shop.tables["items"], app_id="shop")

        one = new()
        sinks = {"a": one, "b": one if is_shared else new()}
        return merge_router(sinks.get, prepare=without_topic, parking=shop.parking)

    shop.damage()
    router(is_shared=True)(batch_of(("a", 1, 5), ("b", 2, 7)), 0)
    shop.mend()
    apart = router(is_shared=False)
    apart(batch_of(("a", 1, 1)), 1)
    assert "have different sinks by now" in apart.parked[0].error
    assert sorted(n for _, _, _, n in shop.parked()) == [1, 5, 7]
    router(is_shared=True)(batch_of(("b", 1, 2)), 2)
    assert (rows(shop.spark, shop.tables["items"]), shop.parked()) == ([(1, 8), (2, 7)], [])
