"""RPCs: what a handler gets to see, and what becomes of what it returned.

    what                             plain                                isolated (it has locks, or is transactional)
    ------------------------------   ----------------------------------   --------------------------------------------
    data changed since its snapshot  applied all the same                 refused: the handler has to run again
    deletes a message that is gone   the others are deleted               refused, and nothing is applied
    starts a Step that is unknown    refused, and nothing is applied      refused, and nothing is applied

An RPC is no Step: nothing of it is in the state while its handler runs. What it asked for is applied in one command, in
the order of a Step's result: Attribute writes, deletions, publications, cancellations, next Steps. A handler that asks
for nothing leaves no trace.

Isolation is optimistic. `FlowState.data_version` counts every change of an Attribute or a Channel, by whomever. If it
is still the one of the snapshot when the result is applied, then handler and result are one unit, as if nothing had
happened in between.
"""

from __future__ import annotations

from enum import Enum, auto

from dex.wire.specs import RPC, FlowSpec, LoadSpec, RpcSpec
from dexray.machine import steps
from dexray.machine.commands import ApplyRpc
from dexray.machine.events import RpcApplied
from dexray.machine.state import FlowState, Snapshot
from dexray.machine.tasks import seen
from dexray.machine.turn import Turn
from dexray.protocol.attempts import AttemptKey, AttemptTask, RpcSucceeded, Writes

_NO_WRITES = Writes()


class Refusal(Enum):
    DATA_CHANGED = auto()
    MESSAGE_GONE = auto()
    STEP_UNKNOWN = auto()


def marker(name: str) -> str:
    """What stands for an RPC where a Step would be named: in `by` and `from_step`, and as the type of its attempts."""
    return f"__rpc/{name}"


def load_of(spec: RpcSpec, attribute_instances: tuple[str, ...], channel_instances: tuple[str, ...]) -> LoadSpec:
    """What an RPC loads, with the map instances that a call adds: sorted, each once."""
    load = spec.load
    return LoadSpec(
        attribute_maps=load.attribute_maps,
        attribute_map_instances=tuple(sorted({*load.attribute_map_instances, *attribute_instances})),
        channels=load.channels,
        channel_maps=load.channel_maps,
        channel_map_instances=tuple(sorted({*load.channel_map_instances, *channel_instances})),
    )


def rpc_task(
    state: FlowState,
    snapshot: Snapshot,
    spec: RpcSpec,
    *,
    number: int,
    deployment: str,
    input: bytes,
    timeout: float,
    now: float,
) -> AttemptTask:
    """The attempt of a handler. `number` is unique among the RPCs of an owner."""
    name = marker(spec.name)
    return AttemptTask(
        key=AttemptKey(state.flow_id, state.run_id, f"{name}#{number}", RPC, 1),
        flow_type=state.flow_type,
        step_type=name,
        deployment_id=deployment,
        from_step_execution_id="",
        input=input,
        timeout=timeout,
        heartbeat_timeout=timeout,
        first_attempt_at=now,
        **seen(snapshot),
        resources=spec.resources.options,
        is_async=spec.is_async,
    )


def changes_something(result: RpcSucceeded) -> bool:
    return bool(result.movements or result.canceling) or result.writes != _NO_WRITES


def refusal(
    state: FlowState, spec: FlowSpec | None, result: RpcSucceeded, *, isolated: bool, data_version: int
) -> Refusal | None:
    """Why the result of an RPC that saw `data_version` can't be applied now; None when it can."""
    if isolated and state.data_version != data_version:
        return Refusal.DATA_CHANGED
    if isolated:
        for channel, message_id in result.writes.deletions:
            if all(message.id != message_id for message in state.channels.get(channel, ())):
                return Refusal.MESSAGE_GONE
    if any(spec is None or movement.step_type not in spec.steps for movement in result.movements):
        return Refusal.STEP_UNKNOWN
    return None


def apply(turn: Turn, command: ApplyRpc) -> None:
    result, source = command.result, marker(command.name)
    turn.emit(RpcApplied(command.name, command.request_id, command.input, result.output, result.canceling))
    steps.apply_writes(turn, source, result.writes)
    steps.cancel_selected(turn, result.canceling, by=source)
    steps.move(turn, result.movements, from_step=source)
