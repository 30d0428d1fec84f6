"""`python -m stream_merge.cli` is `stream-merge`."""

from stream_merge.cli.app import main

if __name__ == "__main__":
    main()
