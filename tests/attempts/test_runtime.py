"""What a handler reads, and what it stages."""

from __future__ import annotations

import uuid
from collections.abc import Callable
from typing import Any

import pytest

from dex.channel import ChannelMessage
from dex.decision import dead_end, graceful_complete
from dex.errors import AttributeMapNotLoadedError, ChannelMessagesNotLoadedError
from dex.wait import Wait
from dexray.protocol.attempts import AttemptTask, ConditionResult, ExecuteSucceeded
from tests.attempts import shop
from tests.attempts.build import executed, failed, payload, task_for, value_of, waited
from tests.attempts.shop import REGISTRY, carriers, notify, paid, stock, tags, total


def act(body: Callable[[Any], object], **fields: Any) -> ExecuteSucceeded:
    """Runs `body` in execute and hands back the result; what `body` returns is the output."""
    shop.Script.execute = staticmethod(lambda context, _: graceful_complete(body(context)))
    return executed(REGISTRY, task(**fields))


def seen(body: Callable[[Any], object], **fields: Any) -> Any:
    """What `body` returned, as it went through the output."""
    return value_of(act(body, **fields).decision.output)


def task(**fields: Any) -> AttemptTask:
    return task_for("Shop", "Act", "input", **fields)


def error_of(body: Callable[[Any], object], **fields: Any) -> str:
    shop.Script.execute = staticmethod(lambda context, _: graceful_complete(body(context)))
    failure = failed(REGISTRY, task(**fields))
    return f"{failure.error_type}: {failure.detail}"


# Attributes -----------------------------------------------------------------------------------------------------------


@pytest.mark.statement("B182")
def test_all_plain_attributes_are_there_without_a_selection() -> None:
    assert seen(total.get, attributes={"total": payload(7)}) == 7


def test_a_missing_attribute_reads_as_zero_or_none() -> None:
    assert seen(total.get) == 0
    assert seen(tags.get) is None


def test_an_attribute_shows_the_handlers_own_staged_write() -> None:
    def body(context: Any) -> object:
        total.set(context, 8)
        after_set = total.get(context)
        total.delete(context)
        return [after_set, total.get(context)]

    result = act(body, attributes={"total": payload(7)})
    assert value_of(result.decision.output) == [8, 0]
    assert result.writes.attributes == {"total": None}


def test_changing_a_value_that_was_read_changes_nothing_stored() -> None:
    def body(context: Any) -> object:
        tags.get(context).append("changed")  # type: ignore[union-attr]
        mine = ["a"]
        tags.set(context, mine)
        mine.append("b")
        return tags.get(context)

    assert seen(body, attributes={"tags": payload(["x"])}) == ["a"]


@pytest.mark.statement("B75")
def test_writes_are_staged_in_the_order_of_the_calls() -> None:
    def body(context: Any) -> None:
        total.set(context, 1)
        stock.set(context, "a b", 2)
        total.set(context, 3)
        paid.publish(context, "first")
        notify.publish(context, None)
        paid.publish(context, "second")

    writes = act(body).writes
    assert list(writes.attributes.items()) == [("stock/a%20b", payload(2)), ("total", payload(3))]
    assert [(channel, value_of(value)) for channel, _, value in writes.publications] == [
        ("paid", "first"),
        ("notify", None),
        ("paid", "second"),
    ]


@pytest.mark.statement("B76", "B244")
def test_a_handler_that_fails_has_staged_nothing() -> None:
    def body(context: Any) -> None:
        total.set(context, 1)
        paid.publish(context, "x")
        raise ValueError("no")

    assert error_of(body) == "builtins.ValueError: no"


@pytest.mark.statement("B183", "B189")
def test_the_value_of_a_map_that_is_not_loaded_is_refused_even_after_a_staged_write() -> None:
    def body(context: Any) -> object:
        stock.set(context, "apple", 1)
        return stock.get(context, "apple")

    error = error_of(body)
    assert error.startswith("dex.errors.AttributeMapNotLoadedError")
    assert "'stock' at 'apple'" in error
    assert "execute_load_attribute_map" in error
    assert issubclass(AttributeMapNotLoadedError, RuntimeError)


@pytest.mark.statement("B185")
def test_a_map_loaded_whole_or_by_instance_can_be_read() -> None:
    def body(context: Any) -> object:
        before = stock.get(context, "apple")
        stock.set(context, "apple", 5)
        return [before, stock.get(context, "apple")]

    values = {"stock/apple": payload(3)}
    assert seen(body, attributes=values, loaded_attribute_maps=("stock",)) == [3, 5]
    assert seen(body, attributes=values, loaded_attribute_instances=("stock/apple",)) == [3, 5]
    missing = seen(lambda context: stock.get(context, "pear"), loaded_attribute_maps=("stock",))
    assert missing == 0


@pytest.mark.statement("B191", "D2")
def test_keys_of_a_map_are_there_without_a_load_and_with_staged_writes() -> None:
    def body(context: Any) -> object:
        stock.set(context, "ü b", 1)
        stock.delete(context, "apple")
        return [list(stock.get_all_instance_keys(context)), stock.get_map_size(context)]

    keys = ("stock/pear", "stock/apple", "stocks/other")
    assert seen(body, attribute_keys=keys) == [["pear", "ü b"], 2]


# Channels -------------------------------------------------------------------------------------------------------------


@pytest.mark.statement("B182", "B191")
def test_sizes_are_there_without_a_load_and_count_staged_operations() -> None:
    def body(context: Any) -> object:
        before = [paid.size(context), notify.size(context)]
        paid.publish(context, "x")
        paid.publish(context, "y")
        paid.delete(context, "id-1")
        paid.delete(context, "id-1")
        return [*before, paid.size(context)]

    assert seen(body, channel_sizes={"paid": 2}) == [2, 0, 3]


def test_deleting_a_message_known_to_be_absent_does_not_change_the_size() -> None:
    def body(context: Any) -> object:
        paid.delete(context, "other")
        return paid.size(context)

    assert seen(body, channel_sizes={"paid": 1}, loaded_channels={"paid": (("id-1", payload("a")),)}) == 1


@pytest.mark.statement("B183", "B190", "B192")
def test_pending_messages_are_the_loaded_snapshot_alone() -> None:
    def body(context: Any) -> object:
        messages = paid.pending_messages(context)
        paid.publish(context, "new")
        paid.delete(context, messages[0].message_id)
        assert paid.pending_messages(context) == messages
        assert paid.find_pending_message(context, "id-2") == ChannelMessage("id-2", "b")
        assert paid.find_pending_message(context, "id-3") is None
        assert notify.pending_messages(context) == ()
        return [message.value for message in messages]

    result = act(body, loaded_channels={"paid": (("id-1", payload("a")), ("id-2", payload("b"))), "notify": ()})
    assert value_of(result.decision.output) == ["a", "b"]
    assert result.writes.deletions == (("paid", "id-1"),)


@pytest.mark.statement("B189")
def test_pending_messages_that_are_not_loaded_are_refused() -> None:
    error = error_of(paid.pending_messages, channel_sizes={"paid": 2})
    assert error.startswith("dex.errors.ChannelMessagesNotLoadedError")
    assert "execute_load_channels" in error
    assert issubclass(ChannelMessagesNotLoadedError, RuntimeError)


@pytest.mark.statement("B185", "B190")
def test_a_channel_map_loaded_whole_has_empty_instances_too() -> None:
    def body(context: Any) -> object:
        assert carriers.pending_messages(context, "none") == ()
        return [message.value for message in carriers.pending_messages(context, "a b")]

    loaded = {"carriers/a%20b": (("id-1", payload("x")),)}
    assert seen(body, loaded_channels=loaded, loaded_channel_maps=("carriers",)) == ["x"]


@pytest.mark.statement("B191")
def test_keys_of_a_channel_map_are_the_instances_with_messages() -> None:
    def body(context: Any) -> object:
        carriers.publish(context, "new", "x")
        carriers.delete(context, "one", "id")
        return [list(carriers.get_all_instance_keys(context)), carriers.get_map_size(context)]

    sizes = {"carriers/one": 1, "carriers/two%20b": 2, "paid": 3}
    assert seen(body, channel_sizes=sizes) == [["new", "two b"], 2]


def test_published_messages_get_uuids_of_version_7_that_sort_in_order() -> None:
    def body(context: Any) -> None:
        for number in range(50):
            paid.publish(context, str(number))

    ids = [message_id for _, message_id, _ in act(body).writes.publications]
    assert ids == sorted(set(ids))
    assert {uuid.UUID(message_id).version for message_id in ids} == {7}
    assert {uuid.UUID(message_id).variant for message_id in ids} == {uuid.RFC_4122}


# Identity -------------------------------------------------------------------------------------------------------------


@pytest.mark.statement("B5")
@pytest.mark.parametrize(
    ("use", "words"),
    [
        (lambda context: shop.undeclared_channel.publish(context, "x"), "Channel 'undeclared' is not declared"),
        (lambda context: shop.undeclared_channel.size(context), "Channel 'undeclared' is not declared"),
        (lambda context: shop.undeclared_attribute.get(context), "Attribute 'undeclared' is not declared"),
        (lambda context: shop.undeclared_attribute.set(context, "x"), "Attribute 'undeclared' is not declared"),
        (lambda context: shop.twin_channel.publish(context, "x"), "Channel 'paid' is not the one"),
        (lambda context: shop.twin_attribute.get(context), "Attribute 'total' is not the one"),
    ],
)
def test_only_the_very_definitions_of_the_schema_can_be_used(use: Callable[[Any], object], words: str) -> None:
    error = error_of(use)
    assert error.startswith("builtins.ValueError")
    assert words in error


@pytest.mark.statement("D11")
def test_a_value_of_the_wrong_type_is_refused_where_it_is_offered() -> None:
    def body(context: Any) -> object:
        with pytest.raises(RuntimeError, match="total"):
            total.set(context, "seven")
        with pytest.raises(RuntimeError, match="paid"):
            paid.publish(context, 7)  # type: ignore[arg-type]
        return "refused"

    result = act(body)
    assert value_of(result.decision.output) == "refused"
    assert not result.writes.attributes
    assert not result.writes.publications


# After a wait ---------------------------------------------------------------------------------------------------------


CONDITIONS = (
    ConditionResult("channel", channel="paid", messages=(payload("a"), payload("b"))),
    ConditionResult("timer", fired=False),
    ConditionResult("channel", channel="notify"),
    ConditionResult("timer", fired=True),
    ConditionResult("channel", channel="carriers/x%2Fy", messages=(payload("c"),)),
    ConditionResult("channel", channel="paid", messages=(payload("d"),)),
)


@pytest.mark.statement("B87", "B94", "B96")
def test_results_of_a_channel_are_what_its_conditions_consumed() -> None:
    def body(context: Any) -> object:
        return [list(paid.results(context)), list(notify.results(context)), list(carriers.results(context, "z"))]

    assert seen(body, conditions=CONDITIONS) == [["a", "b", "d"], [], []]


@pytest.mark.statement("B87", "B93")
def test_timers_are_counted_among_the_timers_of_the_wait() -> None:
    def body(context: Any) -> object:
        return [context.has_timer_fired(index) for index in (None, 0, 1, 2)]

    assert seen(body, conditions=CONDITIONS) == [True, False, True, False]
    assert seen(body) == [False, False, False, False]


def test_a_negative_timer_index_is_refused() -> None:
    assert "counts from 0" in error_of(lambda context: context.has_timer_fired(-1))


@pytest.mark.statement("B87")
def test_results_of_a_wait_are_not_there_before_it() -> None:
    def wait_for(context: Any, _: object) -> Wait:
        with pytest.raises(ValueError, match="in execute only"):
            paid.results(context)
        with pytest.raises(ValueError, match="in execute only"):
            context.has_timer_fired()
        return Wait.skip_immediately()

    shop.Script.wait_for = staticmethod(wait_for)
    waited(REGISTRY, task(method="wait_for"))


# After the end --------------------------------------------------------------------------------------------------------


def test_a_context_kept_beyond_its_handler_is_closed() -> None:
    kept: list[Any] = []

    def execute(context: Any, _: object) -> Any:
        kept.append(context)
        return dead_end()

    shop.Script.execute = staticmethod(execute)
    executed(REGISTRY, task())
    context = kept[0]
    for use in (
        lambda: total.get(context),
        lambda: total.set(context, 1),
        lambda: paid.publish(context, "x"),
        lambda: paid.size(context),
        lambda: paid.results(context),
        lambda: context.has_timer_fired(),
        lambda: context.record_event("e", 1),
        lambda: context.set_step_execution_local("k", 1),
    ):
        with pytest.raises(ValueError, match="closed"):
            use()
    assert context.flow_id == "flow"
