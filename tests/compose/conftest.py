"""Fixtures of the services: PostgreSQL, Kafka and Kafka Connect; see tests/services/fixtures.py."""

from __future__ import annotations

import pytest


def pytest_configure(config: pytest.Config) -> None:
    """Register the fixtures once for all folders that ask for them, so that each service is there once in a test
    run."""
    config.pluginmanager.import_plugin("tests.services.fixtures")
