"""Large values in the object store: who keeps which, what goes with a lot, and what comes beside a result."""

from __future__ import annotations

from typing import Any

import pytest
from ray.exceptions import ObjectLostError

from dexray.cluster.attempt_messages import (
    Finished,
    Handed,
    Lot,
    LotResult,
    decode_lot,
    encode,
    encode_lot,
    encode_task,
)
from dexray.cluster.shared_values import (
    LOST,
    SHARE_FROM,
    SharedValues,
    apart,
    as_arguments,
    fetch,
    given,
    has_large_values,
    views,
    with_values,
)
from dexray.protocol.attempts import (
    AttemptFailed,
    AttemptKey,
    AttemptReturned,
    AttemptTask,
    DecisionSpec,
    ExecuteSucceeded,
)

LARGE, LARGER, SMALL = bytes(SHARE_FROM), bytes(SHARE_FROM + 1), b"small"


class Time:
    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


def kept(limit: int = 100, seconds: float = 10.0) -> tuple[SharedValues, Time]:
    clock = Time()
    return SharedValues(limit, seconds, clock), clock


def of(**sizes: int) -> dict[str, memoryview]:
    return {name: memoryview(bytes(size)) for name, size in sizes.items()}


def task(step: str = "S-1", **more: Any) -> AttemptTask:
    return AttemptTask(
        key=AttemptKey("f", "r", step, "execute", 1),
        flow_type="F",
        step_type="S",
        deployment_id="d",
        from_step_execution_id="",
        input=b"\xc0",
        timeout=1.0,
        heartbeat_timeout=1.0,
        first_attempt_at=0.0,
        **more,
    )


# The owner ------------------------------------------------------------------------------------------------------------


def test_values_are_found_where_they_follow_each_other() -> None:
    values, _ = kept()
    values.keep("ref-1", of(a=10, b=20))
    values.keep("ref-2", of(c=30))
    found = values.find(["b", "c", "d"])
    assert {digest: (one.reference, one.index) for digest, one in found.items()} == {
        "b": ("ref-1", 2),
        "c": ("ref-2", 1),
    }


def test_of_too_many_bytes_the_longest_unused_go() -> None:
    values, _ = kept(limit=100)
    values.keep("ref-1", of(a=40))
    values.keep("ref-2", of(b=40))
    values.find(["a"])
    values.keep("ref-3", of(c=40))
    assert set(values.find(["a", "b", "c"])) == {"a", "c"}
    values.keep("ref-4", of(d=101))
    assert len(values) == 0


def test_a_newer_reference_takes_the_place_of_an_older_one() -> None:
    values, _ = kept(limit=100)
    for number in range(5):
        values.keep(f"ref-{number}", of(a=60))
    assert values.find(["a"])["a"].reference == "ref-4"
    values.forget(["a", "a", "b"])
    assert len(values) == 0


def test_what_nobody_asks_for_goes_in_time() -> None:
    values, clock = kept(seconds=10.0)
    values.keep("ref-1", of(a=1, b=1))
    clock.now = 6.0
    values.find(["b"])
    clock.now = 11.0
    values.trim()
    assert set(values.find(["a", "b"])) == {"b"}


def test_a_lot_carries_each_reference_once() -> None:
    values, _ = kept()
    values.keep("ref-1", of(a=1, b=1))
    values.keep("ref-2", of(c=1))
    references, places = as_arguments([values.find(["a", "c"]), values.find(["b"]), {}])
    assert references == ["ref-1", "ref-2"]
    assert places == {"a": (0, 1), "c": (1, 1), "b": (0, 2)}


# From the worker to the owner -----------------------------------------------------------------------------------------


def succeeded(**blobs: bytes) -> ExecuteSucceeded:
    return ExecuteSucceeded(decision=DecisionSpec(kind="dead_end"), blobs=blobs)


def test_large_values_leave_a_result_and_come_back_into_it() -> None:
    message = LotResult(
        (
            Finished(1, succeeded(a=LARGE, b=SMALL), 0.5),
            Finished(2, succeeded(c=SMALL)),
            Finished(3, AttemptFailed(error_type="E", detail="d")),
            Finished(4, succeeded(a=LARGE, d=LARGER)),
        )
    )
    assert has_large_values(message.finished)
    lighter, values = apart(message)
    assert list(values) == ["a", "d"]
    assert lighter.values == ("a", "d")
    assert len(encode(lighter)) < 1000
    received = views(lighter.values, list(values.values()))
    back = tuple(with_values(finished, received) for finished in lighter.finished)
    assert [getattr(one.result, "blobs", None) for one in back] == [
        {"a": LARGE, "b": SMALL},
        {"c": SMALL},
        None,
        {"a": LARGE, "d": LARGER},
    ]


def test_a_message_without_large_values_stays_as_it_is() -> None:
    message = LotResult((Finished(1, succeeded(b=SMALL)),))
    assert apart(message) == (message, {})
    assert not has_large_values(message.finished)


# From the owner to the worker -----------------------------------------------------------------------------------------


def lot(**needs: tuple[str, ...]) -> Lot:
    """One attempt for each name, with the hashes that it needs."""
    tasks = {number: encode_task(task(name, blobs={"x": SMALL})) for number, name in enumerate(needs, 1)}
    wanted = dict(enumerate(needs.values(), 1))
    places = {"a": (0, 1), "b": (0, 2), "c": (1, 1)}
    return decode_lot(encode_lot(7, tasks, 0.0, announce=False, values=places, needs=wanted))


def test_attempts_get_the_values_that_they_need() -> None:
    ready = given(lot(one=("a", "c"), two=(), three=("b",)), [[None, LARGE, b"b"], [None, LARGER]])
    assert isinstance(ready, Lot)
    assert [handed.task.blobs for handed in ready.handed] == [
        {"x": SMALL, "a": LARGE, "c": LARGER},
        {"x": SMALL},
        {"x": SMALL, "b": b"b"},
    ]


def test_when_some_are_lost_all_attempts_go_back_and_those_that_need_them_say_so() -> None:
    lost = ObjectLostError("id", "owner", "site")
    returned = given(lot(one=("a", "c"), two=(), three=("b",)), [[None, LARGE, b"b"], lost])
    assert not isinstance(returned, Lot)
    assert [(one.token, one.lacking) for one in returned] == [(1, ("c",)), (2, ()), (3, ())]
    assert all(one.result == AttemptReturned(reason=LOST) for one in returned)


def test_an_error_stands_for_what_can_not_be_fetched() -> None:
    def get(reference: str) -> list[Any]:
        if reference == "lost":
            raise ObjectLostError("id", "owner", "site")
        return [None]

    first, second = fetch(get, ["there", "lost"])
    assert first == [None]
    assert isinstance(second, ObjectLostError)
    with pytest.raises(ZeroDivisionError):
        fetch(lambda _: 1 // 0, ["there"])


def test_an_attempt_as_it_was_before_there_were_shared_values() -> None:
    plain = decode_lot(encode_lot(7, {1: encode_task(task())}, 0.0, announce=True))
    assert plain.values == {}
    assert plain.handed == (Handed(1, task()),)
