"""The process that test_parking.py kills: a router with a parking table, up to a named step.

Its argument is JSON: `conf` of the session, the `root` folder, the `tables` by source, and the `step` to die at.
"""

from __future__ import annotations

import json
import os
import signal
import sys
from pathlib import Path

from stream_merge import merge_router, steps
from tests.streaming.child_session import start_session
from tests.streaming.streams import SCHEMA, counting_sink, run


def main() -> None:
    """Run the stream."""
    options = json.loads(sys.argv[1])
    root = Path(options["root"])
    spark = start_session(options["conf"], root / "warehouse")

    def observe(step: str) -> None:
        if step == options["step"]:
            os.killpg(os.getpgrp(), signal.SIGKILL)

    steps.observer = observe
    sinks = {name: counting_sink(path) for name, path in options["tables"].items()}
    router = merge_router(
        sinks, prepare=lambda _, changed: changed.drop("topic"), parking=str(root / "lake" / "parked"), max_parallel=1
    )
    changes = spark.readStream.schema(f"topic STRING, {SCHEMA}").option("maxFilesPerTrigger", 1)
    run(changes.json(str(root / "changes")), router, root / "checkpoint")


if __name__ == "__main__":
    main()
