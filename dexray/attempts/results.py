"""What a handler returned, checked and encoded: a Wait becomes a WaitSpec, a StepDecision a DecisionSpec.

The checks need the Flow: which Steps it has, what input each takes, which Channels are its own. A result that
does not pass raises InvalidStepResultError, and the attempt fails with kind INVALID_RESULT. An output that
can't be encoded raises ValueMappingError as anywhere else; the input of a movement that its Step does not take
is a mistake of the decision.

Payloads over the blob threshold are put aside at the very end, when the result is known to be good.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator
from types import CoroutineType
from typing import Any

from msgspec.structs import replace

from dex.channel import Channel, ChannelMap
from dex.decision import StepDecision, StepMovement, decision_problem
from dex.definitions import FlowDefinition, StepDefinition
from dex.errors import (
    FlowDefinitionError,
    InvalidStepResultError,
    ValueMappingError,
)
from dex.names import physical_name
from dex.registry import Registry
from dex.rpc import RPCResult
from dex.step import Step
from dex.values import BLOB_THRESHOLD, detach
from dex.wait import (
    ChannelCondition,
    Condition,
    SubFlowCondition,
    TimerCondition,
    Wait,
    WaitKind,
    wait_problem,
)
from dex.wire.specs import RPC, WAIT_FOR
from dexray.attempts.rpcs import rpc_name, rpc_of
from dexray.attempts.runtime import AttemptRuntime
from dexray.attempts.subflows import lighter_spec, subflow_spec
from dexray.protocol.attempts import (
    AttemptTask,
    ConditionSpec,
    DecisionSpec,
    ExecuteSucceeded,
    MovementSpec,
    RpcSucceeded,
    WaitForSucceeded,
    WaitSpec,
    Writes,
)

_SKIP = WaitSpec(WaitKind.SKIP_IMMEDIATELY.value)


def checked_result(
    returned: object,
    task: AttemptTask,
    registry: Registry,
    definition: FlowDefinition,
    runtime: AttemptRuntime,
) -> WaitForSucceeded | ExecuteSucceeded | RpcSucceeded:
    """The success that `returned` stands for; InvalidStepResultError or ValueMappingError when it is none."""
    check = _Check(task, registry, definition)
    blobs: dict[str, bytes] = {}
    if task.key.method == RPC:
        result = check.rpc(returned)
        return RpcSucceeded(
            output=None if result.output is None else detach(result.output, blobs),
            writes=_lighter_writes(runtime.writes(), blobs),
            movements=_lighter_movements(result.movements, blobs),
            canceling=result.canceling,
            blobs=blobs,
        )
    if task.key.method == WAIT_FOR:
        wait = _lighter_wait(check.wait(returned), blobs)
        return WaitForSucceeded(wait=wait, writes=_lighter_writes(runtime.writes(), blobs), blobs=blobs)
    decision = _lighter_decision(check.decision(returned), blobs)
    return ExecuteSucceeded(decision=decision, writes=_lighter_writes(runtime.writes(), blobs), blobs=blobs)


class _Check:
    __slots__ = ("_definition", "_limit", "_registry", "_task")

    def __init__(self, task: AttemptTask, registry: Registry, definition: FlowDefinition) -> None:
        self._task = task
        self._registry = registry
        self._definition = definition
        self._limit = task.max_value_bytes

    def _invalid(self, detail: str) -> InvalidStepResultError:
        step_type: str | None = self._task.step_type
        method = self._task.key.method
        if method == RPC:
            step_type, detail = None, f"{rpc_name(self._task)}: {detail}"
        return InvalidStepResultError(self._task.flow_type, step_type, method, detail)

    def _expected(self, kind: str, returned: object) -> InvalidStepResultError:
        if isinstance(returned, CoroutineType):
            returned.close()
        hint = ": is a return missing?" if returned is None else ""
        article = "an" if kind.startswith("RPC") else "a"
        return self._invalid(f"expected {article} {kind}, got {type(returned).__name__}{hint}")

    # Waits -----------------------------------------------------------------------------------------------------------

    def wait(self, returned: object) -> WaitSpec:
        if not isinstance(returned, Wait):
            raise self._expected("Wait", returned)
        if returned.kind is WaitKind.SKIP_IMMEDIATELY:
            return _SKIP
        if returned.kind is WaitKind.ANY_COMBINATION_OF:
            return self._combinations(returned)
        if not returned.conditions:
            raise self._invalid("a Wait needs a condition; Wait.skip_immediately() waits for nothing")
        specs = self._conditions(returned.conditions)
        self._check_ids(returned)
        return WaitSpec(returned.kind.value, specs)

    def _combinations(self, wait: Wait) -> WaitSpec:
        """Groups may share a Condition object: it is one condition of the Wait, named by several groups."""
        if not wait.combinations or not all(group.conditions for group in wait.combinations):
            raise self._invalid("any_combination_of needs a combination, and each combination at least one condition")
        positions: dict[int, int] = {}
        conditions: list[Condition] = []
        groups: list[tuple[int, ...]] = []
        for group in wait.combinations:
            for condition in group.conditions:
                if id(condition) not in positions:
                    positions[id(condition)] = len(conditions)
                    conditions.append(condition)
            indexes = tuple(positions[id(condition)] for condition in group.conditions)
            if len(set(indexes)) < len(indexes):
                raise self._invalid("a combination holds the same condition twice")
            groups.append(indexes)
        specs = self._conditions(conditions)
        self._check_ids(Wait(wait.kind, tuple(conditions)))
        return WaitSpec(wait.kind.value, specs, tuple(groups))

    def _check_ids(self, wait: Wait) -> None:
        problem = wait_problem(wait)
        if problem is not None:
            raise self._invalid(problem)

    def _conditions(self, conditions: Iterable[object]) -> tuple[ConditionSpec, ...]:
        """SubFlows are numbered: their Flow IDs follow from that."""
        numbers = itertools.count()
        return tuple(self._condition(condition, numbers) for condition in conditions)

    def _condition(self, condition: object, numbers: Iterator[int]) -> ConditionSpec:
        match condition:
            case ChannelCondition():
                return ConditionSpec(
                    kind="channel",
                    condition_id=condition.condition_id or "",
                    channel=physical_name(self._declared(condition.channel).name, condition.instance),
                    at_least=condition.at_least,
                    at_most=condition.at_most,
                )
            case TimerCondition():
                return ConditionSpec(
                    kind="timer",
                    condition_id=condition.condition_id or "",
                    duration=condition.duration.total_seconds(),
                )
            case SubFlowCondition():
                return ConditionSpec(
                    kind="subflow",
                    condition_id=condition.condition_id or "",
                    subflow=subflow_spec(condition, next(numbers), self._task, self._registry),
                )
            case _:
                raise self._invalid(
                    f"a Wait holds conditions such as channel.for_one(), not {type(condition).__name__}"
                )

    def _declared(self, channel: Channel[Any] | ChannelMap[Any]) -> Channel[Any] | ChannelMap[Any]:
        declared = self._definition.channels.get(channel.name)
        if declared is channel:
            return channel
        if declared is None:
            raise self._invalid(
                f"{type(channel).__name__} {channel.name!r} is not declared: add it to get_persistence_schema()"
            )
        raise self._invalid(
            f"{type(channel).__name__} {channel.name!r} is not the one that the Flow declares: "
            "use the very object that get_persistence_schema() returns"
        )

    # Decisions -------------------------------------------------------------------------------------------------------

    def decision(self, returned: object) -> DecisionSpec:
        if not isinstance(returned, StepDecision):
            raise self._expected("StepDecision", returned)
        problem = decision_problem(returned)
        if problem is not None:
            raise self._invalid(problem)
        canceling = self._step_types(returned.canceling_steps)
        siblings = self._step_types(returned.canceling_sibling_steps)
        return DecisionSpec(
            kind=returned.kind.value,
            movements=tuple(self._movement(movement) for movement in returned.movements),
            output=self._output(returned),
            reason=returned.reason,
            channels=tuple(self._declared(channel).name for channel in returned.empty_channels),
            fallback=None if returned.fallback is None else self._movement(returned.fallback),
            canceling=canceling,
            canceling_siblings=tuple(step for step in siblings if step not in canceling),
        )

    # RPCs ------------------------------------------------------------------------------------------------------------

    def rpc(self, returned: object) -> RpcSucceeded:
        rpc = rpc_of(self._task, self._definition)
        assert rpc is not None
        if rpc.is_procedure:
            if returned is not None:
                raise self._invalid(f"a procedure returns None, as its annotation says; got {type(returned).__name__}")
            return RpcSucceeded()
        if not isinstance(returned, RPCResult):
            raise self._expected("RPCResult", returned)
        for name in ("next_steps", "canceling_steps"):
            if not isinstance(getattr(returned, name), tuple | list):
                raise self._invalid(f"RPCResult({name}=…) takes a tuple, got {getattr(returned, name)!r}")
        for movement in returned.next_steps:
            if not isinstance(movement, StepMovement):
                raise self._invalid(f"next_steps holds StepMovement.of(...), not {type(movement).__name__}")
        where = f"output of RPC {rpc.name!r}"
        return RpcSucceeded(
            output=self._registry.codec_registry.encode(
                returned.output, rpc.output_type, where=where, limit=self._limit
            ),
            movements=tuple(self._movement(movement) for movement in returned.next_steps),
            canceling=self._step_types(returned.canceling_steps),
        )

    def _output(self, decision: StepDecision) -> bytes | None:
        if not decision.has_output:
            return None
        return self._registry.codec_registry.encode_dynamic(
            decision.output, where=f"output of Step {self._task.step_type!r}", limit=self._limit
        )

    def _movement(self, movement: StepMovement) -> MovementSpec:
        step = self._step(movement.step)
        where = f"input of Step {step.step_type!r}"
        try:
            payload = self._registry.codec_registry.encode(
                movement.input, step.input_type, where=where, limit=self._limit
            )
        except ValueMappingError as error:
            if error.too_large:
                raise
            raise self._invalid(f"a movement gives Step {step.step_type!r} what it does not take: {error}") from error
        if movement.options is None:
            return MovementSpec(step.step_type, payload)
        override = self._registry.step_spec(self._task.flow_type, step.step, movement.options)
        return MovementSpec(step.step_type, payload, override)

    def _step_types(self, steps: Iterable[type[Step[Any]] | Step[Any]]) -> tuple[str, ...]:
        return tuple(dict.fromkeys(self._step(step).step_type for step in steps))

    def _step(self, step: type[Step[Any]] | Step[Any]) -> StepDefinition:
        try:
            return self._definition.find_step(step)
        except FlowDefinitionError as error:
            raise self._invalid(str(error)) from error


# Values put aside -----------------------------------------------------------------------------------------------------


def _lighter_wait(wait: WaitSpec, blobs: dict[str, bytes]) -> WaitSpec:
    """The wait with references for the large values that it gives to SubFlows."""
    if all(condition.subflow is None for condition in wait.conditions):
        return wait
    return replace(
        wait,
        conditions=tuple(
            condition
            if condition.subflow is None
            else replace(condition, subflow=lighter_spec(condition.subflow, blobs))
            for condition in wait.conditions
        ),
    )


def _lighter_decision(decision: DecisionSpec, blobs: dict[str, bytes]) -> DecisionSpec:
    """The decision with references for its large payloads."""
    movements = _lighter_movements(decision.movements, blobs)
    if movements is not decision.movements:
        decision = replace(decision, movements=movements)
    if decision.output is not None and len(decision.output) > BLOB_THRESHOLD:
        decision = replace(decision, output=detach(decision.output, blobs))
    if decision.fallback is not None and len(decision.fallback.input) > BLOB_THRESHOLD:
        decision = replace(decision, fallback=replace(decision.fallback, input=detach(decision.fallback.input, blobs)))
    return decision


def _lighter_movements(movements: tuple[MovementSpec, ...], blobs: dict[str, bytes]) -> tuple[MovementSpec, ...]:
    if any(len(movement.input) > BLOB_THRESHOLD for movement in movements):
        return tuple(replace(movement, input=detach(movement.input, blobs)) for movement in movements)
    return movements


def _lighter_writes(writes: Writes, blobs: dict[str, bytes]) -> Writes:
    """The writes with references for their large payloads."""
    payloads = (
        *writes.attributes.values(),
        *(value for _, _, value in writes.publications),
        *(value for _, value in writes.events),
        *writes.locals.values(),
    )
    if not any(payload is not None and len(payload) > BLOB_THRESHOLD for payload in payloads):
        return writes
    return Writes(
        attributes={
            name: None if payload is None else detach(payload, blobs) for name, payload in writes.attributes.items()
        },
        deletions=writes.deletions,
        publications=tuple(
            (channel, message_id, detach(payload, blobs)) for channel, message_id, payload in writes.publications
        ),
        events=tuple((name, detach(payload, blobs)) for name, payload in writes.events),
        locals={name: detach(payload, blobs) for name, payload in writes.locals.items()},
    )
