"""Lanes over a real socket, with a worker process that the test plays."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from typing import Any

import pytest
from ray import exceptions

from dexray.cluster import worker_lane
from dexray.cluster.attempt_messages import Finished, Lot, LotResult, decode_lot, encode_lot
from dexray.cluster.dispatch import DEFAULT, Bundle, Dispatch, DispatchSettings, Place
from dexray.cluster.lane_wire import (
    HELLO_LIMIT,
    LIMIT,
    Begun,
    BrokenFrame,
    Bye,
    Door,
    Frames,
    Hello,
    Leave,
    Result,
    frame,
)
from dexray.cluster.worker_lane import Connection, WorkerLanes
from dexray.protocol.attempts import WORKER_CRASHED, AttemptFailed, ExecuteSucceeded
from tests.cluster.lane_kit import NODE, SOON, Owner, Submitted, Worker, done, in_thread

KIND = ("Flow", "Step")


async def lane_of(owner: Owner) -> tuple[Worker, Submitted]:
    """A worker that has run its first lot, and stays."""
    key = owner.run()
    task = await owner.task()
    assert task.lot.may_stay
    worker = owner.worker()
    number = task.lot.number
    worker.send(frame(Begun(number)) + frame(Result(number, number, done(task.lot).finished)))
    assert isinstance(await owner.result(key), ExecuteSucceeded)
    return worker, task


# The owner ------------------------------------------------------------------------------------------------------------


async def test_the_next_attempts_go_over_the_lane_and_not_by_ray() -> None:
    async with Owner() as owner:
        worker, task = await lane_of(owner)
        for _ in range(3):
            key = owner.run()
            lot = await worker.next_lot()
            worker.send(frame(Result(task.lot.number, lot.number, done(lot).finished)))
            await owner.result(key)
        assert len(owner.submitted) == 1
        assert owner.attempts.handed_out == 0


async def test_a_lane_that_waited_in_vain_may_go_and_its_task_is_off_the_books() -> None:
    async with Owner() as owner:
        worker, task = await lane_of(owner)
        worker.send(frame(Leave(task.lot.number)))
        await worker.bye()
        assert owner.tasks == 1, "it holds its CPU until Ray says that it has ended"
        task.returns(LotResult(()))
        await owner.until(lambda: owner.tasks == 0)
        owner.run()
        await owner.task(1)


async def test_a_lot_that_crosses_the_wish_to_leave_is_run() -> None:
    async with Owner() as owner:
        worker, task = await lane_of(owner)
        key = owner.run()
        await owner.until(lambda: owner.attempts._lanes.at(place_of(owner)).lot is not None)
        worker.send(frame(Leave(task.lot.number)))
        lot = await worker.next_lot()
        worker.send(frame(Result(task.lot.number, lot.number, done(lot).finished)))
        await owner.result(key)
        owner.run()
        await worker.next_lot()  # the lane is as good as before


def place_of(owner: Owner) -> Place:
    (lane,) = owner.attempts._lanes._lanes.values()
    return lane.place


async def test_a_result_that_was_cut_off_comes_by_ray_and_counts_once() -> None:
    async with Owner() as owner:
        worker, task = await lane_of(owner)
        key = owner.run()
        lot = await worker.next_lot()
        whole = frame(Result(task.lot.number, lot.number, done(lot).finished))
        worker.send(whole[: len(whole) // 2])
        worker.connection.close()
        task.returns(done(lot))
        assert isinstance(await owner.result(key), ExecuteSucceeded)
        assert owner.attempts.handed_out == 0


async def test_a_result_that_comes_by_the_socket_and_by_ray_counts_once() -> None:
    async with Owner() as owner:
        worker, task = await lane_of(owner)
        key = owner.run()
        lot = await worker.next_lot()
        worker.send(frame(Result(task.lot.number, lot.number, done(lot).finished)))
        await owner.result(key)
        worker.connection.close()
        task.returns(done(lot))
        await owner.until(lambda: owner.tasks == 0)
        assert len(owner.results[key]) == 1


@pytest.mark.statement("B204", "B206", "B207")
async def test_a_lot_that_the_worker_never_took_is_handed_out_again() -> None:
    async with Owner() as owner:
        _, task = await lane_of(owner)
        key = owner.run()
        await owner.until(lambda: owner.attempts._lanes.at(place_of(owner)).lot is not None)
        task.returns(LotResult(()))  # it ended without having seen the lot
        again = await owner.task(1)
        assert again.lot.handed[0].task.key == key
        assert key not in owner.results
        again.returns(done(again.lot))
        assert isinstance(await owner.result(key), ExecuteSucceeded)


async def test_a_process_that_dies_takes_the_lot_on_its_lane_with_it() -> None:
    async with Owner() as owner:
        worker, task = await lane_of(owner)
        key = owner.run()
        await worker.next_lot()
        worker.connection.close()
        task.reference.resolve(exceptions.WorkerCrashedError())
        result = await owner.result(key)
        assert isinstance(result, AttemptFailed)
        assert result.kind == WORKER_CRASHED
        assert owner.attempts.handed_out == owner.tasks == 0


async def test_what_a_process_said_before_it_died_counts() -> None:
    async with Owner() as owner:
        worker, task = await lane_of(owner)
        key = owner.run()
        lot = await worker.next_lot()
        task.reference.resolve(exceptions.WorkerCrashedError())  # Ray is faster than the socket
        worker.send(frame(Result(task.lot.number, lot.number, done(lot).finished)))
        assert isinstance(await owner.result(key), ExecuteSucceeded)


async def test_an_idle_lane_that_breaks_gets_nothing_more() -> None:
    async with Owner(cpus=2) as owner:
        worker, _ = await lane_of(owner)
        worker.connection.close()
        await owner.until(lambda: not owner.attempts._dispatch.lanes_work)
        owner.run()
        await owner.task(1)


async def test_a_lost_node_takes_its_lanes_with_it() -> None:
    async with Owner() as owner:
        worker, _ = await lane_of(owner)
        key = owner.run()
        await worker.next_lot()
        owner.attempts._node_lost(NODE, asyncio.get_running_loop().time() + 1)
        result = await owner.result(key)
        assert isinstance(result, AttemptFailed)
        assert owner.attempts.handed_out == owner.tasks == 0


async def test_an_idle_lane_on_a_lost_node_is_off_the_books() -> None:
    async with Owner() as owner:
        await lane_of(owner)
        owner.attempts._node_lost(NODE, asyncio.get_running_loop().time() + 1)
        assert owner.tasks == 0
        owner.run()
        await owner.task(1)


async def test_a_worker_of_a_task_that_was_given_up_is_sent_home() -> None:
    async with Owner() as owner:
        worker, task = await lane_of(owner)
        key = owner.run()
        lot = await worker.next_lot()
        owner.attempts._node_lost(NODE, asyncio.get_running_loop().time() + 1)
        worker.send(frame(Result(task.lot.number, lot.number, done(lot).finished)))
        await worker.bye()
        assert len(owner.results[key]) == 1


async def test_an_attempt_of_another_deployment_does_not_wait_for_a_lane_to_tire() -> None:
    async with Owner() as owner:
        owner.learn()
        worker, task = await lane_of(owner)
        owner.run(deployment_id="other")
        await worker.bye()
        task.returns(LotResult(()))
        other = await owner.task(1)
        assert other.lot.handed[0].task.deployment_id == "other"


async def test_an_attempt_that_may_be_killed_goes_by_ray_and_its_task_does_not_stay() -> None:
    async with Owner(cpus=2) as owner:
        await lane_of(owner)
        owner.run(kill_after=1.0)
        task = await owner.task(1)
        assert not task.lot.may_stay


async def test_a_task_too_big_for_the_socket_goes_by_ray() -> None:
    async with Owner(cpus=2) as owner:
        await lane_of(owner)
        owner.run(blobs={"big": bytes(2 * 1024 * 1024)})
        await owner.task(1)


async def test_a_closed_owner_closes_its_connections() -> None:
    async with Owner() as owner:
        worker, _ = await lane_of(owner)
        owner.attempts._lanes.close()
        with pytest.raises(worker_lane.Broken):
            await worker.next()


# Strangers ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "first",
    [
        frame(Hello(1, b"guessed", NODE)),
        frame(Bye(1)),
        frame(Begun(1)),
        b"GET / HTTP/1.1\r\n\r\n",
        (HELLO_LIMIT + 1).to_bytes(4, "big"),
    ],
)
async def test_who_does_not_know_the_secret_is_thrown_out(first: bytes) -> None:
    async with Owner() as owner:
        door = owner.attempts._lanes.door
        assert door is not None
        reader, writer = await asyncio.open_connection(door.host, door.port)
        writer.write(first)
        with contextlib.suppress(ConnectionError):
            assert await asyncio.wait_for(reader.read(), SOON) == b""
        writer.close()
        assert not owner.attempts._dispatch.lanes_work


async def test_the_secret_of_another_life_opens_nothing() -> None:
    async with Owner() as former, Owner() as owner:
        door, old = owner.attempts._lanes.door, former.attempts._lanes.door
        assert door is not None
        assert old is not None
        stranger = Connection(Door(door.host, door.port, old.secret, 1.0), former.attempts._life, NODE)
        with pytest.raises(worker_lane.Broken):
            await asyncio.to_thread(stranger.receive, SOON)


def test_frames_are_cut_wherever_the_bytes_are_cut() -> None:
    stream = frame(Begun(1)) + frame(Leave(2)) + frame(Bye(3))
    frames, whole = Frames(), Frames()
    whole.feed(stream)
    pieces: list[bytes] = []
    for byte in stream:
        frames.feed(bytes([byte]))
        pieces += frames
    assert pieces == list(whole)
    assert len(pieces) == 3


def test_a_frame_that_is_too_long_is_refused_before_it_has_come() -> None:
    frames = Frames(limit=10)
    frames.feed((11).to_bytes(4, "big"))
    with pytest.raises(BrokenFrame, match="11 bytes"):
        frames.next()


# The worker -----------------------------------------------------------------------------------------------------------


def staying_lot(owner: Owner) -> Lot:
    return decode_lot(encode_lot(owner.attempts._life, {}, 0.0, False, number=1, may_stay=True))


async def test_a_worker_asks_to_leave_when_nothing_comes_and_returns_nothing_twice() -> None:
    async with Owner(linger=0.005) as owner:
        key, returned = owner.run(), []
        task = await owner.task()

        def work() -> None:
            lane = WorkerLanes().begin(owner.attempts._lanes.door, task.lot, NODE)
            assert lane is not None
            returned.append(lane.serve(done(task.lot), done))
            assert lane.confirmed

        with in_thread(work):
            await owner.result(key)
            await owner.until(lambda: returned)
        assert returned == [LotResult(())], "the owner has all results"


async def test_a_worker_runs_what_comes_until_the_owner_is_gone_and_then_returns_what_was_not_confirmed() -> None:
    async with Owner() as owner:
        returned: list[LotResult] = []
        key = owner.run()
        task = await owner.task()

        def run(lot: Lot) -> LotResult:
            owner.attempts._loop.call_soon_threadsafe(owner.attempts._lanes.close)
            return done(lot)

        def work() -> None:
            lane = WorkerLanes().begin(owner.attempts._lanes.door, task.lot, NODE)
            assert lane is not None
            returned.append(lane.serve(done(task.lot), run))

        with in_thread(work):
            await owner.result(key)
            second = owner.run()
            await owner.until(lambda: returned)
        if second not in owner.results:
            assert len(returned[0].finished) == 1
            task.returns(returned[0])
        assert isinstance(await owner.result(second), ExecuteSucceeded)


async def test_a_worker_that_gets_no_answer_to_its_wish_goes_all_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(worker_lane, "BYE_SECONDS", 0.01)
    with socket.create_server(("127.0.0.1", 0)) as deaf:
        door = Door("127.0.0.1", deaf.getsockname()[1], b"", 0.01)
        lanes = WorkerLanes()
        lane = lanes.begin(door, Lot(1, (), 0.0, number=1, may_stay=True), NODE)
        assert lane is not None
        result = LotResult((Finished(1, AttemptFailed(error_type="x", detail="x")),))
        assert lane.serve(result, done) is result
        assert not lane.confirmed


def test_an_owner_that_cannot_be_reached_is_not_tried_with_every_lot(monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        closed = server.getsockname()[1]
    tried: list[Any] = []
    connect = socket.create_connection
    monkeypatch.setattr(
        socket, "create_connection", lambda *given, **more: tried.append(given) or connect(*given, **more)
    )
    lanes = WorkerLanes()
    lot = Lot(1, (), 0.0, number=1, may_stay=True)
    assert lanes.begin(Door("127.0.0.1", closed, b"", 1.0), lot, NODE) is None
    assert lanes.begin(Door("127.0.0.1", closed, b"", 1.0), lot, NODE) is None
    assert len(tried) == 1


async def test_a_worker_keeps_one_connection_for_all_its_tasks_and_makes_a_new_one_when_it_broke() -> None:
    async with Owner() as owner:
        lanes, lot = WorkerLanes(), staying_lot(owner)
        door = owner.attempts._lanes.door
        assert lanes.begin(door, lot, NODE)
        assert lanes.begin(door, lot, NODE)
        connections = owner.attempts._lanes._connections
        await owner.until(lambda: any(one.node for one in connections))
        assert len(connections) == 1
        for connection in list(connections):
            connection.abort()
        await owner.until(lambda: not connections)
        assert lanes.begin(door, lot, NODE)
        await owner.until(lambda: len(connections) == 1)
        lanes.close()
        await owner.until(lambda: not connections)


def test_a_worker_keeps_few_connections() -> None:
    lanes = WorkerLanes()
    with socket.create_server(("127.0.0.1", 0), backlog=64) as server:
        door = Door("127.0.0.1", server.getsockname()[1], b"", 1.0)
        for life in range(worker_lane.KEPT + 5):
            assert lanes.begin(door, Lot(life, (), 0.0, number=1, may_stay=True), NODE)
        assert len(lanes._connections) == worker_lane.KEPT
        lanes.close()


async def test_a_result_too_big_for_a_frame_is_returned_by_ray() -> None:
    async with Owner() as owner:
        key = owner.run()
        task = await owner.task()
        big = done(task.lot).finished[0]
        failed = AttemptFailed(error_type="x", detail="x" * LIMIT)
        result = LotResult((Finished(big.token, failed),))
        lanes = WorkerLanes()
        lane = lanes.begin(owner.attempts._lanes.door, task.lot, NODE)
        assert lane is not None
        assert lane.serve(result, done) is result
        assert lanes._connections, "the connection is as good as before"
        task.returns(result)
        assert await owner.result(key) == failed


def test_a_lot_that_may_not_stay_has_no_lane() -> None:
    assert WorkerLanes().begin(Door("127.0.0.1", 1, b"", 1.0), Lot(1, (), 0.0), NODE) is None
    assert WorkerLanes().begin(None, Lot(1, (), 0.0, may_stay=True), NODE) is None


# The policy -----------------------------------------------------------------------------------------------------------


class Policy:
    def __init__(self, cpus: int = 2, seconds: float = 0.0002, **settings: Any) -> None:
        self.dispatch: Dispatch[int] = Dispatch(DispatchSettings(**settings))
        self.dispatch.set_resources({"CPU": float(cpus), "GPU": 1.0})
        self.dispatch.lanes_work = True
        for _ in range(20):
            self.dispatch.ran(KIND, seconds)

    def send(self, *items: int, group: str = "code", now: float = 0.0, **options: Any) -> list[Bundle[int]]:
        for item in items:
            signature = repr(options).encode() if options else DEFAULT
            assert self.dispatch.reserve(KIND, False, now)
            self.dispatch.enqueue(item, KIND, False, signature, options, group, 100)
        return self.plan(now)

    def plan(self, now: float = 0.0) -> list[Bundle[int]]:
        return list(self.dispatch.plan(now))

    def offer(self, lot: Bundle[int], now: float = 0.0) -> bool:
        assert lot.place is not None
        return self.dispatch.offer(lot.place, now)


def test_where_lanes_work_no_short_lot_waits_in_rays_queue() -> None:
    policy = Policy(cpus=2)
    assert [len(lot.items) for lot in policy.send(*range(100))] == [50, 25]
    assert policy.plan() == []


def test_a_lane_takes_its_share_of_what_waits() -> None:
    policy = Policy(cpus=2)
    first, _ = policy.send(*range(100))
    assert policy.offer(first)
    (third,) = policy.plan()
    assert third.place is first.place
    assert third.over_lane
    assert len(third.items) == 13


def test_the_lane_that_was_used_last_is_used_first() -> None:
    policy = Policy(cpus=2)
    first, second = policy.send(1, 2)
    assert policy.offer(second)
    assert policy.offer(first)
    (lot,) = policy.send(3)
    assert lot.place is first.place


def test_unknown_types_take_an_idle_lane_too() -> None:
    policy = Policy(cpus=2)
    (first,) = policy.send(1)
    assert policy.offer(first)
    policy.dispatch.ran(KIND, 10.0)
    for _ in range(20):
        policy.dispatch.ran(KIND, 10.0)
    (lot,) = policy.send(2)
    assert not lot.short
    assert lot.over_lane
    (other,) = policy.send(3)
    assert not other.over_lane


def test_a_lane_goes_when_lots_wait_in_rays_queue_for_its_cpu() -> None:
    policy = Policy(cpus=2)
    policy.dispatch.lanes_work = False
    first, second, third, fourth = policy.send(*range(100))
    assert not policy.offer(first), "two wait for the two CPUs"
    assert first.place is not None
    policy.dispatch.task_ended(first.place)
    assert not policy.offer(second)
    assert second.place is not None
    policy.dispatch.task_ended(second.place)
    assert policy.offer(third)
    assert policy.offer(fourth)


def test_a_lane_does_not_go_for_a_lot_that_is_just_on_its_way_to_a_free_cpu() -> None:
    policy = Policy(cpus=2)
    (first,) = policy.send(1)
    policy.send(2)
    assert policy.offer(first, now=0.005)


def test_a_lane_goes_when_a_lot_has_waited_long_for_a_cpu_that_should_be_free() -> None:
    policy = Policy(cpus=2)
    (first,) = policy.send(1)
    policy.send(2)
    assert not policy.offer(first, now=0.05)


def test_a_lane_goes_when_it_has_stayed_long_enough_and_counts_until_its_task_has_ended() -> None:
    policy = Policy(cpus=1, lane_hold=0.2)
    (first,) = policy.send(1)
    assert policy.offer(first, now=10.0)
    policy.send(2, now=10.1)
    assert not policy.offer(first, now=10.3)
    assert policy.send(3, now=10.3) == [], "others may have waited for the CPU"
    assert first.place is not None
    policy.dispatch.task_ended(first.place)
    assert len(policy.plan(10.3)) == 1


def test_a_lane_goes_when_the_first_in_line_is_of_another_deployment() -> None:
    policy = Policy(cpus=1)
    (first,) = policy.send(1)
    assert policy.send(2, group="other") == []
    assert not policy.offer(first)


def test_an_idle_lane_that_keeps_others_from_a_cpu_is_unwanted() -> None:
    policy = Policy(cpus=1)
    (first,) = policy.send(1)
    assert policy.offer(first)
    assert policy.send(2, group="other") == []
    assert policy.dispatch.take_unwanted() == [first.place]
    assert policy.dispatch.take_unwanted() == []


def test_a_backlog_that_lasts_shows_in_rays_queue_where_an_autoscaler_looks() -> None:
    policy = Policy(cpus=1)
    item, first = 0, policy.send(0)[0]
    for tenth in range(20):
        while policy.dispatch.reserve(KIND, False, tenth / 10):
            policy.dispatch.enqueue(item := item + 1, KIND, False, DEFAULT, {}, "code", 100)
        lots = policy.plan(tenth / 10)
        assert len(lots) == (1 if tenth == 11 else 0), tenth
    assert not policy.offer(first, now=1.95), "it has waited long enough"


def test_a_task_that_ended_offers_nothing() -> None:
    policy = Policy(cpus=1)
    (first,) = policy.send(1)
    assert first.place is not None
    policy.dispatch.task_ended(first.place)
    policy.dispatch.task_ended(first.place)
    assert not policy.offer(first)
    assert len(policy.send(2)) == 1


@pytest.mark.parametrize(
    ("options", "may_stay"),
    [
        ({}, True),
        ({"num_cpus": 2, "memory": 10}, True),
        ({"num_gpus": 1}, False),
        ({"max_calls": 1}, False),
        ({"scheduling_strategy": "SPREAD"}, False),
    ],
)
def test_a_task_stays_only_where_that_changes_nothing_for_its_handlers(options: dict[str, Any], may_stay: bool) -> None:
    (lot,) = Policy(cpus=2).send(1, **options)
    assert lot.may_stay is may_stay
