"""Fixtures of the tests of streams."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

from tests.conftest import CreateTable
from tests.streaming.streams import SCHEMA, TABLES, ChangeFiles

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
def rejected(tmp_path: Path) -> str:
    """Return the path of a quarantine table that does not exist yet."""
    return str(tmp_path / "rejected")


@pytest.fixture
def tables(create_table: CreateTable, tmp_path: Path) -> dict[str, str]:
    """Return the paths of three tables of a fixed schema, by name."""
    return {name: create_table(SCHEMA, path=str(tmp_path / "lake" / name)) for name in TABLES}
