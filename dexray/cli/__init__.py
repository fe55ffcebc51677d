"""The `dexray` command: run Flows, look at them and act on them from a shell.

Three rules hold for every command.

1. **stdout has the result, stderr all else.** With `--json` the result is one JSON document, and an error is one on
   stderr.
2. **Exit codes tell the outcome.** 0: done. 1: the Flow failed or was cancelled, or the command could not do it. 2:
   the command was called wrongly. 3: what was waited for did not happen in time. 130: Ctrl-C, 143: SIGTERM.
3. **A terminal is a privilege.** Without one there is no question, no colour and no redrawing.

The command knows Flows only through the client's service interface, like any user. Importing it imports no Ray:
`dexray config` and `dexray --help` answer at once.
"""

from __future__ import annotations


def main() -> None:
    """The entry point of the `dexray` script. Never returns."""
    from dexray.cli.app import run

    run()


__all__ = ["main"]
