"""Values that are fetched from the JVM in bulk: whole, whatever their size, and also where no file can be written."""

import tempfile

import pytest

from stream_merge.bridge.jvm import lines_to_python, seq, to_python


class Misnamed:
    """A temporary file under another name."""

    def __init__(self, file, name):
        self.file, self.name = file, str(name)

    def __enter__(self):
        self.file.__enter__()
        return self

    def __exit__(self, *error):
        return self.file.__exit__(*error)

    def read(self):
        return self.file.read()


@pytest.mark.core
@pytest.mark.every_case
@pytest.mark.parametrize("place", ["", "nowhere", "unwritable for the jvm", "the jvm's own"])
@pytest.mark.parametrize("length", [1, 1000])
def test_lines_and_json(spark, tmp_path, monkeypatch, place, length):
    (tmp_path / "here").mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "here" / ("nowhere" if place == "nowhere" else "")))
    if place.endswith(("jvm", "own")):
        # To the JVM, the name is that of a folder, or of another file.
        (tmp_path / "elsewhere").mkdir()
        other = tmp_path / "elsewhere" / ("" if place.endswith("jvm") else "other")
        open_file = tempfile.NamedTemporaryFile
        monkeypatch.setattr(tempfile, "NamedTemporaryFile", lambda **options: Misnamed(open_file(**options), other))
    lines = [f'{number} "ü"\u2028\t' * length for number in range(20)]
    scala_lines = seq(spark._jvm, lines)
    assert lines_to_python(spark._jvm, scala_lines) == lines
    assert to_python(spark._jvm, scala_lines) == lines
    assert [*(tmp_path / "here").iterdir()] == []
