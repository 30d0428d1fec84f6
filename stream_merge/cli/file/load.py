"""Loads a pipeline file: parses TOML, fills in the environment, validates, and reports all faults at once."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from stream_merge.cli.file.durations import parse_duration
from stream_merge.cli.file.faults import (
    Fault,
    PipelineFileError,
    in_order,
    syntax_fault,
    where_of,
)
from stream_merge.cli.file.model_faults import find_model_faults
from stream_merge.cli.file.option_checks import find_contradictions
from stream_merge.cli.file.pipeline import Pipeline
from stream_merge.cli.file.positions import Location, find_lines, line_of
from stream_merge.cli.file.secrets import Secrets, substitute

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

__all__ = ["Fault", "LoadedPipeline", "Location", "PipelineFileError", "load_pipeline", "parse_duration"]


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadedPipeline:
    """A loaded pipeline file.

    Attributes:
        pipeline: Its settings with the values from the environment; show them only through `secrets.mask`.
        path: The file.
        secrets: The values that must not be shown.
    """

    pipeline: Pipeline = field(repr=False)
    path: Path
    secrets: Secrets
    lines: Mapping[Location, int] = field(repr=False)

    def line_of(self, location: Location) -> int | None:
        """Return the line of an option, or of its section if the file lacks the option; None if it lacks both."""
        return line_of(self.lines, location)

    def fault(self, location: Location, message: str) -> Fault:
        """Return a fault of the option at a location, with its line and with secrets masked."""
        return Fault(self.line_of(location), where_of(location), self.secrets.mask(message))


def load_pipeline(path: Path, environ: Mapping[str, str] = os.environ) -> LoadedPipeline:
    """Load a pipeline file.

    Args:
        path: The file, in TOML and UTF-8.
        environ: The environment that fills in `${NAME}`.

    Raises:
        PipelineFileError: The file cannot be read or has faults; it lists all faults that show without Spark.
    """
    text = _read(path)
    try:
        written = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise PipelineFileError([syntax_fault(error, text)], path) from None
    lines = find_lines(text)
    secrets = Secrets()
    data, found = substitute(written, environ, secrets)
    pipeline, faults = _validated(data, written)
    unfilled = {location for location, _ in found}
    # A value that is missing in the environment is one fault, not two.
    found += [fault for fault in faults if fault[0] not in unfilled]
    found += [fault for fault in find_contradictions(data) if fault[0] not in unfilled]
    if found or pipeline is None:
        raise PipelineFileError(
            in_order(
                Fault(line_of(lines, location), where_of(location), secrets.mask(message))
                for location, message in found
            ),
            path,
        )
    return LoadedPipeline(pipeline=pipeline, path=path, secrets=secrets, lines=lines)


def _read(path: Path) -> str:
    try:
        # Some editors write a byte order mark first.
        return path.read_bytes().decode("utf-8-sig").replace("\r\n", "\n")
    except FileNotFoundError:
        message = "there is no such file; stream-merge init writes an example"
    except IsADirectoryError:
        message = "this is a folder; name a pipeline file"
    except UnicodeDecodeError as error:
        line = error.object[: error.start].count(b"\n") + 1
        raise PipelineFileError([Fault(line, "", "the file is not in UTF-8; save it in that encoding")], path) from None
    except OSError as error:
        message = f"the file cannot be read: {error.strerror}"
    raise PipelineFileError([Fault(None, "", message)], path) from None


def _validated(
    data: Mapping[str, Any], written: Mapping[str, Any]
) -> tuple[Pipeline | None, list[tuple[Location, str]]]:
    try:
        return Pipeline.model_validate(data), []
    except ValidationError as error:
        return None, find_model_faults(error.errors(include_url=False), written)
