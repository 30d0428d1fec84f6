"""How the tests that draw their examples at random are run."""

from __future__ import annotations

import os
from typing import Any

from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st

EXAMPLES = os.environ.get("STREAM_MERGE_EXAMPLES")


def drawn(plain: int) -> settings:
    """Return the settings: so many examples in a plain run, or as many others as STREAM_MERGE_EXAMPLES says.

    The examples of plain runs are always the same, so that a change is judged by what it does. They are not made smaller when
    one fails, which would take Spark minutes.
    """
    return settings(
        max_examples=int(EXAMPLES or plain),
        derandomize=EXAMPLES is None,
        phases=[Phase.explicit, Phase.generate],
        deadline=None,
        print_blob=True,
        report_multiple_bugs=False,
        suppress_health_check=list(HealthCheck),
    )


@st.composite
def deliveries(draw: st.DrawFn, changes: list[tuple[Any, ...]], max_batches: int) -> list[list[tuple[Any, ...]]]:
    """Draw the batches in which changes arrive, some of them twice."""
    num_batches = draw(st.integers(1, max_batches))
    batches: list[list[tuple[Any, ...]]] = [[] for _ in range(num_batches)]
    for change in changes:
        for index in draw(st.lists(st.integers(0, num_batches - 1), min_size=1, max_size=2)):
            batches[index].append(change)
    return [draw(st.permutations(batch)) for batch in batches]
