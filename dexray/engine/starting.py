"""Starting a Flow: request ids, reuse policies, replacement.

The order is the specification's: the request id says whether this is the same start again; the reuse policy says
whether a new run may start; only when it may not does `ignore_already_started` matter.

    policy                       current run is open         current run is closed
    ---------------------------  --------------------------  ----------------------------------
    DEFAULT, DISALLOW            refuse                      refuse
    ALLOW_IF_PREVIOUS_FAILED     refuse                      start if it FAILED, else refuse
    ALLOW_IF_NOT_RUNNING         refuse                      start
    ALLOW_TERMINATE_IF_RUNNING   terminate it, then start    start

A SubFlow is started by its parent, and finds an earlier child under its Flow ID when the parent re-enters the Step
execution. The same request id always gets the run that it got before. Another one is judged by the SubFlow's policy:

    policy                                   open                       COMPLETED     FAILED, CANCELED, TERMINATED
    --------------------------------------   ------------------------   -----------   ----------------------------
    ATTACH                                   attach                     attach        attach
    RESTART_IF_PREVIOUS_EXITS_ABNORMALLY     attach                     attach        start
    ALWAYS_RESTART                           terminate it, then start   start         start

To attach is to answer with the run that is there. It is recorded under the request id, beside that run: what has become
of the child by the time of a repeat does not make it start another.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

import msgspec

from dex.wire.service import FlowConfigSpec, ServiceError, Started, StartFlow, encode
from dexray.engine.live import LiveFlow, Lost, Pending
from dexray.journal.interface import NewRun, RequestAnswer
from dexray.machine import commands
from dexray.settings import unknown_store

if TYPE_CHECKING:
    from dexray.engine.host import FlowHost

Verdict = Literal["refuse", "start", "terminate", "attach"]

_CLOSED: dict[str, Verdict] = {
    "DEFAULT": "refuse",
    "DISALLOW": "refuse",
    "ALLOW_IF_NOT_RUNNING": "start",
    "ALLOW_TERMINATE_IF_RUNNING": "start",
}
_SUBFLOW = "SUBFLOW_"
_SUBFLOWS: dict[str, tuple[Verdict, Verdict, Verdict]] = {  # open, COMPLETED, any other end
    "ATTACH": ("attach", "attach", "attach"),
    "RESTART_IF_PREVIOUS_EXITS_ABNORMALLY": ("attach", "attach", "start"),
    "ALWAYS_RESTART": ("terminate", "start", "start"),
}
POLICIES = (*_CLOSED, "ALLOW_IF_PREVIOUS_FAILED", *(_SUBFLOW + name for name in _SUBFLOWS))


def subflow_policy(name: str) -> str:
    """A SubFlowReusePolicy as the policy of a start."""
    return _SUBFLOW + name


def verdict(policy: str, status: str) -> Verdict:
    """What a reuse policy says of a Flow ID whose current run has this status."""
    if policy.startswith(_SUBFLOW):
        return _SUBFLOWS[policy.removeprefix(_SUBFLOW)][{"RUNNING": 0, "COMPLETED": 1}.get(status, 2)]
    if status == "RUNNING":
        return "terminate" if policy == "ALLOW_TERMINATE_IF_RUNNING" else "refuse"
    if policy == "ALLOW_IF_PREVIOUS_FAILED":
        return "start" if status == "FAILED" else "refuse"
    return _CLOSED[policy]


async def start_flow(host: FlowHost, request: StartFlow) -> Started:
    from dexray.engine.requests import look_for

    check(host, request)
    # A Flow ID that was never used needs no look-up: the journal refuses a second current run. So the first try of a
    # fresh request is blind.
    look = not request.fresh
    for _ in range(50):
        live = host.flows.get(request.flow_id)
        if live is None and look:
            live = await look_for(host, request.flow_id)
        try:
            if live is not None:
                known = await _meet(host, live, request)
                if known is not None:
                    return known
            if live is None or host.flows.get(request.flow_id) is live:
                return await _begin(host, request, live.run_id if live is not None else "")
        except Lost:
            if host.stopped:
                raise
        look = True
    raise ServiceError("UNAVAILABLE", f"Flow {request.flow_id!r} is being started by others again and again; repeat")


async def _meet(host: FlowHost, live: LiveFlow, request: StartFlow) -> Started | None:
    """What the current run means for this start: the answer when it stands in the way or is of this very call, None
    when a new run may begin."""
    from dexray.engine.requests import check_trouble, look_up, settled

    await settled(host, live)
    # Even a fresh call may have been made before: one that was under way for long comes after its own repeat.
    stored = await look_up(host, lambda: host.journal.recorded_answer(request.flow_id, _answer_key(request)))
    if stored is not None:
        return msgspec.msgpack.decode(stored, type=Started)
    while live.flow.is_closed and not live.durable_closed and not live.problem:
        # It closed meanwhile. That decides nothing before it is durable: if we are not its owner any more, it is open.
        await settled(host, live)
    if host.flows.get(request.flow_id) is not live:
        return None
    state = live.flow.state
    if state.request_id == request.request_id and request.id_reuse_policy.startswith(_SUBFLOW):
        return Started(run_id=state.run_id)
    # What a Flow in trouble has come to in memory is not durable.
    decision = verdict(request.id_reuse_policy, "RUNNING" if live.problem and not live.durable_closed else state.status)
    if decision == "refuse":
        if request.ignore_already_started and state.request_id == request.request_id:
            return Started(run_id=state.run_id)
        same = " by a request of the same id" if state.request_id == request.request_id else ""
        raise ServiceError(
            "ALREADY_EXISTS",
            f"Flow {request.flow_id!r} was already started{same}: its run {state.run_id} is {state.status}, "
            f"and the reuse policy is {request.id_reuse_policy}",
            "FLOW_ALREADY_STARTED",
        )
    if decision == "terminate":
        # The end of the old run is durable before the new one begins: an owner that has lost the old run without
        # knowing it is told so here, and starts no second one beside it.
        check_trouble(live)
        check_code(host, request)
        host.execute(live, commands.Stop(stop_type="TERMINATE", reason="replaced by a new start"))
        await settled(host, live)
    if decision == "attach":
        return await _attach(host, live, request)
    return None


async def _attach(host: FlowHost, live: LiveFlow, request: StartFlow) -> Started | None:
    from dexray.engine.requests import check_trouble, patiently, when_durable

    check_trouble(live)
    if live.lost:
        return None
    answer = Started(run_id=live.run_id)
    live.pending.requests.append(RequestAnswer(request.flow_id, _answer_key(request), encode(answer)))
    live.pending.sync = True
    host.touch(live)
    await patiently(host, when_durable(live))
    return answer


async def _begin(host: FlowHost, request: StartFlow, replaces: str) -> Started:
    from dexray.engine.requests import check_trouble, patiently, when_durable

    check_code(host, request)
    answer = Started(run_id=host.new_id())
    recorded = RequestAnswer(request.flow_id, _answer_key(request), encode(answer))
    live = _new_run(host, request, answer.run_id, replaces, recorded)
    check_trouble(live)
    await patiently(host, when_durable(live))
    return answer


def _answer_key(request: StartFlow) -> str:
    return f"start:{request.call_id or request.request_id}"


def _new_run(host: FlowHost, request: StartFlow, run_id: str, replaces: str, recorded: RequestAnswer) -> LiveFlow:
    pending = Pending(
        new_run=NewRun(
            request.flow_id,
            request.flow_type,
            host.owner,
            request.request_id,
            host.clock.now(),
            replaces,
            parent=request.parent or None,
        ),
        requests=[recorded],
        blobs=dict(request.blobs),
    )
    command = commands.Start(
        flow_id=request.flow_id,
        run_id=run_id,
        flow_type=request.flow_type,
        request_id=request.request_id,
        input=request.input,
        attributes=request.attributes,
        config=request.config,
        timeout=request.timeout,
        timeout_policy=request.timeout_policy or ("FAIL" if request.timeout else ""),
        timeout_handler=request.timeout_handler,
        replaces=replaces,
        parent=request.parent,
    )
    return host.start_run(command, pending)


def check(host: FlowHost, request: StartFlow) -> None:
    """Refuses what can't be started, before anything is stored."""

    def refuse(detail: str) -> ServiceError:
        return ServiceError("INVALID_ARGUMENT", f"start of Flow {request.flow_id!r}: {detail}")

    if not request.request_id:
        raise refuse("the request id is empty")
    if request.has_retry_policy:
        raise refuse("a Flow has no RetryPolicy; give one to its Steps (StepOptions.execute_retry)")
    if request.start_delay > 0:
        raise refuse("a start has no delay; let the start Step wait for a Timer")
    if request.id_reuse_policy not in POLICIES:
        raise refuse(f"unknown reuse policy {request.id_reuse_policy!r}")
    if request.timeout < 0:
        raise refuse(f"timeout {request.timeout} s is negative")
    check_config(host, request.config, f"start of Flow {request.flow_id!r}")
    if not request.id_reuse_policy.startswith(_SUBFLOW):  # a child that is there needs no code to be attached to
        check_code(host, request)


def check_config(host: FlowHost, config: FlowConfigSpec, what: str) -> None:
    for name in ("continue_as_new_threshold", "continue_as_new_page_size_bytes"):
        number = getattr(config, name)
        if number is not None and number < 0:
            raise ServiceError("INVALID_ARGUMENT", f"{what}: {name} {number} is negative")
    for store in config.attribute_store_names or ():
        if store not in host.stores.names:
            raise ServiceError("INVALID_ARGUMENT", f"{what}: {unknown_store(store, host.stores.names)}")


def check_code(host: FlowHost, request: StartFlow) -> None:
    """Refuses what the deployed code can't start."""

    def refuse(detail: str) -> ServiceError:
        return ServiceError("INVALID_ARGUMENT", f"start of Flow {request.flow_id!r}: {detail}")

    spec = host.specs.get(request.flow_type)
    if spec is None:
        raise ServiceError(
            "FAILED_PRECONDITION",
            f"Flow type {request.flow_type!r} is not deployed: connect with a Registry that has it",
        )
    if request.timeout_policy == "HANDLER" and not spec.has_timeout_handler:
        raise refuse(f"{request.flow_type} has no handle_timeout override")
    for attribute in request.attributes:
        name, _, instance = attribute.partition("/")
        if name not in (spec.attribute_maps if instance else spec.attributes):
            raise refuse(f"{request.flow_type} declares no Attribute {attribute!r}")
