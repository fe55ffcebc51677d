"""RPCs: methods of a Flow that clients call while it runs.

    class Cart(Flow[None]):
        @rpc
        def add(self, context: Context, input: Item) -> RPCResult[int]: ...

        @rpc(name="empty", lock_attributes=(ITEMS.lock(),))
        def clear(self, context: Context) -> None: ...

A handler takes the Context and at most one input, and returns RPCResult[Output], or None as a procedure. The method's
name is the durable name of the RPC unless `name` gives another. The decorator leaves the method as it is, and its
types with it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Final, Generic, TypeVar, overload

from dex.decision import StepMovement

if TYPE_CHECKING:
    from dex.attribute import AttributeLock, AttributeMap, AttributeMapLoad
    from dex.channel import Channel, ChannelMap, ChannelMapLoad
    from dex.options.step import StepResources
    from dex.step import Step

OutputT_co = TypeVar("OutputT_co", covariant=True)
HandlerT = TypeVar("HandlerT", bound=Callable[..., Any])

_MARK: Final = "__dex_rpc__"


@dataclass(frozen=True, slots=True)
class RPCResult(Generic[OutputT_co]):
    """What an RPC returns: its output, Steps to start and Steps to cancel."""

    output: OutputT_co
    next_steps: tuple[StepMovement, ...] = ()
    canceling_steps: tuple[type[Step[Any]] | Step[Any], ...] = ()

    def with_canceling_steps(self, *steps: type[Step[Any]] | Step[Any]) -> RPCResult[OutputT_co]:
        """A copy that also cancels all active executions of these Steps."""
        return replace(self, canceling_steps=(*self.canceling_steps, *steps))


@dataclass(frozen=True, slots=True)
class RpcOptions:
    """What the decorator `rpc` was given."""

    name: str | None = None
    timeout: timedelta | None = None
    lock_attributes: tuple[AttributeLock, ...] = ()
    is_transactional: bool = False
    load_attribute_maps: tuple[AttributeMap[Any], ...] = ()
    load_attribute_map_instances: tuple[AttributeMapLoad, ...] = ()
    load_channels: tuple[Channel[Any], ...] = ()
    load_channel_maps: tuple[ChannelMap[Any], ...] = ()
    load_channel_map_instances: tuple[ChannelMapLoad, ...] = ()
    resources: StepResources | None = None


@overload
def rpc(handler: HandlerT, /) -> HandlerT: ...


@overload
def rpc(
    *,
    name: str | None = None,
    timeout: timedelta | None = None,
    lock_attributes: tuple[AttributeLock, ...] = (),
    is_transactional: bool = False,
    load_attribute_maps: tuple[AttributeMap[Any], ...] = (),
    load_attribute_map_instances: tuple[AttributeMapLoad, ...] = (),
    load_channels: tuple[Channel[Any], ...] = (),
    load_channel_maps: tuple[ChannelMap[Any], ...] = (),
    load_channel_map_instances: tuple[ChannelMapLoad, ...] = (),
    resources: StepResources | None = None,
) -> Callable[[HandlerT], HandlerT]: ...


def rpc(handler: Callable[..., Any] | None = None, /, **options: Any) -> Any:
    """Makes a method of a Flow an RPC, as `@rpc` or `@rpc(name=…, …)`.

    timeout: of the whole call (60 s). lock_attributes: held during the call; a lock that is held already refuses the
      call.
    is_transactional: snapshot, handler and writes are one isolated unit, as with locks. load_…: what the handler
      reads. resources: what Ray is asked for; by default nothing, so that a call does not wait for Steps to free a CPU.
    """
    marked = RpcOptions(**options)

    def mark(function: HandlerT) -> HandlerT:
        if not callable(function):
            raise TypeError(f"@rpc decorates a method of a Flow, got {type(function).__name__}: {function!r}")
        setattr(function, _MARK, marked)
        return function

    return mark if handler is None else mark(handler)


def rpc_options_of(function: object) -> RpcOptions | None:
    """What `rpc` was given for this function, None when it is no RPC."""
    options = getattr(function, _MARK, None)
    return options if isinstance(options, RpcOptions) else None
