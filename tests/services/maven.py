"""Java programs from Maven: an artifact and what it depends on, or an archive, put into a folder once for all test
runs."""

from __future__ import annotations

import fcntl
import hashlib
import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterable
from pathlib import Path

from tests.services.processes import LAST_LINES, Unavailable

TIMEOUT_SECONDS = 600

POM = """<project xmlns="http://maven.apache.org/POM/4.0.0"><modelVersion>4.0.0</modelVersion>
<groupId>stream-merge.tests</groupId><artifactId>{name}</artifactId><version>1</version>
<dependencies>
{dependencies}
</dependencies></project>
"""
DEPENDENCY = """ <dependency><groupId>{}</groupId><artifactId>{}</artifactId><version>{}</version>{}</dependency>"""
ALONE = "<exclusions><exclusion><groupId>*</groupId><artifactId>*</artifactId></exclusion></exclusions>"


def cache_folder() -> Path:
    """Return the folder that test runs share."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "stream_merge-tests"


def java() -> str:
    """Return the program that runs Java.

    Raises:
        Unavailable: There is none.
    """
    home = os.environ.get("JAVA_HOME")
    found = str(Path(home) / "bin" / "java") if home else shutil.which("java")
    if not found or not Path(found).exists():
        raise Unavailable(f"no Java at {found}, which JAVA_HOME names" if home else "no java on PATH")
    return found


def copy_jars(name: str, coordinates: Iterable[str], *, alone: bool = False) -> Path:
    """Return the folder `name` with the jars of some artifacts; Maven is asked only the first time.

    Args:
        name: Name of the folder; its parent has nothing else.
        coordinates: `group:artifact:version` of each.
        alone: Whether to leave out what they depend on.

    Raises:
        Unavailable: Maven is not installed, or could not get them.
    """
    dependencies = [DEPENDENCY.format(*one.split(":"), ALONE if alone else "") for one in coordinates]
    pom = POM.format(name=name, dependencies="\n".join(dependencies))
    return _made_once(name, pom, "dependency:copy-dependencies", "-DincludeScope=runtime")


def unpack(name: str, coordinate: str) -> Path:
    """Return the folder `name` with the contents of an archive; Maven is asked only the first time.

    Args:
        name: Name of the folder.
        coordinate: `group:artifact:version:type:classifier`.

    Raises:
        Unavailable: As `copy_jars`.
    """
    pom = POM.format(name=name, dependencies=f"<!-- {coordinate} -->")
    return _made_once(name, pom, "dependency:unpack", f"-Dartifact={coordinate}")


def _made_once(name: str, pom: str, goal: str, option: str) -> Path:
    parent = cache_folder() / hashlib.sha256(pom.encode()).hexdigest()[:16]
    folder = parent / name
    if folder.is_dir():
        return folder
    program = shutil.which("mvn")
    if program is None:
        raise Unavailable(f"no mvn on PATH to get {name} with (Debian and Ubuntu: package maven)")
    cache_folder().mkdir(parents=True, exist_ok=True)
    with (cache_folder() / "lock").open("w") as lock:
        # Two processes of one test run would otherwise write into one local repository at a time.
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not folder.is_dir():
            with tempfile.TemporaryDirectory(dir=cache_folder()) as workspace:
                _run_maven(program, name, pom, Path(workspace), goal, option)
                parent.mkdir(exist_ok=True)
                # Only what is complete gets the name.
                Path(workspace, "jars").rename(folder)
    return folder


def _run_maven(program: str, name: str, pom: str, workspace: Path, goal: str, option: str) -> None:
    (workspace / "pom.xml").write_text(pom)
    command = [program, "--quiet", "--batch-mode", "--file", str(workspace / "pom.xml"), goal, option]
    command += [f"-DoutputDirectory={workspace / 'jars'}"]
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=TIMEOUT_SECONDS, check=False, stdin=subprocess.DEVNULL
        )
    except subprocess.TimeoutExpired:
        raise Unavailable(f"Maven did not get {name} within {TIMEOUT_SECONDS} s") from None
    if done.returncode != 0 or not (workspace / "jars").is_dir():
        lines = (done.stdout + done.stderr).splitlines()[:LAST_LINES]
        raise Unavailable("\n".join([f"Maven could not get {name}:", *lines]))
