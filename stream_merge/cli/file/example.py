"""Writes the example of a pipeline file."""

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
    if path.is_dir():
        raise PipelineError(
            f"{path} is a folder; give the name of a file in it, such as {path / 'pipeline.toml'}.", ExitCode.USAGE
        )
    try:
        with path.open("w" if force else "x", encoding="utf-8", newline="\n") as file:
            file.write(read_example())
    except FileExistsError:
        message = f"{path} exists already; choose another file, or overwrite it with --force."
    except FileNotFoundError:
        message = f"{path} cannot be written: there is no folder {path.parent}; create it."
    except OSError as error:
        message = f"{path} cannot be written: {error.strerror}."
    else:
        return
    raise PipelineError(message, ExitCode.USAGE)
