"""Flows: what a user deploys. A Flow lists its Steps, declares its state, and may offer RPCs and handle its timeout.

A Flow object is a definition, made once. What belongs to one run is in Attributes and Channels, never in the object.
"""

from __future__ import annotations

from abc import ABC
from dataclasses import dataclass, replace
from typing import Any, Generic, Protocol, TypeVar, overload

from dex.attribute import Attribute, AttributeMap
from dex.channel import Channel, ChannelMap
from dex.context import AsyncContext
from dex.decision import StepDecision
from dex.errors import FlowDefinitionError
from dex.step import Handled, Step
from dex.stream import Stream

T = TypeVar("T")
StartT = TypeVar("StartT")


@dataclass(frozen=True, slots=True)
class PersistenceSchema:
    """All Attributes, Channels and Streams of a Flow; what is not in it can't be used. Names are unique within each
    kind.
    """

    attributes: tuple[Attribute[Any] | AttributeMap[Any], ...] = ()
    channels: tuple[Channel[Any] | ChannelMap[Any], ...] = ()
    streams: tuple[Stream[Any], ...] = ()

    @staticmethod
    def of(
        *definitions: Attribute[Any] | AttributeMap[Any] | Channel[Any] | ChannelMap[Any] | Stream[Any],
    ) -> PersistenceSchema:
        """A schema of definitions in any order. Raises TypeError for anything else."""
        attributes: list[Attribute[Any] | AttributeMap[Any]] = []
        channels: list[Channel[Any] | ChannelMap[Any]] = []
        streams: list[Stream[Any]] = []
        for definition in definitions:
            if isinstance(definition, Attribute | AttributeMap):
                attributes.append(definition)
            elif isinstance(definition, Channel | ChannelMap):
                channels.append(definition)
            elif isinstance(definition, Stream):
                streams.append(definition)
            else:
                raise TypeError(
                    "PersistenceSchema.of takes Attributes, AttributeMaps, Channels, ChannelMaps and Streams, "
                    f"got {type(definition).__name__}: {definition!r}"
                )
        return PersistenceSchema(tuple(attributes), tuple(channels), tuple(streams))


class _StartStep(Protocol):
    def __call__(self, step: type[Step[T]] | Step[T], /) -> StepList[T]: ...


class _StartStepOf:
    """`StepList.start_step`, on the class. On a list it adds a second start Step, which a Registry refuses by name."""

    @overload
    def __get__(self, steps: None, owner: type[StepList[Any]]) -> _StartStep: ...

    @overload
    def __get__(self, steps: StepList[Any], owner: type[StepList[Any]]) -> _StartStep: ...

    def __get__(self, steps: StepList[Any] | None, owner: type[StepList[Any]]) -> _StartStep:
        def start_step(step: type[Step[T]] | Step[T], /) -> StepList[T]:
            start: Step[T] = _instance(step)
            if steps is None:
                return StepList((start,))
            return StepList((*steps.start_steps, start), steps.others)

        return start_step


@dataclass(frozen=True, slots=True)
class StepList(Generic[StartT]):
    """The Steps of a Flow: at most one start Step, and every other Step that a movement may reach.

        StepList.start_step(Charge()).other_steps(Ship(), Refund())

    Steps may be given as instances, or as classes that are made without arguments.
    """

    start_steps: tuple[Step[Any], ...] = ()
    others: tuple[Step[Any], ...] = ()

    start_step = _StartStepOf()

    def other_steps(self, *steps: type[Step[Any]] | Step[Any]) -> StepList[StartT]:
        """A list with these Steps besides."""
        return replace(self, others=(*self.others, *map(_instance, steps)))

    @staticmethod
    def empty() -> StepList[Any]:
        """No Steps: a Flow driven by RPCs only."""
        return StepList()

    @staticmethod
    def without_start_step(*steps: type[Step[Any]] | Step[Any]) -> StepList[Any]:
        """Steps that RPCs move into."""
        return StepList((), tuple(map(_instance, steps)))

    @property
    def all_steps(self) -> tuple[Step[Any], ...]:
        """Every Step, the start Step first."""
        return (*self.start_steps, *self.others)


class Flow(ABC, Generic[StartT]):
    """A Flow, started with an input of one type: that of its start Step.

    class Order(Flow[int]):
        def get_steps(self) -> StepList[int]:
            return StepList.start_step(Charge()).other_steps(Ship())
    """

    def get_flow_type(self) -> str:
        """The durable name of the Flow; its runs find their code by it. Default: the class name."""
        return type(self).__name__

    def get_steps(self) -> StepList[StartT]:
        """The Steps of the Flow. Default: none."""
        return StepList.empty()

    def get_persistence_schema(self) -> PersistenceSchema:
        """The Attributes, Channels and Streams of the Flow. Default: none."""
        return PersistenceSchema()

    def handle_timeout(self, context: AsyncContext, /) -> Handled[StepDecision]:
        """Runs once when the Flow's timeout fires, if overridden. It may be a generator or `async` too, as a Step's
        execute. This one only raises FlowDefinitionError.
        """
        raise FlowDefinitionError(f"Flow {self.get_flow_type()!r} has no handle_timeout override")


def _instance(step: type[Step[T]] | Step[T]) -> Step[T]:
    if isinstance(step, Step):
        return step
    if not (isinstance(step, type) and issubclass(step, Step)):
        raise TypeError(f"a StepList takes Steps, got {type(step).__name__}: {step!r}")
    try:
        return step()
    except TypeError as error:
        raise FlowDefinitionError(
            f"Step {step.__name__} can't be made without arguments ({error}): give the StepList an instance of it"
        ) from error
