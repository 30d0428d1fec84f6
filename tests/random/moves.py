"""Rows that get another key: the values that such a change does not send follow them."""

from __future__ import annotations

import itertools
from contextlib import nullcontext

from hypothesis import strategies as st
from hypothesis.stateful import precondition, rule

from tests.random.faults import STEPS, FaultyTable
from tests.random.model import Row
from tests.random.table import CHANGES, COLUMNS, ORDERED, PLACES, TEXTS, Changes, beside
from tests.random.values import KEYS, SEQUENCES, fits

TOGETHER, DEPARTURE_FIRST, ARRIVAL_FIRST = "together", "departure first", "arrival first"


class MovedRows(FaultyTable):
    """A table whose rows get other keys, the changes of each key in their order."""

    @precondition(lambda self: self.setup.sets_columns and self.setup.moves and self.model.rows)
    @rule(
        others=CHANGES,
        meanwhile=st.none() | CHANGES,
        number=st.integers(0, 11),
        to=PLACES,
        at=st.tuples(st.integers(0, 5), st.integers(0, 2), st.integers(0, 2)),
        left_alone=st.tuples(st.integers(0, 15), st.integers(0, 15)),
        how=st.sampled_from((TOGETHER, DEPARTURE_FIRST, ARRIVAL_FIRST)),
        changes_before=st.booleans(),
        again=st.booleans(),
        dies=st.sampled_from((None, None, None, *STEPS, "handing_on", "handed_on")),
        warm=st.booleans(),
    )
    def move(
        self,
        others: Changes,
        meanwhile: Changes | None,
        number: int,
        to: tuple[int, int],
        at: tuple[int, int, int],
        left_alone: tuple[int, int],
        how: str,
        changes_before: bool,
        again: bool,
        dies: str | None,
        warm: bool,
    ) -> None:
        """A row gets another key, in one batch or two, which may come once more; another sink may commit meanwhile."""
        model = self.model
        row = model.rows[number % len(model.rows)]
        key = {name: row[name] for name in model.keys}
        has_nulls = self.setup.null_keys == "match"
        pairs = zip(model.keys, to, strict=False)
        new_key = {name: self._value(name, at_key, KEYS, COLUMNS, is_nullable=has_nulls) for name, at_key in pairs}
        later = self._later(row, new_key)
        if not later or model.key(new_key) in map(model.key, model.rows):
            return
        types = self._types(COLUMNS)
        if not all(fits(value, types[name]) for name, value in key.items()):
            return
        places = [min(at[0], len(later) - 1)]
        places += [min(places[0] + at[1], len(later) - 1)]
        places += [min(places[1] + at[2], len(later) - 1)]
        before, departed, arrived = (later[number] for number in places)
        departure = {**self._change(key, departed, 0), "op": "d", "unset": [], "new": new_key}
        arrival = {**self._change(new_key, arrived, left_alone[0]), "old": key}
        departing = [departure]
        if changes_before and before != departed:
            departing.append(self._change(key, before, left_alone[1]))
        is_other = {model.key(key), model.key(new_key)}.isdisjoint
        changes = [change for change in self._changes(others, COLUMNS) if change["op"] != "t"]
        departing += [change for change in changes if is_other({model.key(change)})]
        batches = {
            TOGETHER: [[*departing, arrival]],
            DEPARTURE_FIRST: [departing, [arrival]],
            ARRIVAL_FIRST: [[arrival], departing],
        }[how]
        departed_at = model.place_of_change(departure)
        rival = [
            change
            for change in self._changes(meanwhile or (), ORDERED)
            if change["op"] != "t"
            and model.key(change) != model.key(new_key)
            and (model.key(change) != model.key(key) or model.place_of_change(change) < departed_at)
        ]

        def interfere() -> None:
            self._noted("beside a move")
            self._merge_changes(ORDERED, "other ordered", rival, as_texts=False, is_warm=warm)

        self._noted(f"moved {how}")
        for batch in [*batches, *([[departure, arrival]] if again else [])]:
            if dies:
                self._merge_with_fault(batch, COLUMNS, self._killed(dies), warm=warm)
            else:
                with beside("before_commit", interfere) if rival else nullcontext():
                    self._merge_changes(COLUMNS, COLUMNS, batch, as_texts=False, is_warm=warm)
                rival = []
            self.agrees()

    def _change(self, key: Row, sequence: Row, left_alone: int) -> Row:
        """Return a change of a key, whose values tell of it."""
        [change] = self._changes([((0, 0), (0, 0), "u", left_alone % len(TEXTS), left_alone, left_alone)], COLUMNS)
        return {**change, **key, **sequence}

    def _later(self, row: Row, new_key: Row) -> list[Row]:
        """Return the sequences that are newer than all that is known of a row and of the key that it gets, in their
        order."""
        model = self.model
        known = [
            model.place_of(row),
            model.truncated,
            *(model.tombstones.get(model.key(key)) for key in (row, new_key)),
        ]
        known += model.sequences(row).values() if model.has_registers else []
        values = [self._values(name, SEQUENCES, COLUMNS, is_nullable=True) for name in model.sequence]
        newest = max(at for at in known if at is not None)
        every = [dict(zip(model.sequence, combination, strict=True)) for combination in itertools.product(*values)]
        # Of 0.0 and -0.0 one.
        later = {model.place_of_change(sequence): sequence for sequence in every}
        return [later[at] for at in sorted(later) if at > newest]
