"""Records and checkpoints as bytes."""

from __future__ import annotations

import msgspec
import pytest

from dex.wire.service import Completion, FlowConfigSpec
from dex.wire.specs import FailureRoute, LoadSpec, RetrySpec, TimeoutHandlerSpec
from dexray.machine import events, state
from dexray.machine.evolve import _APPLY, evolve
from dexray.machine.invariants import InvariantViolated, check, check_all
from dexray.machine.state import Flow, decode_checkpoint, encode_checkpoint
from dexray.protocol.attempts import RecoveryError
from tests.machine.build import (
    Bench,
    all_of,
    at_least,
    go_to,
    graceful_complete,
    method,
    movement,
    one,
    picture,
    replay,
    step,
    timer,
)

FAILURE = events.Failure("E", "detail", "HANDLER_ERROR", 3, 7.5, "trace", "worker")
OVERRIDE = step("A", method(attempts=3, locks=["x"], load=LoadSpec(channels=("box",))), wait_for=True, route="R")
WAIT = all_of(one("box", "id"), timer(5), at_least("b", 2))

SAMPLES: list[events.AnyEvent] = [
    events.FlowStarted(
        "flow",
        "run",
        "Type",
        "request",
        b"in",
        {"x": b"1"},
        FlowConfigSpec(step_durability="ASYNC", attribute_store_names=("a",)),
        10.0,
        "HANDLER",
        20.0,
        TimeoutHandlerSpec(
            method=method(retry=RetrySpec(attempts=2)), failure_route=FailureRoute(step_type="R", override=OVERRIDE)
        ),
        "old",
        "parent",
    ),
    events.StepScheduled("A-1", "A", 1, "S-1", b"", "execute", "SYNC", OVERRIDE, RecoveryError("E", "d")),
    events.AttemptStarted("A-1", "execute", 2, "d1", ("x", "y"), LoadSpec(channel_maps=("m",))),
    events.HeartbeatStored("A-1", True, b"1"),
    events.AttemptFailed("A-1", "execute", FAILURE, 9.0),
    events.AttemptReturned("A-1", "execute", 2, "why", 9.0),
    events.AttributesWritten({"x": None, "y": b""}, "A-1"),
    events.MessageDeleted("box", "m1", "A-1"),
    events.MessagePublished("box", "m1", b"\x00\xff", ""),
    events.EventRecorded("A-1", "note", b"1"),
    events.WaitStarted("A-1", WAIT, (0.0, 7.5, 0.0), {"l": b"1"}),
    events.TimerFired("A-1", 1, True),
    events.SubFlowEnded(
        "A-1", 2, "SubFlow:flow-A-1-0", "FAILED", (Completion("B", "B-1", b"out"),), "FLOW_TIMEOUT", "late", "child-run"
    ),
    events.ConditionsMet("A-1", (0, 1), ((0, ("m1",)), (2, ())), "ASYNC"),
    events.WaitForAbandoned("A-1", RecoveryError("E", "d", "NOT_STARTED"), "SYNC"),
    events.StepCompleted("A-1", "graceful_complete", b"out"),
    events.StepFailed("A-1", "wait_for", FAILURE, "R"),
    events.StepCancelled("A-1", "B-1", {"box": 2}),
    events.FlowTimedOut("FAIL"),
    events.RpcApplied("tell", "r", b"in", b"out", ("A", "B")),
    events.FlowClosed("COMPLETED", "", "", Completion("A", "A-1", b"out")),
    events.FlowConfigUpdated(FlowConfigSpec(step_durability="ASYNC")),
    events.FlowForked("flow", "run", "Type", "old", "BEGINNING", "why", "old", 1, 2, True, b"checkpoint"),
]


def test_every_kind_of_event_has_a_sample_here_and_a_way_to_be_applied() -> None:
    kinds = set(events.AnyEvent.__args__)
    assert {type(sample) for sample in SAMPLES} == kinds == set(_APPLY)


def test_every_event_survives_its_bytes() -> None:
    assert events.decode_record(events.encode_record(SAMPLES)) == SAMPLES


def test_every_event_carries_its_kind_and_version() -> None:
    for sample in SAMPLES:
        (plain,) = msgspec.msgpack.decode(events.encode_record([sample]))
        assert plain[0] == f"{events.kind_of(sample)}/1"


def test_an_event_of_an_older_version_of_dexray_reads_with_the_fields_it_did_not_have() -> None:
    body = msgspec.msgpack.encode([["FlowClosed/1", "COMPLETED"]])
    assert events.decode_record(body) == [events.FlowClosed("COMPLETED")]


@pytest.mark.parametrize(
    "body",
    [
        msgspec.msgpack.encode([["StepScheduled/2", "A-1"]]),
        msgspec.msgpack.encode([["Unheard/1"]]),
        msgspec.msgpack.encode([["TimerFired/1", 7, "x"]]),
        events.encode_record(SAMPLES)[:-1],
        b"",
    ],
)
def test_what_cannot_be_read_is_refused_and_says_what_to_do(body: bytes) -> None:
    with pytest.raises(events.UnreadableRecord, match="newer version of dexray"):
        events.decode_record(body)


def test_a_checkpoint_of_another_version_is_refused() -> None:
    body = msgspec.msgpack.encode(state.Checkpoint(99, Flow().state))
    with pytest.raises(events.UnreadableRecord, match="checkpoint version 99"):
        decode_checkpoint(body)
    with pytest.raises(events.UnreadableRecord, match="checkpoint"):
        decode_checkpoint(b"\xc1")


def busy() -> Bench:
    """A Flow with something in every corner of its state."""
    bench = Bench(
        step("S"),
        step("K", method(load=LoadSpec(channels=("box",))), wait_for=True),
        step("L", method(locks=["x"], attempts=1), route="R"),
        step("R"),
        step("O"),
    ).start(
        timeout=1000.0,
        timeout_policy="HANDLER",
        timeout_handler=TimeoutHandlerSpec(method=method(attempts=2)),
        attributes={"x": b"1"},
        config=FlowConfigSpec(step_durability="ASYNC"),
    )
    bench.succeed("S-1", go_to("K", "K", "K", "L", "L", "L", movement("O", b"o", step("O", method(attempts=9)))))
    bench.publish("box", b"1", b"2", b"3")
    bench.wait("K-1", all_of(timer(5), one("never")), locals={"note": b"n"})
    bench.advance(5)
    bench.wait("K-2", all_of(one("box"), one("box")))
    bench.hand_out("K-2")
    bench.heartbeat("K-2", b"beat")
    bench.set("x", b"2")
    bench.fail("L-3")
    bench.hand_out("R-1")
    bench.fail("R-1", trace="t")
    bench.give_back("L-1", after=50)
    bench.try_hand_out("L-2")
    bench.succeed("O-1", graceful_complete(b"out"))
    return bench


def test_a_checkpoint_holds_everything() -> None:
    bench = busy()
    restored = decode_checkpoint(encode_checkpoint(bench.flow))
    assert picture(restored) == picture(bench.flow)
    check_all(restored)


def test_records_from_the_start_and_a_checkpoint_with_its_tail_come_to_the_same() -> None:
    bench = busy()
    restored = decode_checkpoint(encode_checkpoint(bench.flow))
    before = len(bench.records)
    bench.publish("box", b"4")
    bench.advance(100)
    bench.hand_out("L-1")
    for at, body in bench.records[before:]:
        for event in events.decode_record(body):
            evolve(restored, event, at)
    assert picture(restored) == picture(bench.flow) == picture(replay(bench.records))


def test_writing_a_checkpoint_does_not_touch_the_flow() -> None:
    bench = busy()
    before = picture(bench.flow)
    encode_checkpoint(bench.flow)
    assert picture(bench.flow) == before
    assert all(known.snapshot.attributes is not None for known in bench.flow.state.steps.values() if known.snapshot)


def test_snapshots_that_equal_the_present_share_its_attributes_in_the_bytes_and_after() -> None:
    bench = Bench(step("S"), step("A")).start(attributes={"big": b"x" * 10_000})
    bench.succeed("S-1", go_to(*(movement("A") for _ in range(20))))
    for step_id in tuple(bench.open):
        bench.hand_out(step_id)
    body = encode_checkpoint(bench.flow)
    assert len(body) < 20_000
    restored = decode_checkpoint(body)
    for known in restored.state.steps.values():
        assert known.snapshot is not None
        assert known.snapshot.attributes is restored.state.attributes


def test_a_damaged_journal_stops_the_flow() -> None:
    bench = Bench(step("A")).start()
    with pytest.raises(KeyError):
        evolve(replay(bench.records), events.AttemptStarted("A-9", "execute", 1), bench.now)
    with pytest.raises(AssertionError):
        evolve(replay(bench.records), events.AttemptStarted("A-1", "execute", 2), bench.now)
    with pytest.raises(AssertionError):
        evolve(replay(bench.records), events.AttemptStarted("A-1", "wait_for", 1), bench.now)
    with pytest.raises(KeyError):
        evolve(replay(bench.records), events.MessageDeleted("box", "m1", ""), bench.now)
    bench.publish("box", b"1")
    with pytest.raises(AssertionError, match="not all there"):
        evolve(replay(bench.records), events.MessageDeleted("box", "m9", ""), bench.now)


def test_a_violated_invariant_names_the_flow_and_what_was_found() -> None:
    bench = Bench(step("A")).start()
    bench.flow.state.status = "COMPLETED"
    with pytest.raises(InvariantViolated, match="Flow 'flow' run run: a closed Flow has open Steps"):
        check(bench.flow)
    bench = Bench(step("A")).start()
    bench.flow.state.channels["box"] = []
    check(bench.flow)
    with pytest.raises(InvariantViolated, match="Channel box is kept although empty"):
        check_all(bench.flow)


def test_the_version_counts_the_events() -> None:
    bench = busy()
    assert bench.flow.state.version == len(bench.events)
