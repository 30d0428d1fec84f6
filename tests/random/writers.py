"""What others do to the table: statements of Delta, and sessions that begin anew."""

from __future__ import annotations

from collections.abc import Callable

from hypothesis import note
from hypothesis import strategies as st
from hypothesis.stateful import precondition, rule
from pyspark.errors import PySparkException

from tests.random.column_types import converted
from tests.random.model import OWN
from tests.random.table import CHANGES, UPSERT, Changes, DrivenTable
from tests.spark.delta_log import latest_version


def is_new(step: str) -> Callable[[DrivenTable], bool]:
    """Return whether the table has changed since this step, so that it is worth a step once more."""
    return lambda machine: machine.checked[0] > machine.seen.get(step, 0)


class WrittenTable(DrivenTable):
    """A table that others write."""

    @rule(drawn=CHANGES)
    def insert(self, drawn: Changes) -> None:
        """Another writer inserts rows of keys that the table lacks."""
        model = self.model
        there = {model.key(row) for row in model.rows}
        rows = [row for row in self._changes(drawn, UPSERT) if model.key(row) not in there]
        if not rows:
            return
        names = [name for name in model.columns if name not in OWN]
        frame = self._frame(UPSERT, [{name: row[name] for name in names} for row in rows], as_texts=False)
        frame.createOrReplaceTempView("inserted")
        self.sql(f"INSERT INTO TARGET ({', '.join(names)}) SELECT * FROM inserted")
        model.rows += [{name: row[name] if name in names else None for name in model.columns} for row in rows]

    @precondition(is_new("update"))
    @rule(part=st.integers(0, 2))
    def update(self, part: int) -> None:
        """Another writer updates rows."""
        self.seen["update"] = self.checked[0]
        self.sql(f"UPDATE TARGET SET n = coalesce(n, 0) + 1 WHERE pmod(coalesce(n, 0), 3) = {part}")
        for row in self.model.rows:
            if (row["n"] or 0) % 3 == part:
                row["n"] = converted((row["n"] or 0) + 1, self.model.columns["n"])

    @precondition(is_new("delete"))
    @rule(part=st.integers(0, 2))
    def delete(self, part: int) -> None:
        """Another writer deletes rows, of which nothing is remembered."""
        self.seen["delete"] = self.checked[0]
        self.sql(f"DELETE FROM TARGET WHERE pmod(coalesce(n, 0), 3) = {part}")
        self.model.rows = [row for row in self.model.rows if (row["n"] or 0) % 3 != part]

    @precondition(is_new("compact"))
    @rule(how=st.sampled_from(("OPTIMIZE TARGET", "REORG TABLE TARGET APPLY (PURGE)")))
    def compact(self, how: str) -> None:
        self.seen["compact"] = self.checked[0]
        self.sql(how)

    @precondition(is_new("vacuum"))
    @rule()
    def vacuum(self) -> None:
        self.seen["vacuum"] = self.checked[0]
        self.sql("VACUUM TARGET RETAIN 0 HOURS")
        newest = latest_version(self.path)
        self.history = {version: model for version, model in self.history.items() if version >= newest}

    @precondition(lambda self: len(self.history) > 1)
    @rule(number=st.integers(0, 9))
    def restore(self, number: int) -> None:
        version = sorted(self.history, reverse=True)[1:][number % (len(self.history) - 1)]
        try:
            self.sql(f"RESTORE TABLE TARGET TO VERSION AS OF {version}")
        except PySparkException as error:
            note(f"not restored: {error}")
            self._noted(f"not restored {str(error)[:100]}")
            return
        self.model = self.history[version].snapshot()

    @precondition(lambda self: "a" not in self.model.columns)
    @rule(sql_type=st.sampled_from(("STRING", "BIGINT")))
    def add_column(self, sql_type: str) -> None:
        self.sql(f"ALTER TABLE TARGET ADD COLUMN a {sql_type}")
        self.model.add_column("a", sql_type)

    # The sequences of single columns are kept by name.
    @precondition(lambda self: self.setup.mapping and not self.model.has_registers)
    @rule()
    def rename_column(self) -> None:
        old, new = ("v", "x") if "v" in self.model.columns else ("x", "v")
        if old not in self.model.columns or new in self.model.columns:
            return  # A sink may have added it again.
        self.sql(f"ALTER TABLE TARGET RENAME COLUMN {old} TO {new}")
        self.model.rename(old, new)

    @precondition(lambda self: self.setup.mapping)
    @rule(of=st.sampled_from(("values", "keys", "sequence")))
    def swap_columns(self, of: str) -> None:
        """Two columns get each other's names."""
        model = self.model
        pairs = {
            "values": [name for name in ("v", "x", "w") if name in model.columns and not model.has_registers],
            "keys": list(model.keys) if not self.setup.partitioned else [],
            "sequence": list(model.sequence) if self.setup.has_sequence else [],
        }
        names = pairs[of][:2]
        if len(names) < 2 or model.columns[names[0]] != model.columns[names[1]]:
            return
        one, other = names
        for old, new in ((one, "swapped"), (other, one), ("swapped", other)):
            self.sql(f"ALTER TABLE TARGET RENAME COLUMN {old} TO {new}")
        model.swap(one, other)

    @rule(number=st.integers(0, 5))
    def widen(self, number: int) -> None:
        narrow = [name for name, sql_type in self.model.columns.items() if sql_type == "INT"]
        # Nor a column that has the values of another one: it would not be that any more.
        narrow = [name for name in narrow if not (self.setup.partitioned and name == "k0") and "__" not in name]
        if not narrow:
            return
        name = narrow[number % len(narrow)]
        if self.setup.follows:
            self.sql("ALTER TABLE TARGET SET TBLPROPERTIES ('delta.enableTypeWidening' = 'true')")
        self.sql(f"ALTER TABLE TARGET ALTER COLUMN {name} TYPE BIGINT")
        self.model.widen(name, "BIGINT")

    @precondition(is_new("begin_session"))
    @rule(forgets=st.booleans())
    def begin_session(self, forgets: bool) -> None:
        """A new session, and all sinks with cold caches; Delta's own may be cold as well."""
        self.seen["begin_session"] = self.checked[0]
        self._start_session()
        self.sinks.clear()
        if forgets:
            self.spark._jvm.org.apache.spark.sql.delta.DeltaLog.clearCache()
