"""What can go wrong in a command: errors of its own, and what an exception means for the exit code."""

from __future__ import annotations

from typing import Any, Final

from dex import DexServiceError, FlowDefinitionError, LongPollTimeoutError, ValueMappingError
from dexray.settings import SettingsError

FAILED: Final = 1
USAGE: Final = 2
TIMEOUT: Final = 3
INTERRUPTED: Final = 130


class CommandError(Exception):
    """The command can't do what it was asked to, for a reason of its own. `exit_code` says of which kind."""

    exit_code = FAILED


class UsageProblem(CommandError):
    """What the command was given can't be used."""

    exit_code = USAGE


class TimedOut(CommandError):
    """What was waited for did not happen in time."""

    exit_code = TIMEOUT


class Interrupted(CommandError):
    """Ctrl-C; with more to say than that."""

    exit_code = INTERRUPTED


def exit_code_of(error: BaseException) -> int:
    if isinstance(error, CommandError):
        return error.exit_code
    if isinstance(error, KeyboardInterrupt):
        return INTERRUPTED
    if isinstance(error, LongPollTimeoutError):
        return TIMEOUT
    if isinstance(error, SettingsError):
        return USAGE
    return FAILED


def text_of(error: BaseException) -> str:
    """One line for people. An error that nobody foresaw is named with its class."""
    if isinstance(error, KeyboardInterrupt):
        return "interrupted"
    text = " ".join(str(error).split())
    if isinstance(error, CommandError | DexServiceError | FlowDefinitionError | ValueMappingError | SettingsError):
        return text
    return f"{type(error).__name__}: {text}" if text else type(error).__name__


def data_of(error: BaseException) -> dict[str, Any]:
    """The same for programs."""
    data: dict[str, Any] = {"type": type(error).__name__, "message": text_of(error), "exit_code": exit_code_of(error)}
    if isinstance(error, DexServiceError):
        data |= {"code": error.code.name, "flow_id": error.flow_id}
    return {"error": data}
