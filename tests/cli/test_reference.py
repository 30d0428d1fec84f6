"""The reference documents are those that the code gives."""

import subprocess
import sys
from pathlib import Path

import pytest

from stream_merge.cli.file.reference import configuration_reference, pipeline_reference, type_in_words

DOCS = Path(__file__).parents[2] / "docs"
REMEDY = "make them anew: python -m stream_merge.cli.file.reference docs"


@pytest.mark.parametrize(
    ("name", "made"),
    [("pipeline-reference.md", pipeline_reference), ("configuration-reference.md", configuration_reference)],
)
def test_the_documents_are_up_to_date(name, made):
    assert (DOCS / name).read_text(encoding="utf-8") == made(), REMEDY


def test_the_command_writes_both(tmp_path):
    subprocess.run([sys.executable, "-m", "stream_merge.cli.file.reference", str(tmp_path)], check=True)
    names = ["configuration-reference.md", "pipeline-reference.md"]
    assert {path.name: path.read_text() for path in tmp_path.iterdir()} == {
        name: (DOCS / name).read_text() for name in names
    }


def test_rows_tell_type_default_bounds_and_meaning():
    lines = pipeline_reference().splitlines()
    assert "| `max_parallel` | whole number from 1 | `4` | How many tables are merged at a time. |" in lines
    port = next(line for line in lines if line.startswith("| `prometheus_port`"))
    assert port.startswith("| `prometheus_port` | whole number from 0 to 65535 | | Port of an HTTP endpoint")
    conf = next(line for line in lines if line.startswith("| `conf`"))
    assert conf.startswith("| `conf` | table of texts or whole numbers or true or false | | Spark's configuration")
    assert [line for line in lines if line.startswith("## ")] == [
        "## `[pipeline]`",
        '## `[source]`, format = "kafka"',
        '## `[source]`, format = "files"',
        '## `[source]`, format = "delta"',
        "## `[decode]`",
        "## `[registry]`",
        "## `[[tables]]`",
        "## `[spark]`",
        "## `[metrics]`",
    ]
    assert (
        "| `schema` | text | required | Columns of the files as DDL, for example `id BIGINT, name STRING`. Those of a "
        "CSV file are in the order of the file. |" in lines
    )
    retention = next(line for line in configuration_reference().splitlines() if line.startswith("| `tombstone_ret"))
    assert retention.startswith(
        "| `tombstone_retention` | `timedelta(days=7)` | How long deletes are remembered, by the clock"
    )


def test_a_type_without_words_is_an_error():
    with pytest.raises(TypeError, match="no words for"):
        type_in_words(bytes)
