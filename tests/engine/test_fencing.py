"""Two owners of one Flow can exist for a moment; two histories can't."""

from __future__ import annotations

import asyncio

import pytest

from dexray.engine import NotMine
from tests.engine.faulty import give_up
from tests.engine.rig import NIL, Machine, Rig, by_step, code_of, done, failed, settle, virtual, wait, with_channels
from tests.machine.build import flow, go_to, graceful_complete, method, one, step, timer, until

WORK = with_channels(flow(step("A"), step("B"), step("Ask", wait_for=True)), "news")
ENDLESS = by_step(Ask_wait_for=wait(until(one("never"))))


def reassign(host: Machine, to: str) -> None:
    assert host.journal.inner.reassign(host.host.owner, to, 1000)


async def hand_over(rig: Rig, host: Machine, to: str = "two") -> Machine:
    """The Flows of a host that does not know of it are another's, which has loaded them."""
    reassign(host, to)
    other = await rig.host(WORK, owner=to)
    await other.host.recovered()
    await settle()
    return other


@virtual
async def test_a_stale_owner_commits_nothing_hands_out_nothing_and_drops_the_flow(rig: Rig) -> None:
    one_ = await rig.host(WORK)
    run = await one_.start("f")
    attempt = one_.port.only("A")
    two = await hand_over(rig, one_)
    before = rig.records(run)
    one_.port.finish(attempt, done(go_to("B")))
    await asyncio.sleep(0.5)
    assert rig.records(run) == before
    assert [task.step_type for task in one_.port.ran] == ["A"]
    assert "f" not in one_.host.flows
    assert one_.host.counters["refused_records"] == 1
    await asyncio.sleep(1)
    two.port.finish(two.port.only("A"), done(graceful_complete()))
    assert (await two.result("f")).status == "COMPLETED"


@virtual
async def test_clients_of_a_stale_owner_are_told_to_go_elsewhere(rig: Rig) -> None:
    one_ = await rig.host(WORK)
    await one_.start("f")
    waiting = asyncio.create_task(give_up(one_.result("f")))
    watching = asyncio.create_task(give_up(one_.history("f", after=100, wait=30)))
    await settle()
    two = await hand_over(rig, one_)
    assert code_of(await give_up(one_.publish("f", "news", NIL, request_id="p", fresh=True))) == "UNAVAILABLE"
    assert code_of(await waiting) == "UNAVAILABLE"
    assert code_of(await watching) == "UNAVAILABLE"
    elsewhere = await give_up(one_.publish("f", "news", NIL, request_id="p"))
    assert isinstance(elsewhere, NotMine)
    assert elsewhere.owner == "two"
    await two.publish("f", "news", NIL, request_id="p")
    assert (await two.describe("f")).channels == {"news": 1}


@virtual
async def test_a_record_in_flight_when_ownership_is_lost_is_refused_with_all_that_followed_it(rig: Rig) -> None:
    one_ = await rig.host(WORK)
    run = await one_.start("f")
    one_.lane.hold()
    answers = [
        asyncio.create_task(give_up(one_.publish("f", "news", bytes([number]), fresh=True))) for number in range(3)
    ]
    await settle()
    answers.append(asyncio.create_task(give_up(one_.publish("f", "news", b"\x09", fresh=True))))
    await settle()
    reassign(one_, "two")
    one_.lane.free()
    assert [code_of(await answer) for answer in answers] == ["UNAVAILABLE"] * 4
    assert rig.events(run, "MessagePublished") == []


@virtual
async def test_a_restarted_owner_fences_its_former_life_under_the_same_name(rig: Rig) -> None:
    former = await rig.host(WORK)
    run = await former.start("f")
    attempt = former.port.only("A")
    again = await rig.host(WORK)
    await again.host.recovered()
    await settle()
    former.port.finish(attempt, done(graceful_complete()))
    assert code_of(await give_up(former.publish("f", "news", NIL, fresh=True))) == "UNAVAILABLE"
    await asyncio.sleep(2)
    again.port.finish(again.port.only("A"), done(graceful_complete()))
    assert (await again.result("f")).status == "COMPLETED"
    assert [event[1] for event in rig.events(run, "StepCompleted")] == ["A-1"]
    epochs = [epoch for _, epoch, _ in rig.records(run)]
    assert epochs == sorted(epochs)


PARKED = with_channels(flow(step("Ask", wait_for=True), step("B")), "news")
NAP = by_step(Ask_wait_for=wait(until(timer(30))), Ask_execute=done(go_to("B")), B=None)


async def asleep(rig: Rig) -> tuple[Machine, Machine, str]:
    """A former life and the present one, and a Flow that the former has in memory, and the present one not yet: it only
    waits for a Timer."""
    rig.script = NAP
    former = await rig.host(PARKED)
    run = await former.start("f")
    await settle()
    again = await rig.host(PARKED)
    await again.host.recovered()
    assert "f" in former.host.flows
    assert "f" not in again.host.flows
    return former, again, run


@pytest.mark.statement("B157")
@virtual
async def test_a_former_life_wakes_no_flow_that_the_present_one_has_not_loaded_yet(rig: Rig) -> None:
    former, again, run = await asleep(rig)
    again.lane.hold()
    before = rig.records(run)
    await asyncio.sleep(40)
    assert rig.records(run) == before
    assert [task.step_type for task in former.port.ran] == ["Ask"]  # its wait_for, of old
    again.lane.free()
    await settle()
    assert [task.step_type for task in again.port.ran] == ["Ask", "B"]


@virtual
async def test_a_former_life_takes_no_call_for_a_flow_that_nobody_has_loaded_since(rig: Rig) -> None:
    former, again, run = await asleep(rig)
    assert code_of(await give_up(former.publish("f", "news", NIL, fresh=True))) == "UNAVAILABLE"
    assert rig.events(run, "MessagePublished") == []
    await again.publish("f", "news", NIL, fresh=True)
    assert (await again.describe("f")).channels == {"news": 1}


@virtual
async def test_a_former_life_starts_no_flow(rig: Rig) -> None:
    former, again, _ = await asleep(rig)
    assert code_of(await give_up(former.start("new", fresh=True))) == "UNAVAILABLE"
    assert rig.runs("new") == []
    await again.start("new", fresh=True)
    assert [task.key.flow_id for task in former.port.ran] == ["f"]


@pytest.mark.parametrize("by", ["a record that is refused", "a load", "its sweep"])
@virtual
async def test_a_former_life_steps_down_when_the_journal_tells_it(rig: Rig, by: str) -> None:
    rig.script = ENDLESS
    former = await rig.host(WORK, sweep_seconds=60.0)
    await former.start("f")
    told: list[str] = []
    former.host._outlived = lambda: told.append("outlived")
    again = await rig.host(WORK)
    await again.host.recovered()
    if by == "a load":
        await again.start("g")
    match by:
        case "a record that is refused":
            former.port.finish(former.port.only("A"), done(graceful_complete()))
        case "a load":
            await give_up(former.describe("g"))
        case _:
            await asyncio.sleep(59)
            assert told == []
            await asyncio.sleep(2)
    await settle()
    assert told == ["outlived"]
    assert former.host.stopped
    assert former.host.flows == {}
    assert code_of(await give_up(former.describe("f"))) == "UNAVAILABLE"
    assert await former.host.stop() == 0
    assert not again.host.stopped


@virtual
async def test_an_owner_that_lost_a_flow_to_another_one_goes_on_with_the_rest(rig: Rig) -> None:
    one_ = await rig.host(WORK)
    await one_.start("f")
    await hand_over(rig, one_)
    assert code_of(await give_up(one_.publish("f", "news", NIL, fresh=True))) == "UNAVAILABLE"
    await settle()
    assert not one_.host.stopped
    await one_.start("g")
    assert (await one_.describe("g")).flow_id == "g"


@pytest.mark.statement("B51", "B157")
@pytest.mark.parametrize("heir", ["another owner", "a later life"])
@virtual
async def test_an_owner_that_was_away_while_its_run_was_replaced_adds_to_neither_run(rig: Rig, heir: str) -> None:
    stale = await rig.host(WORK)
    old = await stale.start("f")
    attempt = stale.port.only("A")
    if heir == "another owner":
        now = await hand_over(rig, stale)
    else:
        now = await rig.host(WORK)
        await now.host.recovered()
    new = await now.start("f", id_reuse_policy="ALLOW_TERMINATE_IF_RUNNING", fresh=True)
    before = rig.records(old), rig.records(new)
    stale.port.finish(attempt, done(go_to("B")))
    assert "UNAVAILABLE" in code_of(await give_up(stale.publish("f", "news", NIL, fresh=True)))
    again = await give_up(stale.start("f", id_reuse_policy="ALLOW_TERMINATE_IF_RUNNING", fresh=True))
    assert isinstance(again, NotMine) or code_of(again) == "UNAVAILABLE"
    await settle()
    assert (rig.records(old), rig.records(new)) == before
    assert rig.runs("f") == [(old, "TERMINATED", False), (new, "RUNNING", True)]
    assert [task.step_type for task in stale.port.ran] == ["A"]
    now.port.finish(now.port.only("A"), done(graceful_complete()))
    assert (await now.result("f")).status == "COMPLETED"


@virtual
async def test_a_load_fences_a_former_life_before_anything_is_written(rig: Rig) -> None:
    """The new owner has read the Flow: from then on nobody else may add to what it has read."""
    rig.script = by_step(A=done(go_to("Ask")), Ask_wait_for=wait(until(one("never"))))
    former = await rig.host(WORK)
    run = await former.start("f")
    await settle()
    await former.describe("f")
    again = await rig.host(WORK)
    assert await again.phases("f") == {"Ask-1": "waiting"}
    assert code_of(await give_up(former.publish("f", "news", NIL, fresh=True))) == "UNAVAILABLE"
    await again.publish("f", "news", b"\x02", fresh=True)
    assert [event[3] for event in rig.events(run, "MessagePublished")] == [b"\x02"]


@virtual
async def test_a_host_restarted_twice_goes_on_each_time(rig: Rig) -> None:
    rig.script = ENDLESS
    host = await rig.host(WORK)
    run = await host.start("f")
    for _ in range(2):
        await host.crash()
        host = await rig.host(WORK)
        await host.host.recovered()
        await asyncio.sleep(5)  # the backoff of the interrupted attempt is over
    ((_, task),) = list(host.port.out.items())
    assert task.key.attempt == 3
    assert [event[3][2] for event in rig.events(run, "AttemptFailed")] == ["STARTED_ATTEMPT_INTERRUPTED"] * 2
    host.port.finish(task.key, done(graceful_complete()))
    assert (await host.result("f")).status == "COMPLETED"


@virtual
async def test_a_restart_in_the_middle_of_a_recovery_loses_nothing(rig: Rig) -> None:
    host = await rig.host(WORK)
    for number in range(20):
        await host.start(f"f{number}")
    await host.crash()
    half_way = await rig.host(WORK, recovery_width=2)
    half_way.lane.before = 0.01
    await asyncio.sleep(0.2)
    assert 0 < len(half_way.host.flows) < 20
    await half_way.crash()
    rig.script = by_step(A=done(graceful_complete()))
    last = await rig.host(WORK)
    for number in range(20):
        assert (await last.result(f"f{number}")).status == "COMPLETED"


@pytest.mark.statement("B51")
@virtual
async def test_a_stale_owner_cannot_replace_a_run_that_another_has(rig: Rig) -> None:
    one_ = await rig.host(WORK)
    run = await one_.start("f")
    two = await hand_over(rig, one_)
    error = await give_up(one_.start("f", id_reuse_policy="ALLOW_TERMINATE_IF_RUNNING", fresh=True))
    assert isinstance(error, NotMine)
    assert rig.runs("f") == [(run, "RUNNING", True)]
    await two.publish("f", "news", NIL)


@pytest.mark.statement("B43")
@virtual
async def test_a_start_of_a_flow_that_another_owner_has_goes_to_that_owner(rig: Rig) -> None:
    two = await rig.host(WORK, owner="two")
    run = await two.start("f")
    one_ = await rig.host(WORK)
    for fresh in (True, False):
        error = await give_up(one_.start("f", fresh=fresh))
        assert isinstance(error, NotMine)
        assert error.owner == "two"
    assert "f" not in one_.host.flows
    assert rig.runs("f") == [(run, "RUNNING", True)]


@virtual
async def test_two_owners_that_start_one_id_at_the_same_time_start_one_run(rig: Rig) -> None:
    rig.script = by_step(A=None)
    hosts = [await rig.host(WORK, owner=name) for name in ("one", "two")]
    for host in hosts:
        host.lane.before = 0.01
    answers = await asyncio.gather(*(host.start("f", fresh=True) for host in hosts), return_exceptions=True)
    (run,) = [answer for answer in answers if isinstance(answer, str)]
    (lost,) = [answer for answer in answers if not isinstance(answer, str)]
    assert isinstance(lost, NotMine)
    assert rig.runs("f") == [(run, "RUNNING", True)]
    assert sum(len(host.port.ran) for host in hosts) == 1


@virtual
async def test_a_look_at_a_flow_that_is_being_started_does_not_fence_it(rig: Rig) -> None:
    """The look began before the start and finds the run in the journal: it is this host's own."""
    host = await rig.host(WORK)
    host.lane.hold()
    looking = asyncio.create_task(host.describe("f"))
    await settle()
    starting = asyncio.create_task(host.start("f", fresh=True))
    await settle()
    host.lane.free()
    run = await starting
    answer = await give_up(looking)
    assert answer is None or code_of(answer) == "NOT_FOUND"
    host.port.finish(host.port.only("A"), done(graceful_complete()))
    assert (await host.result("f")).status == "COMPLETED"
    assert {epoch for _, epoch, _ in rig.records(run)} == {1}


@virtual
async def test_a_look_that_finds_the_run_that_was_started_meanwhile_does_not_fence_it(rig: Rig) -> None:
    host = await rig.host(WORK)
    host.lane.after = 0.01
    starting = asyncio.create_task(host.start("f", fresh=True))
    await settle()
    loading = host.host.residents.loading("f")  # as a load that was asked for just before the start
    await starting
    await asyncio.wait({loading}, timeout=1)
    await host.publish("f", "news", NIL, fresh=True)
    host.port.finish(host.port.only("A"), failed(retryable=False))
    assert (await host.result("f")).status == "FAILED"


@virtual
async def test_a_slot_reserved_for_a_refused_record_is_free_again(rig: Rig) -> None:
    rig.script = by_step(Ask_wait_for=wait(until(one("news"))), Ask_execute=None, B=None)
    spec = with_channels(flow(step("Ask", method(), wait_for=True), step("B")), "news")
    one_ = await rig.host(spec, slots=1)
    await one_.start("f")
    await one_.describe("f")
    reassign(one_, "two")
    assert code_of(await give_up(one_.publish("f", "news", NIL, fresh=True))) == "UNAVAILABLE"
    assert one_.port.taken == 0
    await one_.start("g")
    await settle()
    await one_.publish("g", "news", NIL)
    await settle()
    assert one_.port.only("Ask").flow_id == "g"
