"""The code in the Markdown files: it can be read, names what is there, and its Python is formatted as all other is."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

import pytest

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

ROOT = Path(__file__).parents[1]
WITHOUT_PAGES = {"build", "dist"}
PAGES = sorted(
    page.relative_to(ROOT).as_posix()
    for page in ROOT.rglob("*.md")
    if not any(part in WITHOUT_PAGES or part.startswith(".") for part in page.relative_to(ROOT).parts)
)
SHELL = ("sh", "bash")
MAKEFILE = (ROOT / "Makefile").read_text(encoding="utf-8")


class Block(NamedTuple):
    """A block of code, and where it begins."""

    where: str
    language: str
    code: str


def blocks(text: str, page: str) -> list[Block]:
    """Return the blocks of code of a page, those in lists as well."""
    found = re.finditer(r"^( *)```(\w*)\n(.*?)^\1```$", text, re.M | re.S)
    return [
        Block(
            where=f"{page}:{text.count(chr(10), 0, match.start()) + 1}",
            language=match[2],
            code=re.sub(rf"^{match[1]}", "", match[3], flags=re.M),
        )
        for match in found
    ]


BLOCKS = [block for page in PAGES for block in blocks((ROOT / page).read_text(encoding="utf-8"), page)]


def in_language(*languages: str) -> pytest.MarkDecorator:
    chosen = [block for block in BLOCKS if block.language in languages]
    return pytest.mark.parametrize("block", chosen, ids=[block.where for block in chosen])


def missing_imports(code: str) -> list[str]:
    """Return the names that code imports from this library and that it does not have."""
    missing = []
    for node in ast.walk(ast.parse(code)):
        if isinstance(node, ast.ImportFrom) and (node.module or "").partition(".")[0] == "stream_merge":
            for alias in node.names:
                try:
                    exec(f"from {node.module} import {alias.name}", {})
                except ImportError:
                    missing.append(f"{node.module}.{alias.name}")
    return missing


def unknown_targets(text: str) -> set[str]:
    """Return the targets of `make` that a page names and the Makefile does not have."""
    shell = [block.code for block in blocks(text, "") if block.language in SHELL]
    commands = "\n".join([*shell, *re.findall(r"`([^`\n]+)`", text)])
    named = set(re.findall(r"^make (?:[A-Z_]+=\S+ )*([a-z][a-z-]*)", commands, re.M))
    return {name for name in named if not re.search(rf"^{name}:", MAKEFILE, re.M)}


def test_there_is_code_of_each_language():
    assert {"python", "sh", "toml", "sql"} <= {block.language for block in BLOCKS}


@pytest.mark.parametrize("page", PAGES)
def test_each_block_is_closed(page):
    fences = re.findall(r"^ *```", (ROOT / page).read_text(encoding="utf-8"), re.M)
    assert len(fences) == 2 * len([block for block in BLOCKS if block.where.startswith(f"{page}:")])


@in_language("python")
def test_python_imports_what_is_there(block):
    assert missing_imports(block.code) == []


def test_python_is_formatted():
    ruff = Path(sys.executable).with_name("ruff")
    if not ruff.exists():
        pytest.skip("ruff is not in this environment; make lint sets it up")
    for block in BLOCKS:
        if block.language == "python":
            formatted = subprocess.run(
                [ruff, "format", "--stdin-filename", "block.py", "-"],
                cwd=ROOT,
                input=block.code,
                capture_output=True,
                text=True,
                check=True,
            )
            assert block.code == formatted.stdout, block.where


@in_language("toml")
def test_toml_can_be_read(block):
    tomllib.loads(block.code)


@in_language(*SHELL)
def test_shell_can_be_read(block):
    read = subprocess.run(["bash", "-n"], input=block.code, capture_output=True, text=True, check=False)
    assert (read.returncode, read.stderr) == (0, "")


@pytest.mark.parametrize("page", PAGES)
def test_targets_of_make_are_there(page):
    assert unknown_targets((ROOT / page).read_text(encoding="utf-8")) == set()


def test_faults_are_found():
    page = (
        "# A\n\n- b\n\n  ```python\n  from stream_merge import merge_sink, merge_snik\n  ```\n\n"
        "`make tset` and `make lint`\n"
    )
    [block] = blocks(page, "page.md")
    assert (block.where, block.language) == ("page.md:5", "python")
    assert missing_imports(block.code) == ["stream_merge.merge_snik"]
    assert unknown_targets(page) == {"tset"}
