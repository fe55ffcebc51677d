"""The database goes away, at every point of a Flow's life: Flows pause, none fails, nothing is lost, all go on."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from dex.wire import service as s
from tests.engine.faulty import AFTER, BEFORE, give_up
from tests.engine.rig import NIL, Machine, Rig, by_step, code_of, done, settle, virtual, wait, with_channels
from tests.machine.build import flow, go_to, graceful_complete, one, step, until

ORDER = with_channels(flow(step("Ask", wait_for=True), step("Tell")), "news")
STEPS = by_step(
    Ask_wait_for=wait(until(one("news"))), Ask_execute=done(go_to("Tell")), Tell=done(graceful_complete(NIL))
)
WHOLE_LIFE = [
    "FlowStarted", "StepScheduled", "AttemptStarted", "WaitStarted", "MessagePublished", "ConditionsMet",
    "AttemptStarted", "StepCompleted", "StepScheduled", "AttemptStarted", "StepCompleted", "FlowClosed",
]  # fmt: skip


async def until_answered(host: Machine, request: s.Request[Any], times: int = 100) -> Any:
    """As a client does: repeats while the service is unavailable, at most so many times."""
    for _ in range(times):
        error = await give_up(answer := asyncio.ensure_future(host.call(request)))
        if error is None:
            return answer.result()
        assert code_of(error) == "UNAVAILABLE"
        if not isinstance(request, s.WaitForFlow | s.DescribeFlow):
            request = type(request)(
                **{name: getattr(request, name) for name in request.__struct_fields__} | {"fresh": False}
            )
    raise AssertionError("never answered")


def kinds(rig: Rig, run: str) -> list[str]:
    return [event[0].split("/")[0] for event in rig.events(run)]


@pytest.mark.statement("D14")
@pytest.mark.parametrize("when", [BEFORE, AFTER])
@pytest.mark.parametrize("nth", range(1, 6))
@virtual
async def test_a_commit_that_is_cut_off_happens_once(rig: Rig, nth: int, when: str) -> None:
    rig.script = STEPS
    host = await rig.host(ORDER)
    host.journal.fail("append", *[""] * (nth - 1), when, when)
    host.journal.fail("read_back", "", when)
    run = await host.start("f", fresh=True)
    await host.publish("f", "news", b"\x01", fresh=True)
    assert (await host.result("f")).status == "COMPLETED"
    assert kinds(rig, run) == WHOLE_LIFE
    assert len(host.port.ran) == 3
    assert [seq for seq, _, _ in rig.records(run)] == list(range(1, len(rig.records(run)) + 1))


async def nothing(host: Machine) -> None:
    pass


async def started(host: Machine) -> None:
    await host.start("f", fresh=True)


async def waiting(host: Machine) -> None:
    await started(host)
    await settle()
    await host.describe("f")


@pytest.mark.statement("D14")
@pytest.mark.parametrize("before", [nothing, started, waiting])
@virtual
async def test_a_long_outage_pauses_and_fails_nothing(rig: Rig, before: Any) -> None:
    """Callers hear UNAVAILABLE within the patience, and their repeats get the first one's effect."""
    rig.script = STEPS
    host = await rig.host(ORDER, outage_patience=3.0)
    host.port.seconds = 0.001
    await before(host)
    host.journal.out_for(20)
    loop = asyncio.get_running_loop()
    if before is nothing:
        request = s.StartFlow(flow_id="f", flow_type="Demo", input=NIL, request_id="s", fresh=True)
        begin = loop.time()
        assert code_of(await give_up(host.call(request))) == "UNAVAILABLE"
        assert loop.time() - begin == pytest.approx(3.0, abs=0.1)
        await until_answered(host, request)
    await until_answered(host, s.Publish(flow_id="f", channel="news", values=(b"\x01",), request_id="p", fresh=True))
    assert loop.time() >= 20
    assert (await host.result("f")).status == "COMPLETED"
    ((run, _, _),) = rig.runs("f")
    assert sorted(kinds(rig, run)) == sorted(WHOLE_LIFE)
    assert len(host.port.ran) == 3
    assert host.host.outage is None


@pytest.mark.statement("D14")
@virtual
async def test_attempts_that_end_in_an_outage_are_not_lost(rig: Rig) -> None:
    rig.script = by_step(Ask_wait_for=None, Ask_execute=done(go_to("Tell")), Tell=done(graceful_complete(NIL)))
    host = await rig.host(ORDER)
    run = await host.start("f")
    host.journal.down = True
    host.port.finish(host.port.only("Ask"), wait(until(one("news"))))
    await asyncio.sleep(3600)
    assert kinds(rig, run) == WHOLE_LIFE[:3]
    host.journal.down = False
    await host.publish("f", "news", b"\x01")
    assert (await host.result("f")).status == "COMPLETED"
    assert kinds(rig, run) == WHOLE_LIFE


@pytest.mark.statement("D14")
@virtual
async def test_every_request_that_needs_the_database_fails_in_bounded_time(rig: Rig) -> None:
    rig.script = STEPS
    host = await rig.host(ORDER, outage_patience=3.0)
    await host.start("f")
    await settle()
    await host.describe("f")
    live = host.host.flows["f"]
    host.host.residents.evict(live)
    host.journal.down = True
    name = {"flow_id": "f"}
    requests: list[s.Request[Any]] = [
        s.StartFlow(**name, flow_type="Demo", input=NIL, request_id="x"),
        s.StartFlow(flow_id="g", flow_type="Demo", input=NIL, request_id="x"),
        s.StartFlow(flow_id="h", flow_type="Demo", input=NIL, request_id="x", fresh=True),
        s.Publish(**name, channel="news", values=(NIL,), request_id="a"),
        s.Publish(**name, channel="news", values=(NIL,), request_id="b", fresh=True),
        s.StopFlow(**name, request_id="c"),
        s.DescribeFlow(**name),
        s.WaitForFlow(**name),
        s.GetHistory(**name),
        s.GetHistory(**name, run_id="elsewhere"),
        s.ListFlows(),
    ]
    begin = asyncio.get_running_loop().time()
    errors = await asyncio.gather(*(give_up(host.call(request)) for request in requests))
    assert [code_of(error) for error in errors] == ["UNAVAILABLE"] * len(requests)
    assert asyncio.get_running_loop().time() - begin < 3.5
    host.journal.down = False
    await asyncio.sleep(5)
    assert (await host.describe("f")).status == "RUNNING"
    assert len(rig.runs("f")) == 1


@pytest.mark.statement("D14", "D8")
@virtual
async def test_reads_of_a_flow_in_memory_fail_in_bounded_time_too(rig: Rig) -> None:
    """Its history, and a write that may be a repeat, need a look into the journal."""
    rig.script = STEPS
    host = await rig.host(ORDER, outage_patience=3.0)
    await host.start("f")
    await asyncio.sleep(0.01)
    host.journal.down = True
    begin = asyncio.get_running_loop().time()
    errors = await asyncio.gather(
        give_up(host.history("f")),
        give_up(host.publish("f", "news", NIL, request_id="again")),
        give_up(host.start("f", request_id="again")),
    )
    assert [code_of(error) for error in errors] == ["UNAVAILABLE"] * 3
    assert asyncio.get_running_loop().time() - begin < 3.5
    assert (await host.describe("f")).status == "RUNNING"  # all of it is durable, and here
    host.journal.down = False


@pytest.mark.statement("D14")
@virtual
async def test_a_database_that_hangs_is_not_waited_for_longer(rig: Rig) -> None:
    rig.script = STEPS
    host = await rig.host(ORDER, outage_patience=3.0)
    host.lane.hold()
    begin = asyncio.get_running_loop().time()
    assert code_of(await give_up(host.describe("f"))) == "UNAVAILABLE"
    assert code_of(await give_up(host.call(s.ListFlows()))) == "UNAVAILABLE"
    assert asyncio.get_running_loop().time() - begin == pytest.approx(6.0, abs=0.1)
    host.lane.free()
    await settle()


@pytest.mark.statement("D14")
@virtual
async def test_recovery_waits_for_the_database_and_then_resumes_all(rig: Rig) -> None:
    rig.script = by_step(Ask_wait_for=None)
    first = await rig.host(ORDER)
    runs = [await first.start(f"f{number}") for number in range(5)]
    await first.crash()
    rig.script = STEPS
    second = await rig.host(ORDER)
    second.journal.down = True
    await asyncio.sleep(3600)
    assert second.port.ran == []
    second.journal.down = False
    for number in range(5):
        await second.publish(f"f{number}", "news", NIL)
        assert (await second.result(f"f{number}")).status == "COMPLETED"
    for run in runs:
        assert len(rig.events(run, "AttemptFailed")) == 1


@pytest.mark.statement("D14")
@virtual
async def test_an_outage_in_the_middle_of_recovery_and_of_loads(rig: Rig) -> None:
    rig.script = by_step(Ask_wait_for=None)
    first = await rig.host(ORDER)
    for number in range(8):
        await first.start(f"f{number}")
    await first.crash()
    rig.script = STEPS
    second = await rig.host(ORDER)
    for operation in ("open_runs", "current_run", "claim", "load"):
        second.journal.fail(operation, BEFORE, AFTER, BEFORE)
    await second.host.recovered()
    await asyncio.sleep(5)
    for number in range(8):
        await second.publish(f"f{number}", "news", NIL)
        assert (await second.result(f"f{number}")).status == "COMPLETED"


@pytest.mark.statement("D14")
@virtual
async def test_a_caller_that_gave_up_takes_nobody_elses_load_with_it(rig: Rig) -> None:
    rig.script = STEPS
    first = await rig.host(ORDER)
    await first.start("f")
    await settle()
    await first.describe("f")
    await first.end()
    second = await rig.host(ORDER)
    await second.host.recovered()
    second.lane.before = 0.1
    impatient = asyncio.create_task(second.describe("f"))
    await asyncio.sleep(0.05)
    patient = asyncio.create_task(second.describe("f"))
    await asyncio.sleep(0.01)
    impatient.cancel()
    assert (await patient).status == "RUNNING"
    await asyncio.gather(impatient, return_exceptions=True)


@pytest.mark.statement("D14")
@virtual
async def test_the_end_of_a_host_does_not_wait_for_a_database_that_is_away(rig: Rig) -> None:
    rig.script = STEPS
    host = await rig.host(ORDER, outage_patience=3.0)
    run = await host.start("f")
    await asyncio.sleep(1)
    host.lane.hold()
    publishing = asyncio.create_task(give_up(host.publish("f", "news", NIL, fresh=True)))
    await settle()
    host.journal.down = True
    host.lane.free()  # the outage begins when the host is already on its way out
    begin = asyncio.get_running_loop().time()
    await host.end()
    assert asyncio.get_running_loop().time() - begin <= 3.1
    assert code_of(await publishing) == "UNAVAILABLE"
    again = await rig.host(ORDER)
    await again.publish("f", "news", NIL)
    assert (await again.result("f")).status == "COMPLETED"
    assert len(rig.events(run, "MessagePublished")) == 1
