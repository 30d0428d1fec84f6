"""Everything that may happen to a table, at random, beside a model of it.

`STREAM_MERGE_TEST_RANDOM_MINUTES=60` drives it for an hour, each time with another seed, which it prints;
`STREAM_MERGE_TEST_RANDOM_SEED` gives the seed. Without, a few examples are run that are always the same.
"""

from __future__ import annotations

import os
import random
import time
from typing import TYPE_CHECKING

import pytest
from hypothesis import HealthCheck, Phase, seed, settings
from hypothesis.errors import FlakyStrategyDefinition
from hypothesis.stateful import run_state_machine_as_test

from stream_merge.batch import maintain
from stream_merge.key_index import index as key_index
from stream_merge.maintenance import account, policy
from stream_merge.tombstones import files
from tests.random.faulty import FaultyFileSystem
from tests.random.machine import TableMachine
from tests.random.table import TimeOverError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

MINUTES = float(os.environ.get("STREAM_MERGE_TEST_RANDOM_MINUTES", "0"))
FIRST_SEED = os.environ.get("STREAM_MERGE_TEST_RANDOM_SEED")


def drawn(max_examples: int, num_steps: int, *, is_fixed: bool) -> settings:
    """Return the settings; failures are not made smaller, which would take Spark minutes."""
    return settings(
        max_examples=max_examples,
        stateful_step_count=num_steps,
        derandomize=is_fixed,
        database=None,
        phases=[Phase.generate],
        deadline=None,
        print_blob=not is_fixed,
        report_multiple_bugs=False,
        suppress_health_check=list(HealthCheck),
    )


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let few deletes, keys and files be many, and let there be time for maintenance."""
    monkeypatch.setattr(account, "SHARE", 100)
    monkeypatch.setattr(maintain, "WAIT_BATCHES", 0)
    monkeypatch.setattr(policy, "MIN_FILES", 2)
    monkeypatch.setattr(policy, "TIER_FACTOR", 2)
    monkeypatch.setattr(files, "MAX_FILES", 2)
    monkeypatch.setattr(key_index, "RUN_ROWS", 10)
    monkeypatch.setattr(key_index, "MAX_SEGMENTS", 3)


@pytest.fixture(scope="module", autouse=True)
def machine(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> None:
    TableMachine.spark = spark
    TableMachine.root = tmp_path_factory.mktemp("random")
    if TableMachine.faults is None and FaultyFileSystem.is_possible():
        TableMachine.faults = FaultyFileSystem(spark, tmp_path_factory.mktemp("filesystem"))


@pytest.mark.always
@pytest.mark.slow
def test_a_table_agrees_with_its_model_whatever_happens_to_it() -> None:
    if not MINUTES:
        run_state_machine_as_test(TableMachine, settings=drawn(2, 8, is_fixed=True))
        return
    first = int(FIRST_SEED) if FIRST_SEED is not None else random.randrange(2**32)
    print(f"seed {first}", flush=True)
    TableMachine.until = time.monotonic() + 60 * MINUTES
    try:
        run_state_machine_as_test(seed(first)(TableMachine), settings=drawn(100_000, 25, is_fixed=False))
    except (TimeOverError, FlakyStrategyDefinition):
        # Hypothesis may take the end, in the place of another example, for a fault of the draw.
        if time.monotonic() < TableMachine.until:
            raise
    finally:
        print(
            f"{TableMachine.num_examples} examples, {TableMachine.num_steps} steps, {TableMachine.num_of}", flush=True
        )
