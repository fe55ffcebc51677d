"""Every request of `dex.wire.service`, answered by the owner of its Flow.

Writes are remembered by request id beside the record that they caused, so that a repeat gets the first one's answer,
also after a crash and after the Flow has closed. Reads tell only what is durable. While the database is away, every
request that needs it fails as UNAVAILABLE after the host's `outage_patience`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any, TypeVar

import msgspec
from msgspec.structs import replace

from dex.values import reference_of, to_readable
from dex.wire import service as s
from dex.wire.service import ServiceError, encode
from dexray.engine import control, retention, search, starting, streams, travel, waiters
from dexray.engine.clock import Blocking
from dexray.engine.history import history_page
from dexray.engine.live import LiveFlow, Lost
from dexray.engine.values import read_blobs
from dexray.journal.interface import RequestAnswer
from dexray.machine import commands
from dexray.machine.describe import describe

if TYPE_CHECKING:
    from dexray.engine.host import FlowHost

AnswerT = TypeVar("AnswerT", bound=s.Answer)
T = TypeVar("T")
WriteRequest = s.Publish | s.SetAttribute | s.StopFlow | s.SkipTimer | s.UpdateFlowConfig | s.InvokeRpc
CONFIRMED = 1.0  # seconds for which a closed run is believed to be the current one of its Flow without a look
REMEMBERED = 128  # write requests whose answers a live Flow keeps at hand; older ones are in the journal


async def answer(host: FlowHost, request: s.AnyRequest) -> s.Answer:
    """Answers one request; ServiceError is for the client, NotMine for the router."""
    if host.stopped:
        raise ServiceError("UNAVAILABLE", f"{request.operation}: the engine has stopped; repeat the same request id")
    try:
        return await _ANSWER[type(request)](host, request)
    except Lost as lost:
        raise ServiceError("UNAVAILABLE", f"{request.operation}: {lost}; repeat with the same request id") from lost


# Shared pieces --------------------------------------------------------------------------------------------------------


async def find(host: FlowHost, flow_id: str) -> LiveFlow:
    live = await look_for(host, flow_id)
    if live is None:
        raise not_there(flow_id)
    return live


def not_there(flow_id: str, run_id: str = "") -> ServiceError:
    detail = f"Flow {flow_id!r} has no run {run_id!r}" if run_id else f"there is no Flow {flow_id!r}"
    return ServiceError("NOT_FOUND", detail, "FLOW_NOT_EXISTS")


async def look_for(host: FlowHost, flow_id: str) -> LiveFlow | None:
    """The Flow, from memory or from the journal; None when there is none. NotMine when another owner has it."""
    live = host.flows.get(flow_id)
    if live is not None and retention.may_be_gone(host, live):
        host.residents.evict(live)
        live = None
    if live is None:
        with host.residents.wanted(flow_id):
            loading = host.residents.loading(flow_id)
            await patiently(host, loading)
        live = host.flows.get(flow_id)
        if live is None and loading.result() is not None:
            raise Lost("the Flow has just left this owner")
    else:
        live.last_used = host.clock.now()
        if live.durable_closed and asyncio.get_running_loop().time() - live.confirmed_at > CONFIRMED:
            await confirm(host, live)
            return await look_for(host, flow_id) if live.lost else live
    return live


async def confirm(host: FlowHost, live: LiveFlow) -> None:
    """Sees to it that a closed run is the current one of its Flow still; one that is not is dropped. Nothing is written
    for it, so nothing else tells its owner when another life of the same name has begun a new run."""
    row = await look_up(host, lambda: host.journal.current_run(live.flow_id))
    live.confirmed_at = asyncio.get_running_loop().time()
    if row is not None and row.run_id != live.run_id and host.flows.get(live.flow_id) is live:
        host.drop(live, Lost(f"run {live.run_id} is not the current one of its Flow any more"))


async def look_up(host: FlowHost, call: Callable[[], T], blocking: Blocking | None = None) -> T:
    """Reads the journal; UNAVAILABLE when it does not answer in time."""
    try:
        async with asyncio.timeout(host.settings.outage_patience) as patience:
            return await host.read(call, blocking)
    except TimeoutError:
        if not patience.expired():
            raise  # of the journal's own
        raise no_answer(host) from None


def not_active(live: LiveFlow) -> ServiceError:
    status = live.flow.state.status
    return ServiceError("FAILED_PRECONDITION", f"Flow {live.flow_id!r} is {status}, not active", "FLOW_NOT_EXISTS")


async def within(future: asyncio.Future[Any], seconds: float) -> bool:
    """Waits for a future, on the loop's own time: a clock that is set makes no call longer. False when the time is over
    first; the future is left alone."""
    if not future.done():
        await asyncio.wait({future}, timeout=seconds)
    return future.done()


def when_durable(live: LiveFlow) -> asyncio.Future[None]:
    """Done when what is pending now is durable; Lost when it is refused."""
    future: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def resolve(error: Exception | None) -> None:
        if not future.done():
            if error is None:
                future.set_result(None)
            else:
                future.set_exception(error)
                future.exception()  # whoever asked may have lost patience

    live.pending.whens.append(resolve)
    return future


async def settled(host: FlowHost, live: LiveFlow) -> None:
    """Returns when all that is in memory is durable, so that it may be told."""
    target = live.seq + (0 if live.pending.is_empty else 1)
    if live.durable_seq >= target:
        return
    future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
    live.settled_waiters.append((target, future))
    await patiently(host, future)


async def patiently(host: FlowHost, future: asyncio.Future[Any]) -> None:
    if not await within(future, host.settings.outage_patience):
        raise no_answer(host)
    future.result()


def no_answer(host: FlowHost) -> ServiceError:
    why = f" ({host.outage})" if host.outage is not None else ""
    return ServiceError("UNAVAILABLE", f"the database did not answer in time{why}; repeat with the same request id")


def check_trouble(live: LiveFlow) -> None:
    if live.problem:
        raise ServiceError("INTERNAL", f"Flow {live.flow_id!r} has stopped: {live.problem}")


async def attach_blobs(host: FlowHost, live: LiveFlow, values: list[bytes | None]) -> dict[str, bytes]:
    """The large values among some values of a Flow."""
    hashes = {found for value in values if value is not None and (found := reference_of(value)) is not None}
    if not hashes:
        return {}
    blobs, lost = await look_up(host, lambda: read_blobs(host.journal, hashes))
    if lost:
        run_id = live.run_id
        if await look_up(host, lambda: host.journal.find_run(run_id)) is None and live.durable_closed:
            raise not_there(live.flow_id)
        raise ServiceError("DATA_LOSS", f"Flow {live.flow_id!r}: values are lost: {lost}")
    return blobs


async def write(
    host: FlowHost,
    live: LiveFlow,
    request: WriteRequest,
    act: Callable[[], AnswerT],
    answer_type: type[AnswerT],
) -> AnswerT:
    """Does a write once for its request id, and answers when it is durable."""
    known = await known_answer(host, live, request, answer_type)
    return known if known is not None else await write_now(host, live, request, act)


async def known_answer(
    host: FlowHost, live: LiveFlow, request: WriteRequest, answer_type: type[AnswerT]
) -> AnswerT | None:
    """What the first request of this id was answered, or will be in a moment; None when this is the first."""
    known = live.answers.get(request.request_id)
    if known is None and not request.fresh:
        flow_id, request_id = request.flow_id, request.request_id
        live.held += 1
        try:
            stored = await look_up(host, lambda: host.journal.recorded_answer(flow_id, request_id))
        finally:
            live.held -= 1
        if stored is not None:
            return msgspec.msgpack.decode(stored, type=answer_type)
        known = live.answers.get(request.request_id)
    if known is None:
        return None
    if not await within(known, host.settings.outage_patience):
        raise ServiceError("UNAVAILABLE", "the first request of this id is still under way; repeat it")
    return msgspec.msgpack.decode(known.result(), type=answer_type)


async def write_now(host: FlowHost, live: LiveFlow, request: WriteRequest, act: Callable[[], AnswerT]) -> AnswerT:
    """Does a write whose request id is known to be new. `act` may refuse by raising, as long as it has done nothing."""
    check_trouble(live)
    if live.lost:
        raise Lost("the Flow has just left this owner")
    if live.flow.is_closed:
        await settled(host, live)
        await confirm(host, live)
        if live.lost:
            raise Lost("the Flow has a new run")
        raise not_active(live)
    result = act()
    check_trouble(live)
    encoded = encode(result)
    live.pending.requests.append(RequestAnswer(request.flow_id, request.request_id, encoded))
    live.pending.sync = True
    host.touch(live)
    future: asyncio.Future[bytes] = asyncio.get_running_loop().create_future()
    live.answers[request.request_id] = future
    while len(live.answers) > REMEMBERED and next(iter(live.answers.values())).done():
        live.answers.popitem(last=False)
    durable = when_durable(live)
    durable.add_done_callback(lambda done: _settle_answer(live, request.request_id, future, done, encoded))
    await patiently(host, durable)
    return result


def _settle_answer(
    live: LiveFlow, request_id: str, future: asyncio.Future[bytes], done: asyncio.Future[None], encoded: bytes
) -> None:
    if done.cancelled() or done.exception() is not None:
        live.answers.pop(request_id, None)
        future.set_exception(Lost("the first request of this id was lost"))
        future.exception()
    else:
        future.set_result(encoded)


def check_channel(host: FlowHost, live: LiveFlow, channel: str) -> None:
    spec = host.specs.get(live.flow.state.flow_type)
    if spec is None:
        return
    name, _, instance = channel.partition("/")
    if (name in spec.channel_maps) if instance else (name in spec.channels):
        return
    kind = "ChannelMap" if instance else "Channel"
    raise ServiceError(
        "INVALID_ARGUMENT",
        f"Flow {live.flow_id!r} of type {spec.flow_type} declares no {kind} {name!r}: "
        "add it to get_persistence_schema()",
    )


def check_attribute(host: FlowHost, live: LiveFlow, attribute: str) -> None:
    spec = host.specs.get(live.flow.state.flow_type)
    if spec is None:
        return
    name, _, instance = attribute.partition("/")
    if (name in spec.attribute_maps) if instance else (name in spec.attributes):
        return
    kind = "AttributeMap" if instance else "Attribute"
    raise ServiceError(
        "INVALID_ARGUMENT",
        f"Flow {live.flow_id!r} of type {spec.flow_type} declares no {kind} {name!r}: "
        "add it to get_persistence_schema()",
    )


# The requests ---------------------------------------------------------------------------------------------------------


async def _publish(host: FlowHost, request: s.Publish) -> s.Published:
    live = await find(host, request.flow_id)
    check_channel(host, live, request.channel)

    def act() -> s.Published:
        ids = tuple(host.new_id() for _ in request.values)
        messages = tuple(zip(ids, request.values, strict=True))
        host.execute(live, commands.Publish(channel=request.channel, messages=messages))
        live.pending.blobs.update(request.blobs)
        return s.Published(message_ids=ids)

    return await write(host, live, request, act, s.Published)


async def _set_attribute(host: FlowHost, request: s.SetAttribute) -> s.Done:
    live = await find(host, request.flow_id)
    check_attribute(host, live, request.name)

    def act() -> s.Done:
        host.execute(live, commands.SetAttribute(name=request.name, value=request.value))
        live.pending.blobs.update(request.blobs)
        return s.Done()

    return await write(host, live, request, act, s.Done)


async def _stop_flow(host: FlowHost, request: s.StopFlow) -> s.Done:
    if request.stop_type not in ("CANCEL", "TERMINATE", "FAIL"):
        raise ServiceError("INVALID_ARGUMENT", f"stop type {request.stop_type!r}: use CANCEL, TERMINATE or FAIL")
    live = await find(host, request.flow_id)

    def act() -> s.Done:
        host.execute(live, commands.Stop(stop_type=request.stop_type, reason=request.reason))
        return s.Done()

    return await write(host, live, request, act, s.Done)


async def _invoke_rpc(host: FlowHost, request: s.InvokeRpc) -> s.RpcAnswer:
    live = await find(host, request.flow_id)
    check_trouble(live)
    flow_type = live.flow.state.flow_type
    if request.flow_type != flow_type:
        raise ServiceError(
            "INVALID_ARGUMENT",
            f"Flow {request.flow_id!r} is a {flow_type}, and {request.rpc} is an RPC of {request.flow_type}",
        )
    return await host.rpcs.invoke(live, request)


async def _get_attribute(host: FlowHost, request: s.GetAttribute) -> s.AttributeValue:
    live = await find(host, request.flow_id)
    check_trouble(live)
    check_attribute(host, live, request.name)
    value = live.flow.state.attributes.get(request.name)
    await settled(host, live)  # what was looked at, and not what has come since
    if value is None:
        return s.AttributeValue(found=False)
    return s.AttributeValue(found=True, value=value, blobs=await attach_blobs(host, live, [value]))


async def _wait_for_flow(host: FlowHost, request: s.WaitForFlow) -> s.FlowOutcome:
    live = await find(host, request.flow_id)
    check_trouble(live)
    if not live.flow.is_closed:
        closed: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        live.closed_waiters[closed] = None
        try:
            if not await within(closed, min(request.timeout, host.settings.longest_poll)):
                raise ServiceError(
                    "DEADLINE_EXCEEDED", f"Flow {request.flow_id!r} is still running", "LONG_POLL_TIMEOUT"
                )
            closed.result()
        finally:
            live.closed_waiters.pop(closed, None)
    else:
        await settled(host, live)
    return await outcome(host, live)


async def outcome(host: FlowHost, live: LiveFlow) -> s.FlowOutcome:
    state = live.flow.state
    return s.FlowOutcome(
        flow_id=state.flow_id,
        run_id=state.run_id,
        status=state.status,
        completions=tuple(state.completions),
        error_type=state.error_type,
        error_message=state.error_message,
        blobs=await attach_blobs(host, live, [completion.output for completion in state.completions]),
    )


async def _describe_flow(host: FlowHost, request: s.DescribeFlow) -> s.FlowDescription:
    live = await find(host, request.flow_id)
    described = _described(host, live)
    if not live.problem:
        await settled(host, live)  # what was looked at, and not what has come since
    return described


def _described(host: FlowHost, live: LiveFlow) -> s.FlowDescription:
    problem = live.problem
    spec = host.specs.get(live.flow.state.flow_type)
    if not problem and not live.flow.is_closed:
        if spec is None:
            problem = (
                f"no code is deployed for Flow type {live.flow.state.flow_type}: "
                "connect with a Registry that has it, and the Flow goes on"
            )
        else:
            gone = sorted(
                {step.step_type for step in live.flow.state.steps.values()} - {*spec.steps, "sys:timeout_handler"}
            )
            if gone:
                problem = (
                    f"the deployed code of {spec.flow_type} has no Step {', '.join(gone)}: deploy a version that has it"
                )
    described = describe(live.flow, owner=host.owner, problem=problem, readable=to_readable)
    return replace(
        described,
        steps=tuple(_with_reason(host, live, step) for step in described.steps),
        attribute_stores=host.stores.described(live, spec),
    )


def _with_reason(host: FlowHost, live: LiveFlow, described: s.StepDescription) -> s.StepDescription:
    why = host.waits_for(live, live.flow.state.steps[described.step_execution_id])
    if why and described.phase == "waiting":
        why = f"{described.waits_for}: {why}"
    return replace(described, waits_for=why) if why else described


async def _history(host: FlowHost, request: s.GetHistory) -> s.HistoryPage:
    live = await find(host, request.flow_id)
    if not request.run_id or request.run_id == live.run_id:
        await settled(host, live)
        until = asyncio.get_running_loop().time() + min(request.wait, host.settings.longest_poll)
        while True:
            # Listens before it looks: what becomes durable while the page is read is not missed.
            changed: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            live.history_waiters[changed] = None
            closed = live.durable_closed
            try:
                page = await history_page(host, live.run_id, request, closed=closed)
                if page.events or closed or live.problem:
                    return page
                if not await within(changed, until - asyncio.get_running_loop().time()):
                    return page
                changed.result()
            finally:
                live.history_waiters.pop(changed, None)
    row = await look_up(host, lambda: host.journal.find_run(request.run_id))
    if row is None or row.flow_id != request.flow_id:
        raise not_there(request.flow_id, request.run_id)
    return await history_page(host, row.run_id, request, closed=row.closed_at is not None)


_ANSWER: dict[type, Callable[[FlowHost, Any], Awaitable[s.Answer]]] = {
    s.StartFlow: starting.start_flow,
    s.Publish: _publish,
    s.SetAttribute: _set_attribute,
    s.StopFlow: _stop_flow,
    s.DeleteFlow: retention.delete_flow,
    s.SkipTimer: control.skip_timer,
    s.UpdateFlowConfig: control.update_config,
    s.TimeTravel: travel.time_travel,
    s.InvokeRpc: _invoke_rpc,
    s.GetAttribute: _get_attribute,
    s.WaitForFlow: _wait_for_flow,
    s.WaitForStep: waiters.wait_for_step,
    s.WaitForAttribute: waiters.wait_for_attribute,
    s.DescribeFlow: _describe_flow,
    s.GetHistory: _history,
    s.ListFlows: search.list_flows,
    s.SearchFlows: search.search_flows,
    s.CountFlows: search.count_flows,
    s.WriteStream: streams.write_stream,
    s.ReadStream: streams.read_stream,
    s.ListStreamMessages: streams.list_messages,
}
