"""``python -m kinfed``: the same as the ``kinfed`` command."""

from kinfed.cli import main

if __name__ == "__main__":
    main()
