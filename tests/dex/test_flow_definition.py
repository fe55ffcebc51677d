"""What a Registry learns of a Flow."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Generic, TypeVar

import pytest

from dex import (
    Context,
    Flow,
    FlowDefinitionError,
    PersistenceSchema,
    Registry,
    RPCResult,
    Step,
    StepDecision,
    StepList,
    dead_end,
    rpc,
)
from tests.dex import sample
from tests.dex.sample import PAID, PARTS, STATUS, STOCK, WORDS, Charge, Order, OrderFlow, Refund, Ship


@pytest.fixture(name="flow")
def _flow() -> OrderFlow:
    return OrderFlow()


@pytest.fixture(name="registry")
def _registry(flow: OrderFlow) -> Registry:
    return Registry([flow], allow_async_handlers=True)


class Entity(Flow[None]):
    @rpc
    def read(self, context: Context) -> RPCResult[int]:
        return RPCResult(1)


class Moved(Entity):
    def get_flow_type(self) -> str:
        return "entity-2"

    def get_steps(self) -> StepList[None]:
        return StepList.without_start_step(Named())


class Named(Step[int]):
    def get_step_type(self) -> str:
        return "named step"

    def execute(self, context: Context, input: int) -> StepDecision:
        return dead_end()


T = TypeVar("T")


class OfMany(Step[list[T]], Generic[T]):
    def execute(self, context: Context, input: list[T]) -> StepDecision:
        return dead_end()


class OfList(OfMany[int]):
    pass


class Generics(Flow[list[int]]):
    def get_steps(self) -> StepList[list[int]]:
        return StepList.start_step(OfList())


@pytest.mark.statement("B1", "B2")
def test_a_flow_registers_its_steps_its_schema_and_its_rpcs(registry: Registry) -> None:
    known = registry.definition("OrderFlow")
    assert list(known.steps) == ["Charge", "Ship", "Refund", "Cleanup"]
    assert known.start_step is known.steps["Charge"]
    assert known.attributes == {"status": STATUS, "stock": STOCK}
    assert known.channels == {"paid": PAID, "parts": PARTS}
    assert known.streams == {"words": WORDS}
    assert sorted(known.rpcs) == ["cancel", "clean", "status"]


@pytest.mark.statement("B3")
def test_the_input_of_a_flow_is_that_of_its_start_step(registry: Registry) -> None:
    assert registry.definition("OrderFlow").start_input_type is Order


@pytest.mark.statement("B4")
def test_a_flow_without_steps_or_without_a_start_step_is_valid() -> None:
    registry = Registry([Entity(), Moved()])
    assert registry.definition("Entity").steps == {}
    moved = registry.definition("entity-2")
    assert list(moved.steps) == ["named step"]
    assert moved.start_step is None
    assert moved.start_input_type is type(None)
    assert registry.describe("d").flows["entity-2"].start_step is None


@pytest.mark.statement("B6")
def test_an_rpc_has_the_name_of_its_method_unless_it_is_given_another(registry: Registry) -> None:
    rpcs = registry.definition("OrderFlow").rpcs
    assert rpcs["status"].method_name == "status"
    assert (rpcs["status"].has_input, rpcs["status"].output_type, rpcs["status"].kind) == (False, str, "sync")
    cancel = rpcs["cancel"]
    assert (cancel.method_name, cancel.input_type, cancel.is_procedure, cancel.kind) == (
        "cancel_order",
        int,
        True,
        "async",
    )
    assert rpcs["clean"].options.is_transactional


@pytest.mark.statement("B7")
def test_types_are_class_names_unless_overridden() -> None:
    registry = Registry([Entity(), Moved()])
    assert list(registry.flows) == ["Entity", "entity-2"]
    assert registry.find_step("entity-2", Named).step_type == "named step"


def test_the_form_of_each_handler_is_told(registry: Registry) -> None:
    steps = registry.definition("OrderFlow").steps
    assert (steps["Charge"].wait_for, steps["Charge"].execute) == ("sync", "sync")
    assert (steps["Ship"].wait_for, steps["Ship"].execute) == (None, "async")
    assert (steps["Refund"].wait_for, steps["Refund"].execute) == (None, "generator")
    assert registry.definition("OrderFlow").timeout_handler == "sync"


def test_a_flow_has_a_timeout_handler_only_if_it_overrides_it(registry: Registry) -> None:
    assert registry.definition("OrderFlow").has_timeout_handler
    assert not Registry([Entity()]).definition("Entity").has_timeout_handler


def test_a_step_is_found_by_class_instance_and_name(registry: Registry) -> None:
    for name in (Charge, Charge(), "Charge"):
        assert registry.find_step("OrderFlow", name).step_type == "Charge"


def test_a_redefined_class_stands_for_the_step_of_its_name(registry: Registry) -> None:
    again: Any = type("Charge", (Step,), {"execute": Charge.execute})
    assert registry.find_step("OrderFlow", again).step is registry.definition("OrderFlow").steps["Charge"].step


def test_a_redefined_class_with_a_durable_name_of_its_own_is_found_too() -> None:
    registry = Registry([Moved()])
    again: Any = type(
        "Named", (Step,), {"execute": Named.execute, "get_step_type": Named.get_step_type, "__module__": __name__}
    )
    assert registry.find_step("entity-2", again).step_type == "named step"


def test_an_unknown_step_is_refused_with_those_that_are_known(registry: Registry) -> None:
    with pytest.raises(FlowDefinitionError, match=r"'OrderFlow' has no Step 'Named'.*Charge, Ship, Refund, Cleanup"):
        registry.find_step("OrderFlow", Named)


def test_a_flow_is_found_by_its_registered_instance_only(registry: Registry, flow: OrderFlow) -> None:
    assert registry.flow_of(flow).flow is flow
    with pytest.raises(FlowDefinitionError, match="Flow instance is not registered: OrderFlow"):
        registry.flow_of(OrderFlow())
    with pytest.raises(FlowDefinitionError, match="Flow instance is not registered: Entity"):
        registry.flow_of(Entity())
    with pytest.raises(FlowDefinitionError, match="Flow 'Nothing' is not registered"):
        registry.flow("Nothing")


def test_an_rpc_is_found_by_the_bound_method_of_a_registered_flow(registry: Registry, flow: OrderFlow) -> None:
    known, found = registry.rpc_of(flow.cancel_order)
    assert (known.flow_type, found.name) == ("OrderFlow", "cancel")
    for method in (OrderFlow().cancel_order, OrderFlow.cancel_order, flow.get_steps, print):
        with pytest.raises(FlowDefinitionError, match="RPC method is not registered"):
            registry.rpc_of(method)


def test_steps_may_be_given_as_classes() -> None:
    class Short(Flow[Order]):
        def get_steps(self) -> StepList[Order]:
            return StepList.start_step(Charge).other_steps(Refund, Ship())

        def get_persistence_schema(self) -> PersistenceSchema:
            return PersistenceSchema((STATUS, STOCK), (PAID, PARTS))

    assert list(Registry([Short()], allow_async_handlers=True).definition("Short").steps) == [
        "Charge",
        "Refund",
        "Ship",
    ]


def test_generic_bases_pass_their_type_on() -> None:
    registry = Registry([Generics()])
    assert registry.find_step("Generics", OfList).input_type == list[int]


def test_classes_local_to_a_function_need_no_module() -> None:
    @dataclass
    class Point:
        x: int

    class Walk(Step[Point]):
        def execute(self, context: Context, input: Point) -> StepDecision:
            return dead_end()

    class LocalFlow(Flow[Point]):
        def get_steps(self) -> StepList[Point]:
            return StepList.start_step(Walk())

    assert Registry([LocalFlow()]).definition("LocalFlow").start_input_type is Point


def test_schema_groups_definitions_and_refuses_others() -> None:
    schema = PersistenceSchema.of(PAID, STATUS, WORDS, STOCK, PARTS)
    assert schema == PersistenceSchema((STATUS, STOCK), (PAID, PARTS), (WORDS,))
    with pytest.raises(TypeError, match=r"PersistenceSchema.of takes"):
        PersistenceSchema.of(sample.Order)  # type: ignore[arg-type]
