"""However a handler names a Channel, the read is found; and nothing is reported where that can't be told."""

from __future__ import annotations

import functools
import random
from collections.abc import Callable, Generator, Iterator
from dataclasses import dataclass
from typing import Any

import pytest

import tests.visualize.test_finding_the_object as this_module
from dex import (
    AsyncContext,
    Attribute,
    AttributeMap,
    Channel,
    ChannelMessage,
    Context,
    Flow,
    Step,
    StepDecision,
    StepOptions,
    StepOutput,
    Wait,
    dead_end,
    go_to,
    heartbeat,
)
from tests.visualize.kit import Does, Made, Waits, findings, passed_on, reads

queue = Channel("queue", int)
inbox = Channel("inbox", int)
stock = AttributeMap("stock", int)
mood = Attribute("mood", str)
HAS = (queue, inbox, stock, mood)

alias = queue
by_name = {"queue": queue, "inbox": inbox}
DEBUG = False


@dataclass(frozen=True)
class Place:
    channel: Channel[int]


place = Place(queue)


def look(context: Context) -> int:
    return len(queue.pending_messages(context))


def look_at(context: Context, channel: Channel[int], *, deeply: bool = True) -> int:
    return len(channel.pending_messages(context)) if deeply else channel.size(context)


def deeper(context: Context, *channels: Channel[int]) -> int:
    return sum(look_at(context, channel) for channel in channels)


def recursive(context: Context, count: int) -> int:
    return look(context) if count == 0 else recursive(context, count - 1)


def pages(context: Context) -> Iterator[int]:
    for message in queue.pending_messages(context):
        yield message.value


def chosen() -> Channel[int]:
    return queue


@passed_on
def decorated(context: Context, channel: Channel[int]) -> int:
    return look_at(context, channel)


look_at_queue = functools.partial(look_at, channel=queue)


class Base(Does):
    channel: Channel[int] = inbox

    def execute(self, context: Context, input: None) -> StepDecision:
        self.channel.pending_messages(context)
        return dead_end()


class Direct(Does):
    def execute(self, context: Context, input: None) -> StepDecision:
        queue.pending_messages(context)
        return dead_end()


class Aliased(Does):
    def execute(self, context: Context, input: None) -> StepDecision:
        here = alias
        same = there = here
        same.pending_messages(context=context)
        return dead_end().with_canceling_steps(*([Aliased] if there else []))


class BoundMethod(Does):
    def execute(self, context: Context, input: None) -> StepDecision:
        read = queue.pending_messages
        read(context)
        return dead_end()


class ByModule(Does):
    def execute(self, context: Context, input: None) -> StepDecision:
        this_module.queue.pending_messages(context)
        return dead_end()


class Imported(Does):
    def execute(self, context: Context, input: None) -> StepDecision:
        from tests.visualize.test_finding_the_object import queue as q

        q.pending_messages(context)
        return dead_end()


class InObject(Does):
    def execute(self, context: Context, input: None) -> StepDecision:
        place.channel.pending_messages(context)
        return dead_end()


class InDict(Does):
    def execute(self, context: Context, input: None) -> StepDecision:
        by_name["queue"].pending_messages(context)
        return dead_end()


class InTuple(Does):
    def execute(self, context: Context, input: None) -> StepDecision:
        _, (second, *_) = (inbox, (queue, inbox))
        second.pending_messages(context)
        return dead_end()


class InLoop(Does):
    def execute(self, context: Context, input: None) -> StepDecision:
        for _, channel in enumerate([queue]):
            inbox.size(context)
            if context.attempt > 1:
                channel.pending_messages(context)
        return dead_end()


class InComprehension(Does):
    def execute(self, context: Context, input: None) -> StepDecision:
        {key: [m.value for m in found.pending_messages(context)] for key, found in zip("a", (queue,), strict=True)}
        return dead_end()


class InLambda(Does):
    def execute(self, context: Context, input: None) -> StepDecision:
        look = lambda channel: channel.pending_messages(context)  # noqa: E731
        list(map(look, [queue]))
        return dead_end()


class InNested(Does):
    def execute(self, context: Context, input: None) -> StepDecision:
        def inner(channel: Channel[int] = queue) -> int:
            return look_at(context, channel)

        inner()
        return dead_end()


class InHelper(Does):
    def execute(self, context: Context, input: None) -> StepDecision:
        look(context)
        return dead_end()


class InHelperByArgument(Does):
    def execute(self, context: Context, input: None) -> StepDecision:
        look_at(context, channel=queue)
        return dead_end()


class InHelperByStar(Does):
    def execute(self, context: Context, input: None) -> StepDecision:
        deeper(context, *(queue,))
        return dead_end()


class InRecursion(Does):
    def execute(self, context: Context, input: None) -> StepDecision:
        recursive(context, 1)
        return dead_end()


class InPartial(Does):
    def execute(self, context: Context, input: None) -> StepDecision:
        look_at_queue(context)
        return dead_end()


class InDecorated(Does):
    def execute(self, context: Context, input: None) -> StepDecision:
        decorated(context, queue)
        return dead_end()


class InGeneratorHelper(Does):
    def execute(self, context: Context, input: None) -> StepDecision:
        sum(pages(context))
        return dead_end()


class OfHelper(Does):
    def execute(self, context: Context, input: None) -> StepDecision:
        chosen().pending_messages(context)
        return dead_end()


class OfSelf(Does):
    def __init__(self) -> None:
        self.mine = queue

    def execute(self, context: Context, input: None) -> StepDecision:
        return self.act(context)

    def act(self, context: Context) -> StepDecision:
        self.mine.pending_messages(context)
        return dead_end()


class OfProperty(Does):
    @property
    def mine(self) -> Channel[int]:
        return self.other()

    @classmethod
    def other(cls) -> Channel[int]:
        return cls.third()

    @staticmethod
    def third() -> Channel[int]:
        return queue

    def execute(self, context: Context, input: None) -> StepDecision:
        getattr(self, "mine").pending_messages(context)  # noqa: B009
        return dead_end()


class Inherited(Base):
    channel = queue


class BySuper(Base):
    channel = queue

    def execute(self, context: Context, input: None) -> StepDecision:
        return super().execute(context, input)


class ByDecoratedHandler(Does):
    @passed_on
    def execute(self, context: Context, input: None) -> StepDecision:
        queue.pending_messages(context)
        return dead_end()


class InGenerator(Does):
    def execute(  # type: ignore[override]
        self, context: Context, input: None
    ) -> Generator[StepOutput, None, StepDecision]:
        yield heartbeat(len(queue.pending_messages(context)))
        return dead_end()


class InAsync(Does):
    async def execute(self, context: AsyncContext, input: None) -> StepDecision:  # type: ignore[override]
        await self.looks(context)
        return dead_end()

    async def looks(self, context: AsyncContext) -> int:
        return len(queue.pending_messages(context))


class InBranches(Does):
    def execute(self, context: Context, input: None) -> StepDecision:
        match mood.get(context):
            case "good":
                found = inbox.size(context)
            case _ if input is None and (messages := queue.pending_messages(context)):
                found = len(messages)
            case _:
                found = 0
        while found:
            found -= 1
        return dead_end()


class InWith(Does):
    def execute(self, context: Context, input: None) -> StepDecision:
        with open("/dev/null") as file:
            try:
                file.read()
            except OSError:
                pass
            else:
                return self.end(look(context))
            finally:
                inbox.size(context)
        return dead_end()

    def end(self, count: int) -> StepDecision:
        return dead_end()


FOUND: list[type[Does]] = [
    value
    for value in list(globals().values())
    if isinstance(value, type) and issubclass(value, Does) and value not in (Does, Waits, Base)
]


@pytest.mark.statement("B193")
@pytest.mark.parametrize("step", FOUND)
def test_the_read_is_found(step: type[Does]) -> None:
    assert reads(Made(step(), has=HAS)) == [(step.__name__, "execute", "queue")]


@pytest.mark.statement("B193")
@pytest.mark.parametrize("step", FOUND)
def test_a_selection_ends_each_of_these_findings(step: type[Does]) -> None:
    made = step()
    made.options = StepOptions(execute_load_channels=(queue,))
    assert findings(Made(made, has=HAS)) == []


def make(channel: Channel[int]) -> Step[None]:
    class Closes(Does):
        def execute(self, context: Context, input: None) -> StepDecision:
            channel.pending_messages(context)
            return dead_end()

    return Closes()


@pytest.mark.statement("B193")
def test_a_handler_may_close_over_its_definitions() -> None:
    assert reads(Made(make(queue), has=HAS)) == [("Closes", "execute", "queue")]
    assert reads(Made(make(inbox), has=HAS)) == [("Closes", "execute", "inbox")]


# What can't be told ---------------------------------------------------------------------------------------------------

exec_names: dict[str, Any] = {}
exec("def without_source(context, channel):\n    return channel.pending_messages(context)", exec_names)
without_source: Callable[..., Any] = exec_names["without_source"]


class Dynamic(Does):
    def execute(self, context: Context, input: None) -> StepDecision:
        some: Channel[int] = random.choice([queue, inbox])
        some.pending_messages(context)
        without_source(context, queue)
        by_name[random.choice(["queue", "inbox"])].pending_messages(context)
        getattr(queue, "pending" + "_messages")(context)
        globals()["queue"].pending_messages(context)
        eval("queue").pending_messages(context)
        return dead_end()


class OtherContext(Does):
    def execute(self, context: Context, input: None) -> StepDecision:
        def later(given: Context) -> int:
            return len(queue.pending_messages(given))

        print(later)
        other: Any = object()
        queue.pending_messages(other)
        return dead_end()


class Flagged(Does):
    def execute(self, context: Context, input: None) -> StepDecision:
        look_at(context, queue, deeply=False)
        if DEBUG:
            queue.pending_messages(context)
        if False:
            queue.pending_messages(context)  # type: ignore[unreachable]
        if isinstance(self, Base):
            self.channel.pending_messages(context)
        return dead_end()


class Reassigned(Does):
    def __init__(self) -> None:
        self.mine = queue

    def execute(self, context: Context, input: None) -> StepDecision:
        self.mine = self.pick()
        self.mine.pending_messages(context)
        found = queue
        found = self.pick()
        found.pending_messages(context)
        return dead_end()

    def pick(self) -> Channel[int]:
        return random.choice([queue, inbox])


class Shared(Waits):
    """Two Steps share this; each reads its own, as it asks for the Step that it is in."""

    def execute(self, context: Context, input: None) -> StepDecision:
        if context.step_execution_id.startswith("Shared-"):
            queue.pending_messages(context)
        return dead_end()


class Dead(Does):
    def execute(self, context: Context, input: None) -> StepDecision:
        while True:
            return dead_end()
        return self.after(context)  # type: ignore[unreachable]

    def after(self, context: Context) -> StepDecision:
        queue.pending_messages(context)
        return dead_end()


class AlwaysRaises(Does):
    def execute(self, context: Context, input: None) -> StepDecision:
        raise ValueError(mood.get(context))


class PicksOptions(Does):
    """A Step whose movement comes from where nobody sees it may be entered with any options."""

    def execute(self, context: Context, input: None) -> StepDecision:
        decision: StepDecision = eval("go_to(Direct, None)")
        return decision


class Guarded(Does):
    def execute(self, context: Context, input: None) -> StepDecision:
        if not DEBUG:
            return dead_end()
        queue.pending_messages(context)
        return dead_end()


class GuardedByStep(Does):
    def execute(self, context: Context, input: None) -> StepDecision:
        with open("/dev/null"):
            if not context.step_execution_id.startswith("Other-"):
                return dead_end()
        queue.pending_messages(context)
        return dead_end()


class Picks(Does):
    """Looks at several Channels, and reads only one of them."""

    options = StepOptions(execute_load_channels=(inbox,))

    def execute(self, context: Context, input: None) -> StepDecision:
        for channel in (queue, inbox):
            if channel is inbox:
                channel.pending_messages(context)
            if channel is not inbox:
                continue
            channel.pending_messages(context)
        for name, channel in by_name.items():
            if name == context.flow_id:
                channel.pending_messages(context)
        [
            channel.pending_messages(context)
            for channel in (queue, inbox)
            if isinstance(channel.name, str) and channel in (inbox,)
        ]
        first, second = sorted((queue, inbox), key=lambda channel: channel.name == context.flow_id)
        first.pending_messages(context)
        second.pending_messages(context)
        found = queue if context.attempt > 1 else inbox
        print(0 if found is queue else len(found.pending_messages(context)))
        match found:
            case _ if found is inbox:
                found.pending_messages(context)
        return dead_end() if found is inbox and found.pending_messages(context) else go_to(Picks, None)


reads_it, sizes_it = lambda context: queue.pending_messages(context), lambda context: queue.size(context)


class TwoOnALine(Does):
    """Two functions on one line can't be told from each other."""

    def execute(self, context: Context, input: None) -> StepDecision:
        sizes_it(context)
        return dead_end()


SILENT: list[type[Does]] = [
    TwoOnALine,
    Dynamic,
    OtherContext,
    Flagged,
    Reassigned,
    Shared,
    Dead,
    AlwaysRaises,
    Guarded,
    GuardedByStep,
    Picks,
]


@pytest.mark.statement("B193")
@pytest.mark.parametrize("step", SILENT)
def test_what_cannot_be_told_is_silent(step: type[Does]) -> None:
    assert findings(Made(step(), has=HAS)) == []


@pytest.mark.statement("B193")
def test_a_step_that_only_unseen_movements_lead_to_is_silent() -> None:
    assert findings(Made(PicksOptions(), Direct(), has=HAS)) == []


@pytest.mark.statement("B193")
def test_a_step_without_a_source_is_silent_and_so_is_what_it_may_lead_to() -> None:
    names: dict[str, Any] = dict(globals())
    exec(
        "class Sourceless(Does):\n"
        "    def execute(self, context: Context, input: None) -> StepDecision:\n"
        "        queue.pending_messages(context)\n"
        "        return go_to(Direct, None)\n",
        names,
    )
    flow: Flow[Any] = Made(names["Sourceless"](), Direct(), has=HAS)
    assert findings(flow) == []


class ManyWays(Does):
    """As many ways as a walk could ever go: it ends all the same."""

    def execute(self, context: Context, input: None) -> StepDecision:
        found: list[ChannelMessage[int]] = []
        for _ in range(3):
            for _ in range(3):
                for _ in range(3):
                    for _ in range(3):
                        self.ways(context, found)
        return go_to(ManyWays, None)

    def ways(self, context: Context, found: Any) -> Any:
        for _ in range(3):
            for _ in range(3):
                self.ways(context, [found, self.ways(context, found)])
                self.ways(context, found)
        return self.ways


def test_a_walk_ends() -> None:
    assert findings(Made(ManyWays(), has=HAS)) == []


class WaitsOnly(Waits):
    def wait_for(self, context: Context, input: None) -> Wait:
        return Wait.until(queue.for_one())


def test_a_wait_is_no_read() -> None:
    assert findings(Made(WaitsOnly(), has=HAS)) == []
