"""Calls that the interface has and no service of this version serves yet.

They have their full signatures, so that code written for them type-checks, and check their arguments as they will, so
that a mistake is not hidden behind the refusal. What is right is refused with DexServiceError UNIMPLEMENTED, naming the
feature.
"""

from __future__ import annotations

from datetime import timedelta
from typing import Any, Final, TypeVar, overload

from dex.attribute import Attribute, AttributeMap
from dex.client_calls import seconds_of, unimplemented
from dex.client_requests import RequestBuilder
from dex.names import check_flow_id
from dex.options import (
    AttributeMatch,
    FlowConfig,
    StepExecutionId,
    TimerId,
    TimeTravelOptions,
    WaitForAttributeOptions,
    WaitForStepCompletionOptions,
)
from dex.results import SearchFlowsPage
from dex.stream import Stream, StreamMessage, StreamMessagesPage

T = TypeVar("T")

LARGEST_PAGE: Final = 1000


class UnservedCalls:
    """The part of AsyncClient that is refused."""

    _requests: RequestBuilder

    async def write_stream(self, flow_id: str, stream: Stream[T], source: str, value: T) -> None:
        """Writes a message to a Stream in the name of `source`, a non-empty text."""
        if not source:
            raise ValueError(f"write_stream: the source of a message to Stream {stream.name!r} must not be empty")
        self._requests.check_stream("write_stream", stream, value)
        raise unimplemented("write_stream", check_flow_id(flow_id), "writing to Streams from clients")

    async def read_stream(
        self, flow_id: str, stream: Stream[T], resume_token: str = "", timeout: timedelta | None = None
    ) -> StreamMessage[T]:
        """The next message behind `resume_token`, "" for the oldest; waits for it up to `timeout`."""
        self._requests.check_stream("read_stream", stream)
        if timeout is not None:
            seconds_of("read_stream(timeout=…)", timeout)
        raise unimplemented("read_stream", check_flow_id(flow_id), "reading Streams")

    async def list_stream_messages(
        self, flow_id: str, stream: Stream[T], page_size: int, before_page_token: str = ""
    ) -> StreamMessagesPage[T]:
        """Messages of a Stream, newest first; page_size from 1 to 1,000."""
        self._requests.check_stream("list_stream_messages", stream)
        if not 1 <= page_size <= LARGEST_PAGE:
            raise ValueError(f"list_stream_messages: page_size must be from 1 to {LARGEST_PAGE}, got {page_size}")
        raise unimplemented("list_stream_messages", check_flow_id(flow_id), "listing Stream messages")

    async def search_flows(
        self,
        query: str,
        page_size: int,
        next_page_token: str = "",
        *,
        include_continued_as_new: bool = False,
    ) -> SearchFlowsPage:
        """Runs that a query finds. `list_flows` filters by status and type."""
        if page_size < 0:
            raise ValueError(f"search_flows: page_size must not be negative, got {page_size}")
        raise unimplemented("search_flows", "", "searching with a query")

    async def time_travel(self, flow_id: str, options: TimeTravelOptions) -> str:
        """Starts a new run of a Flow from a point of its past; returns the new run id."""
        _check_kind("time_travel", "options", options, TimeTravelOptions)
        raise unimplemented("time_travel", check_flow_id(flow_id), "time travel")

    async def skip_timer(self, flow_id: str, step_execution_id: StepExecutionId, timer_id: TimerId) -> None:
        """Makes a Timer that a Step waits for count as fired."""
        _check_kind("skip_timer", "step_execution_id", step_execution_id, StepExecutionId)
        _check_kind("skip_timer", "timer_id", timer_id, TimerId)
        raise unimplemented("skip_timer", check_flow_id(flow_id), "skipping Timers")

    async def wait_for_step_completion(
        self,
        flow_id: str,
        step_execution_id: StepExecutionId,
        options: WaitForStepCompletionOptions | None = None,
    ) -> None:
        """Waits until a Step execution has completed; it need not have begun."""
        _check_kind("wait_for_step_completion", "step_execution_id", step_execution_id, StepExecutionId)
        _check_wait("wait_for_step_completion", options, WaitForStepCompletionOptions)
        raise unimplemented("wait_for_step_completion", check_flow_id(flow_id), "waiting for a Step's completion")

    @overload
    async def wait_for_attribute_match(
        self,
        flow_id: str,
        attribute: Attribute[T],
        match: AttributeMatch,
        options: WaitForAttributeOptions | None = None,
        /,
    ) -> T: ...

    @overload
    async def wait_for_attribute_match(
        self,
        flow_id: str,
        attribute: AttributeMap[T],
        instance: str,
        match: AttributeMatch,
        options: WaitForAttributeOptions | None = None,
        /,
    ) -> T: ...

    async def wait_for_attribute_match(
        self, flow_id: str, attribute: Attribute[Any] | AttributeMap[Any], /, *arguments: Any
    ) -> Any:
        """Waits until an Attribute satisfies a match; returns its value."""
        rest = self._requests.check_attribute("wait_for_attribute_match", attribute, arguments)
        if not 1 <= len(rest) <= 2:
            raise TypeError(
                "wait_for_attribute_match takes (flow_id, attribute, match[, options]) or "
                f"(flow_id, attribute_map, instance, match[, options]), got {len(rest)} arguments for match and options"
            )
        _check_kind("wait_for_attribute_match", "match", rest[0], AttributeMatch)
        _check_wait("wait_for_attribute_match", rest[1] if len(rest) == 2 else None, WaitForAttributeOptions)
        if attribute.hard_delete_on_null:
            raise ValueError(
                f"wait_for_attribute_match: Attribute {attribute.name!r} has hard_delete_on_null, so it can't be used"
            )
        raise unimplemented("wait_for_attribute_match", check_flow_id(flow_id), "waiting for an Attribute")

    async def update_flow_config(self, flow_id: str, config: FlowConfig) -> None:
        """Changes the given fields of a running Flow's configuration."""
        _check_kind("update_flow_config", "config", config, FlowConfig)
        raise unimplemented("update_flow_config", check_flow_id(flow_id), "changing a Flow's configuration")


def _check_kind(operation: str, name: str, value: object, kind: type) -> None:
    if not isinstance(value, kind):
        raise TypeError(f"{operation}({name}=…) takes {kind.__name__}, got {type(value).__name__}: {value!r}")


def _check_wait(operation: str, options: Any, kind: type) -> None:
    if options is None:
        return
    _check_kind(operation, "options", options, kind)
    seconds_of(f"{kind.__name__}.request_timeout", options.request_timeout)
    seconds_of(f"{kind.__name__}.internal_handler_timeout", options.internal_handler_timeout)
