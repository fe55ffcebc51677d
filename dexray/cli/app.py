"""The commands, put together; and how the process ends."""

from __future__ import annotations

import json
import signal
import sys
import threading
from types import FrameType
from typing import Any, NoReturn

import typer

from dexray.cli import about, demo, flows, start, stop, visualize
from dexray.cli.problems import FAILED, INTERRUPTED

_SIGNALS: dict[type[BaseException], int] = {KeyboardInterrupt: signal.SIGINT, SystemExit: signal.SIGTERM}
_MOMENT = 0.01  # seconds

app = typer.Typer(
    name="dexray",
    help="Durable Flows on Ray: run them, look at them, act on them.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)
app.command("demo")(demo.demo)
app.command("run")(start.run_flow)
app.add_typer(flows.app, name="flow")
app.command("visualize")(visualize.visualize)
app.command("stop")(stop.stop)
app.command("config")(about.config)
app.command("version")(about.version)


def run() -> NoReturn:
    """Runs the command that the arguments name, and exits."""
    signal.signal(signal.SIGTERM, _terminated)
    sys.unraisablehook = _unraisable
    try:
        if "--json" in sys.argv[1:]:
            sys.exit(_run_for_programs())
        app()
    except KeyboardInterrupt:  # outside of any command: while it was being imported or parsed
        sys.exit(INTERRUPTED)
    sys.exit(0)


def _run_for_programs() -> int:
    """As `app()`, with the complaints about wrong arguments in JSON."""
    try:
        code: Any = app(standalone_mode=False)
    except typer.Abort:
        return FAILED
    except Exception as error:
        # The errors of the parser are of a class that typer keeps to itself; this is what it promises of them.
        if not hasattr(error, "format_message") or not hasattr(error, "exit_code"):
            raise
        data = {"type": "UsageError", "message": error.format_message(), "exit_code": error.exit_code}
        typer.echo(json.dumps({"error": data}, ensure_ascii=False), err=True)
        code = error.exit_code
    return code if isinstance(code, int) else 0


def _unraisable(what: sys.UnraisableHookArgs) -> None:
    """What Python can't raise it drops: also an interrupt that comes while it runs a callback of its own, such as that
    of a weak reference, of which an import has many. It comes again a moment later.
    """
    number = _SIGNALS.get(what.exc_type)
    if number is None:
        sys.__unraisablehook__(what)
        return
    main = threading.main_thread().ident
    assert main is not None
    again = threading.Timer(_MOMENT, signal.pthread_kill, (main, number))
    again.daemon = True
    again.start()


def _terminated(number: int, frame: FrameType | None) -> None:
    sys.exit(128 + number)
