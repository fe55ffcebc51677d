"""Flows as data: what the machine is told of a Registry, of a movement's options and of a start."""

from __future__ import annotations

import pickle
from datetime import timedelta
from typing import Any

import cloudpickle
import msgspec
import pytest

from dex import (
    ActiveStepSearchMode,
    Attribute,
    Context,
    Flow,
    FlowConfig,
    FlowDefinitionError,
    FlowTimeoutHandlerOptions,
    FlowTimeoutPolicy,
    Registry,
    RetryPolicy,
    StartFlowOptions,
    Step,
    StepDecision,
    StepDurability,
    StepList,
    StepOptions,
    StepResources,
    SubFlowOptions,
    ValueMappingError,
    WaitForFailurePolicy,
    dead_end,
)
from dex.registry import FlowTimeout
from dex.wire.service import FlowConfigSpec
from dex.wire.specs import (
    DeploymentSpec,
    FailureRoute,
    FlowSpec,
    IndexSpec,
    LoadSpec,
    MethodSpec,
    ResourceSpec,
    RetrySpec,
    RpcSpec,
    StepSpec,
)
from tests.dex.sample import STATUS, STOCK, Charge, Cleanup, OrderFlow, Refund, Ship

CHARGE = StepSpec(
    step_type="Charge",
    wait_for=MethodSpec(timeout=5.0, heartbeat_timeout=10.0, load=LoadSpec(channels=("paid",))),
    execute=MethodSpec(
        timeout=60.0,
        heartbeat_timeout=10.0,
        retry=RetrySpec(initial=3.0, coefficient=1.5, attempts=4),
        durability="ASYNC",
        locks=("status", "stock/a%20b"),
        load=LoadSpec(attribute_maps=("stock",), channel_map_instances=("parts/wheel",)),
    ),
    proceed_on_wait_failure=True,
    failure_route=FailureRoute(step_type="Refund"),
    resources=ResourceSpec(options={"num_cpus": 2, "memory": 10**9}),
)


@pytest.fixture(name="registry")
def _registry() -> Registry:
    return Registry([OrderFlow()], allow_async_handlers=True)


def test_a_registry_describes_its_flows(registry: Registry) -> None:
    assert registry.describe("d1") == DeploymentSpec(
        deployment_id="d1",
        flows={
            "OrderFlow": FlowSpec(
                flow_type="OrderFlow",
                start_step="Charge",
                steps={
                    "Charge": CHARGE,
                    "Ship": StepSpec(step_type="Ship", execute=MethodSpec(is_async=True)),
                    "Refund": StepSpec(step_type="Refund"),
                    "Cleanup": StepSpec(step_type="Cleanup"),
                },
                rpcs={
                    "status": RpcSpec(name="status", resources=ResourceSpec(options={"num_cpus": 0})),
                    "cancel": RpcSpec(name="cancel", is_async=True, locks=("status",), transactional=True),
                    "clean": RpcSpec(
                        name="clean",
                        timeout=7.0,
                        transactional=True,
                        load=LoadSpec(channels=("paid",)),
                        resources=ResourceSpec(options={"num_cpus": 0}),
                    ),
                },
                channels=("paid",),
                channel_maps=("parts",),
                attributes=("status",),
                indexes={"status": IndexSpec(key="status", type="KEYWORD")},
                attribute_maps=("stock",),
                has_timeout_handler=True,
            )
        },
    )


def test_a_description_survives_the_wire(registry: Registry) -> None:
    spec = registry.describe("d1")
    assert msgspec.msgpack.decode(msgspec.msgpack.encode(spec), type=DeploymentSpec) == spec


def test_a_registry_survives_cloudpickle(registry: Registry) -> None:
    again: Registry = pickle.loads(cloudpickle.dumps(registry))
    assert again.describe("d") == registry.describe("d")
    assert again.allow_async_handlers


@pytest.mark.statement("B131")
def test_a_movement_s_options_change_that_execution_only(registry: Registry) -> None:
    before = registry.describe("d")
    own = Charge().get_step_options()
    options = StepOptions(
        execute_method_timeout=timedelta(seconds=9),
        wait_for_retry=RetryPolicy(maximum_attempts=2),
        resources=StepResources(num_gpus=1),
    )
    spec = registry.step_spec("OrderFlow", Charge, options)
    assert spec.execute == msgspec.structs.replace(CHARGE.execute, timeout=9.0)
    assert spec.wait_for is not None
    assert spec.wait_for.retry == RetrySpec(attempts=2)
    assert spec.resources.options == {"num_cpus": 2, "num_gpus": 1, "memory": 10**9}
    assert spec.proceed_on_wait_failure
    assert spec.failure_route == CHARGE.failure_route
    assert registry.describe("d") == before
    assert Charge().get_step_options() == own
    assert registry.step_spec("OrderFlow", Charge) == CHARGE


def test_a_movement_s_options_are_checked_when_they_are_used(registry: Registry) -> None:
    with pytest.raises(FlowDefinitionError, match="Flow 'OrderFlow', Step 'Ship': heartbeat_timeout"):
        registry.step_spec("OrderFlow", Ship, StepOptions(heartbeat_timeout=timedelta(seconds=1)))


def test_a_failure_route_with_options_has_the_target_s_options_under_them(registry: Registry) -> None:
    route = StepOptions().on_execute_failure_proceed_to(
        Refund, StepOptions(execute_method_timeout=timedelta(seconds=3))
    )
    spec = registry.step_spec("OrderFlow", Ship, route)
    assert spec.failure_route == FailureRoute(
        step_type="Refund", override=StepSpec(step_type="Refund", execute=MethodSpec(timeout=3.0))
    )


@pytest.mark.statement("B158", "B159", "B160")
def test_zero_and_none_take_the_defaults(registry: Registry) -> None:
    options = StepOptions(
        execute_method_timeout=timedelta(0),
        heartbeat_timeout=timedelta(0),
        execute_retry=RetryPolicy(timedelta(0), 0, timedelta(0), 0, timedelta(0)),
    )
    method = registry.step_spec("OrderFlow", Refund, options).execute
    assert (method.timeout, method.heartbeat_timeout) == (7200.0, 60.0)
    assert method.retry == RetrySpec(initial=1.0, coefficient=2.0, maximum=100.0, attempts=0, total=14400.0)


def test_a_long_first_pause_is_not_cut_by_the_default_longest(registry: Registry) -> None:
    options = StepOptions(execute_retry=RetryPolicy(initial_interval=timedelta(seconds=300)))
    assert registry.step_spec("OrderFlow", Refund, options).execute.retry.maximum == 300.0


def test_options_merge_field_by_field() -> None:
    own = StepOptions(wait_for_failure=WaitForFailurePolicy.PROCEED, execute_durability=StepDurability.ASYNC)
    merged = own.merged_with(StepOptions(execute_durability=StepDurability.SYNC))
    assert merged == StepOptions(wait_for_failure=WaitForFailurePolicy.PROCEED, execute_durability=StepDurability.SYNC)
    assert own.merged_with(None) is own


# Starting ---


class Plain(Step[int]):
    def execute(self, context: Context, input: int) -> StepDecision:
        return dead_end()


class NoHandler(Flow[int]):
    def get_steps(self) -> StepList[int]:
        return StepList.start_step(Plain())


MINUTE = timedelta(minutes=1)
HANDLER_OPTIONS = FlowTimeoutHandlerOptions(method_timeout=timedelta(seconds=8)).on_failure_proceed_to(Cleanup)


@pytest.fixture(name="both")
def _both() -> Registry:
    return Registry([OrderFlow(), NoHandler()], allow_async_handlers=True)


@pytest.mark.statement("B9")
@pytest.mark.parametrize("timeout", [None, timedelta(0)])
def test_no_timeout_is_none(both: Registry, timeout: timedelta | None) -> None:
    assert both.timeout_of("OrderFlow", StartFlowOptions(timeout=timeout)) == FlowTimeout()


@pytest.mark.statement("B17")
@pytest.mark.parametrize("timeout", [None, timedelta(0)])
@pytest.mark.parametrize("policy", [FlowTimeoutPolicy.FAIL, FlowTimeoutPolicy.CANCEL, FlowTimeoutPolicy.HANDLER])
def test_a_policy_requires_a_positive_timeout(
    both: Registry, timeout: timedelta | None, policy: FlowTimeoutPolicy
) -> None:
    with pytest.raises(ValueError, match=f"'OrderFlow': timeout_policy {policy.name} requires a positive timeout"):
        both.timeout_of("OrderFlow", StartFlowOptions(timeout=timeout, timeout_policy=policy))


@pytest.mark.statement("B21")
def test_the_default_policy_is_handler_if_there_is_one_else_fail(both: Registry) -> None:
    assert both.timeout_of("OrderFlow", StartFlowOptions(timeout=MINUTE)).policy == "HANDLER"
    assert both.timeout_of("NoHandler", StartFlowOptions(timeout=MINUTE)) == FlowTimeout(60.0, "FAIL")
    cancel = SubFlowOptions(timeout=MINUTE, timeout_policy=FlowTimeoutPolicy.CANCEL)
    assert both.timeout_of("OrderFlow", cancel) == FlowTimeout(60.0, "CANCEL")


@pytest.mark.statement("B22")
def test_handler_needs_a_handler(both: Registry) -> None:
    options = StartFlowOptions(timeout=MINUTE, timeout_policy=FlowTimeoutPolicy.HANDLER)
    with pytest.raises(ValueError, match=r"'NoHandler'.*has no handle_timeout override"):
        both.timeout_of("NoHandler", options)


@pytest.mark.statement("B25")
def test_handler_options_need_a_timeout_and_the_handler_policy(both: Registry) -> None:
    with pytest.raises(ValueError, match="timeout_handler_options requires a positive timeout"):
        both.timeout_of("OrderFlow", StartFlowOptions(timeout_handler_options=HANDLER_OPTIONS))
    for flow_type, policy in (("OrderFlow", FlowTimeoutPolicy.CANCEL), ("NoHandler", FlowTimeoutPolicy.DEFAULT)):
        options = StartFlowOptions(timeout=MINUTE, timeout_policy=policy, timeout_handler_options=HANDLER_OPTIONS)
        with pytest.raises(ValueError, match="need the timeout policy HANDLER"):
            both.timeout_of(flow_type, options)


@pytest.mark.statement("B26", "B27")
def test_the_handler_has_options_as_execute_and_a_route_without_input(both: Registry) -> None:
    options = StartFlowOptions(timeout=MINUTE, timeout_handler_options=HANDLER_OPTIONS)
    handler = both.timeout_of("OrderFlow", options).handler
    assert handler is not None
    assert handler.method == MethodSpec(timeout=8.0)
    assert handler.failure_route == FailureRoute(step_type="Cleanup")
    wrong: Any = FlowTimeoutHandlerOptions().on_failure_proceed_to(Refund)  # type: ignore[arg-type]
    with pytest.raises(FlowDefinitionError, match="takes Order and would get None"):
        both.timeout_handler_spec("OrderFlow", wrong)


@pytest.mark.parametrize("timeout", [-MINUTE, MINUTE / 7, timedelta(seconds=2**31)])
def test_a_timeout_is_whole_seconds_in_bounds(both: Registry, timeout: timedelta) -> None:
    with pytest.raises(ValueError, match="timeout must"):
        both.timeout_of("OrderFlow", StartFlowOptions(timeout=timeout))


@pytest.mark.statement("B13")
def test_initial_attributes_are_encoded_by_their_type(both: Registry) -> None:
    options = StartFlowOptions().with_attribute(STATUS, "new").with_attribute(STOCK, "a b", 5)
    payloads = both.initial_attributes("OrderFlow", options.attributes)
    codecs = both.codec_registry
    assert {name: codecs.decode(data, Any, where="t") for name, data in payloads.items()} == {
        "status": "new",
        "stock/a%20b": 5,
    }
    with pytest.raises(ValueMappingError, match="initial Attribute 'status'"):
        both.initial_attributes("OrderFlow", StartFlowOptions().with_attribute(STATUS, 5).attributes)  # type: ignore[misc]
    again = options.with_attribute(STATUS, "last").with_attribute(STOCK, "a b", None)
    assert list(both.initial_attributes("OrderFlow", again.attributes)) == ["status"]


@pytest.mark.statement("B13")
def test_an_initial_attribute_of_another_flow_is_refused(both: Registry) -> None:
    for attribute, words in (
        (Attribute("other", str), "'other' is not registered"),
        (Attribute("status", str), "'status' is not the one that get_persistence_schema"),
    ):
        with pytest.raises(ValueError, match=f"Flow 'OrderFlow': Attribute {words}"):
            both.initial_attributes("OrderFlow", StartFlowOptions().with_attribute(attribute, "x").attributes)


@pytest.mark.statement("B8")
def test_with_attribute_makes_a_copy() -> None:
    options = StartFlowOptions(request_id="r")
    more = options.with_attribute(STATUS, "new")
    assert options.attributes == ()
    assert (more.request_id, more.attributes[0].value) == ("r", "new")
    with pytest.raises(TypeError, match="AttributeMap 'stock' needs an instance"):
        options.with_attribute(STOCK, 5)  # type: ignore[call-overload]
    with pytest.raises(TypeError, match="Attribute 'status' has no instances"):
        options.with_attribute(STATUS, "a", "b")  # type: ignore[call-overload]
    with pytest.raises(AttributeError):
        options.timeout = MINUTE  # type: ignore[misc]


@pytest.mark.statement("B14")
def test_a_flow_config_holds_only_what_was_given() -> None:
    assert Registry.flow_config_spec(None) == FlowConfigSpec()
    config = FlowConfig(
        active_step_search_mode=ActiveStepSearchMode.ALL,
        step_durability=StepDurability.ASYNC,
        continue_as_new_threshold=5,
        attribute_store_names=["main"],
    )
    assert Registry.flow_config_spec(config) == FlowConfigSpec(
        active_step_search_mode="ALL",
        step_durability="ASYNC",
        continue_as_new_threshold=5,
        attribute_store_names=("main",),
    )
    defaults = FlowConfig(ActiveStepSearchMode.DEFAULT, step_durability=StepDurability.DEFAULT)
    assert Registry.flow_config_spec(defaults) == FlowConfigSpec()
    for wrong in (
        FlowConfig(step_durability="SYNC"),  # type: ignore[arg-type]
        FlowConfig(attribute_store_names="main"),  # type: ignore[arg-type]
        FlowConfig(continue_as_new_threshold=True),
    ):
        with pytest.raises(TypeError, match=r"FlowConfig\."):
            Registry.flow_config_spec(wrong)
