"""The check of Java: one sentence for each way in which it cannot work."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from stream_merge import java

REMEDY = "install a JDK 17 or newer and put its java on PATH, or point JAVA_HOME to it."


@pytest.fixture
def jdk(tmp_path):
    """Return a function that makes a JDK whose `java` prints the given version and modules."""

    def make(version, modules="java.base@17\njdk.incubator.vector@17"):
        binary = tmp_path / "bin" / "java"
        binary.parent.mkdir(exist_ok=True)
        binary.write_text(
            "#!/bin/sh\n"
            'if [ "$1" = --list-modules ]; then\n'
            f"printf '{modules}\\n'\nelse\nprintf '{version}\\n' >&2\nfi\n"
        )
        binary.chmod(0o755)
        return str(tmp_path), str(binary)

    return make


@pytest.mark.core
def test_this_machine_has_a_java_for_spark():
    assert java.find_java_fault() is None


@pytest.mark.parametrize(
    "version",
    ['openjdk version "17.0.15" 2025-04-15', 'openjdk version "21" 2023-09-19', 'java version "25-ea" 2025-09-16'],
)
def test_java_17_and_newer_will_do(jdk, version):
    home, _ = jdk(version)
    assert java.find_java_fault({"JAVA_HOME": home}) is None
    assert java.find_java_fault({"PATH": f"{home}/bin"}) is None


def test_no_java_at_all(tmp_path):
    assert java.find_java_fault({"PATH": str(tmp_path)}) == (
        f"Spark needs Java 17 or newer, and there is no java on PATH: {REMEDY}"
    )
    assert java.find_java_fault({}) == f"Spark needs Java 17 or newer, and there is no java on PATH: {REMEDY}"


@pytest.mark.parametrize(
    ("version", "major"), [('openjdk version "11.0.2" 2019-01-15', 11), ('java version "1.8.0_392"', 8)]
)
def test_java_is_too_old(jdk, version, major):
    home, binary = jdk(version)
    assert java.find_java_fault({"JAVA_HOME": home}) == (
        f"Spark needs Java 17 or newer, and {binary} is Java {major}: {REMEDY}"
    )


def test_java_home_goes_before_path(jdk, tmp_path):
    home, _ = jdk('openjdk version "17.0.15" 2025-04-15')
    wrong = str(tmp_path / "gone")
    assert java.find_java_fault({"JAVA_HOME": wrong, "PATH": f"{home}/bin"}) == (
        f"Spark needs Java 17 or newer, and {wrong}/bin/java, where JAVA_HOME points, does not run: {REMEDY}"
    )


def test_java_that_fails_when_started(tmp_path):
    binary = tmp_path / "java"
    binary.write_text("#!/bin/sh\necho 'Unable to locate a Java Runtime.' >&2\nexit 1\n")
    binary.chmod(0o755)
    assert java.find_java_fault({"PATH": str(tmp_path)}) == (
        f"Spark needs Java 17 or newer, and {binary} does not run: {REMEDY}"
    )


@pytest.mark.parametrize("spark", ["4.2.0", "4.2.1.dev3", "4.10.0", "5.0.0", ""])
def test_java_without_the_vector_module(jdk, spark):
    home, binary = jdk('openjdk version "17.0.15" 2025-04-15', modules="java.base@17")
    assert java.find_java_fault({"JAVA_HOME": home}, spark) == (
        f"Spark 4.2 needs Java's module jdk.incubator.vector, which {binary} was built without: {REMEDY}"
    )


@pytest.mark.parametrize("spark", ["4.0.1", "4.1.0", "4.1.0.dev2"])
def test_older_sparks_do_without_the_vector_module(jdk, spark):
    home, binary = jdk('openjdk version "17.0.15" 2025-04-15', modules="java.base@17")
    assert java.find_java_fault({"JAVA_HOME": home}, spark) is None
    home, binary = jdk('openjdk version "11.0.2" 2019-01-15')
    assert java.find_java_fault({"JAVA_HOME": home}, spark) == (
        f"Spark needs Java 17 or newer, and {binary} is Java 11: {REMEDY}"
    )


@pytest.mark.parametrize(("installed", "is_needed"), [("4.1.2", False), ("4.2.0", True), (None, True)])
def test_the_installed_spark_says_whether_the_vector_module_is_needed(jdk, tmp_path, installed, is_needed):
    """In a Python of its own, whose only package is a pyspark as pip notes it; none where there is no Spark yet."""
    home, binary = jdk('openjdk version "17.0.15" 2025-04-15', modules="java.base@17")
    packages = tmp_path / "packages"
    packages.mkdir()
    if installed is not None:
        noted = packages / f"pyspark-{installed}.dist-info"
        noted.mkdir()
        (noted / "METADATA").write_text(f"Metadata-Version: 2.1\nName: pyspark\nVersion: {installed}\n")
    environ = {"JAVA_HOME": home, "PYTHONPATH": str(packages)}
    command = [sys.executable, "-S", java.__file__]
    done = subprocess.run(command, env=environ, capture_output=True, text=True, check=False)
    assert done.returncode == is_needed
    assert (f"which {binary} was built without" in done.stderr) == is_needed


@pytest.mark.parametrize(("constraints", "is_needed"), [("constraints-oldest.txt", False), ("constraints.txt", True)])
def test_make_asks_for_what_the_pinned_spark_needs(jdk, constraints, is_needed):
    home, binary = jdk('openjdk version "17.0.15" 2025-04-15', modules="java.base@17")
    make = shutil.which("make")
    if make is None:
        pytest.skip("there is no make")
    command = [make, "--silent", "java", f"CONSTRAINTS={constraints}", f"PYTHON={sys.executable}"]
    environ = {"JAVA_HOME": home, "PATH": os.environ["PATH"]}
    done = subprocess.run(
        command, cwd=Path(__file__).parents[2], env=environ, capture_output=True, text=True, check=False
    )
    assert (done.returncode != 0) == is_needed
    assert (f"which {binary} was built without" in done.stderr) == is_needed


@pytest.mark.parametrize("is_there", [True, False])
def test_as_a_command_it_prints_one_sentence_and_needs_nothing_installed(tmp_path, is_there):
    environ = dict(os.environ) if is_there else {"PATH": str(tmp_path)}
    done = subprocess.run(
        [sys.executable, "-I", "-S", str(Path(java.__file__))], env=environ, capture_output=True, text=True, check=False
    )
    sentence = "" if is_there else f"Spark needs Java 17 or newer, and there is no java on PATH: {REMEDY}\n"
    assert (done.returncode, done.stdout, done.stderr) == (0 if is_there else 1, "", sentence)
