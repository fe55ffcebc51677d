"""SubFlows on the worker's side: from the condition that a handler returned to what is asked for, and from what came of
it to the result that execute reads.
"""

from __future__ import annotations

from typing import Any, NoReturn

from msgspec.structs import replace

from dex.definitions import FlowDefinition
from dex.durations import whole_seconds
from dex.errors import FlowDefinitionError, InvalidStepResultError, ValueMappingError
from dex.names import LONGEST_FLOW_ID
from dex.registry import Registry
from dex.results import FlowErrorType, FlowResult, FlowStatus, StepCompletion
from dex.subflow import SubFlowOptions, SubFlowReusePolicy
from dex.values import CodecRegistry, attach, detach
from dex.wait import SubFlowCondition
from dexray.protocol.attempts import AttemptTask, ConditionResult
from dexray.protocol.subflows import SubFlowSpec, subflow_id


def subflow_spec(condition: SubFlowCondition, number: int, task: AttemptTask, registry: Registry) -> SubFlowSpec:
    """What the `number`-th SubFlow of a wait asks for. InvalidStepResultError when it could never be started."""
    name = f"SubFlow {number}"

    def refuse(detail: object) -> NoReturn:
        raise InvalidStepResultError(task.flow_type, task.step_type, task.key.method, f"{name}: {detail}")

    try:
        definition = registry.flow_of(condition.flow)
    except FlowDefinitionError as error:
        refuse(error)
    name = f"{name} (Flow {definition.flow_type!r})"
    if definition.start_step is None:
        refuse("it has no start Step, so it would never end: give it one, or start it with a client")
    options = SubFlowOptions() if condition.options is None else condition.options
    if not isinstance(options, SubFlowOptions):
        refuse(f"SubFlow.run(options=…) takes SubFlowOptions, got {type(options).__name__}")
    if options.retry_policy is not None:
        refuse("a Flow has no RetryPolicy; give one to its Steps (StepOptions.execute_retry)")
    if not isinstance(options.reuse_policy, SubFlowReusePolicy):
        refuse(f"reuse_policy takes a SubFlowReusePolicy, got {options.reuse_policy!r}")
    child_id = subflow_id(task.key.flow_id, task.key.step_execution_id, number)
    if len(child_id) > LONGEST_FLOW_ID:
        refuse(
            f"its Flow ID would have {len(child_id)} characters, and {LONGEST_FLOW_ID} is the most: each level of "
            "SubFlows makes it longer. Give the outermost Flow a shorter ID, or go less deep"
        )
    try:
        if whole_seconds("start_delay", options.start_delay) > 0:
            refuse("a start has no delay; let the start Step wait for a Timer")
        return _spec(condition, options, definition, registry, task.max_value_bytes)
    except ValueMappingError:
        raise
    except (ValueError, TypeError) as error:
        refuse(error)


def _spec(
    condition: SubFlowCondition, options: SubFlowOptions, definition: FlowDefinition, registry: Registry, limit: int
) -> SubFlowSpec:
    flow_type, start = definition.flow_type, definition.start_step
    assert start is not None
    timeout = registry.timeout_of(flow_type, options)
    return SubFlowSpec(
        flow_type=flow_type,
        input=registry.codec_registry.encode(
            condition.input, start.input_type, where=f"input of SubFlow {flow_type!r}", limit=limit
        ),
        reuse_policy=options.reuse_policy.name,
        timeout=timeout.seconds,
        timeout_policy=timeout.policy,
        timeout_handler=timeout.handler,
        config=registry.flow_config_spec(options.config_override),
        attributes=registry.initial_attributes(flow_type, options.attributes, limit=limit),
    )


def lighter_spec(spec: SubFlowSpec, blobs: dict[str, bytes]) -> SubFlowSpec:
    """The spec with references for its large values."""
    return replace(
        spec,
        input=detach(spec.input, blobs),
        attributes={name: detach(payload, blobs) for name, payload in spec.attributes.items()},
    )


def condition_of(conditions: list[ConditionResult], index: int, where: str) -> ConditionResult:
    """The `index`-th SubFlow among the SubFlows of a wait; ValueError when it has no such."""
    if 0 <= index < len(conditions):
        return conditions[index]
    had = f"{len(conditions)} SubFlow{'' if len(conditions) == 1 else 's'}" if conditions else "no SubFlow"
    raise ValueError(f"there is no SubFlow {index} in {where}: its wait had {had}, and they count from 0")


def flow_result(condition: ConditionResult, codecs: CodecRegistry, blobs: dict[str, bytes]) -> FlowResult:
    error_type: Any = condition.subflow_error_type
    return FlowResult(
        status=FlowStatus[condition.subflow_status],
        completions=tuple(
            StepCompletion(step_type, step_id, None if output is None else attach(output, blobs), codecs)
            for step_type, step_id, output in condition.subflow_completions
        ),
        error_type=FlowErrorType.__members__.get(error_type, FlowErrorType.INTERNAL) if error_type else None,
        error_message=condition.subflow_error_message,
    )
