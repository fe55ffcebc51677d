"""Steps: the parts a Flow is cut into.

A Step may first wait (`wait_for`) and then acts (`execute`). Each of the two is a commit of its own: what it wrote
and published is committed with what it returns, or not at all. A Step object holds no state of an execution: that
comes by the input and the Context.

Handlers come in three forms. Annotations are needed in all, they say how the input is decoded:

    def execute(self, context: Context, input: int) -> StepDecision: ...
    def execute(self, context: Context, input: int) -> Generator[StepOutput, None, StepDecision]: ...
    async def execute(self, context: AsyncContext, input: int) -> StepDecision: ...

The second form yields `heartbeat(...)`; the third needs `Registry(..., allow_async_handlers=True)`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Coroutine, Generator
from typing import TYPE_CHECKING, Any, Generic, Never, TypeAlias, TypeVar

from dex.context import UNSET, AsyncContext
from dex.decision import DecisionKind as DecisionKind
from dex.decision import StepDecision
from dex.wait import Wait

if TYPE_CHECKING:
    from dex.options import StepOptions
    from dex.stream import Stream

InputT = TypeVar("InputT")
ResultT = TypeVar("ResultT")

Handled: TypeAlias = "ResultT | Coroutine[Any, Any, ResultT] | Generator[StepOutput, None, ResultT]"
"""What a handler returns to its caller, in each of the three forms. An override names the form that it has; its Context
may be the plain one, of which AsyncContext is a kind, and its parameters may have any names."""


class Step(ABC, Generic[InputT]):
    """A Step of a Flow, with an input of one type.

    class Ship(Step[Order]):
        def wait_for(self, context: Context, input: Order) -> Wait:
            return Wait.until(PAID.for_one())

        def execute(self, context: Context, input: Order) -> StepDecision:
            return graceful_complete(input.id)
    """

    @abstractmethod
    def execute(self, context: AsyncContext, input: InputT, /) -> Handled[StepDecision]:
        """Acts, and says what the Flow does next."""

    def wait_for(self, context: AsyncContext, input: InputT, /) -> Handled[Wait]:
        """Says what to wait for before execute. A Step that does not override this waits for nothing."""
        return Wait.skip_immediately()

    def get_step_type(self) -> str:
        """The durable name of the Step; a running Flow finds its code by it. Default: the class name."""
        return type(self).__name__

    def get_step_options(self) -> StepOptions | None:
        """Timeouts, retries, failure policies, locks, loads and resources of all executions of this Step."""
        return None


def step_type_of(step: type[Step[Any]] | Step[Any] | str) -> str:
    """The durable name of a Step given by name, instance or class. TypeError for a class whose instances name it."""
    if isinstance(step, str):
        return step
    if isinstance(step, Step):
        return step.get_step_type()
    if step.get_step_type is not Step.get_step_type:
        raise TypeError(f"{step.__name__} overrides get_step_type(): name it by an instance or by its type")
    return step.__name__


class StepOutput:
    """A frame that a generator handler yields. Made by `heartbeat(...)` and `Stream.write(...)` only."""

    __slots__ = ("has_value", "stream", "value")

    has_value: bool
    stream: Stream[Any] | None
    value: Any

    def __init__(self, *_: Never, **__: Never) -> None:
        raise TypeError("a StepOutput is made by heartbeat(...) or Stream.write(...), not by its class")

    def __repr__(self) -> str:
        what = f"{self.stream.name!r}" if self.stream is not None else "heartbeat"
        return f"<StepOutput {what}>"


def heartbeat(value: Any = UNSET) -> StepOutput:
    """The frame by which a generator handler shows that it is alive: `yield heartbeat(done)`.

    The value is a checkpoint that the next attempt can read; None is a value. Without one the stored checkpoint is
    cleared.
    """
    return _frame(value is not UNSET, None if value is UNSET else value, None)


def stream_frame(stream: Stream[Any], value: Any) -> StepOutput:
    """The frame that writes a message to a Stream. For runtimes."""
    return _frame(True, value, stream)


def _frame(has_value: bool, value: Any, stream: Stream[Any] | None) -> StepOutput:
    output = object.__new__(StepOutput)
    output.has_value = has_value
    output.value = value
    output.stream = stream
    return output
