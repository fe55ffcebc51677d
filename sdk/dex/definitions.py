"""What a Registry has learned of its Flows: definitions, checked once and looked up often.

**Steps are found by their durable names.** A class that was redefined in a notebook, or that came by a pickle, is
another object with the same name, and stands for the same Step. So `find_step` takes a class, an instance or a name,
and never asks whether it is the very same class.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from dex.attribute import Attribute, AttributeMap
from dex.channel import Channel, ChannelMap
from dex.errors import FlowDefinitionError
from dex.flow import Flow
from dex.options import StepOptions
from dex.rpc import RpcOptions
from dex.step import Step, step_type_of
from dex.stream import Stream


class HandlerKind(StrEnum):
    """The form of a handler; equal to its text."""

    SYNC = "sync"
    GENERATOR = "generator"
    ASYNC = "async"


@dataclass(frozen=True, slots=True, eq=False)
class StepDefinition:
    """A registered Step. execute, wait_for: the forms of its handlers, None when wait_for is not overridden."""

    step: Step[Any]
    step_type: str
    input_type: Any
    execute: HandlerKind
    wait_for: HandlerKind | None
    options: StepOptions


@dataclass(frozen=True, slots=True, eq=False)
class RpcDefinition:
    """A registered RPC. output_type is None for a procedure, which answers nothing."""

    name: str
    method_name: str
    has_input: bool
    input_type: Any
    is_procedure: bool
    output_type: Any
    kind: HandlerKind
    options: RpcOptions


@dataclass(frozen=True, slots=True, eq=False)
class FlowDefinition:
    """A registered Flow. Mappings are by durable name. timeout_handler: None when handle_timeout is not overridden."""

    flow: Flow[Any]
    flow_type: str
    steps: Mapping[str, StepDefinition]
    start_step: StepDefinition | None
    attributes: Mapping[str, Attribute[Any] | AttributeMap[Any]]
    channels: Mapping[str, Channel[Any] | ChannelMap[Any]]
    streams: Mapping[str, Stream[Any]]
    rpcs: Mapping[str, RpcDefinition]
    timeout_handler: HandlerKind | None
    _by_class: dict[type, StepDefinition] = field(init=False, repr=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "_by_class", {type(known.step): known for known in self.steps.values()})

    @property
    def has_timeout_handler(self) -> bool:
        return self.timeout_handler is not None

    @property
    def start_input_type(self) -> Any:
        """The type of the Flow's input; NoneType without a start Step."""
        return type(None) if self.start_step is None else self.start_step.input_type

    def find_step(self, step: type[Step[Any]] | Step[Any] | str) -> StepDefinition:
        """The registered Step that a class, an instance or a name stands for, or FlowDefinitionError."""
        if isinstance(step, str):
            found = self.steps.get(step)
        elif isinstance(step, type):
            found = self._by_class.get(step) or self._of_class(step)
        elif isinstance(step, Step):
            found = self.steps.get(step.get_step_type())
        else:
            raise FlowDefinitionError(
                f"Flow {self.flow_type!r}: a Step is named by its class, an instance or its type, "
                f"got {type(step).__name__}: {step!r}"
            )
        if found is None:
            raise FlowDefinitionError(
                f"Flow {self.flow_type!r} has no Step {_name_of(step)!r}: add it to get_steps(). "
                f"Registered: {', '.join(self.steps) or 'none'}"
            )
        return found

    def _of_class(self, step_class: type) -> StepDefinition | None:
        if not issubclass(step_class, Step):
            return None
        if step_class.get_step_type is Step.get_step_type:
            return self.steps.get(step_class.__name__)
        # Its durable name is known to instances only; the class it is a new version of has one.
        named = [known for known in self.steps.values() if type(known.step).__qualname__ == step_class.__qualname__]
        same_module = [known for known in named if type(known.step).__module__ == step_class.__module__]
        candidates = same_module or named
        return candidates[0] if len(candidates) == 1 else None


def _name_of(step: type[Step[Any]] | Step[Any] | str) -> str:
    return step.__name__ if isinstance(step, type) else step_type_of(step)
