"""The client of asynchronous code. `Client` is the same for blocking code and runs this one.

A client talks to whatever serves Flows: the cluster, the in-process engine of the tests, or a connection. It checks
and encodes its arguments (`client_requests`), sends them until they are answered (`client_calls`) and decodes the
answer.

- Nothing is sent before all arguments are checked and all values encoded.
- Every write may be given a `request_id`. Repeating it with the same id has one effect, however often, also across
  crashes. Without one each call is a new request. When a write fails with UNAVAILABLE its outcome is unknown, and the
  error names the id to repeat it with.
- Errors are `DexServiceError`s; the usual ones have classes of their own, named at each method. Wrong arguments are
  ValueError or TypeError, values that do not fit their type ValueMappingError, a Flow that the Registry does not hold
  FlowDefinitionError.
"""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator
from datetime import timedelta
from types import TracebackType
from typing import Any, Self, TypeVar, overload

from dex.attribute import Attribute, AttributeMap, Holds, HoldsMany
from dex.channel import Channel, ChannelMap
from dex.client_calls import ClientOptions, HistoryCursor, ServiceCaller, not_active, seconds_of
from dex.client_control import ControlCalls
from dex.client_requests import RequestBuilder
from dex.client_results import flow_info
from dex.client_rpc import RpcCalls
from dex.client_search import SearchCalls
from dex.client_streams import ReadAhead, StreamCalls
from dex.explain import explained
from dex.flow import Flow
from dex.names import check_flow_id
from dex.options import StartFlowOptions, StopFlowOptions
from dex.registry import Registry
from dex.results import FlowInfo, FlowResult, FlowStatus, flow_result_of
from dex.wire.service import DescribeFlow, FlowDescription, FlowService, HistoryEvent, ListFlows

__all__ = ["AsyncClient", "ClientOptions"]

logger = logging.getLogger("dex")

StartT = TypeVar("StartT")
T = TypeVar("T")


class AsyncClient(ControlCalls, RpcCalls, SearchCalls, StreamCalls):
    """Starts, feeds, watches and stops Flows.

        async with AsyncClient(registry) as client:
            await client.start_flow(order_flow, "order-17", Order(items=3))
            await client.publish("order-17", order_flow.approval, True)
            result = await client.wait_for_flow("order-17")

    registry: the Flows that it may start, and the Attributes and Channels that it may use.
    service: who serves; without one it is looked up with the first call: the engine that runs this handler, or outside
      of handlers the cluster that this process is connected to.
    An AsyncClient belongs to the event loop that it is used in. It may be used by many tasks at once.
    """

    def __init__(
        self, registry: Registry, service: FlowService | None = None, options: ClientOptions | None = None
    ) -> None:
        options = ClientOptions() if options is None else options
        self._registry = registry
        self._requests = RequestBuilder(registry, options.max_value_bytes)
        self._options = options
        self._service = service
        self._caller = ServiceCaller(service, _default_service, options)
        self._read_ahead = ReadAhead()

    @property
    def registry(self) -> Registry:
        """The Registry that the client was made with."""
        return self._registry

    def __reduce__(self) -> tuple[Any, ...]:
        # A service that was given goes along. The default one is looked up again where the client arrives.
        return type(self), (self._registry, self._service, self._options)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            await self.close()
        except Exception:
            if error is None:
                raise
            logger.warning("the client could not be closed in order, which harms no Flow", exc_info=True)

    async def close(self) -> None:
        """Ends the client. Again: does nothing. Flows go on.

        The service is closed when the client found it itself, or with `ClientOptions.owns_service`.
        """
        await self._caller.close()

    async def health_check(self) -> bool:
        """Whether the service answers a simple question, at one try, within `ClientOptions.request_timeout`."""
        return await self._caller.is_serving(ListFlows(page_size=1))

    # Starting and ending ----------------------------------------------------------------------------------------------

    @overload
    async def start_flow(
        self,
        flow: Flow[None],
        flow_id: str,
        input: None = None,
        options: StartFlowOptions | None = None,
        *,
        request_id: str | None = None,
    ) -> str: ...

    @overload
    async def start_flow(
        self,
        flow: Flow[StartT],
        flow_id: str,
        input: StartT,
        options: StartFlowOptions | None = None,
        *,
        request_id: str | None = None,
    ) -> str: ...

    async def start_flow(
        self,
        flow: Flow[Any],
        flow_id: str,
        input: Any = None,
        options: StartFlowOptions | None = None,
        *,
        request_id: str | None = None,
    ) -> str:
        """Starts a run of a registered Flow instance and returns its run id.

        input: what the start Step takes; None for a Flow without a start Step.
        request_id: the same as `StartFlowOptions.request_id`.
        Raises FlowAlreadyStartedError when the id reuse policy forbids another run, FlowDefinitionError for a Flow that
        is not registered, ValueError for options that do not go together, ValueMappingError for an input of another
        type.
        """
        request = self._requests.start_flow(flow, flow_id, input, options, request_id)
        return (await self._caller.call(request)).run_id

    async def stop_flow(
        self, flow_id: str, options: StopFlowOptions | None = None, *, request_id: str | None = None
    ) -> None:
        """Asks a Flow to end: cancelled (the default), terminated or failed, as `StopFlowOptions.type` says.

        `wait_for_flow` tells when it has. Raises FlowNotActiveOrNotFoundError for a Flow that is unknown or closed.
        """
        await self._caller.call(self._requests.stop_flow(flow_id, options, request_id))

    async def wait_for_flow(self, flow_id: str, timeout: timedelta | None = None) -> FlowResult:
        """Waits until the Flow's latest run is closed. A failed or cancelled one is a result too, not an error.

        timeout: None waits without limit. An outage of the service is ridden out for up to
        `ClientOptions.request_timeout`, even beyond the timeout.
        Raises LongPollTimeoutError when the Flow is still open after `timeout`, FlowNotFoundError for an unknown one.
        """
        check_flow_id(flow_id)
        limit = None if timeout is None else seconds_of("wait_for_flow(timeout=…)", timeout)
        outcome = await self._caller.wait_for_flow(flow_id, limit)
        return flow_result_of(outcome, self._registry.codec_registry)

    # Channels and Attributes ------------------------------------------------------------------------------------------

    @overload
    async def publish(
        self, flow_id: str, channel: Channel[T], /, *values: T, request_id: str | None = None
    ) -> tuple[str, ...]: ...

    @overload
    async def publish(
        self, flow_id: str, channel: ChannelMap[T], instance: str, /, *values: T, request_id: str | None = None
    ) -> tuple[str, ...]: ...

    async def publish(
        self,
        flow_id: str,
        channel: Channel[Any] | ChannelMap[Any],
        /,
        *values: Any,
        request_id: str | None = None,
    ) -> tuple[str, ...]:
        """Puts values into a Channel, or into one instance of a ChannelMap, all at once and in order.

        Returns their message ids.

            await client.publish("order-17", approvals, True)
            await client.publish("order-17", parts, "wheel", 4)

        Raises FlowNotActiveOrNotFoundError for a Flow that is unknown or closed.
        """
        return (await self._caller.call(self._requests.publish(flow_id, channel, values, request_id))).message_ids

    @overload
    async def get_attribute(self, flow_id: str, attribute: Attribute[bool], /) -> bool: ...

    @overload
    async def get_attribute(self, flow_id: str, attribute: Attribute[int], /) -> int: ...

    @overload
    async def get_attribute(self, flow_id: str, attribute: Attribute[float], /) -> float: ...

    @overload
    async def get_attribute(self, flow_id: str, attribute: Holds[T], /) -> T | None: ...

    @overload
    async def get_attribute(self, flow_id: str, attribute: AttributeMap[bool], instance: str, /) -> bool: ...

    @overload
    async def get_attribute(self, flow_id: str, attribute: AttributeMap[int], instance: str, /) -> int: ...

    @overload
    async def get_attribute(self, flow_id: str, attribute: AttributeMap[float], instance: str, /) -> float: ...

    @overload
    async def get_attribute(self, flow_id: str, attribute: HoldsMany[T], instance: str, /) -> T | None: ...

    async def get_attribute(self, flow_id: str, attribute: Any, /, *instance: str) -> Any:
        """The committed value of an Attribute, or of one instance of an AttributeMap, of the Flow's latest run.

        Without a value: 0, 0.0 or False for int, float and bool, else None.
        Raises FlowNotFoundError for an unknown Flow.
        """
        request = self._requests.get_attribute(flow_id, attribute, instance)
        return self._requests.attribute_value(attribute, await self._caller.call(request))

    @overload
    async def set_attribute(
        self, flow_id: str, attribute: Attribute[T], value: T | None, /, *, request_id: str | None = None
    ) -> None: ...

    @overload
    async def set_attribute(
        self,
        flow_id: str,
        attribute: AttributeMap[T],
        instance: str,
        value: T | None,
        /,
        *,
        request_id: str | None = None,
    ) -> None: ...

    async def set_attribute(
        self,
        flow_id: str,
        attribute: Attribute[Any] | AttributeMap[Any],
        /,
        *value: Any,
        request_id: str | None = None,
    ) -> None:
        """Sets an Attribute, or one instance of an AttributeMap; None deletes.

        Raises FlowNotActiveOrNotFoundError for a Flow that is unknown or closed.
        """
        await self._caller.call(self._requests.set_attribute(flow_id, attribute, value, request_id))

    # Looking ----------------------------------------------------------------------------------------------------------

    async def describe_flow(self, flow_id: str) -> FlowInfo:
        """The latest run of a Flow: its ids, type, status and start. Raises FlowNotFoundError for an unknown Flow."""
        return flow_info(await self._describe(flow_id, "describe_flow"))

    async def describe(self, flow_id: str) -> FlowDescription:
        """The live state of a Flow's latest run: open Steps with what they wait for and why, Channels, Attributes.

        Values are in readable form, times in seconds since 1970 (UTC). Raises FlowNotFoundError for an unknown Flow.
        """
        return await self._describe(flow_id, "describe")

    async def explain(self, flow_id: str) -> tuple[str, ...]:
        """One sentence for each open Step of a Flow's latest run: what it waits for and since when, or what it does.

            Approve-1 waits for 1 message on approvals (there are 0), since 2026-05-31 08:30:00Z.

        A Flow that can't go on as a whole says why first; a closed one says nothing. Raises FlowNotFoundError for an
        unknown Flow.
        """
        return explained(await self._describe(flow_id, "explain"))

    async def history(
        self, flow_id: str, *, run_id: str = "", after: int = 0, page_size: int = 1000, follow: bool = False
    ) -> AsyncIterator[HistoryEvent]:
        """The events of one run, oldest first.

            async for event in client.history("order-17", follow=True): ...

        run_id: "" is the latest run at the time of the first event. after: leaves out events up to this number.
        page_size: events per request. follow: waits for new events until the run is closed.
        Raises FlowNotFoundError for an unknown Flow or run.
        """
        cursor = self._history(flow_id, run_id, after, page_size, follow)
        while events := await cursor.next_page():
            for event in events:
                yield event

    async def trigger_continue_as_new(self, flow_id: str) -> None:
        """Accepted, and does nothing: Flows need no continuing as new.

        Raises FlowNotActiveOrNotFoundError for a Flow that is unknown or closed.
        """
        description = await self._describe(flow_id, "trigger_continue_as_new")
        if description.status != FlowStatus.RUNNING.name:
            raise not_active("trigger_continue_as_new", flow_id, description.status)

    # Inside -----------------------------------------------------------------------------------------------------------

    async def _describe(self, flow_id: str, operation: str) -> FlowDescription:
        return await self._caller.call(DescribeFlow(flow_id=check_flow_id(flow_id)), operation=operation)

    def _history(self, flow_id: str, run_id: str, after: int, page_size: int, follow: bool) -> HistoryCursor:
        return HistoryCursor(self._caller, check_flow_id(flow_id), run_id, after, page_size, follow)


def _default_service() -> FlowService:
    """The service of the cluster that this process is connected to: the one thing that `dex` asks of the engine."""
    import dexray

    service: FlowService = dexray.default_service()
    return service
