"""Which RPC a task is about. Its attempts have the method `rpc`, and `__rpc/<name>` where a Step type would be."""

from __future__ import annotations

from dex.definitions import FlowDefinition, RpcDefinition
from dexray.protocol.attempts import AttemptTask


def rpc_name(task: AttemptTask) -> str:
    """The durable name of the RPC."""
    return task.step_type.partition("/")[2]


def rpc_of(task: AttemptTask, definition: FlowDefinition) -> RpcDefinition | None:
    """The RPC in the code that is deployed, None when it has none of this name."""
    return definition.rpcs.get(rpc_name(task))
