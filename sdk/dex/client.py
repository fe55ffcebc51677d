"""The client of blocking code: every method runs the AsyncClient's of the same name on a background thread.

There is no logic here. What a method means, and what it raises, is said in `dex.async_client`, whose docstrings are
this one's too. How the thread behaves (forks, interrupts, notebooks, programs that end without closing) is said in
`dex._portal`.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from datetime import timedelta
from types import TracebackType
from typing import Any, Self, TypeVar, overload

from dex._portal import Portal
from dex.async_client import AsyncClient
from dex.attribute import Attribute, AttributeMap, Holds, HoldsMany
from dex.channel import Channel, ChannelMap
from dex.client_calls import ClientOptions
from dex.client_rpc import Function, FunctionOf, Procedure, ProcedureOf
from dex.flow import Flow
from dex.options import (
    AttributeMatch,
    FlowConfig,
    RPCInvokeOptions,
    StartFlowOptions,
    StepExecutionId,
    StopFlowOptions,
    TimerId,
    TimeTravelOptions,
    WaitForAttributeOptions,
    WaitForStepCompletionOptions,
)
from dex.registry import Registry
from dex.results import FlowInfo, FlowResult, FlowStatus, SearchFlowsPage
from dex.stream import Stream, StreamMessage, StreamMessagesPage
from dex.wire.service import FlowDescription, FlowService, HistoryEvent

__all__ = ["Client", "ClientOptions"]

logger = logging.getLogger("dex")

StartT = TypeVar("StartT")
InputT = TypeVar("InputT")
OutputT = TypeVar("OutputT")
T = TypeVar("T")


class Client:
    """Starts, feeds, watches and stops Flows, from blocking code.

        with Client(registry) as client:
            client.start_flow(order_flow, "order-17", Order(items=3))
            client.publish("order-17", order_flow.approval, True)
            result = client.wait_for_flow("order-17")

    registry: the Flows that it may start, and the Attributes and Channels that it may use.
    service: who serves; without one it is looked up with the first call: the engine that runs this handler, or outside
      of handlers the cluster that this process is connected to.
    It may be used by many threads at once, and inside a running event loop, which it blocks: fine in a notebook, while
    a server should use AsyncClient.
    A KeyboardInterrupt ends the call, not the client. After a fork the child makes a Client of its own.
    """

    def __init__(
        self, registry: Registry, service: FlowService | None = None, options: ClientOptions | None = None
    ) -> None:
        self._client = AsyncClient(registry, service, options)
        self._portal = Portal("Client")

    @property
    def registry(self) -> Registry:
        """The Registry that the client was made with."""
        return self._client.registry

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), self._client.__reduce__()[1]

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            self.close()
        except Exception:
            if error is None:
                raise
            logger.warning("the client could not be closed in order, which harms no Flow", exc_info=True)

    def close(self) -> None:
        """Ends the client and its thread. Again: does nothing. Flows go on."""
        self._portal.close_after(self._client.close)

    def health_check(self) -> bool:
        return self._portal.call(self._client.health_check)

    # Starting and ending ----------------------------------------------------------------------------------------------

    @overload
    def start_flow(
        self,
        flow: Flow[None],
        flow_id: str,
        input: None = None,
        options: StartFlowOptions | None = None,
        *,
        request_id: str | None = None,
    ) -> str: ...

    @overload
    def start_flow(
        self,
        flow: Flow[StartT],
        flow_id: str,
        input: StartT,
        options: StartFlowOptions | None = None,
        *,
        request_id: str | None = None,
    ) -> str: ...

    def start_flow(
        self,
        flow: Flow[Any],
        flow_id: str,
        input: Any = None,
        options: StartFlowOptions | None = None,
        *,
        request_id: str | None = None,
    ) -> str:
        return self._portal.call(self._client.start_flow, flow, flow_id, input, options, request_id=request_id)

    def stop_flow(self, flow_id: str, options: StopFlowOptions | None = None, *, request_id: str | None = None) -> None:
        self._portal.call(self._client.stop_flow, flow_id, options, request_id=request_id)

    def wait_for_flow(self, flow_id: str, timeout: timedelta | None = None) -> FlowResult:
        return self._portal.call(self._client.wait_for_flow, flow_id, timeout)

    # Channels and Attributes ------------------------------------------------------------------------------------------

    @overload
    def publish(
        self, flow_id: str, channel: Channel[T], /, *values: T, request_id: str | None = None
    ) -> tuple[str, ...]: ...

    @overload
    def publish(
        self, flow_id: str, channel: ChannelMap[T], instance: str, /, *values: T, request_id: str | None = None
    ) -> tuple[str, ...]: ...

    def publish(self, flow_id: str, channel: Any, /, *values: Any, request_id: str | None = None) -> tuple[str, ...]:
        return self._portal.call(self._client.publish, flow_id, channel, *values, request_id=request_id)

    @overload
    def get_attribute(self, flow_id: str, attribute: Attribute[bool], /) -> bool: ...

    @overload
    def get_attribute(self, flow_id: str, attribute: Attribute[int], /) -> int: ...

    @overload
    def get_attribute(self, flow_id: str, attribute: Attribute[float], /) -> float: ...

    @overload
    def get_attribute(self, flow_id: str, attribute: Holds[T], /) -> T | None: ...

    @overload
    def get_attribute(self, flow_id: str, attribute: AttributeMap[bool], instance: str, /) -> bool: ...

    @overload
    def get_attribute(self, flow_id: str, attribute: AttributeMap[int], instance: str, /) -> int: ...

    @overload
    def get_attribute(self, flow_id: str, attribute: AttributeMap[float], instance: str, /) -> float: ...

    @overload
    def get_attribute(self, flow_id: str, attribute: HoldsMany[T], instance: str, /) -> T | None: ...

    def get_attribute(self, flow_id: str, attribute: Any, /, *instance: str) -> Any:
        method: Any = self._client.get_attribute
        return self._portal.call(method, flow_id, attribute, *instance)

    @overload
    def set_attribute(
        self, flow_id: str, attribute: Attribute[T], value: T | None, /, *, request_id: str | None = None
    ) -> None: ...

    @overload
    def set_attribute(
        self,
        flow_id: str,
        attribute: AttributeMap[T],
        instance: str,
        value: T | None,
        /,
        *,
        request_id: str | None = None,
    ) -> None: ...

    def set_attribute(self, flow_id: str, attribute: Any, /, *value: Any, request_id: str | None = None) -> None:
        method: Any = self._client.set_attribute
        self._portal.call(method, flow_id, attribute, *value, request_id=request_id)

    # Looking ----------------------------------------------------------------------------------------------------------

    def describe_flow(self, flow_id: str) -> FlowInfo:
        return self._portal.call(self._client.describe_flow, flow_id)

    def describe(self, flow_id: str) -> FlowDescription:
        return self._portal.call(self._client.describe, flow_id)

    def explain(self, flow_id: str) -> tuple[str, ...]:
        return self._portal.call(self._client.explain, flow_id)

    def history(
        self, flow_id: str, *, run_id: str = "", after: int = 0, page_size: int = 1000, follow: bool = False
    ) -> Iterator[HistoryEvent]:
        """The events of one run, oldest first; see `AsyncClient.history`."""
        cursor = self._client._history(flow_id, run_id, after, page_size, follow)
        while events := self._portal.call(cursor.next_page):
            yield from events

    def list_flows(
        self,
        *,
        query: str = "",
        status: FlowStatus | None = None,
        flow_type: str = "",
        page_size: int = 100,
        page_token: str = "",
    ) -> SearchFlowsPage:
        return self._portal.call(
            self._client.list_flows,
            query=query,
            status=status,
            flow_type=flow_type,
            page_size=page_size,
            page_token=page_token,
        )

    def search_flows(
        self,
        query: str,
        page_size: int,
        next_page_token: str = "",
        *,
        include_continued_as_new: bool = False,
    ) -> SearchFlowsPage:
        return self._portal.call(
            self._client.search_flows,
            query,
            page_size,
            next_page_token,
            include_continued_as_new=include_continued_as_new,
        )

    def count_flows(self, query: str = "", *, latest_only: bool = False) -> int:
        return self._portal.call(self._client.count_flows, query, latest_only=latest_only)

    def trigger_continue_as_new(self, flow_id: str) -> None:
        self._portal.call(self._client.trigger_continue_as_new, flow_id)

    # RPCs -------------------------------------------------------------------------------------------------------------

    @overload
    def invoke_rpc(
        self,
        method: FunctionOf[InputT, OutputT],
        flow_id: str,
        input: InputT,
        *,
        run_id: str = "",
        options: RPCInvokeOptions | None = None,
        request_id: str | None = None,
    ) -> OutputT: ...

    @overload
    def invoke_rpc(
        self,
        method: ProcedureOf[InputT],
        flow_id: str,
        input: InputT,
        *,
        run_id: str = "",
        options: RPCInvokeOptions | None = None,
        request_id: str | None = None,
    ) -> None: ...

    @overload
    def invoke_rpc(
        self,
        method: Function[OutputT],
        flow_id: str,
        input: None = None,
        *,
        run_id: str = "",
        options: RPCInvokeOptions | None = None,
        request_id: str | None = None,
    ) -> OutputT: ...

    @overload
    def invoke_rpc(
        self,
        method: Procedure,
        flow_id: str,
        input: None = None,
        *,
        run_id: str = "",
        options: RPCInvokeOptions | None = None,
        request_id: str | None = None,
    ) -> None: ...

    def invoke_rpc(
        self,
        method: Any,
        flow_id: str,
        input: Any = None,
        *,
        run_id: str = "",
        options: RPCInvokeOptions | None = None,
        request_id: str | None = None,
    ) -> Any:
        return self._portal.call(
            self._client.invoke_rpc, method, flow_id, input, run_id=run_id, options=options, request_id=request_id
        )

    # Streams ----------------------------------------------------------------------------------------------------------

    def write_stream(self, flow_id: str, stream: Stream[T], source: str, value: T) -> None:
        self._portal.call(self._client.write_stream, flow_id, stream, source, value)

    def read_stream(
        self, flow_id: str, stream: Stream[T], resume_token: str = "", timeout: timedelta | None = None
    ) -> StreamMessage[T]:
        return self._portal.call(self._client.read_stream, flow_id, stream, resume_token, timeout)

    def list_stream_messages(
        self, flow_id: str, stream: Stream[T], page_size: int, before_page_token: str = ""
    ) -> StreamMessagesPage[T]:
        return self._portal.call(self._client.list_stream_messages, flow_id, stream, page_size, before_page_token)

    # Milestones and operators -----------------------------------------------------------------------------------------

    def time_travel(self, flow_id: str, options: TimeTravelOptions, *, request_id: str | None = None) -> str:
        return self._portal.call(self._client.time_travel, flow_id, options, request_id=request_id)

    def delete_flow(self, flow_id: str, run_id: str | None = None) -> None:
        self._portal.call(self._client.delete_flow, flow_id, run_id)

    def skip_timer(
        self, flow_id: str, step_execution_id: StepExecutionId, timer_id: TimerId, *, request_id: str | None = None
    ) -> None:
        self._portal.call(self._client.skip_timer, flow_id, step_execution_id, timer_id, request_id=request_id)

    def wait_for_step_completion(
        self,
        flow_id: str,
        step_execution_id: StepExecutionId,
        options: WaitForStepCompletionOptions | None = None,
    ) -> None:
        self._portal.call(self._client.wait_for_step_completion, flow_id, step_execution_id, options)

    @overload
    def wait_for_attribute_match(
        self,
        flow_id: str,
        attribute: Attribute[T],
        match: AttributeMatch,
        options: WaitForAttributeOptions | None = None,
        /,
    ) -> T: ...

    @overload
    def wait_for_attribute_match(
        self,
        flow_id: str,
        attribute: AttributeMap[T],
        instance: str,
        match: AttributeMatch,
        options: WaitForAttributeOptions | None = None,
        /,
    ) -> T: ...

    def wait_for_attribute_match(self, flow_id: str, attribute: Any, /, *arguments: Any) -> Any:
        return self._portal.call(self._client.wait_for_attribute_match, flow_id, attribute, *arguments)

    def update_flow_config(self, flow_id: str, config: FlowConfig, *, request_id: str | None = None) -> None:
        self._portal.call(self._client.update_flow_config, flow_id, config, request_id=request_id)


def _share_docstrings() -> None:
    for name, method in vars(Client).items():
        if not name.startswith("_") and callable(method) and method.__doc__ is None:
            method.__doc__ = getattr(AsyncClient, name).__doc__


_share_docstrings()
