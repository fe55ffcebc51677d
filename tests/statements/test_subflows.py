"""SubFlows: Flows that a Step starts and waits for."""

from __future__ import annotations

import asyncio
import sqlite3
from contextlib import closing
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from dex import (
    Attribute,
    Channel,
    ConditionCombination,
    Context,
    Flow,
    FlowErrorType,
    FlowNotFoundError,
    FlowStatus,
    FlowTimeoutPolicy,
    IdReusePolicy,
    PersistenceSchema,
    StartFlowOptions,
    Step,
    StepDecision,
    StepExecutionId,
    StepList,
    StepMovement,
    StopFlowOptions,
    StopType,
    SubFlow,
    SubFlowOptions,
    SubFlowReusePolicy,
    Timer,
    TimeTravelOptions,
    TimeTravelStepMethod,
    TimeTravelType,
    Wait,
    dead_end,
    force_complete,
    force_fail,
    go_to,
    go_to_many,
    graceful_complete,
)
from dex.values import BLOB_THRESHOLD
from dex.wait import Condition
from tests.statements.kit import Made, events
from tests.world import InProcessWorld, World, scenario

go = Channel("go", str)
stop = Channel("stop", str)
note = Attribute("note", str)


def seconds(count: float) -> Condition:
    return Timer.by_duration(timedelta(seconds=count))


# Children -------------------------------------------------------------------------------------------------------------


class Double(Step[int]):
    def execute(self, context: Context, input: int) -> StepDecision:
        if input < 0:
            return force_fail(f"{input} is negative")
        return graceful_complete(input * 2)


class Doubling(Flow[int]):
    def get_steps(self) -> StepList[int]:
        return StepList.start_step(Double())


class Hold(Step[str]):
    """Until a message comes, which is its output."""

    def wait_for(self, context: Context, input: str) -> Wait:
        return Wait.until(go.for_one())

    def execute(self, context: Context, input: str) -> StepDecision:
        (message,) = go.results(context)
        return graceful_complete(f"{input} {message} {note.get(context)}")


class Holding(Flow[str]):
    def get_steps(self) -> StepList[str]:
        return StepList.start_step(Hold())

    def get_persistence_schema(self) -> PersistenceSchema:
        return PersistenceSchema.of(go, note)


DOUBLING, HOLDING = Doubling(), Holding()


# Parents --------------------------------------------------------------------------------------------------------------


class Report(Step[Any]):
    """What its wait gave: of each SubFlow its id, its status, and its output or its error."""

    count = 1

    def execute(self, context: Context, input: Any) -> StepDecision:
        return graceful_complete(self.report(context))

    def report(self, context: Context) -> list[list[str]]:
        found = []
        for index in range(self.count):
            result = SubFlow.get_condition_results(context, index)
            last = str(result.single_output(Any)) if result.status is FlowStatus.COMPLETED else result.error_message
            found.append([SubFlow.get_flow_id(context, index), result.status.name, last])
        return found


class Ask(Report):
    """Waits for one Doubling."""

    def wait_for(self, context: Context, input: Any) -> Wait:
        return Wait.until(SubFlow.run(DOUBLING, input))


class AskHolding(Report):
    options: SubFlowOptions | None = None

    def wait_for(self, context: Context, input: Any) -> Wait:
        return Wait.until(SubFlow.run(HOLDING, "held", self.options))


def child_of(world: World, name: str, step: str = "Ask-1", number: int = 0) -> str:
    return f"SubFlow:{world.id(name)}-{step}-{number}"


async def status_of(world: World, flow_id: str) -> str:
    try:
        return (await world.client.describe(flow_id)).status
    except FlowNotFoundError:
        return "none"


async def until_child(world: World, flow_id: str, status: str = "RUNNING") -> None:
    async def there() -> bool:
        return await status_of(world, flow_id) == status

    await world.until(there)


async def until_listed(world: World, name: str, status: str = "COMPLETED") -> None:
    """Asks the database alone: the Flow is not put to its owner, which would take it into memory."""

    async def there() -> bool:
        flows = (await world.client.list_flows(page_size=1000)).flows
        return any((flow.flow_id, flow.status.name) == (world.id(name), status) for flow in flows)

    await world.until(there)


# Waiting for a child --------------------------------------------------------------------------------------------------


@pytest.mark.statement("B82", "B87", "B95")
@scenario(ray=True)
async def test_a_step_reads_the_output_and_the_id_of_the_flow_it_waited_for(world: World) -> None:
    parent = Made(Ask())
    await world.deploy(parent, DOUBLING)
    await world.start(parent, "p", 21)
    child = child_of(world, "p")
    assert (await world.result("p")).single_output(list) == [[child, "COMPLETED", "42"]]
    assert (await world.client.wait_for_flow(child)).single_output(int) == 42


@pytest.mark.statement("B95")
@scenario(ray=True)
async def test_the_failure_of_a_child_does_not_fail_the_parents_wait(world: World) -> None:
    parent = Made(Ask())
    await world.deploy(parent, DOUBLING)
    await world.start(parent, "p", -1)
    result = await world.result("p")
    assert result.status is FlowStatus.COMPLETED
    assert result.single_output(list) == [[child_of(world, "p"), "FAILED", "-1 is negative"]]


@pytest.mark.parametrize(
    ("how", "status"),
    [(StopType.CANCEL, "CANCELED"), (StopType.TERMINATE, "TERMINATED"), (StopType.FAIL, "FAILED")],
)
@scenario()
async def test_a_child_that_is_stopped_has_ended(world: World, how: StopType, status: str) -> None:
    parent = Made(AskHolding())
    await world.deploy(parent, HOLDING)
    await world.start(parent, "p")
    child = child_of(world, "p", "AskHolding-1")
    await until_child(world, child)
    await world.client.stop_flow(child, StopFlowOptions(type=how, reason="enough"))
    assert (await world.result("p")).single_output(list) == [[child, status, "enough"]]


class Both(Report):
    count = 2

    def wait_for(self, context: Context, input: Any) -> Wait:
        return Wait.all_of(SubFlow.run(DOUBLING, input), go.for_one(), SubFlow.run(DOUBLING, -input), seconds(1))

    def execute(self, context: Context, input: Any) -> StepDecision:
        assert context.has_timer_fired()
        assert list(go.results(context)) == ["x"]
        return super().execute(context, input)


@pytest.mark.statement("B83", "B84", "B96")
@scenario(ray=True)
async def test_all_of_gives_the_results_of_all_its_subflows_and_other_conditions(world: World) -> None:
    parent = Made(Both(), has=[go])
    await world.deploy(parent, DOUBLING)
    await world.start(parent, "p", 4)
    await world.publish("p", go, "x")
    assert (await world.result("p")).single_output(list) == [
        [child_of(world, "p", "Both-1", 0), "COMPLETED", "8"],
        [child_of(world, "p", "Both-1", 1), "FAILED", "-4 is negative"],
    ]


class Grouped(Report):
    count = 3

    def wait_for(self, context: Context, input: Any) -> Wait:
        held = SubFlow.run(HOLDING, "held", SubFlowOptions(condition_id="held"))
        one = SubFlow.run(DOUBLING, 1, SubFlowOptions(condition_id="one"))
        two = SubFlow.run(DOUBLING, 2, SubFlowOptions(condition_id="two"))
        return Wait.any_combination_of(ConditionCombination.of(held, one), ConditionCombination.of(one, two))


@pytest.mark.statement("B97")
@scenario()
async def test_any_combination_of_is_met_by_a_group_of_subflows_that_have_all_ended(world: World) -> None:
    parent = Made(Grouped())
    await world.deploy(parent, DOUBLING, HOLDING)
    await world.start(parent, "p")
    assert [line[1:] for line in (await world.result("p")).single_output(list)] == [
        ["RUNNING", ""],
        ["COMPLETED", "2"],
        ["COMPLETED", "4"],
    ]


class Fan(Step[int]):
    def wait_for(self, context: Context, input: int) -> Wait:
        return Wait.all_of(*(SubFlow.run(DOUBLING, number) for number in range(input)))

    def execute(self, context: Context, input: int) -> StepDecision:
        outputs = [SubFlow.get_condition_results(context, number).single_output(int) for number in range(input)]
        ids = {SubFlow.get_flow_id(context, number) for number in range(input)}
        return graceful_complete([outputs == [2 * number for number in range(input)], len(ids)])


@pytest.mark.statement("B96")
@scenario()
async def test_one_parent_waits_for_a_thousand_children(world: World) -> None:
    parent = Made(Fan())
    await world.deploy(parent, DOUBLING)
    await world.start(parent, "p", 1000)
    assert (await world.result("p")).single_output(list) == [True, 1000]


@scenario(ray=True, in_process=False)
async def test_one_parent_waits_for_fifty_children_on_ray(world: World) -> None:
    parent = Made(Fan())
    await world.deploy(parent, DOUBLING)
    await world.start(parent, "p", 50)
    assert (await world.result("p")).single_output(list) == [True, 50]


class Factorial(Step[int]):
    """n! by SubFlows of its own Flow."""

    def wait_for(self, context: Context, input: int) -> Wait:
        if input <= 1:
            return Wait.skip_immediately()
        return Wait.until(SubFlow.run(FACTORIALS, input - 1))

    def execute(self, context: Context, input: int) -> StepDecision:
        below = SubFlow.get_condition_results(context).single_output(int) if input > 1 else 1
        return graceful_complete(input * below)


class Factorials(Flow[int]):
    def get_steps(self) -> StepList[int]:
        return StepList.start_step(Factorial())


FACTORIALS = Factorials()


@pytest.mark.statement("B82", "B86")
@scenario()
async def test_a_flow_may_be_its_own_subflow(world: World) -> None:
    await world.deploy(FACTORIALS)
    await world.start(FACTORIALS, "f", 20)
    assert (await world.result("f")).single_output(int) == 2432902008176640000


@scenario()
async def test_a_parent_gives_its_place_to_its_child(world: World) -> None:
    """Where one Flow at a time may have work under way, a chain of parents does not block itself."""
    await world.deploy(FACTORIALS, active_flows=1, slots=1)
    await world.start(FACTORIALS, "f", 8)
    assert (await world.result("f")).single_output(int) == 40320


@scenario()
async def test_parents_that_wait_for_children_are_not_put_out_of_memory(world: World) -> None:
    await world.deploy(FACTORIALS, idle_flows=1)
    for number in range(5):
        await world.start(FACTORIALS, f"f{number}", 6)
    for number in range(5):
        await until_listed(world, f"f{number}")
        assert (await world.result(f"f{number}")).single_output(int) == 720


# Races ----------------------------------------------------------------------------------------------------------------


class Race(Report):
    """A child against a Timer or a message."""

    def wait_for(self, context: Context, input: Any) -> Wait:
        return Wait.any_of(SubFlow.run(HOLDING, "held"), go.for_one(), seconds(input))


# C5, C14
@pytest.mark.statement("B88", "B95")
@scenario(ray=True)
async def test_a_child_that_lost_a_race_runs_on_until_somebody_stops_it(world: World) -> None:
    parent = Made(Race(), has=[go])
    await world.deploy(parent, HOLDING)
    await world.start(parent, "p", 1000)
    child = child_of(world, "p", "Race-1")
    await until_child(world, child)
    await world.publish("p", go, "first")
    assert (await world.result("p")).single_output(list) == [[child, "RUNNING", ""]]
    assert await status_of(world, child) == "RUNNING"
    await world.client.stop_flow(child)
    assert (await world.client.wait_for_flow(child)).status is FlowStatus.CANCELED


@scenario()
async def test_a_child_is_started_although_another_condition_is_met_at_the_commit_of_the_wait(world: World) -> None:
    parent = Made(Race(), has=[go])
    await world.deploy(parent, HOLDING)
    await world.start(parent, "p", 0)
    child = child_of(world, "p", "Race-1")
    assert (await world.result("p")).single_output(list) == [[child, "RUNNING", ""]]
    await until_child(world, child)
    await world.client.publish(child, go, "late")
    assert (await world.client.wait_for_flow(child)).single_output(str) == "held late None"


class StopLoser(Step[None]):
    def wait_for(self, context: Context, input: None) -> Wait:
        return Wait.any_of(SubFlow.run(HOLDING, "held"), SubFlow.run(DOUBLING, 1))

    def execute(self, context: Context, input: None) -> StepDecision:
        loser, winner = (SubFlow.get_condition_results(context, number) for number in (0, 1))
        with pytest.raises(ValueError, match="it is RUNNING"):
            loser.single_output(str)
        assert not loser.is_terminal
        return graceful_complete([SubFlow.get_flow_id(context, 0), str(winner.single_output(int))])


@pytest.mark.statement("B83", "B95")
@scenario()
async def test_of_two_racing_children_the_first_to_end_wins(world: World) -> None:
    parent = Made(StopLoser())
    await world.deploy(parent, DOUBLING, HOLDING)
    await world.start(parent, "p")
    loser, output = (await world.result("p")).single_output(list)
    assert output == "2"
    assert await status_of(world, loser) == "RUNNING"


class Fork(Step[None]):
    def execute(self, context: Context, input: None) -> StepDecision:
        return go_to_many(StepMovement.of(AskHolding, None), StepMovement.of(Boss, None))


class Boss(Step[None]):
    decision = staticmethod(dead_end)

    def wait_for(self, context: Context, input: None) -> Wait:
        return Wait.until(stop.for_one())

    def execute(self, context: Context, input: None) -> StepDecision:
        return self.decision()


class Canceling(Boss):
    def get_step_type(self) -> str:
        return "Boss"

    decision = staticmethod(lambda: graceful_complete("cancelled").with_canceling_steps(AskHolding))


class Completing(Canceling):
    decision = staticmethod(lambda: force_complete("closed"))


# C14
@pytest.mark.parametrize("boss", [Canceling, Completing], ids=["cancelled", "closed"])
@scenario()
async def test_a_child_outlives_the_step_and_the_flow_that_started_it(world: World, boss: type[Canceling]) -> None:
    class Split(Fork):
        def get_step_type(self) -> str:
            return "Fork"

        def execute(self, context: Context, input: None) -> StepDecision:
            return go_to_many(StepMovement.of(AskHolding, None), StepMovement.of(boss, None))

    parent = Made(Split(), AskHolding(), boss(), has=[stop])
    await world.deploy(parent, HOLDING)
    await world.start(parent, "p")
    child = child_of(world, "p", "AskHolding-1")
    await until_child(world, child)
    await world.publish("p", stop, "x")
    assert (await world.result("p")).status is FlowStatus.COMPLETED
    await world.advance(120)
    assert await status_of(world, child) == "RUNNING"
    assert isinstance(world, InProcessWorld)
    assert world.engine is not None
    assert not [task for task in world.engine.host._tasks if not task.done()], "somebody still listens to the child"
    await world.client.publish(child, go, "end")
    assert (await world.client.wait_for_flow(child)).status is FlowStatus.COMPLETED


# Options --------------------------------------------------------------------------------------------------------------


@pytest.mark.statement("B8", "B16", "B18", "B19")
@pytest.mark.parametrize(
    ("policy", "status", "error"),
    [(FlowTimeoutPolicy.DEFAULT, "FAILED", "timed out"), (FlowTimeoutPolicy.CANCEL, "CANCELED", "")],
)
@scenario()
async def test_a_subflow_has_a_timeout_of_its_own(
    world: World, policy: FlowTimeoutPolicy, status: str, error: str
) -> None:
    class Impatient(AskHolding):
        options = SubFlowOptions(timeout=timedelta(days=3), timeout_policy=policy)

    parent = Made(Impatient())
    await world.deploy(parent, HOLDING)
    began = asyncio.get_running_loop().time()
    await world.start(parent, "p")
    ((_, ended, message),) = (await world.result("p", timeout=10**6)).single_output(list)
    assert (ended, error in message) == (status, True)
    assert asyncio.get_running_loop().time() - began >= 3 * 86400


@pytest.mark.statement("B23")
@scenario()
async def test_without_a_timeout_a_parent_waits_for_its_child_for_years(world: World) -> None:
    parent = Made(AskHolding())
    await world.deploy(parent, HOLDING)
    await world.start(parent, "p")
    child = child_of(world, "p", "AskHolding-1")
    await until_child(world, child)
    await world.advance(3 * 365 * 86400)
    await world.client.publish(child, go, "at last")
    assert (await world.result("p")).single_output(list) == [[child, "COMPLETED", "held at last None"]]


@pytest.mark.statement("B8", "B13")
@scenario()
async def test_a_subflow_is_started_with_attributes(world: World) -> None:
    class Noted(AskHolding):
        options = SubFlowOptions().with_attribute(note, "from above")

    parent = Made(Noted())
    await world.deploy(parent, HOLDING)
    await world.start(parent, "p")
    child = child_of(world, "p", "Noted-1")
    await until_child(world, child)
    await world.client.publish(child, go, "x")
    assert (await world.result("p")).single_output(list) == [[child, "COMPLETED", "held x from above"]]
    started = [event async for event in world.client.history(child) if event.kind == "FlowStarted"]
    assert started[0].data["parent"] == world.id("p")


class Echo(Step[bytes]):
    def execute(self, context: Context, input: bytes) -> StepDecision:
        return graceful_complete(input[::-1])


class Echoing(Flow[bytes]):
    def get_steps(self) -> StepList[bytes]:
        return StepList.start_step(Echo())


class Large(Step[int]):
    def wait_for(self, context: Context, input: int) -> Wait:
        return Wait.until(SubFlow.run(ECHOING, bytes(input) + b"end"))

    def execute(self, context: Context, input: int) -> StepDecision:
        output = SubFlow.get_condition_results(context).single_output(bytes)
        return graceful_complete([len(output), output[:3].decode()])


ECHOING = Echoing()


@scenario(ray=True)
async def test_large_values_go_to_a_child_and_come_back(world: World) -> None:
    parent = Made(Large())
    await world.deploy(parent, ECHOING)
    await world.start(parent, "p", 10 * BLOB_THRESHOLD)
    assert (await world.result("p")).single_output(list) == [10 * BLOB_THRESHOLD + 3, "dne"]


@scenario()
async def test_large_values_are_kept_for_each_run_that_refers_to_them(world: World) -> None:
    parent = Made(Large())
    assert isinstance(world, InProcessWorld)
    await world.deploy(parent, ECHOING)
    await world.start(parent, "p", 10 * BLOB_THRESHOLD)
    await world.result("p")
    runs = {entry.flow_id: entry.run_id for entry in (await world.client.list_flows(page_size=10)).flows}
    with closing(sqlite3.connect(world.folder / "flows.db")) as database:
        kept = {
            flow_id: database.execute("SELECT count(*) FROM blob_refs WHERE run_id = ?", (run_id,)).fetchone()[0]
            for flow_id, run_id in runs.items()
        }
    assert kept == {world.id("p"): 2, child_of(world, "p", "Large-1"): 2}, "input and output, for parent and child"


# Code -----------------------------------------------------------------------------------------------------------------


@pytest.mark.statement("B23")
@scenario()
async def test_a_child_whose_code_is_not_deployed_is_waited_for_and_described(world: World) -> None:
    parent, other = Made(AskHolding()), Made(Ask(), name="Other")
    assert isinstance(world, InProcessWorld)
    await world.deploy(parent, HOLDING)
    assert world.engine is not None
    del world.engine.host.specs["Holding"]
    await world.start(parent, "p")
    child = child_of(world, "p", "AskHolding-1")
    await world.until_phase("p", "AskHolding-1", "waiting")
    await world.advance(3600)
    (waiting,) = (await world.describe("p")).steps
    assert waiting.waits_for == (
        f"SubFlow {child} of type Holding: SubFlow {child}: Flow type 'Holding' is not deployed: "
        "connect with a Registry that has it"
    )
    assert (await world.describe("p")).problem == ""
    deployed_at = asyncio.get_running_loop().time()
    await world.deploy(parent, HOLDING, other)
    await until_child(world, child)
    assert asyncio.get_running_loop().time() - deployed_at < 1, "the deployment did not wake the parent"
    await world.client.publish(child, go, "x")
    assert (await world.result("p")).status is FlowStatus.COMPLETED


@pytest.mark.statement("B24")
@scenario()
async def test_a_race_against_a_child_that_is_not_deployed_can_be_won(world: World) -> None:
    parent = Made(Race(), has=[go])
    assert isinstance(world, InProcessWorld)
    await world.deploy(parent, HOLDING)
    assert world.engine is not None
    del world.engine.host.specs["Holding"]
    await world.start(parent, "p", 10)
    ((child, status, _),) = (await world.result("p")).single_output(list)
    assert status == "RUNNING"
    await world.advance(60)
    assert await status_of(world, child) == "none"
    assert not [task for task in world.engine.host._tasks if not task.done()]


@scenario()
async def test_a_wait_for_what_cannot_be_started_fails_the_step_and_says_why(world: World) -> None:
    class Wrong(AskHolding):
        options = SubFlowOptions(start_delay=timedelta(hours=1))

    parent = Made(Wrong())
    await world.deploy(parent, HOLDING)
    await world.start(parent, "p")
    result = await world.result("p", timeout=10**6)
    assert result.error_type is FlowErrorType.WORKER_API_FAILED
    assert "a start has no delay" in result.error_message


# Entering a Step execution again --------------------------------------------------------------------------------------


async def run_twice(world: World, policy: SubFlowReusePolicy, first: str, second: str = "second") -> tuple[str, str]:
    """The outputs of two runs of a parent under one Flow ID. `first`: how its child ends in the first run, "" for not
    before the second. The child gets the message `second` when it runs still, or again."""

    class Again(AskHolding):
        options = SubFlowOptions(reuse_policy=policy)

        def wait_for(self, context: Context, input: Any) -> Wait:
            wait = super().wait_for(context, input)
            return wait if input else Wait.any_of(*wait.conditions, seconds(5))

    parent = Made(Again())
    await world.deploy(parent, HOLDING)
    again = StartFlowOptions(id_reuse_policy=IdReusePolicy.ALLOW_IF_NOT_RUNNING)
    child = child_of(world, "p", "Again-1")
    await world.start(parent, "p", False, again)
    await until_child(world, child)
    if first == "COMPLETED":
        await world.client.publish(child, go, "first")
    elif first:
        await world.client.stop_flow(child, StopFlowOptions(type=StopType[first], reason=first))
    ((_, _, before),) = (await world.result("p")).single_output(list)
    before_run = (await world.client.describe(child)).run_id
    await world.start(parent, "p", True, again)
    await world.until_phase("p", "Again-1", "waiting")
    await world.advance(1)
    if await status_of(world, child) == "RUNNING":
        await world.client.publish(child, go, second)
    ((_, status, after),) = (await world.result("p")).single_output(list)
    same = (await world.client.describe(child)).run_id == before_run
    assert before in (first, "held first None", "")
    return f"{status} {after}", "same run" if same else "another run"


# C54
@pytest.mark.parametrize(
    ("policy", "first", "expected"),
    [
        ("ATTACH", "", ("COMPLETED held second None", "same run")),
        ("ATTACH", "COMPLETED", ("COMPLETED held first None", "same run")),
        ("ATTACH", "CANCEL", ("CANCELED CANCEL", "same run")),
        ("RESTART_IF_PREVIOUS_EXITS_ABNORMALLY", "", ("COMPLETED held second None", "same run")),
        ("RESTART_IF_PREVIOUS_EXITS_ABNORMALLY", "COMPLETED", ("COMPLETED held first None", "same run")),
        ("RESTART_IF_PREVIOUS_EXITS_ABNORMALLY", "FAIL", ("COMPLETED held second None", "another run")),
        ("ALWAYS_RESTART", "", ("COMPLETED held second None", "another run")),
        ("ALWAYS_RESTART", "COMPLETED", ("COMPLETED held second None", "another run")),
        ("ALWAYS_RESTART", "TERMINATE", ("COMPLETED held second None", "another run")),
    ],
)
@scenario()
async def test_a_parent_that_runs_again_finds_its_child_by_the_reuse_policy(
    world: World, policy: str, first: str, expected: tuple[str, str]
) -> None:
    assert await run_twice(world, SubFlowReusePolicy[policy], first) == expected


@scenario()
async def test_time_travel_to_an_execute_leaves_the_children_of_its_wait_alone(world: World) -> None:
    class Loser(AskHolding):
        options = SubFlowOptions(reuse_policy=SubFlowReusePolicy.ALWAYS_RESTART)

        def wait_for(self, context: Context, input: Any) -> Wait:
            return Wait.any_of(*super().wait_for(context, input).conditions, seconds(5))

    parent = Made(Loser())
    await world.deploy(parent, HOLDING)
    await world.start(parent, "p")
    child = child_of(world, "p", "Loser-1")
    await world.result("p")
    run_id = (await world.client.describe(child)).run_id
    point = TimeTravelOptions(
        TimeTravelType.STEP_EXECUTION_ID,
        step_execution_id=StepExecutionId(Loser, 1),
        step_method=TimeTravelStepMethod.EXECUTE,
    )
    await world.client.time_travel(world.id("p"), point)
    assert (await world.result("p")).single_output(list) == [[child, "RUNNING", ""]]
    await world.advance(60)
    described = await world.client.describe(child)
    assert (described.status, described.run_id) == ("RUNNING", run_id)


@scenario()
async def test_time_travel_into_an_open_wait_goes_on_with_its_children(world: World) -> None:
    parent = Made(AskHolding())
    await world.deploy(parent, HOLDING)
    await world.start(parent, "p")
    child = child_of(world, "p", "AskHolding-1")
    await until_child(world, child)
    await world.advance(10)
    await world.client.publish(child, go, "x")
    first = await world.result("p")
    (started,) = await events(world, "p", "WaitStarted")
    point = TimeTravelOptions(
        TimeTravelType.HISTORY_EVENT_TIME, history_event_time=datetime.fromtimestamp(started.at + 1, UTC)
    )
    await world.client.time_travel(world.id("p"), point)
    assert (await world.result("p")).single_output(list) == first.single_output(list)
    assert "SubFlowEnded" in await world.kinds("p")


# Crashes --------------------------------------------------------------------------------------------------------------


@pytest.mark.statement("B157")
@scenario()
async def test_a_parent_that_waits_hears_of_its_child_after_a_restart(world: World) -> None:
    parent = Made(AskHolding())
    await world.deploy(parent, HOLDING)
    await world.start(parent, "p")
    child = child_of(world, "p", "AskHolding-1")
    await until_child(world, child)
    await world.restart()
    await world.advance(60)
    await world.client.publish(child, go, "x")
    await world.client.wait_for_flow(child)
    await world.restart()
    await until_listed(world, "p")
    assert (await world.result("p")).single_output(list) == [[child, "COMPLETED", "held x None"]]
    assert len(await events(world, "p", "SubFlowEnded")) == 1


@scenario()
async def test_a_parent_is_resumed_for_its_child_though_nobody_asks_for_either(world: World) -> None:
    parent = Made(AskHolding())
    await world.deploy(parent, HOLDING)
    await world.start(parent, "p")
    child = child_of(world, "p", "AskHolding-1")
    await until_child(world, child)
    await world.restart()
    await world.client.publish(child, go, "x")
    await until_listed(world, "p")


class Countdown(Step[int]):
    """Waits for one child after the other."""

    def wait_for(self, context: Context, input: int) -> Wait:
        return Wait.all_of(SubFlow.run(DOUBLING, input), SubFlow.run(DOUBLING, input + 100))

    def execute(self, context: Context, input: int) -> StepDecision:
        first, second = (SubFlow.get_condition_results(context, number).single_output(int) for number in (0, 1))
        assert (first, second) == (2 * input, 2 * input + 200)
        return go_to(Countdown, input - 1) if input else graceful_complete("done")


@pytest.mark.statement("B157", "B202")
@pytest.mark.parametrize("turns", range(0, 60, 3))
@scenario()
async def test_a_crash_at_any_moment_doubles_no_child_and_loses_none(world: World, turns: int) -> None:
    parent = Made(Countdown())
    await world.deploy(parent, DOUBLING)
    await world.start(parent, "p", 3)
    for _ in range(turns):
        await asyncio.sleep(0)
    await world.restart()
    for _ in range(turns // 2):
        await asyncio.sleep(0)
    await world.restart()
    assert (await world.result("p")).single_output(str) == "done"
    ended = await events(world, "p", "SubFlowEnded")
    assert len(ended) == 8
    for event in ended:
        entry = await world.client.describe(event.data["flow_id"])
        assert (entry.status, entry.run_id) == ("COMPLETED", event.data["run_id"])
    flows = (await world.client.list_flows(page_size=100)).flows
    assert len(flows) == 9
