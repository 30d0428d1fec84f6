"""How the tests that draw their examples at random are run."""

from __future__ import annotations

import os

from hypothesis import HealthCheck, Phase, settings

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
