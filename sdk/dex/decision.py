"""Step decisions: what execute returns, and so what a Flow does next.

A decision moves to next Steps, closes the Flow, or ends only its branch; it may cancel other Steps besides. Decisions
are plain values. Whether one can be committed is judged when the handler has returned it.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import Enum
from typing import TYPE_CHECKING, Any, Final, TypeVar

from dex.context import UNSET

if TYPE_CHECKING:
    from dex.channel import Channel
    from dex.options import StepOptions
    from dex.step import Step

T = TypeVar("T")


class DecisionKind(Enum):
    NEXT = "next"
    GRACEFUL_COMPLETE = "graceful_complete"
    FORCE_COMPLETE = "force_complete"
    FORCE_COMPLETE_IF_CHANNELS_EMPTY = "force_complete_if_channels_empty"
    FORCE_FAIL = "force_fail"
    DEAD_END = "dead_end"


NO_OUTPUT: Final = UNSET
"""The output of a decision that has none; an output of None is one."""


@dataclass(frozen=True, slots=True)
class StepMovement:
    """Starts one Step execution. `options` apply to that execution only: fields left at their default keep the Step's
    own value.
    """

    step: type[Step[Any]] | Step[Any]
    input: Any
    options: StepOptions | None = None

    @staticmethod
    def of(step: type[Step[T]] | Step[T], input: T, options: StepOptions | None = None) -> StepMovement:
        """A movement to a Step, named by its class or by an instance, with an input of the Step's input type."""
        return StepMovement(step, input, options)


@dataclass(frozen=True, slots=True)
class StepDecision:
    """What execute returns. Made by `go_to`, `go_to_many`, `graceful_complete`, `force_complete`, `force_fail`,
    `dead_end`, …
    """

    kind: DecisionKind
    movements: tuple[StepMovement, ...] = ()
    output: Any = NO_OUTPUT
    reason: str = ""
    empty_channels: tuple[Channel[Any], ...] = ()
    fallback: StepMovement | None = None
    canceling_steps: tuple[type[Step[Any]] | Step[Any], ...] = ()
    canceling_sibling_steps: tuple[type[Step[Any]] | Step[Any], ...] = ()

    @property
    def has_output(self) -> bool:
        """Whether an output was given; None is one."""
        return self.output is not NO_OUTPUT

    def with_canceling_steps(self, *steps: type[Step[Any]] | Step[Any]) -> StepDecision:
        """A copy that also cancels all active executions of these Steps in the Flow. Ones that it starts itself go
        on.
        """
        return replace(self, canceling_steps=(*self.canceling_steps, *steps))

    def with_canceling_sibling_steps(self, *steps: type[Step[Any]] | Step[Any]) -> StepDecision:
        """A copy that also cancels the active executions of these Steps that the same decision started as this one."""
        return replace(self, canceling_sibling_steps=(*self.canceling_sibling_steps, *steps))


def go_to(step: type[Step[T]] | Step[T], input: T) -> StepDecision:
    """Starts one next Step with its input."""
    return StepDecision(DecisionKind.NEXT, (StepMovement(step, input),))


def go_to_many(*movements: StepMovement) -> StepDecision:
    """Starts several next Steps at once; the same Step may stand in it several times. At least one movement is
    needed.
    """
    return StepDecision(DecisionKind.NEXT, movements)


def graceful_complete(output: Any = NO_OUTPUT) -> StepDecision:
    """Ends this branch, with an output if one is given; the Flow completes when all its branches have ended."""
    return StepDecision(DecisionKind.GRACEFUL_COMPLETE, output=output)


def force_complete(output: Any = NO_OUTPUT) -> StepDecision:
    """Completes the Flow at once, with an output if one is given; all other branches end."""
    return StepDecision(DecisionKind.FORCE_COMPLETE, output=output)


def force_fail(reason: str) -> StepDecision:
    """Fails the Flow at once, with the reason as its error message."""
    if not isinstance(reason, str):
        raise TypeError(f"force_fail(reason) takes a str, got {type(reason).__name__}: {reason!r}")
    return StepDecision(DecisionKind.FORCE_FAIL, reason=reason)


def dead_end() -> StepDecision:
    """Ends this branch only. A Flow whose last branch ends so goes on without a Step."""
    return StepDecision(DecisionKind.DEAD_END)


def force_complete_if_channels_empty(output: Any, fallback: StepMovement, *channels: Channel[Any]) -> StepDecision:
    """Completes the Flow with `output` (None is an output) if these Channels are empty, else starts `fallback`: one
    atomic check.

    A Channel whose message was consumed by a Step is not empty until that Step has finished its execute.
    """
    return StepDecision(
        DecisionKind.FORCE_COMPLETE_IF_CHANNELS_EMPTY,
        output=output,
        fallback=fallback,
        empty_channels=channels,
    )


def decision_problem(decision: StepDecision) -> str | None:
    """Why this decision can't be committed whatever its Flow is, None when it can."""
    from dex.channel import Channel

    movements: tuple[object, ...] = decision.movements
    for movement in movements:
        if not isinstance(movement, StepMovement):
            return f"go_to_many takes StepMovement.of(...), got {type(movement).__name__}: {movement!r}"
    match decision.kind:
        case DecisionKind.NEXT if not decision.movements:
            return (
                "go_to_many requires a movement: return dead_end() to end this branch, "
                "or graceful_complete() to let the Flow complete"
            )
        case DecisionKind.FORCE_COMPLETE_IF_CHANNELS_EMPTY:
            if not isinstance(decision.fallback, StepMovement):
                return "force_complete_if_channels_empty requires a fallback: StepMovement.of(...)"
            if not decision.empty_channels:
                return "force_complete_if_channels_empty requires a Channel: without one use force_complete"
            channels: tuple[object, ...] = decision.empty_channels
            for channel in channels:
                if not isinstance(channel, Channel):
                    return (
                        "force_complete_if_channels_empty requires static Channels, "
                        f"got {type(channel).__name__} {getattr(channel, 'name', channel)!r}"
                    )
        case _:
            pass
    return None
