"""Sources whose columns change, and tables that follow them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext

from hypothesis import strategies as st
from hypothesis.stateful import precondition, rule

from tests.random.column_types import TYPES, wider
from tests.random.columns import can_send
from tests.random.faults import STEPS
from tests.random.moves import MovedRows
from tests.random.table import CHANGES, COLUMNS, ORDERED, Changes, beside

NAMES = ("v", "w", "n", "x", "a")
"""The columns that the source may have, beside keys and sequence."""

ADD, DROP, RETYPE, WIDEN_FIXED = "add", "drop", "retype", "widen a key or the sequence"
CHANGED = st.lists(
    st.tuples(
        st.sampled_from((ADD, ADD, DROP, RETYPE, RETYPE, RETYPE, WIDEN_FIXED)),
        st.integers(0, 9),
        st.sampled_from(TYPES),
    ),
    min_size=1,
    max_size=3,
)
"""What changes in the source: what happens, to which column, and the type that it gets."""

ALTERED = st.tuples(st.sampled_from((ADD, DROP, RETYPE)), st.integers(0, 9), st.sampled_from(TYPES))
"""What another writer alters in the table."""


class ChangingSource(MovedRows):
    """A table that follows the columns of its source."""

    @precondition(lambda self: self.setup.follows)
    @rule(changed=CHANGED)
    def change_source(self, changed: Sequence[tuple[str, int, str]]) -> None:
        """The source's columns change; the next batches bring it to the table, whatever happens to them."""
        self.earlier.append(dict(self.sent))
        for what, number, sql_type in changed:
            self._change_source(what, number, sql_type)

    def _change_source(self, what: str, number: int, sql_type: str) -> None:
        model, sent = self.model, self.sent
        fixed = (*model.keys, *model.sequence)
        values = [name for name in sent if name not in fixed]
        match what:
            case "add":
                names = [name for name in NAMES if name not in sent]
            case "drop" | "retype":
                names = values
            case _:
                # The sink's own column of the sequence is not widened, nor is a partition column.
                of_table = (name for name in fixed if name in model.columns)
                names = [name for name in of_table if sent[name] == "INT" and not self._is_partition(name)]
                sql_type = "BIGINT"
        if not names:
            return
        name = names[number % len(names)]
        if what == DROP:
            del sent[name]
        elif name in fixed or can_send(model, str(self.setup.follows), name, sql_type):
            sent[name] = sql_type
        self._noted(f"source: {what}")

    def _is_partition(self, name: str) -> bool:
        return self.setup.partitioned and name == "k0"

    @precondition(lambda self: self.setup.follows)
    @rule(
        changed=CHANGED,
        drawn=CHANGES,
        kind=st.sampled_from((ORDERED, COLUMNS)),
        dies=st.sampled_from((None, None, None, "altered", *STEPS)),
        warm=st.booleans(),
    )
    def merge_changed(
        self, changed: Sequence[tuple[str, int, str]], drawn: Changes, kind: str, dies: str | None, warm: bool
    ) -> None:
        """A batch in which the source's columns have changed."""
        self.change_source(changed)
        self._merge_followed(kind, drawn, dies, warm=warm)

    @precondition(lambda self: self.setup.follows and self.earlier)
    @rule(
        number=st.integers(0, 9),
        drawn=CHANGES,
        kind=st.sampled_from((ORDERED, COLUMNS)),
        dies=st.sampled_from((None, None, None, "altered", *STEPS)),
        warm=st.booleans(),
    )
    def merge_late(self, number: int, drawn: Changes, kind: str, dies: str | None, warm: bool) -> None:
        """A batch from before the source's columns changed."""
        with self._earlier(number):
            self._merge_followed(kind, drawn, dies, warm=warm)

    @contextmanager
    def _earlier(self, number: int) -> Iterator[None]:
        now, self.sent = self.sent, dict(self.earlier[number % len(self.earlier)])
        try:
            yield
        finally:
            self.sent = now

    def _merge_followed(self, kind: str, drawn: Changes, dies: str | None, *, warm: bool) -> None:
        kind = self._possible(kind)
        changes = self._changes(drawn, kind)
        if dies:
            self._merge_with_fault(changes, kind, self._killed(dies), warm=warm)
        else:
            self._merge_changes(kind, "first" if kind == ORDERED else kind, changes, as_texts=False, is_warm=warm)

    @precondition(lambda self: self.setup.follows)
    @rule(
        changed=st.none() | CHANGED,
        altered=ALTERED,
        late=st.none() | st.integers(0, 9),
        drawn=CHANGES,
        kind=st.sampled_from((ORDERED, COLUMNS)),
        step=st.sampled_from(("after_open", "altered", "after_persist", "locating", "writing", "before_commit")),
        warm=st.booleans(),
    )
    def merge_beside_an_alteration(
        self,
        changed: Sequence[tuple[str, int, str]] | None,
        altered: tuple[str, int, str],
        late: int | None,
        drawn: Changes,
        kind: str,
        step: str,
        warm: bool,
    ) -> None:
        """Another writer alters the columns of the table at a step of a merge."""
        if changed is not None:
            self.change_source(changed)
        with self._earlier(late) if late is not None and self.earlier else nullcontext():
            kind = self._possible(kind)
            changes = self._changes(drawn, kind)
            sent = dict(self.sent)

            def alter() -> None:
                self._alter(*altered, sent)

            with beside(step, alter):
                self._merge_changes(kind, "first" if kind == ORDERED else kind, changes, as_texts=False, is_warm=warm)

    @precondition(lambda self: self.setup.follows)
    @rule(altered=ALTERED)
    def alter(self, altered: tuple[str, int, str]) -> None:
        """Another writer alters the columns of the table."""
        self._alter(*altered, {})

    def _alter(self, what: str, number: int, sql_type: str, sent: dict[str, str]) -> None:
        """Alter the table so that it can still take what a batch sends."""
        model = self.model
        values = [name for name in model.registers if name in NAMES]
        match what:
            case "add":
                names = [name for name in NAMES if name not in model.columns]
                names = [name for name in names if name not in sent or wider(sql_type, sent[name]) is not None]
            case "drop":
                # The sequences of single columns are kept by name.
                has_names = self.setup.mapping and not model.has_registers
                names = [name for name in values if name != "n"] if has_names else []
            case _:
                names = [name for name in values if wider(model.columns[name], sql_type) == sql_type]
                names = [name for name in names if name not in sent or wider(sql_type, sent[name]) is not None]
        if not names:
            return
        name = names[number % len(names)]
        self._noted(f"altered: {what}")
        if sql_type == "TIMESTAMP_NTZ":
            self.sql("ALTER TABLE TARGET SET TBLPROPERTIES ('delta.feature.timestampNtz' = 'supported')")
        if what == ADD:
            self.sql(f"ALTER TABLE TARGET ADD COLUMN {name} {sql_type}")
            model.add_column(name, sql_type)
        elif what == DROP:
            self.sql(f"ALTER TABLE TARGET DROP COLUMN {name}")
            model.drop_column(name)
        elif model.columns[name] != sql_type:
            self.sql("ALTER TABLE TARGET SET TBLPROPERTIES ('delta.enableTypeWidening' = 'true')")
            self.sql(f"ALTER TABLE TARGET ALTER COLUMN {name} TYPE {sql_type}")
            model.widen(name, sql_type)
