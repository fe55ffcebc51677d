"""What an attempt sees: the state when attempt 1 of its method call was handed out."""

from __future__ import annotations

import pytest

from dex.wire.specs import LoadSpec, ResourceSpec, StepSpec
from dexray.machine.tasks import payloads
from tests.machine.build import SKIP, Bench, exactly, go_to, method, one, step, until


def filled(bench: Bench) -> Bench:
    bench.start(attributes={"plain": b"p", "map/1": b"one", "map/2": b"two", "maple/1": b"no"})
    bench.publish("box", b"1", b"2")
    bench.publish("boxes/a", b"3")
    bench.publish("boxes/b", b"4")
    bench.publish("boxesful/a", b"5")
    return bench


@pytest.mark.statement("B182", "B183", "B191")
def test_plain_attributes_keys_of_maps_and_sizes_are_always_there_and_values_of_maps_and_messages_are_not() -> None:
    task = filled(Bench(step("A"))).hand_out("A-1")
    assert task.attributes == {"plain": b"p"}
    assert sorted(task.attribute_keys) == ["map/1", "map/2", "maple/1"]
    assert task.channel_sizes == {"box": 2, "boxes/a": 1, "boxes/b": 1, "boxesful/a": 1}
    assert task.loaded_channels == {}


@pytest.mark.statement("B183", "B185")
def test_a_map_is_loaded_whole_or_by_instance() -> None:
    load = LoadSpec(attribute_maps=("map",), channel_maps=("boxes",), channels=("box",))
    task = filled(Bench(step("A", method(load=load)))).hand_out("A-1")
    assert task.attributes == {"plain": b"p", "map/1": b"one", "map/2": b"two"}
    assert task.loaded_attribute_maps == ("map",)
    assert task.loaded_channel_maps == ("boxes",)
    assert task.loaded_channels == {
        "box": (("m1", b"1"), ("m2", b"2")),
        "boxes/a": (("m3", b"3"),),
        "boxes/b": (("m4", b"4"),),
    }
    load = LoadSpec(attribute_map_instances=("map/2", "map/3"), channel_map_instances=("boxes/b",))
    task = filled(Bench(step("A", method(load=load)))).hand_out("A-1")
    assert task.attributes == {"plain": b"p", "map/2": b"two"}
    assert task.loaded_attribute_instances == ("map/2", "map/3")
    assert task.loaded_channels == {"boxes/b": (("m4", b"4"),)}


@pytest.mark.statement("B190")
def test_a_selected_channel_that_is_empty_is_loaded_and_empty() -> None:
    load = LoadSpec(channels=("empty",), channel_map_instances=("boxes/none",))
    task = filled(Bench(step("A", method(load=load)))).hand_out("A-1")
    assert task.loaded_channels == {"empty": (), "boxes/none": ()}


@pytest.mark.statement("B184")
def test_wait_for_and_execute_select_for_themselves() -> None:
    bench = filled(Bench(step("A", wait_for=method(load=LoadSpec(channels=("box",))))))
    assert bench.hand_out("A-1").loaded_channels == {"box": (("m1", b"1"), ("m2", b"2"))}
    bench.wait("A-1", SKIP)
    assert bench.hand_out("A-1").loaded_channels == {}


@pytest.mark.statement("B184")
def test_execute_sees_what_was_written_after_wait_for_began() -> None:
    bench = Bench(step("A", wait_for=True)).start(attributes={"x": b"0"})
    bench.hand_out("A-1")
    bench.set("x", b"1")
    bench.wait("A-1", SKIP)
    assert bench.hand_out("A-1").attributes == {"x": b"1"}


@pytest.mark.statement("B184")
def test_execute_after_a_wait_for_that_failed_for_good_has_a_snapshot_of_its_own_too() -> None:
    bench = Bench(step("A", wait_for=method(attempts=1), proceed=True)).start()
    bench.hand_out("A-1")
    bench.set("x", b"1")
    bench.fail("A-1")
    assert bench.hand_out("A-1").attributes == {"x": b"1"}


@pytest.mark.statement("B187")
def test_execute_does_not_see_the_messages_that_its_wait_consumed_as_pending() -> None:
    bench = filled(Bench(step("A", method(load=LoadSpec(channels=("box",))), wait_for=True)))
    bench.wait("A-1", until(one("box")))
    task = bench.hand_out("A-1")
    assert task.loaded_channels == {"box": (("m2", b"2"),)}
    assert task.channel_sizes["box"] == 1


@pytest.mark.statement("B148", "B188")
@pytest.mark.parametrize("again", ["retry", "return", "interruption"])
def test_later_attempts_see_what_attempt_one_saw(again: str) -> None:
    bench = filled(Bench(step("A", method(load=LoadSpec(channels=("box",), attribute_maps=("map",))))))
    first = bench.hand_out("A-1")
    bench.set("plain", b"later")
    bench.set("map/3", b"later")
    bench.publish("box", b"later")
    bench.checkpoint()
    if again == "retry":
        bench.fail("A-1")
    elif again == "return":
        bench.give_back("A-1")
    else:
        bench.crash()
    bench.set("other", b"later")
    bench.checkpoint()
    bench.advance(1)
    second = bench.hand_out("A-1")
    assert second.attributes == first.attributes
    assert second.attribute_keys == first.attribute_keys
    assert second.channel_sizes == first.channel_sizes
    assert second.loaded_channels == first.loaded_channels


@pytest.mark.statement("B188")
def test_the_snapshot_is_taken_at_the_hand_out_and_not_when_the_step_became_ready() -> None:
    bench = Bench(step("A")).start()
    bench.set("x", b"1")
    assert bench.hand_out("A-1").attributes == {"x": b"1"}


@pytest.mark.statement("B148", "B149")
def test_the_next_step_sees_what_a_retry_does_not() -> None:
    bench = Bench(step("A"), step("B")).start()
    bench.fail("A-1")
    bench.set("x", b"1")
    bench.advance(1)
    assert bench.hand_out("A-1").attributes == {}
    bench.succeed("A-1", go_to("B"))
    assert bench.hand_out("B-1").attributes == {"x": b"1"}


@pytest.mark.statement("B188")
def test_a_selection_that_code_deployed_meanwhile_asks_for_is_not_there_in_a_retry() -> None:
    bench = filled(Bench(step("A")))
    bench.fail("A-1")
    changed = Bench(step("A", method(load=LoadSpec(channels=("box",)))))
    bench.spec = changed.spec
    bench.advance(1)
    assert bench.hand_out("A-1").loaded_channels == {}


def test_snapshots_are_independent_of_one_another() -> None:
    bench = Bench(step("S"), step("A"), step("B")).start()
    bench.succeed("S-1", go_to("A", "B"))
    bench.hand_out("A-1")
    bench.set("x", b"1")
    bench.hand_out("B-1")
    bench.checkpoint()
    assert bench.task("A-1").attributes == {}
    assert bench.task("B-1").attributes == {"x": b"1"}


def test_what_goes_after_the_hand_out_does_not_disappear_from_the_attempts_view() -> None:
    bench = filled(Bench(step("S"), step("A", method(load=LoadSpec(channels=("box",)))), step("K", wait_for=True)))
    bench.succeed("S-1", go_to("A", "K"))
    first = bench.hand_out("A-1")
    bench.wait("K-1", until(exactly("box", 2)))
    bench.set("plain", None)
    bench.checkpoint()
    assert bench.task("A-1") == first


def test_a_task_says_who_it_is_and_what_it_needs() -> None:
    spec = StepSpec(step_type="A", execute=method(timeout=50.0), resources=ResourceSpec(options={"num_gpus": 1}))
    bench = Bench(spec).start(b"in")
    task = bench.hand_out("A-1", "deployment-7")
    assert (task.key.flow_id, task.key.run_id, task.key.step_execution_id) == ("flow", "run", "A-1")
    assert (task.key.method, task.key.attempt, task.flow_type, task.step_type) == ("execute", 1, "Demo", "A")
    assert (task.deployment_id, task.timeout, task.first_attempt_at) == ("deployment-7", 50.0, bench.now)
    assert task.resources == {"num_gpus": 1}
    assert not task.is_async


def test_every_payload_of_a_task_can_be_listed() -> None:
    load = LoadSpec(channels=("box",))
    bench = filled(Bench(step("A", method(load=load), wait_for=True)))
    bench.wait("A-1", until(one("boxes/a")), locals={"note": b"local"})
    bench.hand_out("A-1")
    bench.heartbeat("A-1", b"beat")
    bench.fail("A-1")
    bench.advance(1)
    listed = list(payloads(bench.hand_out("A-1")))
    assert sorted(listed) == sorted([b"in", b"p", b"1", b"2", b"3", b"local", b"beat"])
