"""What a Channel, an Attribute, a Timer, a SubFlow or a Stream asks of the Context it is used with.

Users hold definitions (`Channel("approval", str)`) and a Context. A definition has no state of its own: every
operation on it goes through the `HandlerRuntime` behind the Context of the running handler. The runtime lives where
handlers run (`dexray.attempts`); this module holds only its shape, so that `dex` needs no engine.

A client that a handler makes talks to the engine that runs the handler, wherever that is and whatever it was connected
with: whoever runs a handler says so by `served_by`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any

from dex.errors import DexServiceError, StatusCode

if TYPE_CHECKING:
    from dex.attribute import Attribute, AttributeMap
    from dex.channel import Channel, ChannelMap, ChannelMessage
    from dex.results import FlowResult
    from dex.step import StepOutput
    from dex.stream import Stream
    from dex.wire.service import FlowService

_serving: ContextVar[Callable[[], FlowService] | None] = ContextVar("dex_serving", default=None)


@contextmanager
def served_by(find: Callable[[], FlowService] | None) -> Iterator[None]:
    """While a handler runs: how a client finds the engine that runs it. Finding must be quick, and closing what was
    found must end nothing but that."""
    token = _serving.set(find)
    try:
        yield
    finally:
        _serving.reset(token)


def service_of_handler() -> FlowService | None:
    """The engine behind the running handler; None outside of handlers."""
    find = _serving.get()
    return None if find is None else find()


class HandlerRuntime(ABC):
    """The state behind one handler invocation. `instance` is None for a plain definition and the key for a map's."""

    @abstractmethod
    def publish(self, channel: Channel[Any] | ChannelMap[Any], instance: str | None, value: Any) -> None: ...

    @abstractmethod
    def delete_message(
        self, channel: Channel[Any] | ChannelMap[Any], instance: str | None, message_id: str
    ) -> None: ...

    @abstractmethod
    def channel_size(self, channel: Channel[Any] | ChannelMap[Any], instance: str | None) -> int: ...

    @abstractmethod
    def channel_keys(self, channel: ChannelMap[Any]) -> tuple[str, ...]: ...

    @abstractmethod
    def pending_messages(
        self, channel: Channel[Any] | ChannelMap[Any], instance: str | None
    ) -> Sequence[ChannelMessage[Any]]: ...

    @abstractmethod
    def channel_results(self, channel: Channel[Any] | ChannelMap[Any], instance: str | None) -> Sequence[Any]: ...

    @abstractmethod
    def get_attribute(self, attribute: Attribute[Any] | AttributeMap[Any], instance: str | None) -> Any: ...

    @abstractmethod
    def set_attribute(self, attribute: Attribute[Any] | AttributeMap[Any], instance: str | None, value: Any) -> None:
        """Stages a write; None stages a deletion."""

    @abstractmethod
    def attribute_keys(self, attribute: AttributeMap[Any]) -> tuple[str, ...]: ...

    @abstractmethod
    def subflow_result(self, index: int) -> FlowResult: ...

    @abstractmethod
    def subflow_flow_id(self, index: int) -> str: ...

    @abstractmethod
    def write_stream(self, stream: Stream[Any], value: Any) -> StepOutput | None:
        """Asynchronous handlers: sends, returns None. Generator handlers: returns the frame to yield."""

    def at_end(self, finish: Callable[[], None]) -> None:
        """Calls `finish` when the handler has returned or raised, while the Context still works. A runtime without
        Streams refuses.
        """
        raise DexServiceError(StatusCode.UNIMPLEMENTED, "Streams are not available here", operation="buffered_text")


def runtime_of(context: object) -> HandlerRuntime:
    """The runtime behind a Context; TypeError when the object is no Context of a running handler."""
    runtime = getattr(context, "_runtime", None)
    if not isinstance(runtime, HandlerRuntime):
        raise TypeError(
            f"expected the Context that was given to the handler, got {type(context).__name__}: "
            "definitions are used inside wait_for, execute, handle_timeout or an RPC"
        )
    return runtime
