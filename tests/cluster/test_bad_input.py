"""Whatever is wrong with what clients and handlers give, the error names it, and the engine goes on unharmed."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from datetime import timedelta
from typing import Any, NoReturn

import pytest

from dex import (
    AsyncClient,
    AsyncContext,
    Attribute,
    AttributeMap,
    Channel,
    ChannelMap,
    ClientOptions,
    Context,
    DexServiceError,
    Flow,
    FlowDefinitionError,
    FlowNotFoundError,
    FlowStatus,
    PersistenceSchema,
    Registry,
    RetryPolicy,
    Step,
    StepDecision,
    StepList,
    StepOptions,
    ValueMappingError,
    go_to,
    graceful_complete,
)
from tests.world import World, scenario

MIB = 1024 * 1024

note = Channel("note", str)
notes = ChannelMap("notes", str)
total = Attribute("total", int)
totals = AttributeMap("totals", int)
blob = Attribute("blob", bytes)
stray_note = Channel("stray_note", str)
stray_total = Attribute("stray_total", int)


class Next(Step[int]):
    def execute(self, context: Context, input: int) -> StepDecision:
        return graceful_complete(input + 1)


class Nowhere(Step[int]):
    """A Step of no Flow."""

    def execute(self, context: Context, input: int) -> StepDecision:
        return graceful_complete(input)


MISTAKES: dict[str, Callable[[Any], Any]] = {
    "unknown Step": lambda context: go_to(Nowhere, 1),
    "input of the wrong type": lambda context: go_to(Next, "seven"),
    "undeclared Channel": lambda context: stray_note.publish(context, "hello"),
    "undeclared Attribute": lambda context: stray_total.set(context, 1),
    "reading an undeclared Attribute": lambda context: stray_total.get(context),
    "message of the wrong type": lambda context: note.publish(context, 7),  # type: ignore[arg-type]
    "Attribute of the wrong type": lambda context: total.set(context, "seven"),  # type: ignore[arg-type]
    "instance with a slash": lambda context: totals.set(context, "a/b", 1),
    "output that is no value": lambda context: graceful_complete(threading.Lock()),
    "output with no value inside": lambda context: graceful_complete({"lock": threading.Lock()}),
    "Attribute that is no value": lambda context: total.set(context, threading.Lock()),  # type: ignore[arg-type]
    "no decision": lambda context: None,
    "another thing than a decision": lambda context: 7,
    "Attribute above the limit": lambda context: blob.set(context, bytes(64 * MIB + 1)),
    "output above the limit": lambda context: graceful_complete(bytes(64 * MIB + 1)),
}


class Mistaken(Step[str]):
    def execute(self, context: Context, input: str) -> StepDecision:
        made = MISTAKES[input](context)
        return made if input.startswith(("no ", "another")) or isinstance(made, StepDecision) else go_to(Next, 1)

    def get_step_options(self) -> StepOptions:
        return StepOptions(execute_retry=RetryPolicy(initial_interval=timedelta(seconds=1), maximum_attempts=2))


class Trouble(Flow[str]):
    """Makes the mistake that its input names."""

    def get_steps(self) -> StepList[str]:
        return StepList.start_step(Mistaken()).other_steps(Next())

    def get_persistence_schema(self) -> PersistenceSchema:
        return PersistenceSchema.of(note, notes, total, totals, blob)


class Sound(Flow[int]):
    def get_steps(self) -> StepList[int]:
        return StepList.start_step(Next())


trouble, sound = Trouble(), Sound()


@asynccontextmanager
async def unharmed(world: World, *flows: Flow[Any]) -> AsyncIterator[None]:
    """Deploys, and runs a sound Flow when the mistakes are made."""
    await world.deploy(*flows, sound)
    yield
    await world.start(sound, "sound", 1)
    assert (await world.result("sound")).single_output(int) == 2


async def failures_of(world: World, name: str) -> list[dict[str, Any]]:
    return [event.data["failure"] for event in await world.history(name) if event.kind == "AttemptFailed"]


@scenario(ray=True)
async def test_a_handler_s_mistake_fails_its_flow_and_is_named(world: World) -> None:
    names = {
        "unknown Step": ["Mistaken", "Nowhere", "Trouble"],
        "input of the wrong type": ["Next", "int", "str"],
        "undeclared Channel": ["stray_note"],
        "undeclared Attribute": ["stray_total"],
        "reading an undeclared Attribute": ["stray_total"],
        "message of the wrong type": ["note", "str", "int"],
        "Attribute of the wrong type": ["total", "int", "str"],
        "instance with a slash": ["totals", "a/b"],
        "output that is no value": ["lock"],
        "output with no value inside": ["lock"],
        "Attribute that is no value": ["total", "lock"],
        "no decision": ["StepDecision", "None"],
        "another thing than a decision": ["StepDecision", "int"],
    }
    async with unharmed(world, trouble):
        for mistake in names:
            await world.start(trouble, mistake, mistake)
        for mistake, words in names.items():
            result = await world.result(mistake)
            assert result.status is FlowStatus.FAILED, mistake
            failures = await failures_of(world, mistake)
            told = f"{failures[-1]['error_type']}: {failures[-1]['detail']}"
            assert all(word in told for word in words), (mistake, told)
            assert failures[-1]["detail"].split("\n")[0][:200] in result.error_message, mistake


@pytest.mark.statement("D12")
@scenario(ray=True)
async def test_a_value_above_the_limit_is_named_with_its_size_and_not_retried(world: World) -> None:
    async with unharmed(world, trouble):
        for mistake, where in {"Attribute above the limit": "blob", "output above the limit": "output"}.items():
            await world.start(trouble, mistake, mistake)
            assert (await world.result(mistake)).status is FlowStatus.FAILED
            (failure,) = await failures_of(world, mistake)
            told = failure["detail"]
            assert all(word in told for word in (where, "67,108,864", "over the limit")), told
            assert any(f"{64 * MIB + extra:,} bytes" in told for extra in range(1, 20)), told


# Whatever is raised ---------------------------------------------------------------------------------------------------


class OddConstructor(Exception):
    def __init__(self, one: int, two: int, *, three: int) -> None:
        super().__init__(f"{one} {two} {three}")


class BrokenStr(Exception):
    def __str__(self) -> str:
        raise ZeroDivisionError


class StrThatExits(Exception):
    def __str__(self) -> str:
        raise SystemExit(3)


class Unpicklable(Exception):
    def __init__(self) -> None:
        super().__init__("holds a lock")
        self.lock = threading.Lock()

    def __reduce__(self) -> NoReturn:
        raise RuntimeError("never pickle me")


class BareException(BaseException):
    pass


class Ünïcödé(Exception):
    pass


def raise_local() -> NoReturn:
    class Local(Exception):
        pass

    raise Local("of no module")


def raise_chain() -> NoReturn:
    error: Exception = ValueError("the root")
    for depth in range(500):
        error.__cause__, error = error.__cause__, RuntimeError(f"link {depth}")
        error.__cause__ = ValueError("below")
    raise error


def raise_cycle() -> NoReturn:
    one, two = ValueError("one"), ValueError("two")
    one.__cause__, two.__cause__ = two, one
    raise one


def recurse() -> NoReturn:
    recurse()
    raise AssertionError


def raising(error: BaseException | type[BaseException]) -> Callable[[], NoReturn]:
    def fail() -> NoReturn:
        raise error

    return fail


RAISED: dict[str, tuple[Callable[[], NoReturn], str, str]] = {
    "odd constructor": (lambda: raising(OddConstructor(1, 2, three=3))(), "OddConstructor", "1 2 3"),
    "broken str": (raising(BrokenStr), "BrokenStr", "ZeroDivisionError"),
    "str that exits": (raising(StrThatExits), "StrThatExits", "SystemExit"),
    "unpicklable": (lambda: raising(Unpicklable())(), "Unpicklable", "holds a lock"),
    "of no module": (raise_local, "Local", "of no module"),
    "bare": (raising(BareException("bare")), "BareException", "bare"),
    "name of any script": (raising(Ünïcödé("ü")), "Ünïcödé", "ü"),
    "10 MB of message": (lambda: raising(ValueError("x" * 10_000_000))(), "ValueError", "xxx"),
    "lone surrogate": (raising(ValueError("a\ud800b")), "ValueError", "a"),
    "NUL and control": (raising(ValueError("a\x00b\x1b[31m")), "ValueError", "a"),
    "no message": (raising(ValueError), "ValueError", ""),
    "a message that is no text": (raising(ValueError(b"\xff", {1: 2})), "ValueError", "ff"),
    "group": (raising(ExceptionGroup("many", [ValueError("a"), TypeError("b")])), "ExceptionGroup", "many"),
    "chain": (raise_chain, "RuntimeError", "link 499"),
    "cycle": (raise_cycle, "ValueError", "one"),
    "recursion": (recurse, "RecursionError", "recursion"),
    "memory": (raising(MemoryError), "MemoryError", ""),
    "exit": (raising(SystemExit(7)), "SystemExit", "7"),
    "interrupt": (raising(KeyboardInterrupt), "KeyboardInterrupt", ""),
    "generator exit": (raising(GeneratorExit), "GeneratorExit", ""),
    "stop iteration": (raising(StopIteration("done")), "", ""),  # in a coroutine, Python makes a RuntimeError of it
    "cancelled": (raising(asyncio.CancelledError("mine")), "CancelledError", "mine"),
    "no exception at all": (lambda: raising(7)(), "TypeError", "BaseException"),  # type: ignore[arg-type]
}

ONCE = StepOptions(execute_retry=RetryPolicy(maximum_attempts=1))


class Raise(Step[str]):
    def execute(self, context: Context, input: str) -> StepDecision:
        RAISED[input][0]()

    def get_step_options(self) -> StepOptions:
        return ONCE


class RaiseAsync(Step[str]):
    async def execute(self, context: AsyncContext, input: str) -> StepDecision:
        await asyncio.sleep(0)
        RAISED[input][0]()

    def get_step_options(self) -> StepOptions:
        return ONCE


class Raising(Flow[str]):
    def get_steps(self) -> StepList[str]:
        return StepList.start_step(Raise())


class RaisingAsync(Flow[str]):
    def get_steps(self) -> StepList[str]:
        return StepList.start_step(RaiseAsync())


@pytest.mark.statement("D15")
@pytest.mark.parametrize("flow", [Raising(), RaisingAsync()], ids=["sync", "async"])
@scenario(ray=True)
async def test_whatever_a_handler_raises_is_a_record_that_anyone_can_read(world: World, flow: Flow[str]) -> None:
    async with unharmed(world, flow):
        for kind in RAISED:
            await world.start(flow, kind, kind)
        for kind, (_, name, message) in RAISED.items():
            result = await world.result(kind)
            assert result.status is FlowStatus.FAILED, kind
            (failure,) = [{"detail": "", **found} for found in await failures_of(world, kind)]  # "" is left out
            assert name in failure["error_type"], (kind, failure["error_type"])
            assert message in failure["detail"], (kind, failure["detail"])
            assert failure["kind"] == "HANDLER_ERROR", (kind, failure["kind"])
            sizes = {part: len(str(failure[part]).encode()) for part in ("error_type", "detail", "trace")}
            assert sizes["detail"] <= 1100, (kind, sizes)
            assert 0 < sizes["trace"] <= 4200, (kind, sizes)
            assert len(result.error_message) <= 2000


# Clients --------------------------------------------------------------------------------------------------------------


@scenario(ray=True)
async def test_a_client_s_mistake_is_refused_at_the_call_by_name(world: World) -> None:
    async with unharmed(world, trouble):
        await world.start(sound, "open", 1)
        client: Any = world.client
        calls: list[tuple[type[Exception], list[str], Callable[[], Any]]] = [
            (ValueMappingError, ["input of Flow 'Trouble'", "str", "int"], lambda: world.start(trouble, "f", 7)),
            (ValueMappingError, ["input of Flow 'Sound'", "int", "str"], lambda: world.start(sound, "f", "7")),
            (ValueMappingError, ["'Sound'", "int", "None"], lambda: world.start(sound, "f")),
            (ValueMappingError, ["'note'", "str", "int"], lambda: world.publish("open", note, 7)),
            (ValueMappingError, ["'total'", "int", "lock"], lambda: client.set_attribute("x", total, threading.Lock())),
            (ValueError, ["Channel 'stray_note'", "Trouble"], lambda: world.publish("open", stray_note, "x")),
            (ValueError, ["Attribute 'stray_total'"], lambda: client.get_attribute("open", stray_total)),
            (TypeError, ["publish", "Attribute"], lambda: client.publish("open", total, 1)),
            (TypeError, ["ChannelMap 'notes'", "instance"], lambda: client.publish("open", notes)),
            (ValueError, ["notes", "must not be empty"], lambda: client.publish("open", notes, "", "x")),
            (ValueError, ["totals", "a/b"], lambda: client.set_attribute("open", totals, "a/b", 1)),
            (ValueError, ["note", "at least one value"], lambda: world.publish("open", note)),
            (FlowDefinitionError, ["not registered", "Sound"], lambda: client.start_flow(Sound(), "f", 1)),
            (TypeError, ["StopFlowOptions", "str"], lambda: client.stop_flow("open", "now")),
            (ValueError, ["request_id"], lambda: client.start_flow(sound, "f", 1, request_id="")),
            (FlowNotFoundError, ["nobody"], lambda: client.describe_flow("nobody")),
            (DexServiceError, ["nobody"], lambda: client.publish("nobody", note, "x")),
        ]
        for kind, words, call in calls:
            with pytest.raises(kind) as refused:
                await call()
            assert all(word in str(refused.value) for word in words), (words, str(refused.value))


@scenario(ray=True)
async def test_a_client_with_newer_definitions_than_the_engine_is_told_what_is_missing(world: World) -> None:
    """Its Registry is right in itself; what is deployed is older."""

    class NewerTrouble(Trouble):
        def get_flow_type(self) -> str:
            return "Trouble"

        def get_persistence_schema(self) -> PersistenceSchema:
            return PersistenceSchema.of(note, notes, total, totals, blob, stray_note, stray_total)

    class Undeployed(Sound):
        pass

    newer, undeployed = NewerTrouble(), Undeployed()
    async with unharmed(world, trouble):
        await world.start(trouble, "t", "no decision")
        client: Any = AsyncClient(Registry([newer, undeployed]), world.client._service)
        flow_id = world.id("t")
        for words, call in [
            (["Trouble", "Channel 'stray_note'"], lambda: client.publish(flow_id, stray_note, "x")),
            (["Trouble", "Attribute 'stray_total'"], lambda: client.set_attribute(flow_id, stray_total, 1)),
            (["Trouble", "Attribute 'stray_total'"], lambda: client.get_attribute(flow_id, stray_total)),
            (["'Undeployed' is not deployed"], lambda: client.start_flow(undeployed, world.id("u"), 1)),
        ]:
            with pytest.raises(DexServiceError) as refused:
                await call()
            assert all(word in str(refused.value) for word in words), (words, str(refused.value))


@pytest.mark.statement("D12")
@scenario(ray=True)
async def test_a_value_above_a_client_s_limit_is_refused_before_it_is_sent(world: World) -> None:
    async with unharmed(world, trouble):
        await world.start(trouble, "t", "no decision")
        options = ClientOptions(max_value_bytes=1000)
        client: Any = AsyncClient(world.client.registry, world.client._service, options)
        flow_id = world.id("t")
        for where, call in {
            "input of Flow 'Trouble'": lambda: client.start_flow(trouble, "large", "x" * 1000),
            "Channel 'note'": lambda: client.publish(flow_id, note, "x" * 1000),
            "Attribute 'blob'": lambda: client.set_attribute(flow_id, blob, bytes(1000)),
        }.items():
            with pytest.raises(ValueMappingError, match=r"1,00\d bytes is over the limit of 1,000") as refused:
                await call()
            assert where in str(refused.value)
            assert refused.value.too_large
        with pytest.raises(FlowNotFoundError):
            await client.describe_flow("large")


# Flow IDs -------------------------------------------------------------------------------------------------------------

ODD_IDS = [
    "a/b/c",
    "/",
    "..",
    "../../etc/passwd",
    "a:b#c?d%e&f=g@h",
    "%2F%00",
    " ",
    "  leading and trailing  ",
    'it\'s "quoted" `here`',
    "'; DROP TABLE runs; --",
    "back\\slash",
    "{json: [1]}",
    "$(reboot) ${HOME} *",
    "日本語",
    "שלום עולם",
    "\u202eright to left\u202c",
    "e\u0301 is not \u00e9",
    "🚀👩‍👩‍👧‍👦",
    "\U0010ffff",
    "zero\u200bwidth",
    "-",
    "--help",
    "None",
    "x" * 1000,
    "🚀" * 1000,
]


@pytest.mark.statement("D13")
@scenario(ray=True)
async def test_a_flow_id_may_be_any_text(world: World) -> None:
    async with unharmed(world, trouble):
        client = world.client
        for flow_id in ODD_IDS:
            await client.start_flow(sound, flow_id, 1)
        for flow_id in ODD_IDS:
            assert (await client.wait_for_flow(flow_id)).single_output(int) == 2
            assert (await client.describe(flow_id)).flow_id == flow_id
            assert (await client.describe_flow(flow_id)).flow_id == flow_id
            assert [event async for event in client.history(flow_id)]
            with pytest.raises(DexServiceError) as closed:
                await client.publish(flow_id, note, "x")
            assert repr(flow_id) in str(closed.value)
        listed, token = set(), ""
        while True:
            page = await client.list_flows(flow_type="Sound", page_size=7, page_token=token)
            listed |= {flow.flow_id for flow in page.flows}
            token = page.next_page_token
            if not token:
                break
        assert set(ODD_IDS) <= listed


@pytest.mark.statement("D13")
@pytest.mark.parametrize(
    ("flow_id", "words"),
    [
        ("", "must not be empty"),
        ("x" * 1001, "at most 1000 characters, got 1001"),
        ("a\x00b", "control characters"),
        ("a\nb", "control characters"),
        ("\x1b[31m", "control characters"),
        ("a\x7f", "control characters"),
        ("a\x85", "control characters"),
        ("\ud800", "control characters"),
        (7, "a Flow ID is a str, got int: 7"),
        (None, "a Flow ID is a str"),
        (b"id", "a Flow ID is a str"),
    ],
)
@scenario()
async def test_other_flow_ids_are_refused_by_every_call(world: World, flow_id: Any, words: str) -> None:
    async with unharmed(world, trouble):
        client = world.client
        for call in (
            lambda: client.start_flow(sound, flow_id, 1),
            lambda: client.publish(flow_id, note, "x"),
            lambda: client.describe_flow(flow_id),
            lambda: client.wait_for_flow(flow_id),
            lambda: client.get_attribute(flow_id, total),
            lambda: client.stop_flow(flow_id),
        ):
            with pytest.raises((ValueError, TypeError), match=words):
                await call()
