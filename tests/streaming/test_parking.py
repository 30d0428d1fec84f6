"""A table that fails goes to rest alone: its records are parked, the others go on, and it catches up exactly once."""

from __future__ import annotations

import json
import logging
import re
import signal
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from pyspark.sql import functions as F

from stream_merge import ConfigError, MergeRouter, RouterError, debezium, merge_router, merge_sink
from stream_merge.errors import BatchIdRegressionError, ParkingError
from stream_merge.routing import tables_at_rest
from stream_merge.steps import PARKING_STEPS
from tests.debezium.records import envelope, frame_of, record
from tests.streaming.child_session import child_conf, last_lines, run_child
from tests.streaming.streams import (
    ROUTED,
    TABLES,
    ChangeFiles,
    count,
    counting_sink,
    forget_commit,
    recorded_ids,
    rows,
    run,
    run_to_failure,
)

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

Change = tuple[str, int, int]


@pytest.fixture
def changes(tmp_path: Path) -> ChangeFiles:
    """Return a folder of changes of several tables without any."""
    return ChangeFiles(tmp_path / "changes", ROUTED)


@pytest.fixture
def parking(tmp_path: Path) -> str:
    """Return the path of a parking table that does not exist yet."""
    return str(tmp_path / "lake" / "parked")


@pytest.fixture
def always_due(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let tables at rest be tried again with every micro-batch."""
    monkeypatch.setattr(tables_at_rest.TableAtRest, "is_due", True)


class Shop:
    """Three tables, one of which can be broken and mended.

    Attributes:
        tables: Their paths by name.
        parking: The parking table.
        options: Options of the sinks.
    """

    def __init__(self, spark: SparkSession, tables: Mapping[str, str], parking: str) -> None:
        self.spark = spark
        self.tables = tables
        self.parking = parking
        self.options: dict[str, Any] = {}

    def router(self, **options: Any) -> MergeRouter:
        """Return a new router, as a process that was started again has it."""
        sinks = {name: counting_sink(path, **self.options) for name, path in self.tables.items()}
        return merge_router(
            sinks, **{"prepare": lambda _, changed: changed.drop("topic"), **options}, parking=self.parking
        )

    def damage(self, condition: str = "n < 3", name: str = "items") -> None:
        """Let a table refuse rows for which a condition does not hold."""
        self.spark.sql(f"ALTER TABLE delta.`{self.tables[name]}` ADD CONSTRAINT small CHECK ({condition})")

    def mend(self, name: str = "items") -> None:
        self.spark.sql(f"ALTER TABLE delta.`{self.tables[name]}` DROP CONSTRAINT small")

    def contents(self) -> dict[str, list[tuple[Any, ...]]]:
        return {name: rows(self.spark, path) for name, path in self.tables.items()}

    def parked(self) -> list[tuple[Any, ...]]:
        """Return source, batch id and record of what is parked."""
        if not (Path(self.parking) / "_delta_log").exists():
            return []
        return rows(self.spark, self.parking, "source", "batch_id", "record.id", "record.n")


@pytest.fixture
def shop(spark: SparkSession, tables: dict[str, str], parking: str) -> Shop:
    return Shop(spark, tables, parking)


@pytest.fixture
def batch_of(create_source: Callable[..., DataFrame]) -> Callable[..., DataFrame]:
    """Return a function that makes the frame of a micro-batch."""
    return lambda *changed: create_source(ROUTED, changed)


def folded(*batches: Sequence[Change]) -> dict[str, list[tuple[Any, ...]]]:
    return {
        name: count(*[[(key, n) for topic, key, n in batch if topic == name] for batch in batches]) for name in TABLES
    }


BATCHES: list[list[Change]] = [
    [("orders", 1, 1), ("items", 1, 2), ("carts", 1, 3)],
    [("orders", 1, 10), ("items", 1, 20), ("items", 2, 5)],
    [("carts", 1, 30)],
    [("orders", 2, 100), ("items", 1, 200)],
    [("items", 2, 2000), ("carts", 1, 3000)],
]


@pytest.mark.core
def test_a_broken_table_rests_while_the_others_go_on_and_catches_up_after_a_restart(
    shop: Shop, changes: ChangeFiles, checkpoint: Path, caplog
):
    changes.add(BATCHES[0])
    run(changes.stream(shop.spark), shop.router(), checkpoint)
    assert not Path(shop.parking).exists(), "made when the first table fails"
    shop.damage()
    changes.add(*BATCHES[1:4])
    router = shop.router()
    run(changes.stream(shop.spark), router, checkpoint)
    done = folded(*BATCHES[:4])
    assert shop.contents() == {**done, "items": [(1, 2)]}
    assert shop.parked() == [("items", 1, 1, 20), ("items", 1, 2, 5), ("items", 3, 1, 200)]
    (parked,) = router.parked
    assert (parked.target, parked.sources, parked.num_batches, parked.num_rows) == (
        shop.tables["items"],
        ("items",),
        2,
        3,
    )
    assert parked.error.startswith("ConstraintViolationError: ")
    (error,) = [record for record in caplog.records if record.levelno == logging.ERROR]
    assert error.getMessage().startswith(f"{shop.tables['items']} failed and goes to rest: its records are parked in ")
    said = rows(shop.spark, shop.parking, "target", "error", "columns", "record.topic")
    assert said == [(shop.tables["items"], parked.error, ["topic", "id", "n"], "items")] * 3

    # Started again with nothing mended, then mended.
    changes.add(BATCHES[4])
    router = shop.router()
    run(changes.stream(shop.spark), router, checkpoint)
    assert shop.contents() == {**folded(*BATCHES), "items": [(1, 2)]}
    assert [(table.num_batches, table.num_rows) for table in router.parked] == [(3, 4)]
    shop.mend()
    router = shop.router()
    changes.add([("orders", 9, 9)])
    run(changes.stream(shop.spark), router, checkpoint)
    assert shop.contents() == folded(*BATCHES, [("orders", 9, 9)])
    assert (shop.parked(), router.parked) == ([], ())
    assert recorded_ids(shop.tables["items"]) == [0, 1, 3, 4]
    changes.add([("items", 1, 7)])
    run(changes.stream(shop.spark), router, checkpoint)
    assert shop.contents() == folded(*BATCHES, [("orders", 9, 9)], [("items", 1, 7)])


def test_it_is_tried_again_after_a_while_also_in_a_micro_batch_without_its_records(shop: Shop, batch_of, monkeypatch):
    """The first time after a minute, which a clock that is set forward tells."""
    shop.options = {"app_id": "shop"}
    asked: list[str] = []
    now = [1000.0]
    monkeypatch.setattr(tables_at_rest.time, "monotonic", lambda: now[0])

    def prepare(name: str, changed: DataFrame) -> DataFrame:
        asked.append(name)
        return changed.drop("topic")

    router = shop.router(prepare=prepare)
    shop.damage()
    router(batch_of(("items", 1, 3), ("orders", 1, 1)), 0)
    router(batch_of(("items", 1, 4)), 1)
    now[0] += 59
    router(batch_of(("items", 1, 5)), 2)
    assert asked.count("items") == 1
    now[0] += 2
    router(batch_of(("orders", 1, 1)), 3)
    assert asked.count("items") == 2
    now[0] += 119
    router(batch_of(("items", 1, 6)), 4)
    assert asked.count("items") == 2
    assert shop.parked() == [("items", number, 1, n) for number, n in ((0, 3), (1, 4), (2, 5), (4, 6))]
    shop.mend()
    now[0] += 2
    router(batch_of(("orders", 1, 1)), 5)
    assert shop.contents() == {"orders": [(1, 3)], "items": [(1, 18)], "carts": []}
    assert (shop.parked(), router.parked) == ([], ())
    assert recorded_ids(shop.tables["items"]) == [0, 1, 2, 4]
    router(batch_of(("items", 1, 10)), 6)
    assert rows(shop.spark, shop.tables["items"]) == [(1, 28)]


@pytest.mark.parametrize("sequence", [None, "n"])
def test_the_order_of_what_is_parked_is_kept(shop: Shop, batch_of, always_due, sequence: str | None):
    """Without a sequence the last micro-batch wins, with one the newest change. The second attempt fails midway."""
    sinks = {"items": merge_sink(shop.tables["items"], keys="id", app_id="shop", sequence_by=sequence)}

    def make_router() -> MergeRouter:
        return merge_router(sinks, prepare=lambda _, changed: changed.drop("topic"), parking=shop.parking)

    router = make_router()
    router(batch_of(("items", 1, 1)), 0)
    shop.damage("n < 3")
    router(batch_of(("items", 1, 5), ("items", 2, 5)), 1)
    router(batch_of(("items", 1, 9)), 2)
    router(batch_of(("items", 1, 7), ("items", 2, 4)), 3)
    shop.mend()
    shop.damage("n < 9")
    router(batch_of(("items", 3, 1)), 4)
    assert rows(shop.spark, shop.tables["items"], "id", "n") == [(1, 5), (2, 5)], "what came before the bad batch"
    assert [batch_id for _, batch_id, _, _ in shop.parked()] == [2, 3, 3, 4]
    shop.mend()
    make_router()(batch_of(("items", 4, 1)), 5)
    newest = {None: [(1, 7), (2, 4)], "n": [(1, 9), (2, 5)]}[sequence]
    assert rows(shop.spark, shop.tables["items"], "id", "n") == [*newest, (3, 1), (4, 1)]
    assert shop.parked() == []


class KillError(BaseException):
    """As a kill would: nobody handles it."""


@pytest.mark.every_case
@pytest.mark.parametrize(
    "step",
    [
        pytest.param(step, marks=() if step in ("parked", "unparking") else pytest.mark.long)
        for step in (*PARKING_STEPS, "before_commit", "after_commit")
    ],
)
def test_killed_at_a_step_of_parking_or_of_catching_up(shop: Shop, batch_of, at_step, step: str):
    """In the micro-batch in which the table fails, or in the one after it was mended; both come again."""
    shop.options = {"app_id": "shop"}
    batches = [[("items", 1, 1)], [("items", 1, 5), ("orders", 1, 1)], [("items", 2, 7)], [("items", 1, 9)]]
    frames = [batch_of(*batch) for batch in batches]
    router = shop.router(max_parallel=1)
    router(frames[0], 0)
    shop.damage()

    def die() -> None:
        raise KillError

    def deliver(number: int, *, is_killed: bool) -> None:
        nonlocal router
        if is_killed:
            at_step(step, die)
            with pytest.raises(KillError):
                router(frames[number], number)
            router = shop.router(max_parallel=1)
        router(frames[number], number)

    deliver(1, is_killed=step in ("parking", "parked"))
    assert [batch_id for _, batch_id, _, _ in shop.parked()] == [1]
    router = shop.router(max_parallel=1)
    router(frames[2], 2)
    shop.mend()
    router = shop.router(max_parallel=1)
    deliver(3, is_killed=step not in ("parking", "parked"))
    router = shop.router(max_parallel=1)
    router(frames[3], 3)
    assert shop.contents() == {**folded(*batches), "carts": []}
    assert recorded_ids(shop.tables["items"]) == [0, 1, 2, 3]
    assert shop.parked() == []


@pytest.mark.long
def test_a_micro_batch_that_is_delivered_again(shop: Shop, changes: ChangeFiles, checkpoint: Path):
    """After its records were parked, after they were merged, and after the table failed in it once more."""
    stream = changes.stream(shop.spark)
    changes.add(BATCHES[0])
    run(stream, shop.router(), checkpoint)
    shop.damage()
    changes.add(BATCHES[1])
    for _ in range(2):
        run(stream, shop.router(), checkpoint)
        assert shop.parked() == [("items", 1, 1, 20), ("items", 1, 2, 5)]
        forget_commit(checkpoint, 1)
    shop.mend()
    for _ in range(2):
        run(stream, shop.router(), checkpoint)
        assert (shop.contents(), shop.parked()) == (folded(*BATCHES[:2]), [])
        forget_commit(checkpoint, 1)
    log = Path(shop.tables["items"]) / "_delta_log"
    log.rename(log.with_name("lost"))
    run(stream, shop.router(), checkpoint)
    assert shop.parked() == [], "the parking table knows that it had them"
    log.with_name("lost").rename(log)
    changes.add(BATCHES[4])
    run(stream, shop.router(), checkpoint)
    assert shop.contents() == folded(*BATCHES[:2], BATCHES[4])


def test_a_parking_table_that_cannot_be_written_fails_the_micro_batch(shop: Shop, batch_of, tmp_path: Path):
    shop.options = {"app_id": "shop"}
    Path(shop.parking).write_text("no folder")
    shop.damage()
    batch = batch_of(("items", 1, 5), ("orders", 1, 1))
    router = shop.router()
    for _ in range(2):
        with pytest.raises(RouterError, match="1 of 2 source") as caught:
            router(batch, 0)
        assert [*caught.value.failures] == ["items"]
        assert router.parked == ()
    Path(shop.parking).unlink()
    router(batch, 0)
    assert shop.parked() == [("items", 0, 1, 5)]
    shop.mend()
    shop.router()(batch, 0)
    assert shop.contents() == {"orders": [(1, 1)], "items": [(1, 5)], "carts": []}


def test_what_was_parked_is_not_taken_for_merged_when_the_query_went_on_without_it(shop: Shop, batch_of, caplog):
    shop.options = {"app_id": "shop"}
    shop.damage()
    shop.router()(batch_of(("items", 1, 5)), 0)
    shop.mend()
    sinks = {"items": counting_sink(shop.tables["items"], app_id="shop")}
    merge_router(sinks, prepare=lambda _, changed: changed.drop("topic"))(batch_of(("items", 1, 100)), 1)
    router = shop.router()
    router(batch_of(("items", 1, 1000)), 2)
    assert rows(shop.spark, shop.tables["items"]) == [(1, 100)]
    assert shop.parked() == [("items", 0, 1, 5), ("items", 2, 1, 1000)]
    assert "batch 0 of application 'shop' is parked and was not merged, but the table has batch 1" in caplog.text
    # Given up: the records are deleted, here only the old ones.
    shop.spark.sql(f"DELETE FROM delta.`{shop.parking}` WHERE batch_id = 0")
    shop.router()(batch_of(("orders", 1, 1)), 3)
    assert shop.contents() == {"orders": [(1, 1)], "items": [(1, 1100)], "carts": []}


@pytest.mark.long
def test_what_is_a_matter_of_the_whole_query_is_not_parked(shop: Shop, batch_of):
    shop.options = {"app_id": "shop"}
    router = shop.router()
    router(batch_of(("items", 1, 5)), 7)
    with pytest.raises(RouterError) as caught:
        router(batch_of(("items", 1, 5), ("orders", 1, 1)), 6)
    assert isinstance(caught.value.failures["items"], BatchIdRegressionError)
    shop.damage("n < 6")
    with pytest.raises(RouterError):
        router.merge(batch_of(("items", 1, 5)))
    router(batch_of(("items", 1, 5)), 8)
    assert [batch_id for _, batch_id, _, _ in shop.parked()] == [8]
    with pytest.raises(RouterError) as caught:
        shop.router()(batch_of(("items", 1, 5), ("orders", 1, 1)), 0)
    assert shop.parked() == [("items", 8, 1, 5)]


@pytest.mark.long
def test_tables_whose_log_or_folder_is_lost_rest_too(shop: Shop, batch_of, tmp_path: Path):
    """Also tables without records in the first micro-batch of a run."""
    shop.options = {"app_id": "shop"}
    shop.router()(batch_of(*[(name, 1, 1) for name in TABLES]), 0)
    log = Path(shop.tables["items"]) / "_delta_log"
    log.rename(tmp_path / "log")
    log.write_text("no folder")
    Path(shop.tables["carts"]).rename(tmp_path / "elsewhere")
    shop.spark._jvm.org.apache.spark.sql.delta.DeltaLog.clearCache()
    router = shop.router()
    router(batch_of(("orders", 1, 10)), 1)
    assert router.parked == ()
    router(batch_of(*[(name, 1, 100) for name in TABLES]), 2)
    assert rows(shop.spark, shop.tables["orders"]) == [(1, 111)]
    assert [table.sources for table in router.parked] == [("carts",), ("items",)]
    log.unlink()
    (tmp_path / "log").rename(log)
    (tmp_path / "elsewhere").rename(shop.tables["carts"])
    shop.spark._jvm.org.apache.spark.sql.delta.DeltaLog.clearCache()
    shop.router()(batch_of(("orders", 1, 1000)), 3)
    assert shop.contents() == {"orders": [(1, 1111)], "items": [(1, 101)], "carts": [(1, 101)]}
    assert shop.parked() == []


@pytest.mark.long
def test_sources_of_one_table_and_one_that_is_not_taken_any_more(shop: Shop, batch_of, caplog):
    """The table of both waits for a sink that takes what is parked of both; another query's records are left alone."""
    path = shop.tables["items"]

    def make_router(*names: str, app_id: str = "shop") -> MergeRouter:
        sink = counting_sink(path, app_id=app_id)
        others = {name: counting_sink(shop.tables["orders"], app_id=app_id) for name in ("orders",)}
        sinks = {**dict.fromkeys(names, sink), **others}
        return merge_router(sinks, prepare=lambda _, changed: changed.drop("topic"), parking=shop.parking)

    shop.damage()
    make_router("items", "more")(batch_of(("items", 1, 5), ("more", 2, 6)), 0)
    make_router("items", "more", app_id="other")(batch_of(("items", 2, 7)), 0)
    assert shop.parked() == [("items", 0, 1, 5), ("items", 0, 2, 7), ("more", 0, 2, 6)]
    shop.mend()
    make_router("items")(batch_of(("items", 1, 100)), 1)
    assert rows(shop.spark, path) == []
    assert "records of more are parked for it, which its sink does not take any more" in caplog.text
    caplog.clear()
    make_router("else")(batch_of(("orders", 1, 1)), 2)
    assert f"no sink merges items, more into {path} any more, so what is parked stays in {shop.parking}" in caplog.text
    make_router("items", "more")(batch_of(("orders", 1, 1)), 3)
    assert rows(shop.spark, path) == [(1, 105), (2, 6)]
    assert shop.parked() == [("items", 0, 2, 7)]


def test_records_keep_their_columns_and_other_types_are_refused(shop: Shop, create_source, settings):
    """Names that clash with those of the parking table, that Parquet does not allow, and that are new.

    The session has a transaction id, by which Delta would skip the second of its own writes to the parking table.
    """
    settings(
        {f"spark.databricks.delta.write.txn{name}": value for name, value in (("AppId", "mine"), ("Version", "7"))}
    )
    path = shop.tables["items"]

    def make_router() -> MergeRouter:
        sink = merge_sink(path, keys="id", app_id="shop", merge_schema=True)
        return merge_router({"items": sink}, prepare=lambda _, changed: changed.drop("topic"), parking=shop.parking)

    odd = f"{ROUTED}, batch_id STRING, `a b` ARRAY<STRUCT<key: STRING, value: BINARY>>"
    shop.damage()
    make_router()(create_source(odd, [("items", 1, 5, "x", [("k", b"v")])]), 0)
    make_router()(create_source(f"{ROUTED}, `new.one` INT", [("items", 2, 6, 7)]), 1)
    with pytest.raises(RouterError, match=r"the records have bigint in the column n, the parking table has int\. Give"):
        make_router()(create_source("topic STRING, id INT, n BIGINT", [("items", 3, 7)]), 2)
    shop.mend()
    shop.spark.sql(f"ALTER TABLE delta.`{path}` SET TBLPROPERTIES ('delta.columnMapping.mode' = 'name')")
    make_router()(create_source(ROUTED, [("items", 4, 8)]), 2)
    found = shop.spark.read.format("delta").load(path)
    assert found.columns == ["id", "n", "batch_id", "a b", "new.one"], "as if each batch had been merged when it came"
    assert [tuple(row) for row in found.orderBy("id").collect()] == [
        (1, 5, "x", [("k", b"v")], None),
        (2, 6, None, None, 7),
        (4, 8, None, None, None),
    ]
    assert shop.parked() == []


@pytest.mark.long
def test_a_table_whose_keys_cannot_be_learnt_rests(spark: SparkSession, tmp_path: Path, parking: str, read_rows):
    """Its records have keys that are no JSON objects, until `prepare` replaces them."""

    def make_router(*mended: str) -> MergeRouter:
        def prepare(name: str, records: DataFrame) -> DataFrame:
            records = records.withColumn("key", F.lit(b'{"id": 1}')) if name in mended else records
            return debezium.changes(records, "id BIGINT, name STRING")

        sink = merge_sink(f"{tmp_path}/{{table}}", learn=debezium.learn_options, create_if_missing=True, app_id="shop")
        return merge_router({re.compile(r"(?P<table>\w+)"): sink}, prepare=prepare, parking=parking)

    def records(number: int) -> DataFrame:
        made = []
        for table, key in (("good", {"id": 1}), ("odd", 7)):
            one = list(record(key, envelope("c", {"id": 1, "name": f"{table} {number}"}, lsn=number), number))
            one[2] = table
            made.append(tuple(one))
        return frame_of(spark, *made)

    router = make_router()
    for number in range(2):
        router(records(number), number)
    assert [(table.sources, table.num_rows) for table in router.parked] == [(("odd",), 2)]
    assert "keys of the records of odd are not JSON objects" in router.parked[0].error
    make_router("odd")(records(2), 2)
    for table in ("good", "odd"):
        assert [tuple(row) for row in read_rows(f"{tmp_path}/{table}", "id", "name")] == [(1, f"{table} 2")]
    assert rows(spark, parking) == []


def test_a_second_merge_of_one_micro_batch_is_not_parked(shop: Shop, changes: ChangeFiles, checkpoint: Path):
    """Its records would count as merged, since the table has the batch."""
    routers = [shop.router(), shop.router()]

    def merge(batch_df: DataFrame, batch_id: int) -> None:
        for router in routers:
            router(batch_df, batch_id)

    changes.add([("items", 1, 1)])
    assert "MergedTwiceError" in run_to_failure(changes.stream(shop.spark), merge, checkpoint)
    assert shop.parked() == []


def test_what_is_wrong_with_a_parking_table_shows_at_once(shop: Shop, batch_of):
    sinks = {"items": merge_sink(shop.tables["items"], keys="id", quarantine="lake.rejected")}
    for parking, fault in (
        (" ", "parking is empty"),
        (shop.tables["items"], f"parking='{shop.tables['items']}' is the target of a sink, too"),
        ("lake.rejected", "parking='lake.rejected' is the quarantine of a sink, too"),
    ):
        with pytest.raises(ConfigError, match=re.escape(fault)):
            merge_router(sinks, parking=parking)
    with pytest.raises(ParkingError, match="is no parking table of stream_merge"):
        merge_router({"items": counting_sink(shop.tables["items"], app_id="a")}, parking=shop.tables["carts"])(
            batch_of(("items", 1, 1)), 0
        )


@pytest.mark.long
@pytest.mark.crash
def test_processes_killed_while_they_park_and_while_they_catch_up(
    shop: Shop, changes: ChangeFiles, checkpoint: Path, tmp_path: Path
):
    def run_killed(step: str) -> None:
        argument = {"conf": child_conf(shop.spark), "root": str(tmp_path), "tables": shop.tables, "step": step}
        code = run_child("tests.streaming.parking_session", json.dumps(argument), tmp_path / "child.log")
        assert code == -signal.SIGKILL, last_lines(tmp_path / "child.log")

    shop.damage()
    changes.add(*BATCHES)
    run_killed("parking")
    run_killed("parked")
    run(changes.stream(shop.spark), shop.router(), checkpoint)
    assert [batch_id for _, batch_id, _, _ in shop.parked()] == [1, 1, 3, 4], "the first batch breaks no constraint"
    shop.mend()
    changes.add([("orders", 9, 9)])
    run_killed("after_commit")
    run_killed("unparking")
    run(changes.stream(shop.spark), shop.router(), checkpoint)
    assert shop.contents() == folded(*BATCHES, [("orders", 9, 9)])
    assert shop.parked() == []


@pytest.mark.long
def test_catching_up_takes_only_some_time_of_each_micro_batch(shop: Shop, batch_of, monkeypatch):
    """The other tables wait for it. New records are parked behind the old ones until it has caught up."""
    monkeypatch.setattr("stream_merge.routing.parking.CATCH_UP_SECONDS", 0.0)
    shop.options = {"app_id": "shop"}
    shop.damage()
    router = shop.router()
    for number in range(3):
        router(batch_of(("items", number, 5)), number)
    shop.mend()
    router = shop.router()
    router(batch_of(("items", 3, 5)), 3)
    assert [batch_id for _, batch_id, _, _ in shop.parked()] == [2, 3]
    assert [table.error for table in router.parked] == [tables_at_rest.CATCHING_UP]
    errors = [error for (error,) in rows(shop.spark, shop.parking, "error")]
    assert all(error.startswith("ConstraintViolationError") for error in errors), errors
    router(batch_of(("orders", 1, 1)), 4)
    assert shop.contents() == {"orders": [(1, 1)], "items": [(number, 5) for number in range(4)], "carts": []}
    assert shop.parked() == []
