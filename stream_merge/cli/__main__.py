"""Runs `stream-merge` as `python -m stream_merge.cli`."""

from __future__ import annotations

import sys
from typing import NoReturn

from stream_merge.cli.errors import ExitCode, missing_package


def main() -> NoReturn:
    """Run the command; if the extra `cli` is missing, which does not prevent installation, say so."""
    try:
        from stream_merge.cli.app import main as run
    except ModuleNotFoundError as error:
        sys.stderr.write(f"{missing_package(error)}\n")
        sys.exit(ExitCode.CANNOT_START)
    run()


if __name__ == "__main__":
    main()
