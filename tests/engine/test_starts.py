"""Starts: request ids, reuse policies, replacement, and starts that meet."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import pytest

from dex.wire import service as s
from dex.wire.specs import FlowSpec
from tests.engine.faulty import give_up
from tests.engine.rig import NIL, Machine, Rig, by_step, code_of, done, failed, settle, virtual, wait, with_channels
from tests.machine.build import flow, force_fail, go_to, graceful_complete, one, step, until

WORK = with_channels(flow(step("A"), step("B", wait_for=True)), "news")

State = Callable[[Machine, str], Awaitable[None]]


async def still_open(host: Machine, flow_id: str) -> None:
    pass


async def completed(host: Machine, flow_id: str) -> None:
    await settle()
    (key,) = [key for key in host.port.out if key.flow_id == flow_id]
    host.port.finish(key, done(graceful_complete()))
    await host.result(flow_id)


async def failed_by_decision(host: Machine, flow_id: str) -> None:
    await settle()
    (key,) = [key for key in host.port.out if key.flow_id == flow_id]
    host.port.finish(key, done(force_fail("no")))
    await host.result(flow_id)


async def canceled(host: Machine, flow_id: str) -> None:
    await host.stop(flow_id, "CANCEL")


async def terminated(host: Machine, flow_id: str) -> None:
    await host.stop(flow_id, "TERMINATE")


STATES: list[State] = [still_open, completed, failed_by_decision, canceled, terminated]
POLICIES = ["DEFAULT", "DISALLOW", "ALLOW_IF_PREVIOUS_FAILED", "ALLOW_IF_NOT_RUNNING", "ALLOW_TERMINATE_IF_RUNNING"]


def may_start(policy: str, state: State) -> bool:
    """The table of the specification, said once more and otherwise."""
    if policy == "ALLOW_TERMINATE_IF_RUNNING":
        return True
    if policy == "ALLOW_IF_NOT_RUNNING":
        return state is not still_open
    return policy == "ALLOW_IF_PREVIOUS_FAILED" and state is failed_by_decision


@pytest.mark.statement(*(f"B{number}" for number in (*range(35, 37), *range(38, 57), 63)))
@pytest.mark.parametrize("state", STATES)
@pytest.mark.parametrize("policy", POLICIES)
@virtual
async def test_reuse_policies(rig: Rig, policy: str, state: State) -> None:
    """Every policy over every state of the current run, with the same and another request id, with the ignore flag and
    without, on the host that has the Flow in memory and on one that has to load it."""
    host = await rig.host(WORK)
    cases = [(same, ignore, fresh) for same in (True, False) for ignore in (True, False) for fresh in (True, False)]
    for same, ignore, fresh in cases:
        flow_id = f"f-{same}-{ignore}-{fresh}"
        first = await host.start(flow_id, request_id="first", call_id="call 1", fresh=True)
        await state(host, flow_id)
        request = s.StartFlow(
            flow_id=flow_id,
            flow_type="Demo",
            input=b"\x05",
            request_id="first" if same else "second",
            call_id="call 2",
            id_reuse_policy=policy,
            ignore_already_started=ignore,
            fresh=fresh,
        )
        error = await give_up(answer := asyncio.ensure_future(host.call(request)))
        runs = rig.runs(flow_id)
        if may_start(policy, state):
            assert error is None
            second = answer.result().run_id
            assert [run for run, _, _ in runs] == [first, second]
            assert [current for _, _, current in runs] == [False, True]
            assert runs[1][1] == "RUNNING"
            if state is still_open:
                assert runs[0][1] == "TERMINATED"
            assert rig.events(second, "FlowStarted")[0][4] == request.request_id
            assert (await host.describe(flow_id)).run_id == second
        elif same and ignore:
            assert error is None
            assert answer.result().run_id == first
            assert [run for run, _, _ in runs] == [first]
        else:
            assert code_of(error) == "ALREADY_EXISTS"
            assert error.failure.sub_status == "FLOW_ALREADY_STARTED"  # type: ignore[union-attr]
            assert [run for run, _, _ in runs] == [first]


@pytest.mark.statement("B43", "D8")
@pytest.mark.parametrize("fresh", [True, False])
@virtual
async def test_of_starts_of_one_id_at_the_same_time_one_wins(rig: Rig, fresh: bool) -> None:
    host = await rig.host(WORK)
    host.lane.before = 0.01
    answers = await asyncio.gather(*(host.start("f", fresh=fresh) for _ in range(20)), return_exceptions=True)
    winners = [answer for answer in answers if isinstance(answer, str)]
    assert len(winners) == 1
    assert {code_of(answer) for answer in answers if isinstance(answer, BaseException)} == {"ALREADY_EXISTS"}
    assert rig.runs("f") == [(winners[0], "RUNNING", True)]
    await asyncio.sleep(5)
    assert len(host.port.ran) == 1
    assert {epoch for _, epoch, _ in rig.records(winners[0])} == {1}


@pytest.mark.statement("B42", "B54")
@pytest.mark.parametrize("fresh", [True, False])
@virtual
async def test_starts_of_one_request_with_the_ignore_flag_all_get_the_one_run(rig: Rig, fresh: bool) -> None:
    host = await rig.host(WORK)
    host.lane.before = 0.01
    starts = (
        host.start("f", request_id="r", call_id=f"c{number}", ignore_already_started=True, fresh=fresh)
        for number in range(20)
    )
    answers = await asyncio.gather(*starts)
    assert len(set(answers)) == 1
    assert len(rig.runs("f")) == 1


@pytest.mark.statement("B51")
@virtual
async def test_of_replacing_starts_at_the_same_time_each_gets_a_run_and_one_is_left(rig: Rig) -> None:
    host = await rig.host(WORK)
    host.lane.before = 0.001
    starts = (host.start("f", id_reuse_policy="ALLOW_TERMINATE_IF_RUNNING", fresh=True) for _ in range(8))
    answers = await asyncio.gather(*starts)
    runs = rig.runs("f")
    assert {run for run, _, _ in runs} == set(answers)
    assert len(set(answers)) == 8
    assert sorted(status for _, status, _ in runs) == ["RUNNING"] + ["TERMINATED"] * 7
    assert [status for _, status, current in runs if current] == ["RUNNING"]
    await settle()
    assert [key.run_id for key in host.port.out if key not in host.port.canceled] == [
        run for run, _, current in runs if current
    ]


@pytest.mark.statement("B51", "D9")
@virtual
async def test_nothing_of_a_replaced_run_leaks_into_the_new_one(rig: Rig) -> None:
    rig.script = by_step(A=None, B_wait_for=wait(until(one("news"))))
    host = await rig.host(WORK)
    old = await host.start("f")
    attempt = host.port.only("A")
    await host.publish("f", "news", b"\x01", request_id="p")
    waiting = asyncio.create_task(host.result("f"))
    await settle()
    new = await host.start("f", id_reuse_policy="ALLOW_TERMINATE_IF_RUNNING", fresh=True)
    outcome = await waiting
    assert (outcome.run_id, outcome.status) == (old, "TERMINATED")
    assert attempt in host.port.canceled
    before = host.host.counters["late_results"]
    host.port.sink.attempt_heartbeat(attempt, None)
    host.port.sink.attempt_running(attempt)
    host.port.finish(attempt, done(go_to("B")))
    host.port.finish(attempt, failed())
    assert host.host.counters["late_results"] == before + 2
    description = await host.describe("f")
    assert (description.run_id, description.channels) == (new, {})
    assert [step.step_execution_id for step in description.steps] == ["A-1"]
    assert rig.events(old, "StepCompleted") == []
    assert (await host.history("f", run_id=old)).closed
    await asyncio.sleep(1)
    assert host.port.only("A").run_id == new


@pytest.mark.statement("B51")
@virtual
async def test_a_replacement_that_crashes_half_way_is_finished_by_its_repeat(rig: Rig) -> None:
    host = await rig.host(WORK)
    old = await host.start("f")
    host.lane.after = 0.01
    request = {"id_reuse_policy": "ALLOW_TERMINATE_IF_RUNNING", "request_id": "r", "call_id": "c"}
    replacing = asyncio.create_task(give_up(host.start("f", fresh=True, **request)))
    await asyncio.sleep(0.005)
    await host.crash()
    replacing.cancel()
    await asyncio.gather(replacing, return_exceptions=True)
    again = await rig.host(WORK)
    new = await again.start("f", **request)
    assert await again.start("f", **request) == new
    assert [(run, status) for run, status, _ in rig.runs("f")] == [(old, "TERMINATED"), (new, "RUNNING")]


@pytest.mark.statement("B10", "B11", "B37", "B22", "B67")
@pytest.mark.parametrize(
    ("wrong", "word"),
    [
        ({"request_id": ""}, "request id"),
        ({"has_retry_policy": True}, "RetryPolicy"),
        ({"start_delay": 1.0}, "delay"),
        ({"id_reuse_policy": "SOMETIMES"}, "SOMETIMES"),
        ({"timeout": -1.0}, "negative"),
        ({"timeout": 5.0, "timeout_policy": "HANDLER"}, "handle_timeout"),
        ({"attributes": {"unknown": NIL}}, "unknown"),
        ({"config": s.FlowConfigSpec(continue_as_new_threshold=-1)}, "continue_as_new_threshold"),
    ],
)
@virtual
async def test_what_cannot_be_started_is_refused_before_anything_is_stored(
    rig: Rig, wrong: dict[str, object], word: str
) -> None:
    host = await rig.host(WORK)
    error = await give_up(host.start("f", **wrong))
    assert code_of(error) == "INVALID_ARGUMENT"
    assert word in str(error)
    assert rig.runs("f") == []
    assert "f" not in host.host.flows


@virtual
async def test_a_start_that_the_machine_cannot_make_leaves_no_ghost(rig: Rig) -> None:
    host = await rig.host(FlowSpec(flow_type="Demo", start_step="Gone"))
    error = await give_up(host.start("f", fresh=True))
    assert code_of(error) == "INTERNAL"
    assert "Gone" in str(error)
    assert code_of(await give_up(host.describe("f"))) == "NOT_FOUND"
    assert rig.runs("f") == []
    host.deploy(WORK)
    await host.start("f", fresh=True)
    assert len(rig.runs("f")) == 1
