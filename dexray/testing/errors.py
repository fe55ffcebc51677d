"""What a FlowTest has to say to the author of a test."""

from __future__ import annotations


class FlowTestError(Exception):
    """Something about the test itself is wrong: the message says what, and the way out."""


class WaitsForTime(FlowTestError):
    """A call needs time to pass, and this FlowTest lets it pass by `advance` alone (`skip_time=False`)."""


class WaitsForever(FlowTestError):
    """A call waits for something that can't happen any more, whatever time passes: a message that nobody sends."""


class NeverAtRest(FlowTestError):
    """Flows run on and on without time passing."""


class EngineProblem(FlowTestError):
    """The engine itself is in trouble; its own error is the cause."""


class FaultNotMet(FlowTestError):
    """A fault was asked for, and the test ended without it having happened."""
