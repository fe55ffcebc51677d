"""Each mistake in a definition is refused when the Registry is made, by the names of what is wrong."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Generator, Iterator
from datetime import timedelta
from typing import TYPE_CHECKING, Any, TypeVar

import pytest

from dex import (
    AsyncContext,
    Attribute,
    AttributeIndex,
    AttributeLock,
    AttributeMap,
    Channel,
    ChannelMap,
    Context,
    Flow,
    FlowDefinitionError,
    IndexType,
    PersistenceSchema,
    Registry,
    RetryPolicy,
    RPCResult,
    Step,
    StepDecision,
    StepList,
    StepOptions,
    StepOutput,
    StepResources,
    Stream,
    Wait,
    dead_end,
    rpc,
)

if TYPE_CHECKING:
    from somewhere import Unknown  # type: ignore[import-not-found]

STATUS = Attribute("status", str)
STOCK = AttributeMap("stock", int)
PAID = Channel("paid", bool)
PARTS = ChannelMap("parts", int)
STRANGER = Attribute("stranger", str)
T = TypeVar("T")


class Good(Step[int]):
    def execute(self, context: Context, input: int) -> StepDecision:
        return dead_end()


class OfText(Step[str]):
    def execute(self, context: Context, input: str) -> StepDecision:
        return dead_end()


def flow_of(
    *steps: Any, schema: PersistenceSchema | None = None, name: str = "Shop", start: Any = None, **members: Any
) -> Flow[Any]:
    """A Flow instance of a class of its own."""

    class Made(Flow[Any]):
        def get_flow_type(self) -> str:
            return name

        def get_steps(self) -> StepList[Any]:
            return StepList(() if start is None else (start,), steps)

        def get_persistence_schema(self) -> PersistenceSchema:
            return schema or PersistenceSchema.of(STATUS, STOCK, PAID, PARTS)

    for member, value in members.items():
        setattr(Made, member, value)
    return Made()


def step_of(execute: Any = None, options: Any = None, wait_for: Any = None, base: Any = Step) -> Step[Any]:
    """An instance of a Step class `Pack` made of these parts."""

    def get_step_options(self: Any) -> Any:
        if isinstance(options, Exception):
            raise options
        return options

    members: dict[str, Any] = {"execute": execute or Good.execute, "__module__": __name__}
    if options is not None:
        members["get_step_options"] = get_step_options
    if wait_for is not None:
        members["wait_for"] = wait_for
    made: Any = type("Pack", (base,), members)
    instance: Step[Any] = made()
    return instance


def refused(*flows: Any, **options: Any) -> str:
    with pytest.raises(FlowDefinitionError) as caught:
        Registry(flows, **options)
    return str(caught.value)


# Handlers ---


def no_context_annotation(self, context, input: int) -> StepDecision:  # type: ignore[no-untyped-def]
    return dead_end()


def async_context_in_sync(self: Any, context: AsyncContext, input: int) -> StepDecision:
    return dead_end()


def other_context(self: Any, context: int, input: int) -> StepDecision:
    return dead_end()


async def sync_context_in_async(self: Any, context: Context, input: int) -> StepDecision:
    return dead_end()


async def async_handler(self: Any, context: AsyncContext, input: int) -> StepDecision:
    return dead_end()


async def async_generator(self: Any, context: AsyncContext, input: int) -> AsyncGenerator[int]:
    yield 1


def no_input_annotation(self, context: Context, input) -> StepDecision:  # type: ignore[no-untyped-def]
    return dead_end()


def unknown_input(self: Any, context: Context, input: Unknown) -> StepDecision:
    return dead_end()


def open_input(self: Any, context: Context, input: list[T]) -> StepDecision:
    return dead_end()


def no_return_annotation(self, context: Context, input: int):  # type: ignore[no-untyped-def]
    return dead_end()


def returns_wait(self: Any, context: Context, input: int) -> Wait:
    return Wait.skip_immediately()


def yields_as_iterator(self: Any, context: Context, input: int) -> Iterator[StepOutput]:
    yield from ()


def yields_numbers(self: Any, context: Context, input: int) -> Generator[int, None, StepDecision]:
    yield 1
    return dead_end()


def yields_but_returns_wait(self: Any, context: Context, input: int) -> Generator[StepOutput, None, Wait]:
    yield from ()
    return Wait.skip_immediately()


def without_input(self: Any, context: Context) -> StepDecision:
    return dead_end()


def with_more(self: Any, context: Context, input: int, more: int) -> StepDecision:
    return dead_end()


def with_keyword(self: Any, context: Context, input: int, *, more: int) -> StepDecision:
    return dead_end()


def of_socket(self: Any, context: Context, input: asyncio.Queue[int]) -> StepDecision:
    return dead_end()


@pytest.mark.parametrize(
    ("execute", "words"),
    [
        (no_context_annotation, ["'context' has no annotation", ": Context"]),
        (async_context_in_sync, ["a synchronous handler takes a Context", "AsyncContext"]),
        (other_context, ["a synchronous handler takes a Context", "int"]),
        (sync_context_in_async, ["an async handler takes an AsyncContext"]),
        (async_generator, ["an async generator can't be a handler"]),
        (no_input_annotation, ["input 'input' has no annotation"]),
        (unknown_input, ["'Unknown' of 'input' can't be resolved", "TYPE_CHECKING"]),
        (open_input, ["nothing says what that stands for", "list[~T]"]),
        (no_return_annotation, ["no return annotation"]),
        (returns_wait, ["returns a StepDecision", "Wait"]),
        (yields_as_iterator, ["Generator[StepOutput, None, …]", "Iterator"]),
        (yields_numbers, ["yields StepOutput", "int"]),
        (yields_but_returns_wait, ["returns a StepDecision", "Wait"]),
        (without_input, ["takes (self, context, input)"]),
        (with_more, ["takes (self, context, input)", "more"]),
        (with_keyword, ["takes (self, context, input)", "more"]),
        (of_socket, ["no codec takes the type", "Queue"]),
    ],
)
def test_a_wrong_execute_is_refused(execute: Any, words: list[str]) -> None:
    text = refused(flow_of(step_of(execute)), allow_async_handlers=True)
    for word in ["Flow 'Shop'", "Step 'Pack'", *words]:
        assert word in text


def test_an_async_handler_needs_a_registry_that_allows_it() -> None:
    text = refused(flow_of(step_of(async_handler)))
    assert "Step 'Pack', execute" in text
    assert "Registry([...], allow_async_handlers=True)" in text
    Registry([flow_of(step_of(async_handler))], allow_async_handlers=True)


def test_a_wrong_wait_for_is_refused() -> None:
    assert "Step 'Pack', wait_for: it returns a Wait" in refused(flow_of(step_of(wait_for=Good.execute)))


def test_wait_for_and_execute_take_the_same_input() -> None:
    def wait_for(self: Any, context: Context, input: str) -> Wait:
        return Wait.skip_immediately()

    assert "wait_for takes str and execute int" in refused(flow_of(step_of(wait_for=wait_for)))


def test_the_input_is_the_one_that_the_class_is_declared_with() -> None:
    class Pack(Step[str]):
        def execute(self, context: Context, input: int) -> StepDecision:  # type: ignore[override]
            return dead_end()

    text = refused(flow_of(Pack()))
    assert "Step 'Pack', execute: input 'input' is annotated int, but the class is declared with str" in text


# Flows and Steps ---


@pytest.mark.statement("B2")
def test_more_than_one_start_step_is_refused() -> None:
    class Two(Flow[int]):
        def get_steps(self) -> StepList[Any]:
            first: Any = StepList.start_step(Good())
            return first.start_step(OfText())  # type: ignore[no-any-return]

    assert "Flow 'Two': it has more than one start Step ('Good', 'OfText')" in refused(Two())


@pytest.mark.statement("B3")
def test_a_flow_declared_with_another_input_than_its_start_step_is_refused() -> None:
    class Declared(Flow[str]):
        def get_steps(self) -> StepList[Any]:
            return StepList.start_step(Good())

    text = refused(Declared())
    assert "declared Flow[str], but its start Step 'Good' takes int" in text


def test_duplicates_are_refused() -> None:
    assert "two Flows have the type 'Shop'" in refused(flow_of(), flow_of())
    assert "Flow 'Shop': two Steps have the type 'Good'" in refused(flow_of(Good(), Good()))

    class Numbered(Good):
        def __init__(self, number: int) -> None:
            self.number = number

        def get_step_type(self) -> str:
            return f"Numbered{self.number}"

    text = refused(flow_of(Numbered(1), Numbered(2)))
    assert "'Numbered1' and 'Numbered2' are of one class Numbered" in text


@pytest.mark.parametrize("name", ["a/b", "a$b", "a:b", "", "  ", "a\nb"])
def test_a_step_type_with_reserved_characters_is_refused(name: str) -> None:
    class Named(Good):
        def get_step_type(self) -> str:
            return name

    text = refused(flow_of(Named()))
    assert "Step class Named" in text
    assert repr(name) in text


def test_a_blank_flow_type_is_refused() -> None:
    assert "Flow class Made: a Flow type must not be blank" in refused(flow_of(name=" "))


def test_things_that_are_no_flows_or_steps_are_refused() -> None:
    assert "write Registry([Made()])" in refused(type(flow_of()))
    assert "takes Flow instances, got int" in refused(1)
    with pytest.raises(FlowDefinitionError, match="takes a list of Flows"):
        Registry(flow_of())  # type: ignore[arg-type]
    assert "lists int 1, which is no Step" in refused(flow_of(1))
    assert "get_steps() returns a StepList, got list" in refused(flow_of(get_steps=lambda self: [Good()]))
    assert "get_persistence_schema() returns a PersistenceSchema, got tuple" in refused(
        flow_of(get_persistence_schema=lambda self: (STATUS,))
    )


def test_an_abstract_step_class_is_refused() -> None:
    class Abstract(Step[int]):
        pass

    with pytest.raises(FlowDefinitionError, match="Step Abstract can't be made without arguments"):
        StepList.start_step(Abstract)
    with pytest.raises(TypeError, match="a StepList takes Steps, got int"):
        StepList.without_start_step(1)  # type: ignore[arg-type]


def test_what_a_definition_raises_is_told_with_its_flow() -> None:
    def get_steps(self: Any) -> StepList[Any]:
        raise KeyError("oops")

    assert "Flow 'Shop': get_steps() raised KeyError: 'oops'" in refused(flow_of(get_steps=get_steps))
    assert "Step 'Pack': get_step_options() raised ValueError: no" in refused(
        flow_of(step_of(options=ValueError("no")))
    )
    assert "get_step_options() returns StepOptions or None, got int" in refused(flow_of(step_of(options=1)))


# The schema ---


def test_names_are_unique_within_their_kind() -> None:
    text = refused(flow_of(schema=PersistenceSchema.of(STATUS, Attribute("status", int))))
    assert "Flow 'Shop': two Attributes are named 'status'" in text
    text = refused(flow_of(schema=PersistenceSchema.of(PAID, ChannelMap("paid", int))))
    assert "two Channels are named 'paid'" in text
    text = refused(flow_of(schema=PersistenceSchema.of(Stream("s", str, 1), Stream("s", str, 1))))
    assert "two Streams are named 's'" in text
    Registry([flow_of(schema=PersistenceSchema.of(Attribute("same", int), Channel("same", int)))])


def test_a_value_type_without_a_codec_is_refused() -> None:
    text = refused(flow_of(schema=PersistenceSchema.of(Channel("queue", asyncio.Queue))))
    assert "Flow 'Shop', Channel 'queue': no codec takes the type Queue" in text


def test_a_definition_of_another_kind_is_refused() -> None:
    text = refused(flow_of(schema=PersistenceSchema(attributes=(PAID,))))  # type: ignore[arg-type]
    assert "its schema lists Channel" in text


def test_an_index_key_has_one_type_in_a_registry() -> None:
    one = Attribute("total", int, index=AttributeIndex(IndexType.INT, "key"))
    other = AttributeMap("totals", int, index=AttributeIndex(IndexType.DOUBLE, "key"))
    text = refused(
        flow_of(schema=PersistenceSchema.of(one), name="One"),
        flow_of(schema=PersistenceSchema.of(other), name="Other"),
    )
    for word in ("index key 'key'", "INT in Flow 'One', Attribute 'total'", "DOUBLE in Flow 'Other'"):
        assert word in text


@pytest.mark.parametrize("name", ["FlowType", "WorkflowId", "ActiveStepTypes", "DexParentFlowID"])
def test_an_index_key_is_no_name_that_every_run_has(name: str) -> None:
    index = AttributeIndex(IndexType.KEYWORD)
    text = refused(flow_of(schema=PersistenceSchema.of(Attribute(name, str, index=index))))
    assert f"index key '{name}' in Flow 'Shop', Attribute '{name}' is the name of something that every run" in text


def test_an_index_key_has_a_length_that_every_database_takes() -> None:
    named = Attribute("total", int, index=AttributeIndex(IndexType.INT, "k" * 201))
    assert "has 201 characters, at most 200 are allowed" in refused(flow_of(schema=PersistenceSchema.of(named)))


def test_a_stream_belongs_to_one_flow() -> None:
    schema = PersistenceSchema.of(Stream("words", str, 1000))
    text = refused(flow_of(schema=schema, name="One"), flow_of(schema=schema, name="Other"))
    assert "Stream 'words' is declared by two Flows, 'One' and 'Other'" in text


# Options ---

ONE = timedelta(seconds=1)


@pytest.mark.statement("B160")
@pytest.mark.parametrize("heartbeat", [ONE, timedelta(seconds=9)])
def test_a_heartbeat_timeout_below_ten_seconds_is_refused(heartbeat: timedelta) -> None:
    text = refused(flow_of(step_of(options=StepOptions(heartbeat_timeout=heartbeat))))
    assert "Flow 'Shop', Step 'Pack': heartbeat_timeout must be at least 10 s" in text


@pytest.mark.statement("B5")
@pytest.mark.parametrize(
    ("options", "words"),
    [
        (StepOptions(execute_method_timeout=-ONE), "execute_method_timeout must not be negative"),
        (StepOptions(execute_method_timeout=ONE / 2), "execute_method_timeout must be whole seconds"),
        (StepOptions(wait_for_method_timeout=timedelta(seconds=2**31)), "must be at most 2147483647 s"),
        (StepOptions(wait_for_method_timeout=5), "wait_for_method_timeout must be a datetime.timedelta, got int"),  # type: ignore[arg-type]
        (StepOptions(execute_retry=RetryPolicy(initial_interval=ONE / 3)), "execute_retry: initial_interval"),
        (StepOptions(execute_retry=RetryPolicy(total_duration=-ONE)), "execute_retry: total_duration"),
        (StepOptions(wait_for_retry=RetryPolicy(maximum_attempts=-1)), "wait_for_retry: maximum_attempts"),
        (StepOptions(wait_for_retry=RetryPolicy(maximum_attempts=True)), "wait_for_retry: maximum_attempts"),
        (StepOptions(execute_retry=RetryPolicy(backoff_coefficient=0.5)), "backoff_coefficient"),
        (StepOptions(execute_retry=RetryPolicy(backoff_coefficient=float("inf"))), "backoff_coefficient"),
        (StepOptions(execute_retry=RetryPolicy(backoff_coefficient=float("nan"))), "backoff_coefficient"),
        (StepOptions(execute_retry=RetryPolicy(backoff_coefficient="2")), "is a number"),  # type: ignore[arg-type]
        (
            StepOptions(execute_retry=RetryPolicy(initial_interval=5 * ONE, maximum_interval=ONE)),
            "maximum_interval must be at least the initial_interval of 5 s, got 1 s",
        ),
        (StepOptions(execute_retry=3), "execute_retry takes a RetryPolicy, got int"),  # type: ignore[arg-type]
        (StepOptions(wait_for_durability="SYNC"), "wait_for_durability takes a StepDurability"),  # type: ignore[arg-type]
        (StepOptions(wait_for_failure="PROCEED"), "wait_for_failure takes a WaitForFailurePolicy"),  # type: ignore[arg-type]
        (StepOptions(resources=StepResources(num_cpus=-1)), "num_cpus must be finite and not negative"),
        (StepOptions(resources=StepResources(num_gpus="1")), "num_gpus is a number"),  # type: ignore[arg-type]
        (StepOptions(resources=StepResources(memory=1.5)), "memory is a number of bytes"),  # type: ignore[arg-type]
        (StepOptions(resources=StepResources(resources={"GPU": 1})), "'GPU' is not a custom resource, use num_gpus"),
        (StepOptions(resources=StepResources(accelerator_type="")), "accelerator_type is a text"),
        (StepOptions(resources=StepResources(scheduling_strategy=object())), "must be plain data or text"),
        (StepOptions(resources=StepResources(runtime_env={"pip": {1, 2}})), "must be plain data or text, got set"),
        (StepOptions(resources=StepResources(label_selector=["a"])), "label_selector is a dict"),  # type: ignore[arg-type]
        (StepOptions(resources={"num_cpus": 1}), "resources takes StepResources"),  # type: ignore[arg-type]
        (StepOptions(execute_lock_attributes=(STRANGER.lock(),)), "Attribute 'stranger' is not declared"),
        (
            StepOptions(execute_lock_attributes=(Attribute("status", str).lock(),)),
            "Attribute 'status' is not the one that get_persistence_schema() returns",
        ),
        (StepOptions(execute_lock_attributes=STATUS.lock()), "takes a tuple, got AttributeLock"),  # type: ignore[arg-type]
        (StepOptions(execute_lock_attributes=(STATUS,)), "takes AttributeLocks, got Attribute"),  # type: ignore[arg-type]
        (StepOptions(execute_lock_attributes=(AttributeLock(STOCK),)), "'stock' takes one instance"),
        (StepOptions(execute_lock_attributes=(AttributeLock(STATUS, "a"),)), "'status' takes no instance"),
        (StepOptions(wait_for_lock_attributes=(STOCK.lock("a"), STOCK.lock("a"))), "names 'stock/a' twice"),
        (StepOptions(execute_load_attribute_maps=(STATUS,)), "takes AttributeMaps, got Attribute"),  # type: ignore[arg-type]
        (StepOptions(execute_load_channels=(Channel("other", int),)), "Channel 'other' is not declared"),
        (StepOptions(wait_for_load_channels=(PAID, PAID)), "names 'paid' twice"),
        (
            StepOptions(execute_load_channel_map_instances=(ChannelMap("p", int).load_messages("a"),)),
            "ChannelMap 'p' is not declared",
        ),
        (
            StepOptions(execute_load_attribute_map_instances=(AttributeMap("p", int).load("a"),)),
            "AttributeMap 'p' is not declared",
        ),
        (StepOptions().on_execute_failure_proceed_to(Good), "its failure route leads nowhere: Flow 'Shop' has no Step"),
    ],
)
def test_wrong_options_are_refused_with_their_flow_and_step(options: StepOptions, words: str) -> None:
    text = refused(flow_of(step_of(options=options)))
    assert text.startswith("Flow 'Shop', Step 'Pack': ")
    assert words in text


def test_a_failure_target_takes_the_same_input() -> None:
    text = refused(flow_of(step_of(options=StepOptions().on_execute_failure_proceed_to(OfText)), OfText()))
    assert "leads to Step 'OfText', which takes str and would get int" in text


def test_failure_routes_with_options_must_not_run_in_a_circle() -> None:
    class Again(Good):
        def get_step_options(self) -> StepOptions:
            return StepOptions().on_execute_failure_proceed_to(Again, StepOptions(execute_method_timeout=ONE))

    assert "form a loop (Again -> Again)" in refused(flow_of(Again()))


# RPCs and the timeout handler ---


def rpc_with_two_inputs(self: Any, context: Context, one: int, two: int) -> None:
    pass


def rpc_without_result(self: Any, context: Context) -> int:
    return 1


def rpc_with_open_result(self: Any, context: Context) -> RPCResult:  # type: ignore[type-arg]
    return RPCResult(1)


def rpc_yields(self: Any, context: Context) -> Generator[StepOutput, None, None]:
    yield from ()


def rpc_of_queue(self: Any, context: Context) -> RPCResult[asyncio.Queue[int]]:
    return RPCResult(asyncio.Queue())


async def rpc_async(self: Any, context: AsyncContext) -> None:
    pass


def rpc_good(self: Any, context: Context) -> None:
    pass


@pytest.mark.statement("B6")
@pytest.mark.parametrize(
    ("handler", "words"),
    [
        (rpc(rpc_with_two_inputs), "takes (self, context) or (self, context, input)"),
        (rpc(rpc_without_result), "an RPC returns RPCResult[Output], or None as a procedure"),
        (rpc(rpc_with_open_result), "an RPC returns RPCResult[Output]"),
        (rpc(rpc_yields), "an RPC can't be a generator"),
        (rpc(rpc_of_queue), "no codec takes the type"),
        (rpc(rpc_async), "allow_async_handlers=True"),
        (staticmethod(rpc(rpc_good)), "an RPC is a plain method"),
    ],
)
def test_a_wrong_rpc_is_refused(handler: Any, words: str) -> None:
    text = refused(flow_of(ask=handler))
    assert "Flow 'Shop', RPC 'ask'" in text
    assert words in text


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"lock_attributes": (STRANGER.lock(),)}, "lock_attributes: Attribute 'stranger' is not declared"),
        ({"load_channels": (STATUS,)}, "load_channels takes Channels, got Attribute"),
        ({"timeout": -ONE}, "timeout must not be negative"),
        ({"is_transactional": 1}, "is_transactional is a bool"),
        ({"name": "a/b"}, "must not contain"),
    ],
)
def test_wrong_rpc_options_are_refused(options: dict[str, Any], words: str) -> None:
    def ask(self: Any, context: Context) -> None:
        pass

    text = refused(flow_of(ask=rpc(**options)(ask)))
    assert "Flow 'Shop', RPC" in text
    assert words in text


def test_rpc_names_are_unique() -> None:
    def one(self: Any, context: Context) -> None:
        pass

    def two(self: Any, context: Context) -> None:
        pass

    text = refused(flow_of(one=rpc(name="same")(one), two=rpc(name="same")(two)))
    assert "two RPCs are named 'same' (one and two)" in text


def test_a_wrong_timeout_handler_is_refused() -> None:
    def handle_timeout(self: Any, context: Context, input: int) -> StepDecision:
        return dead_end()

    assert "Flow 'Shop', handle_timeout: a handler takes (self, context)" in refused(
        flow_of(handle_timeout=handle_timeout)
    )
