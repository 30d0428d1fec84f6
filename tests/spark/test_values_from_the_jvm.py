"""Values that are fetched from the JVM in bulk: whole, whatever their size, and also where no file can be written."""

import tempfile

import pytest

from stream_merge.bridge.jvm import lines_to_python, seq, to_python


@pytest.mark.core
@pytest.mark.parametrize("has_files", [True, False])
@pytest.mark.parametrize("length", [1, 1000])
def test_lines_and_json(spark, tmp_path, monkeypatch, has_files, length):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path if has_files else tmp_path / "nowhere"))
    lines = [f'{number} "ü"\u2028\t' * length for number in range(20)]
    scala_lines = seq(spark._jvm, lines)
    assert lines_to_python(spark._jvm, scala_lines) == lines
    assert to_python(spark._jvm, scala_lines) == lines
    assert [*tmp_path.iterdir()] == []
