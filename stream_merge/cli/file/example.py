"""Writes pipeline files: the example, and those that are made of what a broker has."""

from __future__ import annotations

from importlib.resources import files
from pathlib import Path

from stream_merge.cli.errors import ExitCode, PipelineError


def read_example() -> str:
    """Return the text of the commented example."""
    return files("stream_merge.cli.file").joinpath("example.toml").read_text(encoding="utf-8")


def write_example(path: Path, *, force: bool = False) -> None:
    """Write the commented example.

    Args:
        path: The file to write.
        force: Whether to overwrite an existing file.

    Raises:
        PipelineError: The file exists, or cannot be written.
    """
    write_new(path, read_example(), force=force)


def check_new(path: Path, *, force: bool = False) -> None:
    """Check that a file can be written, as far as that shows before it is.

    Raises:
        PipelineError: It exists, or there is no such folder.
    """
    if path.is_dir():
        raise PipelineError(
            f"{path} is a folder; give the name of a file in it, such as {path / 'pipeline.toml'}.", ExitCode.USAGE
        )
    if path.exists() and not force:
        raise PipelineError(_exists(path), ExitCode.USAGE)
    if not path.parent.exists():
        raise PipelineError(_no_folder(path), ExitCode.USAGE)


def write_new(path: Path, text: str, *, force: bool = False) -> None:
    """Write a file.

    Args:
        path: The file to write.
        text: Its contents.
        force: Whether to overwrite an existing file.

    Raises:
        PipelineError: The file exists, or cannot be written.
    """
    check_new(path, force=force)
    try:
        with path.open("w" if force else "x", encoding="utf-8", newline="\n") as file:
            file.write(text)
    except FileExistsError:
        message = _exists(path)
    except FileNotFoundError:
        message = _no_folder(path)
    except OSError as error:
        message = f"{path} cannot be written: {error.strerror}."
    else:
        return
    raise PipelineError(message, ExitCode.USAGE)


def _exists(path: Path) -> str:
    return f"{path} exists already; choose another file, or overwrite it with --force."


def _no_folder(path: Path) -> str:
    return f"{path} cannot be written: there is no folder {path.parent}; create it."
