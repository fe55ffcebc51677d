"""Durations of definitions: whole seconds from 0 to 2^31 − 1, given as timedelta."""

from __future__ import annotations

from datetime import timedelta
from typing import Final

LONGEST_SECONDS: Final = 2**31 - 1

_SECOND: Final = timedelta(seconds=1)


def whole_seconds(what: str, duration: timedelta | None) -> int:
    """The seconds of a duration, 0 for None. TypeError or ValueError naming `what` when it can't be one."""
    if duration is None:
        return 0
    if not isinstance(duration, timedelta):
        raise TypeError(
            f"{what} must be a datetime.timedelta, got {type(duration).__name__}: {duration!r}; "
            "write timedelta(seconds=…)"
        )
    seconds, rest = divmod(duration, _SECOND)
    if seconds < 0:
        raise ValueError(f"{what} must not be negative, got {duration}")
    if rest:
        raise ValueError(f"{what} must be whole seconds, got {duration} ({duration.total_seconds():g} s)")
    if seconds > LONGEST_SECONDS:
        raise ValueError(f"{what} must be at most {LONGEST_SECONDS} s (2^31 - 1), got {seconds} s")
    return seconds
