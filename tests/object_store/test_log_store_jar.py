"""The jar has the class that the source beside it gives."""

import re
import shutil
import subprocess

import pytest

from stream_merge.table.log_stores import CONDITIONAL_CREATE
from tests.object_store.compile_log_store import CLASS_FILE, compile_log_store, read_class
from tests.services.processes import Unavailable


def test_the_class_has_the_name_that_is_configured():
    assert CLASS_FILE.removesuffix(".class").replace("/", ".") == CONDITIONAL_CREATE


def test_the_jar_is_up_to_date():
    if shutil.which("javac") is None:
        pytest.skip("this Java has no javac")
    told = subprocess.run(["javac", "-version"], capture_output=True, text=True, check=True)
    if not re.search(r"javac 17\b", told.stdout + told.stderr):
        pytest.skip("another javac may compile the same source to other bytes")
    try:
        compiled = compile_log_store()
    except Unavailable as reason:
        pytest.skip(str(reason))
    assert read_class() == compiled, "make it anew: python -m tests.object_store.compile_log_store"
