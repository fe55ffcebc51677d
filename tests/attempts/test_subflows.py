"""SubFlows in the hands of a handler: what a wait asks for, what can't be asked for, and what execute reads."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest

from dex import (
    Attribute,
    AttributeMap,
    Context,
    Flow,
    FlowConfig,
    FlowErrorType,
    FlowResult,
    FlowStatus,
    FlowTimeoutHandlerOptions,
    FlowTimeoutPolicy,
    PersistenceSchema,
    Registry,
    RetryPolicy,
    Step,
    StepDecision,
    StepDurability,
    StepList,
    SubFlow,
    SubFlowOptions,
    SubFlowReusePolicy,
    Wait,
    dead_end,
    graceful_complete,
)
from dex.values import BLOB_THRESHOLD, attach, reference_of
from dex.wait import Condition, ConditionCombination
from dexray.protocol.attempts import INVALID_RESULT, ConditionResult, WaitForSucceeded
from dexray.protocol.subflows import SubFlowSpec
from tests.attempts.build import executed, failed, payload, task_for, value_of, waited

note = Attribute("note", str)
marks = AttributeMap("marks", int)
HOUR = timedelta(hours=1)


class Work(Step[str]):
    def execute(self, context: Context, input: str) -> StepDecision:
        return graceful_complete(input)


class Child(Flow[str]):
    def get_steps(self) -> StepList[str]:
        return StepList.start_step(Work())

    def get_persistence_schema(self) -> PersistenceSchema:
        return PersistenceSchema.of(note, marks)


class Cautious(Child):
    def handle_timeout(self, context: Context) -> StepDecision:
        return dead_end()


class Store(Flow[None]):
    """Without a start Step."""


class Ask(Step[None]):
    conditions: Any = staticmethod(lambda: ())
    read: Any = staticmethod(lambda context: None)

    def wait_for(self, context: Context, input: None) -> Wait:
        found = self.conditions()
        return found if isinstance(found, Wait) else Wait.all_of(*found)

    def execute(self, context: Context, input: None) -> StepDecision:
        return graceful_complete(self.read(context))


class Parent(Flow[None]):
    def get_steps(self) -> StepList[None]:
        return StepList.start_step(Ask())


CHILD, CAUTIOUS, STORE = Child(), Cautious(), Store()
REGISTRY = Registry([Parent(), CHILD, CAUTIOUS, STORE])


def asked(*conditions: Condition, flow_id: str = "flow") -> WaitForSucceeded:
    return waited(REGISTRY, asking(*conditions))


def asking(*conditions: Condition) -> Any:
    Ask.conditions = staticmethod(lambda: conditions)
    return task_for("Parent", "Ask", method="wait_for")


def spec_of(options: SubFlowOptions | None = None, flow: Flow[str] = CHILD) -> SubFlowSpec:
    spec = asked(SubFlow.run(flow, "in", options)).wait.conditions[0].subflow
    assert spec is not None
    return spec


def refused(*conditions: Condition) -> str:
    failure = failed(REGISTRY, asking(*conditions))
    assert failure.kind == INVALID_RESULT, failure
    return failure.detail


def read(use: Any, *results: ConditionResult, blobs: dict[str, bytes] | None = None) -> Any:
    Ask.read = staticmethod(use)
    task = task_for("Parent", "Ask", conditions=results, blobs=blobs or {})
    return value_of(executed(REGISTRY, task).decision.output)


def refusal(use: Any, *results: ConditionResult) -> str:
    Ask.read = staticmethod(use)
    return failed(REGISTRY, task_for("Parent", "Ask", conditions=results)).detail


def ended(status: str = "COMPLETED", *outputs: bytes | None, number: int = 0, **more: str) -> ConditionResult:
    completions = tuple(("Work", f"Work-{count}", output) for count, output in enumerate(outputs, 1))
    return ConditionResult(
        "subflow",
        fired=status != "RUNNING",
        subflow_id=f"SubFlow:flow-Ask-1-{number}",
        subflow_status=status,
        subflow_completions=completions,
        **more,  # type: ignore[arg-type]
    )


# What a wait asks for -------------------------------------------------------------------------------------------------


@pytest.mark.statement("B82")
def test_a_subflow_is_asked_for_by_its_flow_type_and_its_encoded_input() -> None:
    spec = spec_of()
    assert (spec.flow_type, value_of(spec.input)) == ("Child", "in")
    assert spec.reuse_policy == "RESTART_IF_PREVIOUS_EXITS_ABNORMALLY"
    assert (spec.timeout, spec.timeout_policy, spec.attributes) == (0.0, "", {})


@pytest.mark.statement("B8", "B13", "B14")
def test_options_of_a_subflow_are_those_of_a_start() -> None:
    options = SubFlowOptions(
        timeout=HOUR,
        timeout_policy=FlowTimeoutPolicy.CANCEL,
        config_override=FlowConfig(step_durability=StepDurability.ASYNC),
        reuse_policy=SubFlowReusePolicy.ALWAYS_RESTART,
        condition_id="it",
    )
    options = options.with_attribute(note, "n").with_attribute(marks, "a b", 3)
    wait = asked(SubFlow.run(CHILD, "in", options)).wait
    spec = wait.conditions[0].subflow
    assert spec is not None
    assert wait.conditions[0].condition_id == "it"
    assert (spec.timeout, spec.timeout_policy, spec.reuse_policy) == (3600.0, "CANCEL", "ALWAYS_RESTART")
    assert spec.config.step_durability == "ASYNC"
    assert {name: value_of(value) for name, value in spec.attributes.items()} == {"note": "n", "marks/a%20b": 3}


@pytest.mark.statement("B20", "B21")
def test_a_timeout_of_a_subflow_runs_its_handler_when_it_has_one() -> None:
    handler = FlowTimeoutHandlerOptions(method_timeout=timedelta(minutes=3))
    spec = spec_of(SubFlowOptions(timeout=HOUR, timeout_handler_options=handler), CAUTIOUS)
    assert spec.timeout_policy == "HANDLER"
    assert spec.timeout_handler is not None
    assert spec.timeout_handler.method.timeout == 180.0
    assert spec_of(SubFlowOptions(timeout=HOUR)).timeout_policy == "FAIL"


def test_conditions_of_combinations_may_be_subflows() -> None:
    first = SubFlow.run(CHILD, "1", SubFlowOptions(condition_id="a"))
    second = SubFlow.run(CHILD, "2", SubFlowOptions(condition_id="b"))
    Ask.conditions = staticmethod(
        lambda: Wait.any_combination_of(ConditionCombination.of(first, second), ConditionCombination.of(second))
    )
    wait = waited(REGISTRY, task_for("Parent", "Ask", method="wait_for")).wait
    assert wait.combinations == ((0, 1), (1,))
    assert [value_of(one.subflow.input) for one in wait.conditions if one.subflow is not None] == ["1", "2"]


def test_large_values_for_a_subflow_are_put_aside() -> None:
    large = "x" * (BLOB_THRESHOLD + 1)
    options = SubFlowOptions().with_attribute(note, large)
    result = asked(SubFlow.run(CHILD, large, options), SubFlow.run(CHILD, "small"))
    first, second = (one.subflow for one in result.wait.conditions)
    assert first is not None
    assert second is not None
    for reference in (first.input, first.attributes["note"]):
        assert reference_of(reference) in result.blobs
        assert value_of(attach(reference, result.blobs)) == large
    assert value_of(second.input) == "small"


# What can't be asked for ----------------------------------------------------------------------------------------------


def test_a_flow_that_is_not_registered_is_refused() -> None:
    detail = refused(SubFlow.run(Child(), "in"))
    assert "SubFlow 0: Flow instance is not registered: Child" in detail


def test_a_flow_without_a_start_step_is_refused() -> None:
    assert "SubFlow 1 (Flow 'Store'): it has no start Step" in refused(
        SubFlow.run(CHILD, "in"), SubFlow.run(STORE, None)
    )


@pytest.mark.statement("B10", "B11", "B17", "B22", "B25")
@pytest.mark.parametrize(
    ("options", "reason"),
    [
        (SubFlowOptions(retry_policy=RetryPolicy(maximum_attempts=2)), "a Flow has no RetryPolicy"),
        (SubFlowOptions(start_delay=HOUR), "a start has no delay"),
        (SubFlowOptions(start_delay=timedelta(seconds=-1)), "must not be negative"),
        (SubFlowOptions(timeout_policy=FlowTimeoutPolicy.FAIL), "requires a positive timeout"),
        (SubFlowOptions(timeout=HOUR, timeout_policy=FlowTimeoutPolicy.HANDLER), "no handle_timeout override"),
        (SubFlowOptions(timeout=HOUR, timeout_handler_options=FlowTimeoutHandlerOptions()), "need the timeout policy"),
        (SubFlowOptions().with_attribute(Attribute("other", int), 1), "Attribute 'other' is not registered"),
        (SubFlowOptions(reuse_policy="ATTACH"), "reuse_policy takes a SubFlowReusePolicy"),  # type: ignore[arg-type]
        ("soon", "takes SubFlowOptions, got str"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_options_that_no_start_takes_fail_the_attempt_and_say_why(options: Any, reason: str) -> None:
    condition = SubFlow.run(CHILD, "in")
    object.__setattr__(condition, "options", options)
    assert reason in refused(condition)


@pytest.mark.statement("B11")
def test_a_start_delay_of_zero_is_accepted() -> None:
    assert spec_of(SubFlowOptions(start_delay=timedelta())).flow_type == "Child"


def test_an_input_that_the_subflow_does_not_take_is_refused() -> None:
    failure = failed(REGISTRY, asking(SubFlow.run(CHILD, 5)))  # type: ignore[misc]
    assert "input of SubFlow 'Child'" in failure.detail


def test_subflows_within_subflows_end_where_flow_ids_get_too_long() -> None:
    Ask.conditions = staticmethod(lambda: (SubFlow.run(CHILD, "in"),))
    task = task_for("Parent", "Ask", method="wait_for")
    deep = "x" * 990
    for name, is_fine in ((deep[:984], True), (deep[:985], False)):
        key = type(task.key)(name, "run", "Ask-1", "wait_for", 1)
        result_task = type(task)(**{**{f: getattr(task, f) for f in task.__struct_fields__}, "key": key})
        if is_fine:
            assert waited(REGISTRY, result_task).wait.conditions
        else:
            assert "would have 1001 characters" in failed(REGISTRY, result_task).detail


# What execute reads ---------------------------------------------------------------------------------------------------


@pytest.mark.statement("B95")
def test_execute_reads_the_one_output_and_the_flow_id() -> None:
    def use(context: Context) -> str:
        output = SubFlow.get_condition_results(context).single_output(int)
        return f"{SubFlow.get_flow_id(context)}|{output}"

    assert read(use, ended("COMPLETED", payload(7))) == "SubFlow:flow-Ask-1-0|7"


@pytest.mark.statement("B87", "B96")
def test_subflows_are_counted_among_themselves_in_order_of_declaration() -> None:
    results = (
        ended("COMPLETED", payload(1), number=0),
        ConditionResult("timer", fired=True),
        ended("COMPLETED", payload(2), number=1),
    )
    assert read(lambda context: SubFlow.get_condition_results(context, 1).single_output(int), *results) == 2
    assert read(lambda context: SubFlow.get_flow_id(context, 1), *results) == "SubFlow:flow-Ask-1-1"


@pytest.mark.statement("B95")
def test_a_failed_subflow_is_read_not_raised() -> None:
    seen: list[FlowResult] = []
    result = ended("FAILED", subflow_error_type="STEP_DECISION_FAILED", subflow_error_message="no stock")
    read(lambda context: seen.append(SubFlow.get_condition_results(context)), result)
    assert (seen[0].status, seen[0].error_type, seen[0].error_message) == (
        FlowStatus.FAILED,
        FlowErrorType.STEP_DECISION_FAILED,
        "no stock",
    )
    assert seen[0].is_terminal


# C5
def test_a_subflow_that_has_not_ended_is_a_running_snapshot_without_an_output() -> None:
    assert not read(lambda context: SubFlow.get_condition_results(context).is_terminal, ended("RUNNING"))
    assert "no output yet: it is RUNNING" in refusal(
        lambda context: SubFlow.get_condition_results(context).single_output(str), ended("RUNNING")
    )
    assert read(SubFlow.get_flow_id, ended("RUNNING")) == "SubFlow:flow-Ask-1-0"


def test_a_large_output_is_read_from_what_came_with_the_attempt() -> None:
    from dex.values import detach

    blobs: dict[str, bytes] = {}
    reference = detach(payload("y" * (BLOB_THRESHOLD + 1)), blobs)

    def use(context: Context) -> int:
        return len(SubFlow.get_condition_results(context).single_output(str))

    assert read(use, ended("COMPLETED", reference), blobs=blobs) == BLOB_THRESHOLD + 1


@pytest.mark.parametrize("index", [1, -1])
def test_a_subflow_that_the_wait_did_not_have_is_refused(index: int) -> None:
    for use in (SubFlow.get_condition_results, SubFlow.get_flow_id):
        assert f"there is no SubFlow {index}" in refusal(lambda context, use=use: use(context, index), ended())
    assert "its wait had no SubFlow" in refusal(SubFlow.get_flow_id)


def test_results_are_there_in_execute_alone() -> None:
    def conditions() -> Any:
        raise AssertionError("not asked for")

    Ask.conditions = staticmethod(conditions)
    seen: list[str] = []

    class Early(Step[None]):
        def wait_for(self, context: Context, input: None) -> Wait:
            for use in (SubFlow.get_condition_results, SubFlow.get_flow_id):
                with pytest.raises(ValueError, match="in execute only"):
                    use(context)
                seen.append(use.__name__)
            return Wait.skip_immediately()

        def execute(self, context: Context, input: None) -> StepDecision:
            return dead_end()

    class Hasty(Flow[None]):
        def get_steps(self) -> StepList[None]:
            return StepList.start_step(Early())

    waited(Registry([Hasty()]), task_for("Hasty", "Early", method="wait_for"))
    assert len(seen) == 2
    with pytest.raises(TypeError, match="expected the Context"):
        SubFlow.get_flow_id("flow")  # type: ignore[arg-type]
