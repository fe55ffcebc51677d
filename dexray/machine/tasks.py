"""What an attempt is given to see.

Plain Attributes and the sizes of all Channels always; values of AttributeMaps and pending messages where the method
selects them. All of it from the snapshot that was pinned when attempt 1 was handed out, so that retries see what it
saw.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from dex.wire.specs import EXECUTE, LoadSpec, StepSpec
from dexray.machine.state import FlowState, Snapshot, StepState
from dexray.machine.turn import key_of, method_of
from dexray.protocol.attempts import AttemptTask

_NOTHING = LoadSpec()


def attempt_task(state: FlowState, step: StepState, spec: StepSpec | None) -> AttemptTask:
    """The task of the attempt that is handed out. `spec` is None for the timeout handler alone."""
    assert step.snapshot is not None
    method = method_of(state, step, spec)
    is_execute = step.method == EXECUTE
    return AttemptTask(
        key=key_of(state, step),
        flow_type=state.flow_type,
        step_type=step.step_type,
        deployment_id=step.deployment,
        from_step_execution_id=step.from_step,
        input=step.input,
        timeout=method.timeout,
        heartbeat_timeout=method.heartbeat_timeout,
        first_attempt_at=step.first_started_at,
        **seen(step.snapshot),
        conditions=step.conditions if is_execute else (),
        locals=step.locals if is_execute else {},
        has_heartbeat=step.has_heartbeat,
        heartbeat=step.heartbeat,
        recovery_error=step.recovery,
        wait_for_failed=step.wait_for_failed,
        resources=spec.resources.options if spec is not None else {},
        is_async=method.is_async,
        kill_after=method.kill_after,
        detached=step.detached,
    )


def seen(snapshot: Snapshot) -> dict[str, Any]:
    """The fields of a task that a snapshot fills: plain Attributes and sizes, and what was selected."""
    load = snapshot.load or _NOTHING
    attributes = snapshot.attributes
    assert attributes is not None
    keys: list[str] = []
    if any("/" in name for name in attributes):
        prefixes = tuple(f"{name}/" for name in load.attribute_maps)
        keys = [name for name in attributes if "/" in name]
        attributes = {
            name: value
            for name, value in attributes.items()
            if "/" not in name or name.startswith(prefixes) or name in load.attribute_map_instances
        }
    selected = (*load.channels, *load.channel_map_instances)
    loaded = dict.fromkeys(selected, ()) | {
        name: tuple((message.id, message.value) for message in queue) for name, queue in snapshot.messages.items()
    }
    return {
        "attributes": attributes,
        "attribute_keys": tuple(keys),
        "loaded_attribute_maps": load.attribute_maps,
        "loaded_attribute_instances": load.attribute_map_instances,
        "channel_sizes": snapshot.sizes,
        "loaded_channels": loaded,
        "loaded_channel_maps": load.channel_maps,
    }


def payloads(task: AttemptTask) -> Iterator[bytes]:
    """Every payload in a task: any of them may be a reference to a blob that has to travel with it."""
    yield task.input
    yield from task.attributes.values()
    for messages in task.loaded_channels.values():
        for _, value in messages:
            yield value
    for condition in task.conditions:
        yield from condition.messages
        for _, _, output in condition.subflow_completions:
            if output is not None:
                yield output
    yield from task.locals.values()
    if task.heartbeat is not None:
        yield task.heartbeat
