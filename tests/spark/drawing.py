"""How the tests that draw their examples at random are run."""

from __future__ import annotations

import os
import random
from typing import Any

from hypothesis import HealthCheck, Phase, settings

EXAMPLES = os.environ.get("STREAM_MERGE_EXAMPLES")

LOGS = 60
"""So many logs that know nothing of each other an example has: a merge takes as long for one as for all of them."""


def drawn(plain: int) -> settings:
    """Return the settings: so many examples in a plain run, or as many others as STREAM_MERGE_EXAMPLES says.

    The examples of plain runs are always the same, so that a change is judged by what it does. They are not made
    smaller when one fails, which would take Spark minutes.
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


def delivered(draw: random.Random, changes: list[tuple[Any, ...]], num_batches: int) -> list[list[tuple[Any, ...]]]:
    """Draw the batches in which changes arrive, in any order, some of them twice.

    All of them may come in a few of the batches.
    """
    batches: list[list[tuple[Any, ...]]] = [[] for _ in range(num_batches)]
    used = draw.sample(batches, draw.randint(1, num_batches))
    for change in draw.sample(changes, len(changes)):
        for batch in draw.choices(used, k=draw.randint(1, 2)):
            batch.append(change)
    return batches
