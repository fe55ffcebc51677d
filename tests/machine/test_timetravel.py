"""Where a new run begins, what it keeps of the old one, and what is applied to it again."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any

import pytest

from dex.wire.specs import TimeoutHandlerSpec
from dexray.machine import commands
from dexray.machine.commands import ApplyRpc
from dexray.machine.events import AnyEvent, AttemptStarted, FlowForked, RpcApplied, decode_record
from dexray.machine.timetravel import Cut, NoSuchPoint, Point, Rewind
from dexray.protocol.attempts import Heartbeat, RpcSucceeded, Writes
from tests.machine.build import (
    HANDLER,
    NOON,
    Bench,
    any_of,
    as_plain,
    at_least,
    dead_end,
    exactly,
    force_complete,
    go_to,
    graceful_complete,
    method,
    movement,
    one,
    step,
    timer,
    until,
)

BEGINNING = Point(kind="BEGINNING")
STEPS = (step("A"), step("B", wait_for=True), step("C"), step("D"))


def at_time(at: float) -> Point:
    return Point(kind="HISTORY_EVENT_TIME", at=at)


def of_type(step_type: str) -> Point:
    return Point(kind="STEP_TYPE", step_type=step_type)


def before(step_id: str, name: str = "execute") -> Point:
    return Point(kind="STEP_EXECUTION_ID", step=step_id, method=name)


def records_of(bench: Bench) -> list[tuple[float, list[AnyEvent]]]:
    return [(at, decode_record(body)) for at, body in bench.records]


def find(records: Sequence[tuple[float, list[AnyEvent]]], point: Point, hard_deleted: Sequence[str] = ()) -> Cut:
    rewind = Rewind(point, hard_deleted)
    for seq, (at, events) in enumerate(records, 1):
        rewind.feed("run", seq, at, events)
    return rewind.cut()


def fork(bench: Bench, cut: Cut, *, skip_writes: bool = False) -> Bench:
    """The run that begins at a cut, under the clock and the code of the old one."""
    new = Bench(spec=bench.spec, now=bench.now)
    new.do(
        commands.Fork(
            flow_id="flow",
            run_id="run-2",
            flow_type="Demo",
            from_run="run",
            point="there",
            reason="",
            base_run=cut.run_id,
            base_seq=cut.seq,
            base_index=cut.index,
            checkpoint=cut.checkpoint,
            writes=None if skip_writes else tuple(write for _, write in cut.writes),
        )
    )
    return new


def travel(bench: Bench, point: Point, hard_deleted: Sequence[str] = (), *, skip_writes: bool = False) -> Bench:
    return fork(bench, find(records_of(bench), point, hard_deleted), skip_writes=skip_writes)


def journey(**start: Any) -> Bench:
    """A sets x and goes to B and C; B waits for a message, then ends; C waits for a worker. A second a step."""
    bench = Bench(*STEPS).start(**start)
    bench.advance(1)
    bench.succeed("A-1", go_to("B", "C"), attributes={"x": b"1"})
    bench.advance(1)
    bench.wait("B-1", any_of(one("box"), timer(100)), locals={"l": b"1"})
    bench.advance(1)
    bench.publish("box", b"m1", b"m2")
    bench.advance(1)
    bench.succeed("B-1", go_to("D"), attributes={"x": b"2"})
    bench.advance(1)
    return bench


# Points ---------------------------------------------------------------------------------------------------------------


@pytest.mark.statement("C52")
def test_the_beginning_is_what_the_start_left() -> None:
    new = travel(journey(attributes={"given": b"g"}), BEGINNING, skip_writes=True)
    assert new.open == ["A-1"]
    assert new.phase("A-1") == "execute ready"
    assert new.step("A-1").input == b"in"
    assert new.flow.state.attributes == {"given": b"g"}
    assert new.flow.state.counters == {"A": 1}
    assert (new.flow.state.run_id, new.flow.state.request_id) == ("run-2", "request")


@pytest.mark.statement("C52")
def test_the_beginning_of_a_flow_without_a_start_step_is_empty() -> None:
    bench = Bench(spec=None)
    bench.start()
    bench.set("x", b"1")
    new = travel(bench, BEGINNING, skip_writes=True)
    assert (new.open, new.flow.state.attributes) == ([], {})


@pytest.mark.statement("C52")
def test_the_beginning_is_found_within_a_record_that_holds_more() -> None:
    bench = journey()
    records = records_of(bench)
    together = [(NOON, [event for _, events in records for event in events])]
    assert find(together, BEGINNING).index == 2
    assert find(together, BEGINNING).checkpoint == find(records, BEGINNING).checkpoint


@pytest.mark.statement("C52")
def test_an_execution_is_entered_before_its_execute_with_its_wait_as_it_ended() -> None:
    new = travel(journey(), before("B-1"), skip_writes=True)
    assert new.phase("B-1") == "execute ready"
    assert new.consumed("B-1") == [b"m1"]
    assert new.step("B-1").locals == {"l": b"1"}
    assert new.queue("box") == [b"m2"]
    assert new.flow.state.attributes == {"x": b"1"}
    assert new.open == ["B-1", "C-1"]


@pytest.mark.statement("C52")
def test_an_execution_is_entered_before_its_wait_for() -> None:
    new = travel(journey(), before("B-1", "wait_for"), skip_writes=True)
    assert new.phase("B-1") == "wait_for ready"
    assert new.queue("box") == []


@pytest.mark.statement("C52")
def test_a_type_is_entered_at_its_first_execution_and_that_ones_first_method() -> None:
    bench = journey()
    bench.succeed("C-1", go_to("B"))
    bench.hand_out("B-2")
    assert find(records_of(bench), of_type("B")) == find(records_of(bench), before("B-1", "wait_for"))


@pytest.mark.statement("C52")
def test_a_type_is_entered_at_the_first_that_was_pending_not_at_the_first_that_began() -> None:
    bench = Bench(*STEPS).start()
    bench.succeed("A-1", go_to("C", "C"))
    bench.succeed("C-2", dead_end(), attributes={"x": b"1"})
    bench.hand_out("C-1")
    new = travel(bench, of_type("C"))
    assert (new.open, new.flow.state.attributes) == (["C-1"], {"x": b"1"})


@pytest.mark.statement("C52")
def test_the_second_execution_of_a_type_is_not_the_first() -> None:
    bench = journey()
    bench.succeed("C-1", go_to("B"))
    bench.hand_out("B-2")
    new = travel(bench, before("B-2", "wait_for"))
    assert new.open == ["D-1", "B-2"]


@pytest.mark.statement("C52")
def test_a_method_that_was_never_handed_out_is_entered_where_it_became_pending() -> None:
    bench = journey()
    new = travel(bench, before("D-1"))
    assert new.phase("D-1") == "execute ready"
    assert new.flow.state.attributes == {"x": b"2"}


@pytest.mark.statement("C52")
def test_a_method_that_was_pending_when_the_flow_was_stopped_can_be_entered() -> None:
    bench = journey()
    bench.stop("FAIL", "no")
    new = travel(bench, before("D-1"))
    assert (new.status, new.open) == ("RUNNING", ["C-1", "D-1"])


@pytest.mark.statement("C52")
def test_what_happened_while_a_method_waited_for_a_worker_is_kept() -> None:
    bench = Bench(*STEPS).start()
    bench.succeed("A-1", go_to("C", "D"))
    bench.succeed("D-1", dead_end(), attributes={"x": b"9"})
    bench.hand_out("C-1")
    new = travel(bench, before("C-1"))
    assert (new.open, new.flow.state.attributes) == (["C-1"], {"x": b"9"})


@pytest.mark.statement("C52")
@pytest.mark.parametrize(
    ("after", "attributes", "open"),
    [
        (0.0, {}, ["A-1"]),
        (0.5, {}, ["A-1"]),
        (1.0, {}, ["A-1"]),
        (1.000001, {"x": b"1"}, ["B-1", "C-1"]),
        (4.0, {"x": b"1"}, ["B-1", "C-1"]),
    ],
)
def test_a_time_is_that_of_the_first_record_that_is_undone(
    after: float, attributes: dict[str, bytes], open: list[str]
) -> None:
    new = travel(journey(), at_time(NOON + after), skip_writes=True)
    assert (new.flow.state.attributes, new.open) == (attributes, open)


@pytest.mark.statement("C52")
def test_a_time_is_compared_to_the_microsecond_which_a_datetime_can_name() -> None:
    bench = Bench(*STEPS, now=NOON + 0.123456_4).start()
    bench.advance(0.000_01)
    bench.set("x", b"1")
    assert find(records_of(bench), at_time(NOON + 0.123466)).seq == 2
    with pytest.raises(NoSuchPoint, match="nothing happened"):
        find(records_of(bench), at_time(NOON + 0.123467))


def as_datetime(at: float) -> float:
    return datetime.fromtimestamp(at, UTC).timestamp()


@pytest.mark.statement("C52")
def test_the_time_that_a_history_shows_finds_its_event_even_if_it_was_rounded_up() -> None:
    at = next(at for at in (NOON + ticks * 2.4e-7 for ticks in range(1, 50)) if as_datetime(at) > at)
    bench = Bench(*STEPS).start()
    bench.now = at
    bench.set("x", b"1")
    assert find(records_of(bench), at_time(as_datetime(at))).seq == 2


@pytest.mark.statement("C52")
def test_the_end_of_a_flow_can_be_undone_by_its_time() -> None:
    bench = journey()
    bench.succeed("D-1", force_complete(b"out"))
    new = travel(bench, at_time(bench.now))
    assert (new.status, new.open, new.outputs) == ("RUNNING", ["C-1", "D-1"], [])


@pytest.mark.statement("C52")
def test_the_timeout_handler_is_entered_as_a_step_execution_of_its_own() -> None:
    bench = Bench(*STEPS).start(timeout=60.0, timeout_policy="HANDLER", timeout_handler=TimeoutHandlerSpec())
    bench.advance(60)
    bench.succeed(HANDLER, force_complete())
    new = travel(bench, before(HANDLER, "timeout"))
    assert new.phase(HANDLER) == "timeout ready"
    assert new.flow.state.timed_out


@pytest.mark.parametrize(
    ("point", "why"),
    [
        (before("C-2"), "execute of Step execution C-2 was never pending"),
        (before("C-1", "wait_for"), "wait_for of Step execution C-1 was never pending"),
        (of_type("Nobody"), "no Step of type Nobody was ever pending"),
        (at_time(NOON + 3600), "nothing happened at"),
    ],
)
def test_a_point_that_is_not_in_the_past_is_named(point: Point, why: str) -> None:
    with pytest.raises(NoSuchPoint, match=why):
        travel(journey(), point)


def test_a_method_that_ended_in_the_record_that_began_it_cannot_be_entered() -> None:
    bench = Bench(*STEPS).start()
    bench.stop("CANCEL")
    together = [(NOON, [event for _, events in records_of(bench) for event in events])]
    with pytest.raises(NoSuchPoint, match="A-1 was never pending"):
        find(together, before("A-1"))


# What the new run keeps -----------------------------------------------------------------------------------------------


@pytest.mark.statement("C52")
def test_method_calls_that_were_under_way_begin_anew() -> None:
    steps = (step("A"), step("B", method(locks=["x"])), step("C"), step("D"), step("E"))
    bench = Bench(*steps).start()
    bench.succeed("A-1", go_to("B", "C", "D", "E"), attributes={"x": b"old"})
    bench.hand_out("B-1")
    bench.heartbeat("B-1", b"half")
    bench.fail("C-1")
    bench.give_back("D-1", after=50)
    bench.set("x", b"new")
    bench.hand_out("E-1")
    new = travel(bench, before("E-1"))
    for name in ("B-1", "C-1", "D-1", "E-1"):
        found = new.step(name)
        assert new.phase(name) == "execute ready"
        assert (found.attempt, found.snapshot, found.last_failure) == (1, None, None)
        assert (found.has_heartbeat, found.heartbeat, found.locks) == (False, None, ())
        assert (found.returned_because, found.first_started_at, found.may_have_run) == ("", 0.0, False)
    assert new.hand_out("B-1").attributes == {"x": b"new"}, "the snapshot is taken anew, and the lock is free"


@pytest.mark.statement("C52")
def test_timers_keep_the_time_at_which_they_are_due() -> None:
    bench = journey()
    bench.advance(200)
    late = travel(bench, at_time(NOON + 3), skip_writes=True)
    assert late.phase("B-1") == "wait_for waiting"
    assert late.step("B-1").due == (0.0, NOON + 102)
    late.advance(0)
    assert late.phase("B-1") == "execute ready", "it was due at 102 s and it is 205 s now"


@pytest.mark.statement("B16", "C56")
def test_the_timeout_of_the_flow_begins_anew() -> None:
    bench = journey(timeout=60.0, timeout_policy="FAIL")
    bench.advance(100)
    assert bench.status == "FAILED"
    new = travel(bench, BEGINNING)
    assert new.flow.state.timeout_at == bench.now + 60
    new.advance(59)
    assert new.status == "RUNNING"
    new.advance(1)
    assert new.status == "FAILED"


@pytest.mark.statement("C52", "C18")
def test_step_execution_numbers_go_on_from_where_they_were() -> None:
    bench = journey()
    new = travel(bench, before("B-1"))
    new.succeed("B-1", go_to("C", "D"))
    assert new.open == ["C-1", "C-2", "D-1"]


@pytest.mark.statement("C52")
def test_the_new_run_says_where_it_comes_from() -> None:
    bench = journey()
    cut = find(records_of(bench), before("B-1"))
    (event,) = fork(bench, cut, skip_writes=True).of(FlowForked)
    assert (event.from_run, event.base_run, event.point, event.skip_writes) == ("run", "run", "there", True)
    assert isinstance(records_of(bench)[event.base_seq - 1][1][event.base_index], AttemptStarted)


# What came from outside -----------------------------------------------------------------------------------------------


@pytest.mark.statement("C53", "C56")
def test_messages_and_attributes_of_clients_come_again_in_their_order() -> None:
    bench = Bench(*STEPS).start()
    bench.set("x", b"1")
    bench.publish("box", b"m1", b"m2")
    bench.set("x", b"2")
    bench.publish("bag", b"m3")
    new = travel(bench, BEGINNING)
    assert new.flow.state.attributes == {"x": b"2"}
    assert (new.queue("box"), new.queue("bag")) == ([b"m1", b"m2"], [b"m3"])
    assert [message.id for message in new.flow.state.channels["box"]] == ["m1", "m2"], "their ids were told"


@pytest.mark.statement("C53")
def test_what_came_before_the_point_comes_once() -> None:
    bench = Bench(*STEPS).start()
    bench.publish("box", b"m1")
    bench.hand_out("A-1")
    bench.publish("box", b"m2")
    assert travel(bench, before("A-1")).queue("box") == [b"m1", b"m2"]
    assert travel(bench, before("A-1"), skip_writes=True).queue("box") == [b"m1"]


@pytest.mark.statement("C53")
def test_what_came_before_the_point_in_its_own_record_comes_once() -> None:
    bench = Bench(*STEPS).start()
    bench.publish("box", b"m1")
    bench.hand_out("A-1")
    bench.publish("box", b"m2")
    (at, start), *others = records_of(bench)
    together = [(at, start), (at, [event for _, events in others for event in events])]
    cut = find(together, before("A-1"))
    assert (cut.seq, cut.index) == (2, 1)
    assert fork(bench, cut).queue("box") == [b"m1", b"m2"]


@pytest.mark.statement("C53")
def test_what_steps_wrote_after_the_point_does_not_come_again() -> None:
    bench = Bench(*STEPS).start()
    bench.succeed("A-1", go_to("C"), attributes={"x": b"1"}, publish=[("box", b"m")])
    new = travel(bench, BEGINNING)
    assert (new.flow.state.attributes, new.flow.state.channels) == ({}, {})


@pytest.mark.statement("C53")
def test_two_publishes_meet_a_wait_one_after_the_other() -> None:
    bench = Bench(step("A"), step("B", wait_for=True)).start()
    bench.succeed("A-1", go_to("A", "B"))
    bench.wait("B-1", until(at_least("box", 1)))
    bench.hand_out("A-2")
    bench.publish("box", b"m1")
    bench.publish("box", b"m2")
    new = travel(bench, before("A-2"))
    assert (new.consumed("B-1"), new.queue("box")) == ([b"m1"], [b"m2"])


def call(bench: Bench, **result: Any) -> None:
    bench.do(ApplyRpc(name="act", request_id="r", input=b"in", result=RpcSucceeded(output=b"out", **result)))


@pytest.mark.statement("C53", "C56")
def test_all_that_an_rpc_did_comes_again() -> None:
    bench = Bench(*STEPS).start()
    bench.publish("box", b"m1", b"m2")
    call(
        bench,
        writes=Writes(
            attributes={"x": b"1", "y": None},
            deletions=(("box", "m1"), ("box", "gone")),
            publications=(("bag", "p1", b"p"),),
            events=(("note", b"n"),),
        ),
        movements=(movement("C", b"c"), movement("D")),
        canceling=("A",),
    )
    bench.set("z", b"3")
    assert bench.open == ["C-1", "D-1"]
    new = travel(bench, BEGINNING)
    assert new.open == ["C-1", "D-1"], "A-1 is cancelled again"
    assert (new.step("C-1").input, new.step("C-1").from_step) == (b"c", "__rpc/act")
    assert new.flow.state.attributes == {"x": b"1", "z": b"3"}
    assert (new.queue("box"), new.queue("bag")) == ([b"m2"], [b"p"])
    assert new.of(RpcApplied) == bench.of(RpcApplied)
    assert travel(bench, BEGINNING, skip_writes=True).open == ["A-1"]


@pytest.mark.statement("C53")
def test_an_rpc_deletes_what_is_there_and_cancels_whom_it_finds() -> None:
    bench = Bench(*STEPS).start()
    bench.succeed("A-1", go_to("C", "D"), publish=[("box", b"m")])
    message = bench.flow.state.channels["box"][0].id
    call(bench, writes=Writes(deletions=(("box", message),)), canceling=("C",), movements=(movement("A"),))
    assert bench.open == ["D-1", "A-2"]
    assert travel(bench, BEGINNING).open == ["A-1", "A-2"]


@pytest.mark.statement("C53")
def test_a_flow_that_closes_takes_no_more_of_the_writes() -> None:
    bench = Bench(*STEPS).start()
    bench.succeed("A-1", go_to("C", "D"))
    bench.hand_out("C-1")
    bench.succeed("D-1", graceful_complete(b"out"))
    call(bench, canceling=("C",))
    assert bench.status == "COMPLETED"
    open_still = Bench(*STEPS).start()
    open_still.succeed("A-1", go_to("C", "D"))
    open_still.succeed("D-1", graceful_complete(b"out"))
    open_still.hand_out("C-1")
    call(open_still, canceling=("C",))
    records = [*records_of(open_still), (NOON, records_of(_publishing())[-1][1])]
    new = fork(open_still, find(records, before("C-1")))
    assert (new.status, new.outputs) == ("COMPLETED", [("D", "D-1", b"out")])


def _publishing() -> Bench:
    bench = Bench(*STEPS).start()
    bench.publish("box", b"m")
    return bench


# Values that are gone for good ----------------------------------------------------------------------------------------


@pytest.mark.statement("C55")
def test_a_value_that_was_deleted_for_good_after_the_point_does_not_come_back() -> None:
    bench = Bench(*STEPS).start(attributes={"secret": b"s", "plain": b"p", "map/a": b"a", "map/b": b"b"})
    bench.succeed("A-1", go_to("C"), attributes={"secret": None, "plain": None, "map/a": None})
    new = travel(bench, BEGINNING, ("secret", "map"))
    assert new.flow.state.attributes == {"plain": b"p", "map/b": b"b"}


@pytest.mark.statement("C55")
def test_a_value_that_is_still_there_comes_back() -> None:
    bench = Bench(*STEPS).start(attributes={"secret": b"s"})
    bench.succeed("A-1", go_to("C"), attributes={"secret": b"t"})
    assert travel(bench, BEGINNING, ("secret",)).flow.state.attributes == {"secret": b"s"}


@pytest.mark.statement("C55")
def test_a_write_from_outside_is_not_applied_with_a_value_that_was_deleted_afterwards() -> None:
    bench = Bench(*STEPS).start()
    bench.set("secret", b"1")
    call(bench, writes=Writes(attributes={"secret": b"2", "x": b"1"}))
    bench.succeed("A-1", go_to("C"), attributes={"secret": None})
    assert travel(bench, BEGINNING, ("secret",)).flow.state.attributes == {"x": b"1"}
    bench.set("secret", b"3")
    assert travel(bench, BEGINNING, ("secret",)).flow.state.attributes == {"x": b"1", "secret": b"3"}


@pytest.mark.statement("C55")
def test_a_deletion_before_the_point_is_of_no_account() -> None:
    bench = Bench(*STEPS).start(attributes={"secret": b"1"})
    bench.set("secret", None)
    bench.set("secret", b"2")
    bench.hand_out("A-1")
    assert travel(bench, before("A-1"), ("secret",)).flow.state.attributes == {"secret": b"2"}


# Runs that were forked themselves -------------------------------------------------------------------------------------


def find_in_line(old: Bench, cut: Cut, new: Bench, point: Point) -> Cut:
    rewind = Rewind(point)
    for seq, (at, events) in enumerate(records_of(old)[: cut.seq], 1):
        until = cut.index if seq == cut.seq else None
        if until != 0:
            rewind.feed("run", seq, at, events, until)
    for seq, (at, events) in enumerate(records_of(new), 1):
        rewind.feed("run-2", seq, at, events)
    return rewind.cut()


@pytest.mark.statement("C52")
def test_the_past_of_a_fork_reaches_back_to_the_start() -> None:
    old = journey()
    cut = find(records_of(old), before("B-1"))
    new = fork(old, cut)
    new.succeed("B-1", go_to("D"), attributes={"x": b"3"})
    again = find_in_line(old, cut, new, BEGINNING)
    assert (again.run_id, again.seq) == ("run", 1)
    third = fork(new, again, skip_writes=True)
    assert third.open == ["A-1"]
    own = find_in_line(old, cut, new, before("D-1"))
    assert own.run_id == "run-2"
    assert fork(new, own).flow.state.attributes == {"x": b"3"}


@pytest.mark.statement("C53")
def test_writes_are_applied_once_however_often_the_flow_is_forked() -> None:
    old = Bench(*STEPS).start()
    old.publish("box", b"m1")
    old.hand_out("A-1")
    old.publish("box", b"m2")
    cut = find(records_of(old), before("A-1"))
    new = fork(old, cut)
    new.publish("box", b"m3")
    again = find_in_line(old, cut, new, BEGINNING)
    assert fork(new, again).queue("box") == [b"m1", b"m2", b"m3"]


def test_a_past_that_begins_with_a_fork_has_no_beginning() -> None:
    old = journey()
    new = fork(old, find(records_of(old), before("B-1")))
    with pytest.raises(NoSuchPoint, match="is not kept any more"):
        find(records_of(new), BEGINNING)
    assert find(records_of(new), before("B-1")).seq == 1, "what the fork began with can be entered"
    waiting = fork(old, find(records_of(old), at_time(NOON + 3)), skip_writes=True)
    with pytest.raises(NoSuchPoint, match="wait_for of Step execution B-1 was never pending"):
        find(records_of(waiting), before("B-1", "wait_for"))


def test_a_heartbeat_is_a_checkpoint_of_its_attempt_alone() -> None:
    bench = Bench(*STEPS).start()
    bench.fail("A-1", heartbeat=Heartbeat(True, b"half"))
    new = travel(bench, before("A-1"))
    assert new.hand_out("A-1").heartbeat is None


def test_a_state_is_the_same_whether_its_past_came_in_one_record_or_in_many() -> None:
    bench = journey()
    records = records_of(bench)
    for point in (before("B-1"), before("B-1", "wait_for"), of_type("B")):
        several = find(records, point)
        together = find([(at, events) for at, events in _merged(records)], point)
        assert as_plain(fork(bench, several).flow)["attributes"] == as_plain(fork(bench, together).flow)["attributes"]
        assert several.position == together.position
        assert several.writes == together.writes


def _merged(records: list[tuple[float, list[AnyEvent]]]) -> list[tuple[float, list[AnyEvent]]]:
    return [
        (at, [*events, *more])
        for (at, events), (_, more) in zip(records[::2], [*records[1::2], (0.0, [])], strict=False)
    ]


def test_a_message_that_was_taken_before_the_point_is_with_its_step() -> None:
    bench = Bench(step("A", wait_for=True)).start()
    bench.publish("box", b"m1", b"m2", b"m3")
    bench.wait("A-1", until(exactly("box", 2)))
    bench.hand_out("A-1")
    new = travel(bench, before("A-1"))
    assert (new.consumed("A-1"), new.queue("box")) == ([b"m1", b"m2"], [b"m3"])
