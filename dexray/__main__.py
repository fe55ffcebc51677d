"""`python -m dexray`: the command `dexray`, where it is not on the path."""

from __future__ import annotations

from dexray.cli import main

if __name__ == "__main__":
    main()
