"""RPCs in the machine: what a handler sees, what its result does, and when it is refused."""

from __future__ import annotations

from typing import Any

import pytest

from dex.wire.specs import LoadSpec, ResourceSpec, RpcSpec
from dexray.machine import commands, events, locks, rpcs
from dexray.machine.rpcs import Refusal
from dexray.machine.state import take_snapshot
from dexray.protocol.attempts import MovementSpec, RpcSucceeded, Writes
from tests.machine.build import Bench, dead_end, flow, go_to, graceful_complete, method, one, step, until

WAITER = step("Waiter", wait_for=True)


def bench(*steps: Any) -> Bench:
    """A Flow without a start Step: only RPCs drive it."""
    return Bench(spec=flow(*steps, start=None)).start()


def call(one_run: Bench, name: str = "tell", output: bytes | None = None, **asked: Any) -> list[str]:
    """Applies the result of an RPC; the kinds of the events that came of it."""
    result = RpcSucceeded(
        output=output,
        movements=tuple(MovementSpec(target, b"in") for target in asked.pop("start", ())),
        canceling=tuple(asked.pop("cancel", ())),
        writes=one_run.writes(**asked),
    )
    turn = one_run.do(commands.ApplyRpc(name=name, request_id="r", input=b"5", result=result))
    return [events.kind_of(event) for event in turn.events]


def put(run: Bench, channel: str, value: bytes) -> str:
    """Publishes a message; its id."""
    run.publish(channel, value)
    return run.flow.state.channels[channel][-1].id


def why_not(one_run: Bench, version: int | None = None, *, isolated: bool = True, **asked: Any) -> Refusal | None:
    result = RpcSucceeded(
        movements=tuple(MovementSpec(target, b"in") for target in asked.pop("start", ())),
        writes=Writes(**asked),
    )
    state = one_run.flow.state
    seen = state.data_version if version is None else version
    return rpcs.refusal(state, one_run.spec, result, isolated=isolated, data_version=seen)


# What is applied ------------------------------------------------------------------------------------------------------


@pytest.mark.statement("C11", "B116")
def test_a_result_is_applied_in_the_order_of_a_steps_result() -> None:
    run = bench(step("A"), step("B"))
    call(run, start=["A"])
    message = put(run, "box", b"old")
    kinds = call(
        run,
        output=b"out",
        attributes={"x": b"1"},
        delete=[("box", message)],
        publish=[("box", b"new")],
        events=[("note", b"1")],
        cancel=["A"],
        start=["B", "A"],
    )
    assert kinds == [
        "RpcApplied",
        "AttributesWritten",
        "MessageDeleted",
        "MessagePublished",
        "EventRecorded",
        "StepCancelled",
        "StepScheduled",
        "StepScheduled",
    ]
    assert run.open == ["B-1", "A-2"], "the Step that it starts is not cancelled with the others of its type"
    assert run.queue("box") == [b"new"]
    (applied,) = [event for event in run.last.events if isinstance(event, events.RpcApplied)]
    assert applied == events.RpcApplied("tell", "r", b"5", b"out", ("A",))


@pytest.mark.statement("C39", "B4")
def test_its_next_steps_come_from_the_rpc_and_can_be_the_first_of_the_flow() -> None:
    run = bench(step("A"))
    call(run, "begin", start=["A", "A"])
    assert [run.step(name).from_step for name in run.open] == ["__rpc/begin", "__rpc/begin"]
    run.succeed("A-1", graceful_complete(b"out"))
    run.succeed("A-2", dead_end())
    assert run.status == "COMPLETED"


@pytest.mark.statement("B116", "C17")
def test_it_cancels_all_executions_of_a_type_whoever_started_them() -> None:
    run = bench(step("A"), step("B"))
    call(run, start=["A", "B"])
    run.succeed("B-1", go_to("A", "B"))
    running = run.hand_out("A-2").key
    call(run, cancel=["A"])
    assert run.open == ["B-2"]
    assert run.last.cancels == [running]
    assert {event.by for event in run.of(events.StepCancelled)} == {"__rpc/tell"}


def test_cancelling_the_last_step_of_a_flow_that_was_asked_to_complete_completes_it() -> None:
    run = bench(step("A"), step("B"))
    call(run, start=["A", "B"])
    run.succeed("A-1", graceful_complete())
    assert not run.closed
    call(run, cancel=["B"])
    assert run.status == "COMPLETED"


def test_cancelling_every_step_leaves_a_flow_open_that_nobody_asked_to_complete() -> None:
    run = bench(step("A"))
    call(run, start=["A"])
    call(run, cancel=["A"])
    assert not run.closed
    assert run.open == []


def test_its_message_ends_a_wait_in_the_same_record() -> None:
    run = bench(WAITER)
    call(run, start=["Waiter"])
    run.wait("Waiter-1", until(one("box")))
    assert call(run, publish=[("box", b"1")]) == ["RpcApplied", "MessagePublished", "ConditionsMet"]


def test_a_closed_flow_is_not_changed() -> None:
    run = bench(step("A"))
    run.stop("CANCEL")
    assert call(run, attributes={"x": b"1"}) == []


@pytest.mark.statement("C32")
def test_a_plain_rpc_deletes_the_messages_that_are_there_and_minds_no_other() -> None:
    run = bench(step("A"))
    message = put(run, "box", b"1")
    gone = [("box", "gone"), ("nowhere", "m"), ("box", message)]
    assert why_not(run, 0, isolated=False, deletions=tuple(gone)) is None
    assert call(run, delete=gone) == ["RpcApplied", "MessageDeleted"]


# What is refused ------------------------------------------------------------------------------------------------------


@pytest.mark.statement("C33")
def test_an_isolated_rpc_is_refused_when_any_message_that_it_deletes_is_gone() -> None:
    run = bench(step("A"))
    message = put(run, "box", b"1")
    there = ("box", message)
    assert why_not(run, deletions=(there,)) is None
    assert why_not(run, deletions=(there, ("box", "gone"))) is Refusal.MESSAGE_GONE
    assert why_not(run, deletions=(there, ("nowhere", "m"))) is Refusal.MESSAGE_GONE


@pytest.mark.parametrize("isolated", [True, False])
def test_a_step_that_the_deployed_code_lacks_is_refused_before_anything_is_applied(isolated: bool) -> None:
    run = bench(step("A"))
    assert why_not(run, isolated=isolated, start=["A"]) is None
    assert why_not(run, isolated=isolated, start=["A", "Gone"]) is Refusal.STEP_UNKNOWN
    run.spec = None
    assert why_not(run, isolated=isolated, start=["A"]) is Refusal.STEP_UNKNOWN


def attribute(run: Bench) -> None:
    run.set("x", b"1")


def attribute_deleted(run: Bench) -> None:
    run.set("there", None)


def message(run: Bench) -> None:
    run.publish("elsewhere", b"1")


def message_taken(run: Bench) -> None:
    run.wait("Waiter-1", until(one("box")))


def message_deleted(run: Bench) -> None:
    call(run, delete=[("box", run.flow.state.channels["box"][0].id)])


def messages_back(run: Bench) -> None:
    run.wait("Waiter-1", until(one("box")))
    before = run.flow.state.data_version
    call(run, cancel=["Waiter"])
    assert run.queue("box") == [b"1"]
    assert run.flow.state.data_version > before


@pytest.mark.statement("C33")
@pytest.mark.parametrize(
    "change", [attribute, attribute_deleted, message, message_taken, message_deleted, messages_back]
)
def test_whatever_changes_attributes_or_channels_overtakes_an_isolated_rpc(change: Any) -> None:
    run = bench(WAITER)
    run.set("there", b"1")
    run.publish("box", b"1")
    call(run, start=["Waiter"])
    seen = run.flow.state.data_version
    change(run)
    assert why_not(run, seen) is Refusal.DATA_CHANGED
    assert why_not(run, seen, isolated=False) is None


def test_steps_that_come_and_go_overtake_nobody() -> None:
    run = bench(step("A"), step("B"))
    seen = run.flow.state.data_version
    call(run, start=["A", "A"])
    run.fail("A-1")
    run.hand_out("A-2")
    run.heartbeat("A-2", b"1")
    run.succeed("A-2", go_to("B"))
    assert why_not(run, seen) is None


def test_a_restored_flow_counts_on_where_it_was() -> None:
    run = bench(step("A"))
    run.set("x", b"1")
    run.publish("box", b"1")
    seen = run.flow.state.data_version
    assert seen == 2
    run.checkpoint()
    assert run.flow.state.data_version == seen


# What a handler sees --------------------------------------------------------------------------------------------------


def task_of(run: Bench, spec: RpcSpec, **more: Any) -> Any:
    given: dict[str, Any] = {"number": 7, "deployment": "d1", "input": b"in", "timeout": 60.0, "now": run.now} | more
    return rpcs.rpc_task(run.flow.state, take_snapshot(run.flow.state, spec.load), spec, **given)


def test_an_rpc_is_given_what_a_step_would_be_given() -> None:
    run = bench(step("A"))
    for name, value in {"x": b"1", "map/a": b"2", "map/b": b"3", "other/c": b"4"}.items():
        run.set(name, value)
    run.publish("box", b"m")
    run.publish("far", b"n")
    spec = RpcSpec(
        name="ask",
        is_async=True,
        load=LoadSpec(channels=("box",), attribute_map_instances=("map/a",)),
        resources=ResourceSpec(options={"num_cpus": 2}),
    )
    task = task_of(run, spec)
    assert (task.key.method, task.key.step_execution_id, task.key.attempt) == ("rpc", "__rpc/ask#7", 1)
    assert task.step_type == "__rpc/ask"
    assert task.attributes == {"x": b"1", "map/a": b"2"}
    assert task.attribute_keys == ("map/a", "map/b", "other/c")
    assert task.channel_sizes == {"box": 1, "far": 1}
    assert [value for _, value in task.loaded_channels["box"]] == [b"m"]
    assert "far" not in task.loaded_channels
    assert (task.is_async, task.resources, task.timeout) == (True, {"num_cpus": 2}, 60.0)


def test_a_snapshot_stays_what_it_was() -> None:
    run = bench(step("A"))
    run.set("x", b"1")
    run.publish("box", b"m")
    snapshot = take_snapshot(run.flow.state, LoadSpec(channels=("box",)))
    run.set("x", b"2")
    run.publish("box", b"n")
    assert snapshot.attributes == {"x": b"1"}
    assert snapshot.sizes == {"box": 1}
    assert [message.value for message in snapshot.messages["box"]] == [b"m"]


def test_loads_of_the_call_are_added_sorted_and_once() -> None:
    spec = RpcSpec(
        name="ask", load=LoadSpec(attribute_map_instances=("m/b",), channels=("box",), channel_map_instances=("c/x",))
    )
    load = rpcs.load_of(spec, ("m/c", "m/a", "m/b"), ("c/a", "c/x"))
    assert load == LoadSpec(
        attribute_map_instances=("m/a", "m/b", "m/c"), channels=("box",), channel_map_instances=("c/a", "c/x")
    )


@pytest.mark.statement("C34")
@pytest.mark.parametrize(
    "result",
    [
        RpcSucceeded(writes=Writes(attributes={"x": None})),
        RpcSucceeded(writes=Writes(deletions=(("box", "m"),))),
        RpcSucceeded(writes=Writes(publications=(("box", "m", b""),))),
        RpcSucceeded(writes=Writes(events=(("note", b""),))),
        RpcSucceeded(movements=(MovementSpec("A", b""),)),
        RpcSucceeded(canceling=("A",)),
    ],
)
def test_only_a_handler_that_asks_for_nothing_is_a_read(result: RpcSucceeded) -> None:
    assert rpcs.changes_something(result)
    assert not rpcs.changes_something(RpcSucceeded(output=b"out"))


# Locks ----------------------------------------------------------------------------------------------------------------


@pytest.mark.statement("B194", "C27")
def test_a_step_waits_for_the_lock_of_an_rpc_and_starts_when_it_is_released() -> None:
    run = bench(step("A", method(locks=["x"])), step("B", method(locks=["y"])))
    call(run, start=["A", "B"])
    locks.take_for_rpc(run.flow, ("x", "z"), "__rpc/tell#1")
    assert not run.try_hand_out("A-1")
    assert run.try_hand_out("B-1"), "another lock is no matter"
    assert "A-1" in run.flow.index.blocked
    locks.release_of_rpc(run.flow, ("x", "z"), "__rpc/tell#1")
    assert run.flow.fresh == ["A-1"]
    run.check()
    assert run.try_hand_out("A-1")
    assert locks.taken(run.flow, ["z", "x", "y"]) == "x"
    assert locks.holder_of(run.flow, "x") == "A-1"


@pytest.mark.statement("B194", "C27")
def test_an_rpc_finds_the_locks_of_steps_and_of_other_rpcs_taken() -> None:
    run = bench(step("A", method(locks=["x"])))
    call(run, start=["A"])
    run.hand_out("A-1")
    assert locks.taken(run.flow, ["a", "x"]) == "x"
    locks.take_for_rpc(run.flow, ("a",), "__rpc/tell#1")
    assert locks.taken(run.flow, ["a"]) == "a"
    assert locks.holder_of(run.flow, "a") == "__rpc/tell#1"
    assert locks.holder_of(run.flow, "free") == ""
    locks.release_of_rpc(run.flow, ("a",), "__rpc/other#2")
    assert locks.taken(run.flow, ["a"]) == "a", "only its holder releases a lock"


def test_a_step_that_an_rpc_keeps_waiting_says_so() -> None:
    from tests.machine.test_describe import words

    run = bench(step("A", method(locks=["x"])))
    call(run, start=["A"])
    locks.take_for_rpc(run.flow, ("x",), "__rpc/tell#1")
    assert not run.try_hand_out("A-1")
    assert words(run).steps[0].waits_for == "a lock that an RPC holds"
