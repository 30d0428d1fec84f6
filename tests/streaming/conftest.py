"""Fixtures of the tests of streams."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from stream_merge import steps
from tests.streaming.streams import ChangeFiles

# Python workers, which count evaluations, must find what the driver has.
os.environ.setdefault("PYSPARK_PYTHON", sys.executable)


@pytest.fixture
def changes(tmp_path: Path) -> ChangeFiles:
    """Return a folder of changes without any."""
    return ChangeFiles(tmp_path / "changes")


@pytest.fixture
def checkpoint(tmp_path: Path) -> Path:
    """Return the place of the checkpoint."""
    return tmp_path / "checkpoint"


@pytest.fixture
def at_step(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Return a function that makes something happen the next times that a merge reaches a step."""

    def interfere(step: str, action: Callable[[], object], *, after: int = 0, times: int = 1) -> None:
        reached = 0

        def observe(name: str) -> None:
            nonlocal reached
            if name == step:
                reached += 1
                if after < reached <= after + times:
                    action()

        monkeypatch.setattr(steps, "observer", observe)

    return interfere
