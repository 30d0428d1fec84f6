"""Start Spark once as a pipeline file says, which fetches the packages that it needs."""

from __future__ import annotations

import sys
from pathlib import Path

from stream_merge.cli.file.load import load_pipeline
from stream_merge.cli.run.session import start_session

if __name__ == "__main__":
    loaded = load_pipeline(Path(sys.argv[1]))
    start_session(loaded.pipeline, loaded.secrets).stop()
