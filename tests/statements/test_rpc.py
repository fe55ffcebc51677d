"""RPCs: what callers see, what Steps see of them, and what is left when something goes wrong."""

from __future__ import annotations

import asyncio
import itertools
import os
import signal
import time
from collections.abc import Awaitable, Callable
from datetime import timedelta
from typing import Any, TypeVar

import pytest

from dex import (
    AsyncClient,
    AsyncContext,
    Attribute,
    AttributeMap,
    Channel,
    ChannelMap,
    ChannelMessageNotFoundError,
    ChannelMessagesNotLoadedError,
    Context,
    DexServiceError,
    Flow,
    FlowNotActiveOrNotFoundError,
    FlowStatus,
    IdReusePolicy,
    PersistenceSchema,
    Registry,
    RequestTimeoutError,
    RPCInvokeOptions,
    RpcLockConflictError,
    RPCResult,
    StartFlowOptions,
    StatusCode,
    Step,
    StepDecision,
    StepList,
    StepMovement,
    StepOptions,
    Wait,
    WorkerInvocationError,
    dead_end,
    graceful_complete,
    rpc,
)
from dex.values import BLOB_THRESHOLD
from tests.statements.kit import events
from tests.world import InProcessWorld, World, scenario

T = TypeVar("T")

count = Attribute("count", int)
text = Attribute("text", str)
stock = AttributeMap("stock", int)
box = Channel("box", str)
boxes = ChannelMap("boxes", str)


class Finish(Step[str]):
    def execute(self, context: Context, input: str) -> StepDecision:
        return graceful_complete(f"{input} from {context.from_step_execution_id}")


class Listen(Step[None]):
    def wait_for(self, context: Context, input: None) -> Wait:
        return Wait.until(box.for_one())

    def execute(self, context: Context, input: None) -> StepDecision:
        text.set(context, box.results(context)[0])
        return dead_end()


class Hold(Step[float]):
    """Holds the lock of `count` for so many seconds, and adds one."""

    def get_step_options(self) -> StepOptions:
        return StepOptions(execute_lock_attributes=(count.lock(),))

    async def execute(self, context: AsyncContext, input: float) -> StepDecision:
        await asyncio.sleep(input)
        count.set(context, count.get(context) + 1)
        return dead_end()


class Board(Flow[None]):
    """A Flow that is driven by its RPCs alone."""

    def get_steps(self) -> StepList[None]:
        return StepList.without_start_step(Finish(), Listen(), Hold())

    def get_persistence_schema(self) -> PersistenceSchema:
        return PersistenceSchema.of(count, text, stock, box, boxes)

    @rpc
    def read(self, context: Context) -> RPCResult[int]:
        return RPCResult(count.get(context))

    @rpc
    def write(self, context: Context, input: int) -> RPCResult[int]:
        before = count.get(context)
        count.set(context, input)
        return RPCResult(before)

    @rpc(lock_attributes=(count.lock(),))
    def add(self, context: Context, input: int) -> RPCResult[int]:
        count.set(context, count.get(context) + input)
        return RPCResult(count.get(context))

    @rpc(is_transactional=True)
    async def add_slowly(self, context: AsyncContext, input: float) -> RPCResult[int]:
        before = count.get(context)
        await asyncio.sleep(input)
        count.set(context, before + 1)
        return RPCResult(before + 1)

    @rpc(lock_attributes=(count.lock(),))
    async def hold(self, context: AsyncContext, input: float) -> RPCResult[int]:
        await asyncio.sleep(input)
        if input < 0:
            raise ValueError("there is no time")
        return RPCResult(count.get(context))

    @rpc
    async def write_slowly(self, context: AsyncContext, input: float) -> None:
        before = count.get(context)
        await asyncio.sleep(input)
        count.set(context, before + 100)

    @rpc
    async def read_slowly(self, context: AsyncContext, input: float) -> RPCResult[int]:
        await asyncio.sleep(input)
        return RPCResult(count.get(context))

    @rpc
    def say(self, context: Context, input: str) -> None:
        box.publish(context, input)

    @rpc
    def sizes(self, context: Context) -> RPCResult[list[int]]:
        return RPCResult([box.size(context), boxes.get_map_size(context)])

    @rpc(load_channels=(box,))
    def pending(self, context: Context) -> RPCResult[list[str]]:
        return RPCResult([message.value for message in box.pending_messages(context)])

    @rpc
    def not_loaded(self, context: Context) -> RPCResult[list[str]]:
        return RPCResult([message.value for message in box.pending_messages(context)])

    @rpc
    def instances(self, context: Context, input: str) -> RPCResult[list[Any]]:
        return RPCResult([stock.get(context, input), [m.value for m in boxes.pending_messages(context, input)]])

    @rpc(load_channels=(box,))
    def take(self, context: Context, input: list[str]) -> None:
        for message in input:
            box.delete(context, message)
        count.set(context, 77)

    @rpc(is_transactional=True)
    def take_all_or_nothing(self, context: Context, input: list[str]) -> None:
        for message in input:
            box.delete(context, message)
        count.set(context, 88)

    @rpc
    def finish(self, context: Context, input: str) -> RPCResult[None]:
        return RPCResult(None, (StepMovement.of(Finish, input),))

    @rpc
    def listen(self, context: Context) -> RPCResult[None]:
        return RPCResult(None, (StepMovement.of(Listen, None),))

    @rpc
    def hold_by_step(self, context: Context, input: float) -> RPCResult[None]:
        return RPCResult(None, (StepMovement.of(Hold, input),))

    @rpc
    def hush(self, context: Context) -> RPCResult[str]:
        return RPCResult("quiet").with_canceling_steps(Listen)

    @rpc
    def fails(self, context: Context) -> RPCResult[int]:
        count.set(context, 99)
        raise LookupError("no such thing")

    @rpc
    def exits(self, context: Context) -> None:
        count.set(context, 99)
        os._exit(3)

    @rpc
    def place(self, context: Context) -> RPCResult[int]:
        return RPCResult(os.getpid())

    @rpc
    def large(self, context: Context, input: str) -> RPCResult[str]:
        text.set(context, input)
        return RPCResult(input[::-1])


BOARD = Board()


async def board(world: World, name: str = "b", **settings: Any) -> Board:
    await world.deploy(BOARD, **settings)
    await world.start(BOARD, name)
    return BOARD


async def call(world: World, method: Callable[..., Any], *value: Any, of: str = "b", **more: Any) -> Any:
    return await world.client.invoke_rpc(method, world.id(of), *value, **more)


async def again_and_again(once: Callable[[], Awaitable[T]]) -> T:
    """What a caller does whose lock was held."""
    pause = 0.001
    while True:
        try:
            return await once()
        except RpcLockConflictError:
            await asyncio.sleep(pause)
            pause = min(pause * 1.5, 0.05)


# What callers see -----------------------------------------------------------------------------------------------------


@pytest.mark.statement("B1", "B4", "B6", "C38")
@scenario(ray=True)
async def test_each_call_sees_what_calls_before_it_wrote(world: World) -> None:
    flow = await board(world)
    assert await call(world, flow.write, 5) == 0
    assert await call(world, flow.read) == 5
    await world.client.set_attribute(world.id("b"), count, 6)
    assert await call(world, flow.read) == 6
    assert await call(world, flow.say, "hi") is None
    assert await call(world, flow.sizes) == [1, 0]
    assert await call(world, flow.pending) == ["hi"]
    assert await call(world, flow.read_slowly, 0.1) == 6


@pytest.mark.statement("C34", "C38")
@scenario()
async def test_only_a_call_that_changes_something_leaves_a_trace(world: World) -> None:
    flow = await board(world)
    await call(world, flow.read)
    assert await world.kinds("b") == ["FlowStarted"]
    await call(world, flow.write, 5)
    applied, written = (await world.history("b"))[1:]
    assert (applied.kind, written.kind) == ("RpcApplied", "AttributesWritten")
    assert applied.data["name"] == "write"
    assert (applied.data["input"], applied.data["output"]) == (5, 0)
    assert written.data["by"] == "__rpc/write"


@pytest.mark.statement("C39", "B4")
@scenario(ray=True)
async def test_an_rpc_starts_the_first_step_which_completes_the_flow(world: World) -> None:
    flow = await board(world)
    await call(world, flow.finish, "hello")
    result = await world.result("b")
    assert result.single_output(str) == "hello from __rpc/finish"


@pytest.mark.statement("B116")
@scenario()
async def test_an_rpc_cancels_steps_by_type(world: World) -> None:
    flow = await board(world)
    for _ in range(2):
        await call(world, flow.listen)
    await world.until_phase("b", "Listen-2", "waiting")
    assert await call(world, flow.hush) == "quiet"
    assert (await world.describe("b")).steps == ()
    cancelled = await events(world, "b", "StepCancelled")
    assert [event.data["by"] for event in cancelled] == ["__rpc/hush"] * 2
    await call(world, flow.say, "nobody listens")
    assert await call(world, flow.sizes) == [1, 0]


@scenario(ray=True)
async def test_its_message_wakes_a_step_that_waits(world: World) -> None:
    flow = await board(world)
    await call(world, flow.listen)
    await world.until_phase("b", "Listen-1", "waiting")
    await call(world, flow.say, "hi")

    async def heard() -> bool:
        return await world.client.get_attribute(world.id("b"), text) == "hi"

    await world.until(heard)


@scenario()
async def test_values_are_loaded_by_the_decorator_and_by_the_call(world: World) -> None:
    flow = await board(world)
    await world.client.set_attribute(world.id("b"), stock, "a", 5)
    await world.publish("b", boxes, "a", "x")
    options = RPCInvokeOptions(
        load_attribute_map_instances=(stock.load("a"),), load_channel_map_instances=(boxes.load_messages("a"),)
    )
    assert await call(world, flow.instances, "a", options=options) == [5, ["x"]]
    with pytest.raises(WorkerInvocationError, match="not loaded"):
        await call(world, flow.instances, "a")
    with pytest.raises(WorkerInvocationError) as caught:
        await call(world, flow.not_loaded)
    assert caught.value.worker_error_type == f"dex.errors.{ChannelMessagesNotLoadedError.__name__}"


@scenario()
async def test_large_values_go_in_and_out_and_are_found_again(world: World) -> None:
    flow = await board(world)
    value = "ab" * BLOB_THRESHOLD
    answer = await call(world, flow.large, value, request_id="r")
    assert answer == value[::-1]
    await world.restart()
    assert await call(world, flow.large, value, request_id="r") == answer
    assert await world.client.get_attribute(world.id("b"), text) == value
    assert await call(world, flow.read) == 0, "a large Attribute is at hand for every handler"


@scenario(ray=True, in_process=False)
async def test_handlers_run_on_workers_and_in_no_flow_actor(world: World) -> None:
    import ray

    flow = await board(world)
    actor = ray.get_actor((await world.describe("b")).owner)
    placed = await call(world, flow.place)
    assert placed != os.getpid()
    assert placed != ray.get(actor.__ray_call__.remote(lambda _: os.getpid()))


# Errors ---------------------------------------------------------------------------------------------------------------


@pytest.mark.statement("C36")
@scenario(ray=True)
async def test_an_error_of_the_handler_is_told_and_changes_nothing(world: World) -> None:
    flow = await board(world)
    with pytest.raises(WorkerInvocationError) as caught:
        await call(world, flow.fails)
    error = caught.value
    assert (error.code, error.worker_code) == (StatusCode.FAILED_PRECONDITION, StatusCode.UNKNOWN)
    assert (error.worker_error_type, error.worker_error_detail) == ("builtins.LookupError", "no such thing")
    assert await call(world, flow.read) == 0
    assert await world.kinds("b") == ["FlowStarted"]


@scenario(ray=True, in_process=False)
async def test_a_lost_worker_is_told_at_once_and_nothing_is_applied(world: World) -> None:
    flow = await board(world)
    with pytest.raises(DexServiceError) as caught:
        await call(world, flow.exits)
    assert caught.value.code is StatusCode.UNAVAILABLE
    assert "its worker was lost" in str(caught.value)
    assert await call(world, flow.read) == 0


@pytest.mark.statement("C35", "C34", "C49")
@scenario()
async def test_a_closed_flow_is_read_and_not_written(world: World) -> None:
    flow = await board(world)
    await call(world, flow.write, 5)
    await world.client.stop_flow(world.id("b"))
    for _ in range(2):
        assert await call(world, flow.read) == 5
        for method, value in ((flow.write, (6,)), (flow.add, (1,)), (flow.listen, ()), (flow.hush, ())):
            with pytest.raises(FlowNotActiveOrNotFoundError, match="is CANCELED, not active"):
                await call(world, method, *value)
        await world.restart()
    assert await call(world, flow.read) == 5


@pytest.mark.statement("C49")
@scenario()
async def test_an_unknown_flow_has_no_rpcs(world: World) -> None:
    await world.deploy(BOARD)
    with pytest.raises(FlowNotActiveOrNotFoundError, match="there is no Flow"):
        await call(world, BOARD.read, of="nobody")


@pytest.mark.statement("C41")
@scenario()
async def test_a_run_id_reads_that_run_and_writes_the_current_one_alone(world: World) -> None:
    flow = await board(world)
    await call(world, flow.write, 5)
    first = (await world.describe("b")).run_id
    await world.client.stop_flow(world.id("b"))
    second = await world.start(flow, "b", None, StartFlowOptions(id_reuse_policy=IdReusePolicy.ALLOW_IF_NOT_RUNNING))
    assert await call(world, flow.read) == 0
    assert await call(world, flow.read, run_id=second) == 0
    assert await call(world, flow.read, run_id=first) == 5
    with pytest.raises(FlowNotActiveOrNotFoundError, match=f"run {first} of Flow .* is CANCELED"):
        await call(world, flow.write, 6, run_id=first)
    await call(world, flow.write, 7, run_id=second)
    assert await call(world, flow.read, run_id=first) == 5
    with pytest.raises(FlowNotActiveOrNotFoundError, match="has no run 'never'"):
        await call(world, flow.read, run_id="never")
    await world.start(flow, "other")
    with pytest.raises(FlowNotActiveOrNotFoundError, match="has no run"):
        await call(world, flow.read, run_id=first, of="other")


class Stranger(Flow[None]):
    @rpc
    def read(self, context: Context) -> RPCResult[int]:
        return RPCResult(1)


@scenario()
async def test_the_rpc_of_another_flow_type_is_refused(world: World) -> None:
    stranger = Stranger()
    await world.deploy(BOARD, stranger)
    await world.start(BOARD, "b")
    with pytest.raises(DexServiceError, match="is a Board, and read is an RPC of Stranger") as caught:
        await call(world, stranger.read)
    assert caught.value.code is StatusCode.INVALID_ARGUMENT


@scenario()
async def test_a_flow_that_closes_under_a_handler_is_read_and_not_written(world: World) -> None:
    flow = await board(world)
    reading = asyncio.create_task(call(world, flow.read_slowly, 5.0))
    writing = asyncio.create_task(call(world, flow.write_slowly, 5.0))
    await asyncio.sleep(1)
    await world.client.stop_flow(world.id("b"))
    assert await reading == 0
    with pytest.raises(FlowNotActiveOrNotFoundError):
        await writing
    assert await call(world, flow.read) == 0


# Time and workers -----------------------------------------------------------------------------------------------------


class Timed(Flow[None]):
    def __init__(self) -> None:
        self.stopped: list[str] = []

    def get_persistence_schema(self) -> PersistenceSchema:
        return PersistenceSchema.of(count)

    async def _sleep(self, name: str, seconds: float) -> None:
        try:
            await asyncio.sleep(seconds)
        except asyncio.CancelledError:
            self.stopped.append(name)
            raise

    @rpc(timeout=timedelta(seconds=5))
    async def short(self, context: AsyncContext, input: float) -> None:
        count.set(context, 1)
        await self._sleep("short", input)

    @rpc
    async def usual(self, context: AsyncContext, input: float) -> None:
        count.set(context, 1)
        await self._sleep("usual", input)


@pytest.mark.statement("C37")
@pytest.mark.parametrize(("name", "seconds"), [("short", 5), ("usual", 60)])
@scenario()
async def test_a_handler_that_takes_too_long_is_asked_to_stop_and_has_done_nothing(
    world: World, name: str, seconds: int
) -> None:
    flow = Timed()
    await world.deploy(flow)
    await world.start(flow, "b")
    began = asyncio.get_running_loop().time()
    await call(world, getattr(flow, name), seconds - 1.0)
    await world.client.set_attribute(world.id("b"), count, 0)
    with pytest.raises(RequestTimeoutError) as caught:
        await call(world, getattr(flow, name), seconds + 1.0)
    assert caught.value.code is StatusCode.DEADLINE_EXCEEDED
    assert asyncio.get_running_loop().time() - began == pytest.approx(2 * seconds - 1, abs=0.5)
    await asyncio.sleep(1)
    assert flow.stopped == [name]
    assert await world.client.get_attribute(world.id("b"), count) == 0


class Nap(Step[float]):
    async def execute(self, context: AsyncContext, input: float) -> StepDecision:
        order.append(f"nap {context.flow_id[-1]}")
        await asyncio.sleep(input)
        return graceful_complete()


class Napper(Flow[float]):
    def get_steps(self) -> StepList[float]:
        return StepList.start_step(Nap())

    @rpc
    def read(self, context: Context) -> RPCResult[int]:
        order.append("rpc")
        return RPCResult(1)


order: list[str] = []


@pytest.mark.statement("B214", "B213", "C37")
@scenario()
async def test_an_rpc_that_no_worker_takes_fails_after_ten_seconds_and_a_step_goes_on_waiting(world: World) -> None:
    flow = Napper()
    await world.deploy(flow, slots=1)
    await world.start(flow, "1", 30.0)
    await world.start(flow, "2", 1.0)
    await world.until_phase("1", "Nap-1", "running")
    began = asyncio.get_running_loop().time()
    with pytest.raises(DexServiceError, match="no worker took it within 10 s") as caught:
        await call(world, flow.read, of="1")
    assert caught.value.code is StatusCode.UNAVAILABLE
    assert asyncio.get_running_loop().time() - began == pytest.approx(10, abs=0.5)
    assert (await world.describe("2")).steps[0].attempt == 1
    assert (await world.result("2", timeout=60)).status is FlowStatus.COMPLETED
    assert await call(world, flow.read, of="1") == 1


@scenario()
async def test_rpcs_get_the_next_free_slot_before_steps(world: World) -> None:
    order.clear()
    flow = Napper()
    await world.deploy(flow, slots=1)
    await world.start(flow, "1", 5.0)
    await world.until_phase("1", "Nap-1", "running")
    await world.start(flow, "2", 1.0)
    await asyncio.sleep(1)
    assert await call(world, flow.read, of="2") == 1
    await world.result("2")
    assert order == ["nap 1", "rpc", "nap 2"]


async def _undeployed(world: World) -> AsyncClient:
    """A Board whose code the engine does not know any more, and a client that does."""
    assert isinstance(world, InProcessWorld)
    await board(world)
    await call(world, BOARD.listen)
    assert world.engine is not None
    world.engine.registry = Registry([Timed()], allow_async_handlers=True)
    await world.restart()
    return AsyncClient(Registry([BOARD], allow_async_handlers=True), world.engine)


@pytest.mark.statement("D7", "B214")
@scenario()
async def test_an_rpc_of_code_that_is_not_deployed_fails_after_the_dispatch_wait(world: World) -> None:
    client = await _undeployed(world)
    began = asyncio.get_running_loop().time()
    with pytest.raises(DexServiceError, match="the code of Flow type Board is not deployed") as caught:
        await client.invoke_rpc(BOARD.read, world.id("b"))
    assert caught.value.code is StatusCode.UNAVAILABLE
    assert asyncio.get_running_loop().time() - began == pytest.approx(10, abs=0.5)
    await client.publish(world.id("b"), box, "wake up")
    description = await client.describe(world.id("b"))
    assert "code of Flow type Board" in description.steps[0].waits_for
    assert description.steps[0].attempt == 1


@pytest.mark.statement("D7")
@scenario()
async def test_code_that_is_deployed_meanwhile_serves_the_call(world: World) -> None:
    client = await _undeployed(world)
    reading = asyncio.create_task(client.invoke_rpc(BOARD.read, world.id("b")))
    await asyncio.sleep(5)
    await world.deploy(BOARD)
    assert await reading == 0


@scenario(ray=True, in_process=False)
async def test_steps_that_keep_every_cpu_busy_hold_up_no_rpc(world: World) -> None:
    flow = Busy()
    await world.deploy(flow)
    gate = world.file("gate")
    for number in range(6):
        await world.start(flow, f"{number}", str(gate))
    await world.until_phase("0", "Occupy-1", "running")

    async def answered() -> bool:  # a worker process that has to be started first may take its time
        try:
            answer: int = await call(world, flow.read, of="5")
        except DexServiceError as error:
            if error.code is not StatusCode.UNAVAILABLE:
                raise
            return False
        return answer == 7

    try:
        await world.until(answered, timeout=60)
        assert [await call(world, flow.read, of=f"{number}") for number in range(6)] == [7] * 6
        assert {(await world.describe(f"{number}")).status for number in range(6)} == {"RUNNING"}
    finally:
        gate.touch()
    for number in range(6):
        await world.result(f"{number}")


class Occupy(Step[str]):
    def execute(self, context: Context, input: str) -> StepDecision:
        while not os.path.exists(input):
            time.sleep(0.01)
        return graceful_complete()


class Busy(Flow[str]):
    def get_steps(self) -> StepList[str]:
        return StepList.start_step(Occupy())

    @rpc
    def read(self, context: Context) -> RPCResult[int]:
        return RPCResult(7)


# Locks and isolation --------------------------------------------------------------------------------------------------


@pytest.mark.statement("B194", "C27")
@scenario()
async def test_an_rpc_is_refused_at_once_while_a_step_holds_its_lock(world: World) -> None:
    flow = await board(world)
    await call(world, flow.hold_by_step, 5.0)
    await world.until_phase("b", "Hold-1", "running")
    began = asyncio.get_running_loop().time()
    with pytest.raises(RpcLockConflictError, match="the lock of Attribute 'count' is held by Hold-1"):
        await call(world, flow.add, 10)
    assert asyncio.get_running_loop().time() - began < 0.1
    assert await call(world, flow.write, 3) == 0, "who takes no lock is not held up"
    await asyncio.sleep(6)
    assert await call(world, flow.add, 10) == 11, "the Step saw 0 and wrote 1"


@pytest.mark.statement("B194", "C27")
@scenario()
async def test_a_step_waits_for_the_lock_of_an_rpc_and_then_runs(world: World) -> None:
    flow = await board(world)
    holding = asyncio.create_task(call(world, flow.hold, 5.0))
    await asyncio.sleep(1)
    await call(world, flow.hold_by_step, 0.0)
    await asyncio.sleep(1)
    (waiting,) = (await world.describe("b")).steps
    assert (waiting.phase, waiting.waits_for) == ("ready", "a lock on count that an RPC holds")
    with pytest.raises(RpcLockConflictError, match="held by __rpc/hold#"):
        await call(world, flow.add, 1)
    assert await holding == 0
    await asyncio.sleep(1)
    assert await call(world, flow.read) == 1


@pytest.mark.statement("B194")
@pytest.mark.parametrize("how", ["fails", "times out", "is left by its caller"])
@scenario()
async def test_a_lock_is_free_again_however_its_rpc_ends(world: World, how: str) -> None:
    flow = await board(world)
    if how == "is left by its caller":
        holding = asyncio.create_task(call(world, flow.hold, 5.0))
        await asyncio.sleep(1)
        holding.cancel()
        with pytest.raises(RpcLockConflictError):
            await call(world, flow.add, 1)
        await asyncio.sleep(5)
    elif how == "times out":
        with pytest.raises(RequestTimeoutError):
            await call(world, flow.hold, 70.0)
    else:
        with pytest.raises(WorkerInvocationError):
            await call(world, flow.hold, -1.0)
    assert await call(world, flow.add, 1) == 1


@scenario()
async def test_locks_of_map_instances_are_named_by_the_call(world: World) -> None:
    flow = await board(world)
    of_a = RPCInvokeOptions(lock_attribute_map_instances=(stock.lock("a"),))
    of_b = RPCInvokeOptions(lock_attribute_map_instances=(stock.lock("b"),))
    holding = asyncio.create_task(call(world, flow.read_slowly, 5.0, options=of_a))
    await asyncio.sleep(1)
    assert await call(world, flow.read, options=of_b) == 0
    with pytest.raises(RpcLockConflictError, match="'stock/a'"):
        await call(world, flow.read, options=of_a)
    await holding
    assert await call(world, flow.read, options=of_a) == 0


@pytest.mark.statement("C40", "C33")
@scenario(ray=True)
async def test_a_hundred_locked_increments_make_exactly_a_hundred(world: World) -> None:
    flow = await board(world)
    answers = await asyncio.gather(*(again_and_again(lambda: call(world, flow.add, 1)) for _ in range(100)))
    assert sorted(answers) == list(range(1, 101))
    assert await call(world, flow.read) == 100


@pytest.mark.statement("C33")
@scenario()
async def test_transactional_increments_that_overtake_each_other_all_come_to_their_turn(world: World) -> None:
    flow = await board(world)
    answers = await asyncio.gather(*(call(world, flow.add_slowly, 0.1) for _ in range(30)))
    assert sorted(answers) == list(range(1, 31))
    assert await call(world, flow.read) == 30


@pytest.mark.statement("C33")
@scenario()
async def test_a_transactional_handler_runs_again_when_something_changed_under_it(world: World) -> None:
    flow = await board(world)
    adding = asyncio.create_task(call(world, flow.add_slowly, 5.0))
    await asyncio.sleep(1)
    await call(world, flow.write, 40)
    began = asyncio.get_running_loop().time()
    assert await adding == 41
    assert asyncio.get_running_loop().time() - began == pytest.approx(9, abs=0.5)


@pytest.mark.statement("C33")
@scenario()
async def test_data_that_never_stands_still_refuses_a_transactional_rpc(world: World) -> None:
    flow = await board(world)
    adding = asyncio.create_task(call(world, flow.add_slowly, 5.0))
    for number in itertools.count(1):
        await asyncio.sleep(2)
        if adding.done():
            break
        await call(world, flow.say, f"{number}")
    with pytest.raises(RpcLockConflictError, match="changed 5 times while it ran"):
        await adding
    assert number in (12, 13)
    assert await call(world, flow.read) == 0


@pytest.mark.statement("C32")
@scenario()
async def test_a_plain_handler_runs_once_and_is_applied_over_what_came_meanwhile(world: World) -> None:
    flow = await board(world)
    writing = asyncio.create_task(call(world, flow.write_slowly, 5.0))
    await asyncio.sleep(1)
    await call(world, flow.write, 40)
    await writing
    assert await call(world, flow.read) == 100, "it saw 0"


@pytest.mark.statement("C32", "C33")
@scenario()
async def test_a_message_that_is_gone_fails_an_isolated_rpc_and_no_plain_one(world: World) -> None:
    flow = await board(world)
    ids = await world.publish("b", box, "x", "y", "z")
    await call(world, flow.take, [ids[0], "gone"])
    assert await call(world, flow.pending) == ["y", "z"]
    assert await call(world, flow.read) == 77
    with pytest.raises(ChannelMessageNotFoundError) as caught:
        await call(world, flow.take_all_or_nothing, [ids[1], ids[0]])
    assert caught.value.code is StatusCode.NOT_FOUND
    assert await call(world, flow.pending) == ["y", "z"]
    assert await call(world, flow.read) == 77
    await call(world, flow.take_all_or_nothing, [ids[1]])
    assert await call(world, flow.pending) == ["z"]
    assert await call(world, flow.read) == 88


# Repeats --------------------------------------------------------------------------------------------------------------


@pytest.mark.statement("D8")
@scenario()
async def test_a_repeat_has_the_first_ones_effect_and_answer_also_after_a_crash_and_the_end(world: World) -> None:
    flow = await board(world)
    assert await call(world, flow.add, 5, request_id="r") == 5
    assert await call(world, flow.add, 7, request_id="r") == 5
    await world.restart()
    assert await call(world, flow.add, 5, request_id="r") == 5
    assert await call(world, flow.add, 5, request_id="s") == 10
    await world.client.stop_flow(world.id("b"))
    assert await call(world, flow.add, 5, request_id="s") == 10
    await world.restart()
    assert await call(world, flow.add, 5, request_id="r") == 5
    assert await call(world, flow.read) == 10
    await world.start(flow, "other")
    assert await call(world, flow.add, 1, request_id="r", of="other") == 1, "an id is scoped to its Flow"


@pytest.mark.statement("D8")
@scenario()
async def test_a_repeat_while_the_first_is_under_way_waits_for_its_answer(world: World) -> None:
    flow = await board(world)
    calls = [asyncio.create_task(call(world, flow.add_slowly, 5.0, request_id="r")) for _ in range(3)]
    await asyncio.sleep(1)
    calls[0].cancel()
    assert await asyncio.gather(*calls[1:]) == [1, 1]
    assert await call(world, flow.read) == 1


@pytest.mark.statement("D8", "D9")
@scenario()
async def test_a_call_that_its_owner_took_along_when_it_ended_had_no_effect(world: World) -> None:
    flow = await board(world)
    lost = asyncio.create_task(call(world, flow.add_slowly, 5.0, request_id="r"))
    await asyncio.sleep(1)
    await world.restart()
    assert await call(world, flow.read) == 0
    assert await call(world, flow.add_slowly, 1.0, request_id="r") == 1
    lost.cancel()
    assert await call(world, flow.read) == 1


@pytest.mark.kill
@pytest.mark.statement("D8", "C40")
@scenario(ray=True, in_process=False)
async def test_increments_under_one_id_each_survive_the_end_of_their_owner(world: World) -> None:
    import ray

    flow = await board(world)
    actor = ray.get_actor((await world.describe("b")).owner)
    owner: int = await actor.__ray_call__.remote(lambda _: os.getpid())
    answers: list[int] = []
    under_way = asyncio.Event()

    async def add(number: int) -> None:
        while True:
            try:
                answers.append(await call(world, flow.add, 1, request_id=f"add-{number}"))
            except DexServiceError as error:
                if error.code not in (StatusCode.ABORTED, StatusCode.UNAVAILABLE):
                    raise
                await asyncio.sleep(0.01)
            else:
                if len(answers) == 10:
                    under_way.set()
                return

    async def kill() -> None:
        await under_way.wait()
        os.kill(owner, signal.SIGKILL)

    await asyncio.gather(kill(), *(add(number) for number in range(40)))
    assert sorted(answers) == list(range(1, 41))
    assert await call(world, flow.read) == 40
