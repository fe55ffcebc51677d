"""Parents and children of different owners, either of which may end at any moment; and the start of a child, to the
letter of its reuse policy.
"""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from dex import (
    AsyncClient,
    Context,
    Flow,
    IdReusePolicy,
    Registry,
    Step,
    StepDecision,
    StepList,
    SubFlow,
    Timer,
    Wait,
    go_to,
    graceful_complete,
)
from dex.wire import service as s
from dex.wire.service import AnswerT, Request, ServiceError, StartFlow
from dexray.engine import NotMine
from dexray.engine.starting import subflow_policy
from dexray.journal import open_journal
from dexray.testing import InProcessEngine, VirtualClock, run_virtual
from tests.engine.rig import NIL, Machine, Rig, done, failed, settle, virtual
from tests.machine.build import flow, step
from tests.machine.build import graceful_complete as complete

# Two owners -----------------------------------------------------------------------------------------------------------


class Square(Step[int]):
    def execute(self, context: Context, input: int) -> StepDecision:
        return graceful_complete(input * input)


class Squaring(Flow[int]):
    def get_steps(self) -> StepList[int]:
        return StepList.start_step(Square())


class Sum(Step[tuple[int, int]]):
    """Adds up the squares from n down to 1; two children at a time."""

    def wait_for(self, context: Context, input: tuple[int, int]) -> Wait:
        number, _ = input
        return Wait.all_of(SubFlow.run(SQUARING, number), SubFlow.run(SQUARING, number - 1))

    def execute(self, context: Context, input: tuple[int, int]) -> StepDecision:
        number, total = input
        total += sum(SubFlow.get_condition_results(context, which).single_output(int) for which in (0, 1))
        return go_to(Sum, (number - 2, total)) if number > 2 else graceful_complete(total)


class Summing(Flow[tuple[int, int]]):
    def get_steps(self) -> StepList[tuple[int, int]]:
        return StepList.start_step(Sum())


class Nap(Step[int]):
    def wait_for(self, context: Context, input: int) -> Wait:
        return Wait.until(Timer.by_duration(timedelta(hours=input)))

    def execute(self, context: Context, input: int) -> StepDecision:
        return graceful_complete("rested")


class Napping(Flow[int]):
    def get_steps(self) -> StepList[int]:
        return StepList.start_step(Nap())


class Watch(Step[int]):
    def wait_for(self, context: Context, input: int) -> Wait:
        return Wait.until(SubFlow.run(NAPPING, input))

    def execute(self, context: Context, input: int) -> StepDecision:
        return graceful_complete(SubFlow.get_condition_results(context).single_output(str))


class Watching(Flow[int]):
    def get_steps(self) -> StepList[int]:
        return StepList.start_step(Watch())


SQUARING, SUMMING, NAPPING, WATCHING = Squaring(), Summing(), Napping(), Watching()
REGISTRY = Registry([SQUARING, SUMMING, NAPPING, WATCHING])
EXPECTED = sum(number * number for number in range(1, 7))


class Pair:
    """Two engines on one database. New children go to B, whoever asks; for other Flows B is asked, and says who."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.clock = VirtualClock()
        self.engines: dict[str, InProcessEngine] = {}
        self.lost = 0  # so many of the next answers get lost on their way
        self.calls: list[str] = []
        self.starts: dict[str, list[bool]] = {}  # of each child: whether the request said that it was fresh

    async def begin(self, name: str) -> None:
        journal = open_journal(self.path)
        journal.migrate()
        engine = InProcessEngine(REGISTRY, journal, self.clock, owner=name, router=self)
        self.engines[name] = engine
        await engine.start()

    async def crash(self, name: str) -> None:
        engine = self.engines.pop(name)
        await engine.crash()
        engine.host.journal.close()

    async def call(self, request: Request[AnswerT]) -> AnswerT:
        self.calls.append(f"{request.operation} {request.flow_id}")
        if isinstance(request, StartFlow) and request.parent:
            self.starts.setdefault(request.flow_id, []).append(request.fresh)
        await asyncio.sleep(0)
        owner = "a" if isinstance(request, StartFlow) and not request.parent else "b"
        for _ in range(3):
            engine = self.engines.get(owner)
            if engine is None:
                raise ServiceError("UNAVAILABLE", f"owner {owner} is away")
            try:
                answer = await engine.call(request)
            except NotMine as elsewhere:
                owner = elsewhere.owner
                continue
            if self.lost:
                self.lost -= 1
                raise ServiceError("UNAVAILABLE", "the answer was lost")
            return answer
        raise ServiceError("UNAVAILABLE", "the Flow is changing its owner")

    async def close(self) -> None:
        for name in list(self.engines):
            await self.crash(name)

    async def check(self) -> None:
        """The parent has the right output, and each of its six children ran once."""
        client = AsyncClient(REGISTRY, self)
        result = await client.wait_for_flow("p")
        assert result.single_output(int) == EXPECTED
        ended = [event async for event in client.history("p") if event.kind == "SubFlowEnded"]
        assert len(ended) == 6
        for event in ended:
            described = await client.describe(event.data["flow_id"])
            assert (described.run_id, described.owner) == (event.data["run_id"], "b")
        assert len((await client.list_flows(page_size=100)).flows) == 7


async def start_parent(pair: Pair) -> None:
    await pair.begin("a")
    await pair.begin("b")
    await AsyncClient(REGISTRY, pair).start_flow(SUMMING, "p", (6, 0))


async def some_turns(count: int) -> None:
    for _ in range(count):
        await asyncio.sleep(0)


def in_pair(test: Callable[[Pair], Any], path: Path) -> None:
    async def main() -> None:
        pair = Pair(path / "flows.db")
        try:
            await test(pair)
        finally:
            await pair.close()

    run_virtual(main())


@pytest.mark.statement("B82")
def test_a_child_may_belong_to_another_owner_than_its_parent(tmp_path: Path) -> None:
    async def test(pair: Pair) -> None:
        await start_parent(pair)
        await pair.check()

    in_pair(test, tmp_path)


@pytest.mark.statement("B157", "B202")
@pytest.mark.parametrize("who", ["a", "b"])
@pytest.mark.parametrize("turns", range(0, 48, 2))
def test_either_owner_may_crash_at_any_moment(who: str, turns: int, tmp_path: Path) -> None:
    async def test(pair: Pair) -> None:
        await start_parent(pair)
        for more in (turns, turns // 3):
            await some_turns(more)
            await pair.crash(who)
            await some_turns(more)
            await pair.begin(who)
        await pair.check()

    in_pair(test, tmp_path)


@pytest.mark.parametrize("turns", range(0, 48, 5))
def test_a_childs_owner_that_is_away_for_an_hour_only_delays_the_parent(turns: int, tmp_path: Path) -> None:
    async def test(pair: Pair) -> None:
        await start_parent(pair)
        await some_turns(turns)
        await pair.crash("b")
        await asyncio.sleep(3600)
        await pair.begin("b")
        await pair.check()

    in_pair(test, tmp_path)


def test_answers_that_get_lost_start_no_child_twice(tmp_path: Path) -> None:
    async def test(pair: Pair) -> None:
        await pair.begin("a")
        await pair.begin("b")
        client = AsyncClient(REGISTRY, pair)
        await client.start_flow(SUMMING, "p", (6, 0))
        pair.lost = 7
        await asyncio.sleep(60)
        assert pair.lost == 0
        assert all(fresh == [True] + [False] * (len(fresh) - 1) for fresh in pair.starts.values())
        assert max(len(fresh) for fresh in pair.starts.values()) > 1
        await pair.check()

    in_pair(test, tmp_path)


def test_a_child_that_takes_hours_elsewhere_is_polled_once_a_minute_and_no_trouble(tmp_path: Path) -> None:
    async def test(pair: Pair) -> None:
        await pair.begin("a")
        await pair.begin("b")
        client = AsyncClient(REGISTRY, pair)
        await client.start_flow(WATCHING, "p", 3)
        await asyncio.sleep(2 * 3600)
        (waiting,) = (await client.describe("p")).steps
        assert waiting.waits_for == "SubFlow SubFlow:p-Watch-1-0 of type Napping"
        await asyncio.sleep(3600)
        assert 170 < pair.calls.count("wait_for_flow SubFlow:p-Watch-1-0") < 190
        assert (await client.wait_for_flow("p")).single_output(str) == "rested"

    in_pair(test, tmp_path)


def test_a_parent_says_why_its_child_can_not_be_reached(tmp_path: Path) -> None:
    async def test(pair: Pair) -> None:
        await pair.begin("a")
        await AsyncClient(REGISTRY, pair).start_flow(SUMMING, "p", (6, 0))
        await asyncio.sleep(600)
        described = await pair.engines["a"].call(s.DescribeFlow(flow_id="p"))
        (waiting,) = described.steps
        assert waiting.waits_for.endswith(": SubFlow SubFlow:p-Sum-1-0: owner b is away, and 1 more")
        tries = len(pair.calls)
        await asyncio.sleep(600)
        assert 100 < len(pair.calls) - tries < 300, "two children, looked for every five seconds"
        await pair.begin("b")
        await pair.check()

    in_pair(test, tmp_path)


def test_a_child_in_the_memory_of_the_same_owner_is_listened_to_without_a_poll(tmp_path: Path) -> None:
    async def test() -> None:
        journal = open_journal(tmp_path / "flows.db")
        journal.migrate()
        engine = InProcessEngine(REGISTRY, journal, VirtualClock())
        await engine.start()
        polls: list[Any] = []
        call = engine.host.call

        async def count(request: Any) -> Any:
            polls.append(request.operation)
            return await call(request)

        engine.host.call = count  # type: ignore[method-assign]
        await AsyncClient(REGISTRY, engine).start_flow(SUMMING, "p", (6, 0))
        await call(s.WaitForFlow(flow_id="p"))
        assert polls.count("start_flow") == 7
        assert "wait_for_flow" not in polls
        await engine.crash()
        journal.close()

    run_virtual(test())


# The start of a child -------------------------------------------------------------------------------------------------

POLICIES = ("ATTACH", "RESTART_IF_PREVIOUS_EXITS_ABNORMALLY", "ALWAYS_RESTART")
ENDS = ("none", "RUNNING", "COMPLETED", "FAILED", "CANCELED", "TERMINATED")
TABLE = {
    "ATTACH": ("start", "attach", "attach", "attach", "attach", "attach"),
    "RESTART_IF_PREVIOUS_EXITS_ABNORMALLY": ("start", "attach", "attach", "start", "start", "start"),
    "ALWAYS_RESTART": ("start", "terminate", "start", "start", "start", "start"),
}
STOPS = {"FAILED": "FAIL", "CANCELED": "CANCEL", "TERMINATED": "TERMINATE"}
DEMO = flow(step("First"))


async def start_child(machine: Machine, policy: str, request_id: str, **more: Any) -> str:
    """The run that such a start gets."""
    return await machine.start("c", request_id=request_id, id_reuse_policy=subflow_policy(policy), **more)


async def child_that(rig: Rig, status: str) -> tuple[Machine, str]:
    """A host with a child of this status, started under the request id `before`; and the id of its run."""
    machine = await rig.host(DEMO)
    if status == "none":
        return machine, ""
    run_id = await start_child(machine, "ATTACH", "before")
    await settle()
    if status == "COMPLETED":
        machine.port.finish(machine.port.only("First"), done(complete(NIL)))
        await machine.result("c")
    elif status in STOPS:
        key = machine.port.only("First")
        await machine.stop("c", STOPS[status])
        machine.port.finish(key, failed())
    return machine, run_id


# C54
@pytest.mark.parametrize("fresh", [True, False], ids=["fresh", "perhaps before"])
@pytest.mark.parametrize(("policy", "status"), [*itertools.product(POLICIES, ENDS)])
@virtual
async def test_a_start_under_another_request_id_goes_by_the_table(
    rig: Rig, policy: str, status: str, fresh: bool
) -> None:
    expected = TABLE[policy][ENDS.index(status)]
    machine, before = await child_that(rig, status)
    run_id = await start_child(machine, policy, "now", fresh=fresh)
    assert (run_id == before) == (expected == "attach")
    runs = {name: (ended, is_current) for name, ended, is_current in rig.runs("c")}
    assert runs[run_id] == (status if expected == "attach" else "RUNNING", True)
    if expected == "terminate":
        assert runs[before] == ("TERMINATED", False)
    elif expected == "start" and before:
        assert runs[before] == (status, False)
    await end_all(machine)


async def end_all(machine: Machine) -> None:
    await settle()
    for key in list(machine.port.out):
        machine.port.finish(key, done(complete()))


# C54
@pytest.mark.parametrize(("policy", "status"), [*itertools.product(POLICIES, ENDS[1:])])
@virtual
async def test_a_start_under_the_same_request_id_always_gets_the_run_that_it_got_before(
    rig: Rig, policy: str, status: str
) -> None:
    machine, before = await child_that(rig, status)
    for fresh in (True, False):
        assert await start_child(machine, policy, "before", fresh=fresh) == before
    assert [run_id for run_id, _, _ in rig.runs("c")] == [before]


# C54
@virtual
async def test_what_a_start_was_attached_to_it_is_attached_to_for_good(rig: Rig) -> None:
    """The child fails between the first try and the second. The second is no new wish: it takes the result."""
    machine, before = await child_that(rig, "RUNNING")
    policy = "RESTART_IF_PREVIOUS_EXITS_ABNORMALLY"
    assert await start_child(machine, policy, "now") == before
    await machine.stop("c", "FAIL")
    await machine.crash()
    machine = await rig.host(DEMO)
    assert await start_child(machine, policy, "now") == before
    assert await start_child(machine, policy, "later") != before


@virtual
async def test_to_be_attached_to_adds_nothing_to_the_history_of_a_child(rig: Rig) -> None:
    machine, before = await child_that(rig, "CANCELED")
    events = rig.events(before)
    assert await start_child(machine, "ATTACH", "now") == before
    assert rig.events(before) == events
    assert (await machine.describe("c")).status == "CANCELED"


@virtual
async def test_a_child_that_is_there_is_attached_to_without_its_code(rig: Rig) -> None:
    machine, before = await child_that(rig, "CANCELED")
    del machine.host.specs["Demo"]
    assert await start_child(machine, "ATTACH", "now") == before
    for policy in POLICIES[1:]:
        with pytest.raises(ServiceError, match="not deployed"):
            await start_child(machine, policy, "other")
    assert [run_id for run_id, _, _ in rig.runs("c")] == [before]


@virtual
async def test_a_child_is_not_terminated_for_one_that_can_not_be_started(rig: Rig) -> None:
    machine, before = await child_that(rig, "RUNNING")
    del machine.host.specs["Demo"]
    with pytest.raises(ServiceError, match="not deployed"):
        await start_child(machine, "ALWAYS_RESTART", "now")
    assert rig.runs("c") == [(before, "RUNNING", True)]


def test_no_client_can_name_these_policies() -> None:
    assert not {policy.name for policy in IdReusePolicy} & {subflow_policy(policy) for policy in POLICIES}
