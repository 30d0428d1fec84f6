"""What importing the package costs: no JVM, no Spark."""

import subprocess
import sys

import pytest

FOREIGN = ("py4j", "pyspark", "delta", "pandas")


def modules_after(statement):
    """Return the modules that a fresh interpreter has loaded after the statement."""
    code = f"{statement}\nimport sys\nprint(*sys.modules, sep='\\n')"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    return set(done.stdout.splitlines())


@pytest.mark.core
def test_importing_the_package_loads_no_spark():
    loaded = modules_after("import stream_merge")
    assert "stream_merge.sink" in loaded
    assert loaded.isdisjoint(FOREIGN)


def test_making_a_sink_loads_no_spark():
    statement = (
        "import pickle, stream_merge\n"
        "sink = stream_merge.merge_sink('lake.customers', on='target.id = source.id').when_matched_delete()\n"
        "assert pickle.loads(pickle.dumps(sink)).config == sink.config"
    )
    assert modules_after(statement).isdisjoint(FOREIGN)


def test_every_public_name_is_there():
    import stream_merge

    assert sorted(stream_merge.__all__) == stream_merge.__all__
    assert [name for name in stream_merge.__all__ if not hasattr(stream_merge, name)] == []
