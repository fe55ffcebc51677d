"""The Flows that the benchmarks run. Their Steps do nothing but move on."""

from __future__ import annotations

from dex import (
    Attribute,
    Channel,
    Context,
    Flow,
    PersistenceSchema,
    Step,
    StepDecision,
    StepList,
    StepMovement,
    Wait,
    dead_end,
    go_to,
    go_to_many,
    graceful_complete,
)

joined = Channel("joined", int)
ping = Channel("ping", int)
pong_count = Attribute("pong_count", int)


class Link(Step[int]):
    def execute(self, context: Context, input: int) -> StepDecision:
        if input <= 1:
            return graceful_complete()
        return go_to(Link, input - 1)


class Chain(Flow[int]):
    """A sequence of as many Steps as its input says."""

    def get_steps(self) -> StepList[int]:
        return StepList.start_step(Link())


class Split(Step[int]):
    def execute(self, context: Context, input: int) -> StepDecision:
        branches = [StepMovement.of(Branch, number) for number in range(input)]
        return go_to_many(*branches, StepMovement.of(Join, input))


class Branch(Step[int]):
    def execute(self, context: Context, input: int) -> StepDecision:
        joined.publish(context, input)
        return dead_end()


class Join(Step[int]):
    def wait_for(self, context: Context, input: int) -> Wait:
        return Wait.until(joined.for_n(input))

    def execute(self, context: Context, input: int) -> StepDecision:
        return graceful_complete(sum(joined.results(context)))


class FanOut(Flow[int]):
    """As many branches as its input says, and one Step that waits for all of them."""

    def get_steps(self) -> StepList[int]:
        return StepList.start_step(Split()).other_steps(Branch(), Join())

    def get_persistence_schema(self) -> PersistenceSchema:
        return PersistenceSchema.of(joined)


class Answer(Step[int]):
    """Waits for one message, answers in an Attribute, until it has answered as often as its input says."""

    def wait_for(self, context: Context, input: int) -> Wait:
        return Wait.until(ping.for_one())

    def execute(self, context: Context, input: int) -> StepDecision:
        (number,) = ping.results(context)
        pong_count.set(context, number)
        return graceful_complete() if number == input else go_to(Answer, input)


class PingPong(Flow[int]):
    def get_steps(self) -> StepList[int]:
        return StepList.start_step(Answer())

    def get_persistence_schema(self) -> PersistenceSchema:
        return PersistenceSchema.of(ping, pong_count)
