"""Calls that wait for a milestone of a Flow, and those that change its course from outside.

A wait is a long poll that is repeated until there is an answer; all its polls are attached to one wait at the service,
and so is a call that is repeated under the same `request_id`. Writes are done once for their `request_id`.
"""

from __future__ import annotations

from typing import Any, TypeVar, overload

from msgspec.structs import replace

from dex.attribute import Attribute, AttributeMap
from dex.client_calls import ServiceCaller, seconds_of
from dex.client_requests import RequestBuilder
from dex.options import (
    AttributeMatch,
    FlowConfig,
    StepExecutionId,
    TimerId,
    TimeTravelOptions,
    WaitForAttributeOptions,
    WaitForStepCompletionOptions,
)

T = TypeVar("T")


class ControlCalls:
    """The part of AsyncClient that waits for milestones and changes the course of a Flow."""

    _requests: RequestBuilder
    _caller: ServiceCaller

    async def wait_for_step_completion(
        self,
        flow_id: str,
        step_execution_id: StepExecutionId,
        options: WaitForStepCompletionOptions | None = None,
    ) -> None:
        """Waits until a Step execution is over: completed, cancelled, or failed with its recovery Step taking over.

            await client.wait_for_step_completion("order-17", StepExecutionId(Charge))

        It may not have begun yet, but the Flow must be active. It tells neither the output nor the end of the Flow.
        Raises FlowNotActiveOrNotFoundError when the Flow is unknown or closed, or closes without it;
        LongPollTimeoutError after `options.request_timeout`: it may still come, and undoes nothing;
        RequestTimeoutError after `options.internal_handler_timeout`.
        """
        _check_kind("wait_for_step_completion", "step_execution_id", step_execution_id, StepExecutionId)
        options = WaitForStepCompletionOptions() if options is None else options
        timeout = _check_wait("wait_for_step_completion", options, WaitForStepCompletionOptions)
        request = self._requests.wait_for_step(flow_id, step_execution_id, options)
        await self._caller.poll(lambda seconds: replace(request, timeout=seconds), timeout)

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
        """Waits until the committed value of an Attribute, or of one instance of an AttributeMap, satisfies a match.

            level = await client.wait_for_attribute_match("tank-3", level, AttributeMatch.greater_than(80))

        Returns that value; at once, if it does already. A value that comes and goes within one commit is not seen, and
        a missing one satisfies nothing.
        Raises FlowNotActiveOrNotFoundError when the Flow is unknown or closed, or closes without it;
        LongPollTimeoutError after `options.request_timeout`; RequestTimeoutError after
        `options.internal_handler_timeout`; ValueError for an operand that the Attribute's type has no equal of, and for
        an Attribute with hard_delete_on_null.
        """
        operation = "wait_for_attribute_match"
        rest = self._requests.check_attribute(operation, attribute, arguments)
        if not 1 <= len(rest) <= 2:
            raise TypeError(
                "wait_for_attribute_match takes (flow_id, attribute, match[, options]) or "
                f"(flow_id, attribute_map, instance, match[, options]), got {len(rest)} arguments for match and options"
            )
        _check_kind(operation, "match", rest[0], AttributeMatch)
        options = rest[1] if len(rest) == 2 and rest[1] is not None else WaitForAttributeOptions()
        timeout = _check_wait(operation, options, WaitForAttributeOptions)
        if attribute.hard_delete_on_null:
            raise ValueError(
                f"wait_for_attribute_match: Attribute {attribute.name!r} has hard_delete_on_null, so it can't be used"
            )
        request = self._requests.wait_for_attribute(flow_id, attribute, arguments, rest[0], options)
        answer = await self._caller.poll(lambda seconds: replace(request, timeout=seconds), timeout)
        return self._requests.attribute_value(attribute, answer)

    async def skip_timer(
        self, flow_id: str, step_execution_id: StepExecutionId, timer_id: TimerId, *, request_id: str | None = None
    ) -> None:
        """Makes a Timer that a Step waits for count as fired now.

            await client.skip_timer("order-17", StepExecutionId(Approve), TimerId.by_condition_index(0))

        The Flow's timeout is `StepExecutionId("sys:timeout_handler")`, whatever its policy and whatever the TimerId.
        A Timer that has fired is left as it is.
        Raises FlowNotActiveOrNotFoundError for a Flow that is unknown or closed, DexServiceError NOT_FOUND when the
        Step does not wait or its wait has no such Timer.
        """
        _check_kind("skip_timer", "step_execution_id", step_execution_id, StepExecutionId)
        _check_kind("skip_timer", "timer_id", timer_id, TimerId)
        await self._caller.call(self._requests.skip_timer(flow_id, step_execution_id, timer_id, request_id))

    async def update_flow_config(self, flow_id: str, config: FlowConfig, *, request_id: str | None = None) -> None:
        """Changes the given fields of a running Flow's configuration.

        Method calls that are pending already keep their durability. Raises FlowNotActiveOrNotFoundError for a Flow that
        is unknown or closed.
        """
        _check_kind("update_flow_config", "config", config, FlowConfig)
        await self._caller.call(self._requests.update_flow_config(flow_id, config, request_id))

    async def time_travel(self, flow_id: str, options: TimeTravelOptions, *, request_id: str | None = None) -> str:
        """Starts a new run of a Flow from a point of its latest run's past; returns the new run id.

            await client.time_travel("order-17", TimeTravelOptions(TimeTravelType.STEP_TYPE, step_type="Charge"))

        The latest run is terminated if it is open. Attributes, Channels, waits and Step execution numbers are as they
        were; method calls that were under way begin anew, with attempt 1. What clients and RPCs wrote after that point
        is applied again, unless `options.skip_writes_reapply`. What Steps did outside is not undone.
        Raises FlowNotFoundError for an unknown Flow, DexServiceError NOT_FOUND when its past has no such point.
        """
        _check_kind("time_travel", "options", options, TimeTravelOptions)
        return (await self._caller.call(self._requests.time_travel(flow_id, options, request_id))).run_id

    async def delete_flow(self, flow_id: str, run_id: str | None = None) -> None:
        """Removes a closed Flow for good, with its history, values and Streams; or one of its runs.

            await client.delete_flow("order-17")

        run_id: a run that is closed; None stands for all runs of the Flow ID. When the latest run goes and others stay,
        the latest of them takes its place. The Flow ID can be used again, as if it never had been.
        Raises FlowNotFoundError for an unknown Flow or run, DexServiceError FAILED_PRECONDITION for one that is open
        (`stop_flow` ends it), or that is a SubFlow whose parent still waits for it.
        """
        await self._caller.call(self._requests.delete_flow(flow_id, run_id))


def _check_kind(operation: str, name: str, value: object, kind: type) -> None:
    if not isinstance(value, kind):
        raise TypeError(f"{operation}({name}=…) takes {kind.__name__}, got {type(value).__name__}: {value!r}")


def _check_wait(operation: str, options: Any, kind: type) -> float | None:
    """The seconds that the call may take, None for no limit."""
    _check_kind(operation, "options", options, kind)
    seconds_of(f"{kind.__name__}.internal_handler_timeout", options.internal_handler_timeout)
    return seconds_of(f"{kind.__name__}.request_timeout", options.request_timeout) or None
