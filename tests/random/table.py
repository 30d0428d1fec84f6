"""A table, how its sinks are made, and what must hold of it after each step: what all parts of the machine share."""

from __future__ import annotations

import shutil
import time
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

import pyarrow as pa
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant
from pyspark.errors import PySparkException

from stream_merge import MergeResult, MergeSink, merge_sink, steps
from tests.random.column_types import digits, value_of, wider
from tests.random.columns import EVOLVE, LENIENT, can_send, followed, sent_value
from tests.random.faulty import FaultyFileSystem
from tests.random.model import OWN, Row, TableModel, exact_rows, plain
from tests.random.statistics import wrong_statistics
from tests.random.values import BOTH, KEYS, SEQUENCES, TEXTS, as_text, fits
from tests.spark.delta_log import actions_of, latest_version

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

ORDERED, COLUMNS, UPSERT, COUNT = "ordered", "columns", "upsert", "count"
IN_ORDER = (ORDERED, COLUMNS)
KEY = "a struct of the keys"
OF_CHANGES = {"op": "STRING", "unset": "ARRAY<STRING>", "old": KEY, "new": KEY}
"""The columns that tell what a change does."""

FOLLOWS = (None, None, EVOLVE, LENIENT)
"""Whether the sinks follow the columns of their source: the values of `schema_changes`."""

ZONES = ("UTC", "America/New_York", "Europe/Amsterdam")
ARROW_TYPES = {
    "INT": pa.int32(),
    "BIGINT": pa.int64(),
    "STRING": pa.string(),
    "DECIMAL(38,10)": pa.decimal128(38, 10),
    "DATE": pa.date32(),
    "TIMESTAMP": pa.timestamp("us", "UTC"),
    "BOOLEAN": pa.bool_(),
    "DOUBLE": pa.float64(),
    "ARRAY<STRING>": pa.list_(pa.string()),
    "TIMESTAMP_NTZ": pa.string(),
}


class TimeOverError(BaseException):
    """Raised instead of another example when the time is over; hypothesis lets it pass."""


@dataclass(frozen=True, kw_only=True)
class Setup:
    """How a table and its sinks are made."""

    key_types: tuple[str, ...]
    sequence_types: tuple[str, ...]
    has_sequence: bool
    vectors: bool
    feed: bool
    mapping: bool
    partitioned: bool
    null_keys: str
    locator: str | None
    zone: str
    truncates: bool
    sets_columns: bool
    moves: bool
    maintains: bool
    follows: str | None

    @property
    def excepts(self) -> bool:
        """Whether the sinks that follow the columns of their source do not write those that only they need."""
        return self.sets_columns or not self.has_sequence


@st.composite
def setups(draw: st.DrawFn) -> Setup:
    """Draw a setup."""
    key_types = draw(st.lists(st.sampled_from(sorted(KEYS)), min_size=1, max_size=2))
    zone = draw(st.sampled_from(ZONES))
    # Of the two moments in the hour that comes twice, Delta writes the first into the name of a partition.
    can_partition = key_types[0] != "DOUBLE" and (key_types[0] != "TIMESTAMP" or zone == "UTC")
    return Setup(
        key_types=tuple(key_types * 2 if len(key_types) == 1 and draw(st.booleans()) else key_types),
        sequence_types=tuple(draw(st.lists(st.sampled_from(sorted(SEQUENCES)), min_size=1, max_size=2))),
        has_sequence=draw(st.booleans()),
        vectors=draw(st.booleans()),
        feed=draw(st.booleans()),
        mapping=draw(st.booleans()),
        partitioned=can_partition and draw(st.integers(0, 4)) == 0,
        null_keys=draw(st.sampled_from(("error", "match"))),
        locator=draw(st.sampled_from((None, "index", "scan"))),
        zone=zone,
        truncates=draw(st.booleans()),
        sets_columns=draw(st.booleans()),
        moves=draw(st.booleans()),
        maintains=draw(st.booleans()),
        follows=draw(st.sampled_from(FOLLOWS)),
    )


PLACES = st.tuples(st.integers(0, 11), st.integers(0, 11))
CHANGES = st.lists(
    st.tuples(PLACES, PLACES, st.sampled_from("uuudt"), st.integers(0, 5), st.integers(-1, 9), st.integers(0, 15)),
    min_size=1,
    max_size=6,
)
"""Of each change the places of keys and sequence in their pools, what it does, a text, a number, and what it leaves
alone."""

Changes = Sequence[tuple[tuple[int, int], tuple[int, int], str, int, int, int]]
ANY: Changes = [((0, 0), (0, 0), "u", 0, 0, 0)]


@contextmanager
def beside(step: str, action: Callable[[], object]) -> Iterator[None]:
    """Let something happen when a merge comes to a step, once."""

    def observe(name: str) -> None:
        if name == step:
            steps.observer = None
            action()

    steps.observer = observe
    try:
        yield
    finally:
        steps.observer = None


class DrivenTable(RuleBasedStateMachine):
    """A table, and what happens to it."""

    spark: ClassVar[SparkSession]
    root: ClassVar[Path]
    faults: ClassVar[FaultyFileSystem | None] = None
    num_examples: ClassVar[int] = 0
    num_steps: ClassVar[int] = 0
    num_of: ClassVar[dict[str, int]] = {}
    until: ClassVar[float | None] = None

    def __init__(self) -> None:
        if self.until is not None and time.monotonic() > self.until:
            raise TimeOverError
        super().__init__()
        self.session = self.spark
        self.path = str(self.root / uuid.uuid4().hex)
        type(self).num_examples += 1

    def _noted(self, what: str) -> None:
        num_of = type(self).num_of
        num_of[what] = num_of.get(what, 0) + 1

    @property
    def target(self) -> str:
        """The table as sinks and SQL name it."""
        return self.path if self.faults is None else self.faults.url(self.path)

    def sql(self, text: str) -> list[Any]:
        """Run a statement on the table, which it calls TARGET."""
        return self.session.sql(text.replace("TARGET", f"delta.`{self.target}`")).collect()

    @initialize(setup=setups())
    def create(self, setup: Setup) -> None:
        """Make the table."""
        self.setup = setup
        keys = tuple(f"k{number}" for number in range(len(setup.key_types)))
        sequence = tuple(f"s{number}" for number in range(len(setup.sequence_types)))
        self.source_types = dict(zip((*keys, *sequence), (*setup.key_types, *setup.sequence_types), strict=True))
        kept = [*keys, *(sequence if setup.has_sequence else ())]
        columns = {**{name: self.source_types[name] for name in kept}, "v": "STRING", "w": "STRING", "n": "INT"}
        self.model = TableModel(keys=keys, sequence=sequence, columns=columns, has_sequence=setup.has_sequence)
        self._start_session()
        properties = {
            "enableDeletionVectors": setup.vectors,
            "enableChangeDataFeed": setup.feed,
            # A sink that follows the columns of its source sets it where it needs it.
            **({"enableTypeWidening": True} if setup.follows is None else {}),
        }
        texts = [f"'delta.{name}' = '{str(value).lower()}'" for name, value in properties.items()]
        texts += ["'delta.columnMapping.mode' = 'name'"] if setup.mapping else []
        schema = ", ".join(f"{name} {sql_type}" for name, sql_type in columns.items())
        partition = "PARTITIONED BY (k0)" if setup.partitioned else ""
        self.sql(f"CREATE TABLE TARGET ({schema}) USING delta {partition} TBLPROPERTIES ({', '.join(texts)})")
        self.sinks: dict[str, MergeSink] = {}
        self.written: dict[str, tuple[str, ...]] = {}
        self.batches: dict[str, int] = {}
        self.last: dict[str, tuple[str, list[Row], dict[str, str]]] = {}
        # What the source sends now, and what it sent before.
        self.sent = {**self.source_types, **{name: columns[name] for name in ("v", "w", "n")}}
        self.earlier: list[dict[str, str]] = []
        self.result: MergeResult | None = None
        self.history = {0: self.model.snapshot()}
        self.seen: dict[str, int] = {}
        self.checked: tuple[int, TableModel] = (0, self.model.snapshot())

    def _start_session(self) -> None:
        self.session = self.spark.newSession()
        self.session.conf.set("spark.sql.session.timeZone", self.setup.zone)
        self.session.conf.set("spark.databricks.delta.retentionDurationCheck.enabled", "false")

    # Merges.

    def _sink(self, kind: str, app_id: str, change: Row) -> MergeSink:
        """Return the sink for changes like this one."""
        setup, keys = self.setup, self.model.keys
        written: tuple[str, ...] = ()
        if kind == UPSERT and (setup.excepts or setup.follows):
            # The table may have columns of other sinks, which it does not write; Delta's SET * would look for them.
            written = tuple(name for name in change if name in self.model.columns and name not in OWN)
        if app_id in self.sinks and self.written[app_id] == written:
            return self.sinks[app_id]
        match kind:
            case "ordered" | "columns":
                options = {"truncate_when": "op = 't'"} if setup.truncates else {}
                options |= {"unchanged_columns": "unset"} if kind == COLUMNS else {}
                options |= {"old_key": "old", "new_key": "new"} if kind == COLUMNS and setup.moves else {}
                options |= {"schema_changes": setup.follows} if setup.follows else {}
                if setup.follows and setup.excepts:
                    options["except_columns"] = [name for name in change if name not in self._written(change)]
                sink = merge_sink(
                    self.target,
                    keys=keys,
                    sequence_by=self.model.sequence,
                    delete_when="op = 'd'",
                    app_id=app_id,
                    null_keys=setup.null_keys,
                    locator=setup.locator,
                    maintenance=setup.maintains,
                    on_result=self._note_result,
                    **options,
                )
            case "upsert":
                sink = merge_sink(
                    self.target,
                    keys=keys,
                    columns=written,
                    delete_when="op = 'd'",
                    app_id=app_id,
                    null_keys=setup.null_keys,
                    locator=setup.locator,
                    maintenance=setup.maintains,
                    on_result=self._note_result,
                )
            case _:
                on = " AND ".join(f"target.{key} <=> source.{key}" for key in keys)
                values = {name: f"source.{name}" for name in (*keys, "n")}
                sink = merge_sink(self.target, on=on, app_id=app_id)
                sink = sink.when_matched_update(set={"n": "target.n + source.n"}).when_not_matched_insert(values=values)
        self.sinks[app_id], self.written[app_id] = sink, written
        return sink

    def _note_result(self, result: MergeResult) -> None:
        self.result = result
        if result.maintenance is not None:
            self._noted(f"maintenance {result.maintenance}")

    def _written(self, names: Iterable[str]) -> list[str]:
        """Return which columns of a batch a sink writes that follows the columns of its source."""
        setup, model = self.setup, self.model
        excepted = {*OF_CHANGES, *(() if setup.has_sequence else model.sequence)} if setup.excepts else set()
        return [name for name in names if name not in excepted]

    def _types(self, kind: str) -> dict[str, str]:
        """Return the types of the columns that a batch may have."""
        if self.setup.follows and kind in IN_ORDER:
            return {**OF_CHANGES, **self.sent}
        return {**OF_CHANGES, **self.source_types, **self.model.columns}

    def _values(self, name: str, pool: dict[str, tuple[Any, ...]], kind: str, *, is_nullable: bool) -> list[Any]:
        sql_type = self._types(kind)[name]
        known = pool["BIGINT"] if sql_type in BOTH else pool[sql_type]
        values = [value for value in known if fits(value, sql_type)]
        if self.setup.partitioned and name == "k0":
            values = [value for value in values if value != ""]
        return [*values, None] if is_nullable else values

    def _value(self, name: str, place: int, pool: dict[str, tuple[Any, ...]], kind: str, *, is_nullable: bool) -> Any:
        values = self._values(name, pool, kind, is_nullable=is_nullable)
        return values[place % len(values)]

    def _changes(self, drawn: Changes, kind: str) -> list[Row]:
        """Return the changes that were drawn, without those that would tie."""
        changes: dict[Any, Row] = {}
        model, has_nulls = self.model, self.setup.null_keys == "match"
        for at_key, at_sequence, op, text, number, left_alone in drawn:
            if op == "t" and not (kind in IN_ORDER and self.setup.truncates):
                op = "u"
            row: Row = {}
            for name, at in zip(model.keys, at_key, strict=False):
                row[name] = None if op == "t" else self._value(name, at, KEYS, kind, is_nullable=has_nulls)
            for name, at in zip(model.sequence, at_sequence, strict=False):
                row[name] = self._value(name, at, SEQUENCES, kind, is_nullable=True)
            values = self._sent_values(kind, (*TEXTS, None)[text] if number >= 0 else None, number)
            row |= {name: value for name, value in values.items() if name not in row}
            row["op"] = op
            if kind == COLUMNS:
                # What they do not send is not to be looked at, so that it has a value all the same.
                names = enumerate(name for name in row if name not in {*model.keys, *model.sequence, "op"})
                row["unset"] = [name for i, name in names if left_alone >> i & 1] if op == "u" else []
                row |= {"old": None, "new": None} if self.setup.moves else {}
            tie = ("t",) if op == "t" else model.key(row)
            if kind in IN_ORDER:
                tie = (*tie, model.place_of_change(row))
            changes.setdefault(tie, row)
        return list(changes.values())

    def _sent_values(self, kind: str, text: str | None, number: int) -> Row:
        """Return what a change sends, beside key and sequence."""
        model, mode = self.model, self.setup.follows
        if mode is None or kind not in IN_ORDER:
            types = {name: sql_type for name, sql_type in model.columns.items() if name not in OWN}
            return {name: value_of(sql_type, text, number) for name, sql_type in types.items()}
        # A RESTORE may bring columns back that cannot take what the source sends by now.
        fixed = (*model.keys, *model.sequence)
        self.sent = {name: t for name, t in self.sent.items() if name in fixed or can_send(model, mode, name, t)}
        types = {name: sql_type for name, sql_type in self.sent.items() if name not in fixed}
        return {name: sent_value(model, mode, name, sql_type, text, number) for name, sql_type in types.items()}

    def _frame(self, kind: str, changes: Sequence[Row], *, as_texts: bool) -> DataFrame:
        names = list(changes[0])
        types = self._types(kind)
        is_text = {name: as_texts and name not in OF_CHANGES and types[name] != "STRING" for name in names}
        if not self.model.has_sequence and not self.model.has_own:
            # The sink's column gets the types that the sequence has in the first batch.
            is_text |= dict.fromkeys(self.model.sequence, False)
        rows = [{name: as_text(row[name]) if is_text[name] else row[name] for name in names} for row in changes]
        return self._frame_of(rows, {name: "STRING" if is_text[name] else types[name] for name in names})

    def _frame_of(self, rows: Sequence[Row], types: Mapping[str, str]) -> DataFrame:
        # By Arrow, since rows would take processes of Python.
        fields = [pa.field(name, self._arrow_type(sql_type)) for name, sql_type in types.items()]
        # Timestamps without a time zone would get that of the session.
        local = [name for name, sql_type in types.items() if sql_type == "TIMESTAMP_NTZ"]
        texts = [row | {name: as_text(row[name], "") for name in local} for row in rows]
        frame = self.session.createDataFrame(pa.Table.from_pylist(texts, pa.schema(fields)))
        return frame.withColumns({name: frame[name].cast("timestamp_ntz") for name in local}).coalesce(1)

    def _arrow_type(self, sql_type: str) -> pa.DataType:
        if sql_type == KEY:
            types = self.sent if self.setup.follows else self.model.columns
            return pa.struct([(name, self._arrow_type(types[name])) for name in self.model.keys])
        of_decimal = digits(sql_type)
        return ARROW_TYPES[sql_type] if of_decimal is None else pa.decimal128(*of_decimal)

    def _merged(self, kind: str, changes: Sequence[Row], types: Mapping[str, str]) -> None:
        match kind:
            case "ordered" | "columns" if self.setup.follows:
                written = self._written(changes[0])
                there = {*self.model.registers}
                bound = followed(self.model, self.setup.follows, {name: types[name] for name in written}, changes)
                sets_columns = kind == COLUMNS or (self.setup.excepts and not there.issubset(written))
                if self.model.merge_in_order(bound, sets_columns=sets_columns):
                    self.model.remembered |= self.model.remembered.union(self._written(bound[0]))
            case "ordered" | "columns":
                self.model.merge_in_order(changes, sets_columns=kind == COLUMNS)
            case "upsert":
                self.model.upsert(changes)
            case _:
                self.model.count(changes)

    def _merge(self, kind: str, app_id: str, drawn: Changes, *, as_texts: bool, is_warm: bool) -> None:
        as_texts = as_texts and kind in IN_ORDER and not self.setup.follows
        self._merge_changes(kind, app_id, self._changes(drawn, kind), as_texts=as_texts, is_warm=is_warm)

    def _merge_changes(self, kind: str, app_id: str, changes: Sequence[Row], *, as_texts: bool, is_warm: bool) -> None:
        if not is_warm:
            self.sinks.pop(app_id, None)
        batch_id = self.batches.get(app_id, -1) + 1
        self._noted(f"merged {kind}")
        frame, types = self._frame(kind, changes, as_texts=as_texts), self._types(kind)
        sink = self._sink(kind, app_id, changes[0])
        self.result = None
        sink(frame, batch_id)
        assert self.result is None or self.result.maintenance != "failed"
        assert sink._state()._resolved, "the statement depends on nothing but its arguments, and is kept"
        if self.batches.get(app_id) != batch_id:
            self._took(kind, app_id, batch_id, changes, types)

    def _took(self, kind: str, app_id: str, batch_id: int, changes: Sequence[Row], types: dict[str, str]) -> None:
        """Let the model take a batch that is in the table."""
        self._merged(kind, changes, types)
        self.batches[app_id] = batch_id
        self.last[app_id] = (kind, [*changes], types)

    # What must hold.

    @invariant()
    def agrees(self) -> None:
        """Rows, types, change feed, records and statistics are those of the model."""
        if not hasattr(self, "model"):
            return
        type(self).num_steps += 1
        version = latest_version(self.path)
        if self.until is not None:
            print(f"{time.strftime('%H:%M:%S')} example {self.num_examples}: version {version}", flush=True)
        before_version, before = self.checked
        expected = exact_rows(self.model.rows)
        if version == before_version:
            assert expected == exact_rows(before.rows), "the table has no new version"
            return
        frame = self.session.read.format("delta").load(self.target)
        rows = [dict(zip(frame.columns, map(plain, row), strict=True)) for row in frame.collect()]
        self._check_columns(frame)
        named = [{name: row[name] for name in self.model.columns} for row in rows]
        found = exact_rows(named)
        if found != expected:
            lacks, has = [row for row in expected if row not in found], [row for row in found if row not in expected]
            raise AssertionError(
                f"version {version} lacks\n{lacks}\nand has\n{has}\nof {len(found)} and {len(expected)}"
            )
        self._check_records()
        faults = wrong_statistics(self.path)
        assert not faults, faults
        if self.setup.feed and self._is_followed_by_the_feed(before):
            self._check_feed(before_version, exact_rows(self._in_new_columns(before)), expected)
        self.history[version] = self.model.snapshot()
        self.checked = (version, self.model.snapshot())

    def _is_followed_by_the_feed(self, before: TableModel) -> bool:
        """Whether the feed since a version can be read, and has the names of its columns."""
        # After a RESTORE that narrows a column, Delta cannot read the files that it took away.
        columns = self.model.columns
        is_narrower = any(
            name in columns and wider(kind, columns[name]) != columns[name] for name, kind in before.columns.items()
        )
        return [*columns][: len(before.columns)] == [*before.columns] and not is_narrower

    def _in_new_columns(self, before: TableModel) -> list[Row]:
        """Return the rows of a version as the newest one shows them."""
        model = before.snapshot()
        for name, sql_type in self.model.columns.items():
            if name not in model.columns:
                model.add_column(name, sql_type)
            elif model.columns[name] != sql_type:
                model.widen(name, sql_type)
        return model.rows

    def _check_columns(self, frame: Any) -> None:
        types = {"INT": "int", "BIGINT": "bigint"}
        found = {field.name: field.dataType.simpleString() for field in frame.schema.fields}
        expected = {name: types.get(kind, kind.lower()) for name, kind in self.model.columns.items()}
        for name in OWN:
            if name in expected and name in found:
                expected[name] = found[name]
        # A killed batch may have added the sink's column; of the model it has it once it is merged.
        assert found == expected, (found, expected)

    def _check_records(self) -> None:
        recorded: dict[str, list[int]] = {}
        for version in range(latest_version(self.path) + 1):
            for txn in actions_of(self.path, version, "txn"):
                recorded.setdefault(txn["appId"], []).append(txn["version"])
        assert recorded == {app_id: list(range(number + 1)) for app_id, number in self.batches.items()}, recorded

    def _check_feed(self, before: int, rows: list[Any], expected: list[Any]) -> None:
        reader = self.session.read.format("delta").option("readChangeFeed", "true")
        try:
            feed = reader.option("startingVersion", before + 1).load(self.target).collect()
        except PySparkException as error:
            self._noted(f"no feed {str(error)[:100]}")
            return
        order = {"update_preimage": 0, "delete": 0, "insert": 1, "update_postimage": 1}
        left = list(rows)
        for row in sorted(feed, key=lambda row: (row["_commit_version"], order[row["_change_type"]])):
            [values] = exact_rows([{name: plain(row[name]) for name in self.model.columns}])
            if order[row["_change_type"]]:
                left.append(values)
            else:
                assert values in left, f"the feed removes {values}, which was not there: {row['_change_type']}"
                left.remove(values)
        assert sorted(left) == expected, f"the feed gives\n{sorted(left)}\nand not\n{expected}"

    def teardown(self) -> None:
        """Remove the table."""
        steps.observer = None
        if self.faults is not None:
            self.faults.arm(0, "", carried_out=False)
        shutil.rmtree(self.path, ignore_errors=True)
