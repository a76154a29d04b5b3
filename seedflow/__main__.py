"""``python -m seedflow``: the same as ``seedflow``."""

from seedflow.cli import main

if __name__ == "__main__":
    main()
