"""What the tests of the merge engine share."""

import pytest

from stream_merge.tombstones import files


@pytest.fixture
def max_files(monkeypatch: pytest.MonkeyPatch) -> int:
    """Merge files of tombstones when there are more than these few, so that a handful of merges gets there; return the
    number."""
    monkeypatch.setattr(files, "MAX_FILES", 3)
    return 3
