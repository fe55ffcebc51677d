"""Parent and children by client: a Flow starts others, a few at a time, and goes on with their results.

A SubFlow (`parallel_subflows.py`) does this with less code. By client, a Step decides itself when a child starts, under
which Flow ID, and what to do with one that exists. Tokens bound how many children run at once: whoever starts one takes
a token, and gives it back when the child is through. A child is waited for in short polls, one Step each, so that no
worker is held for days.

If a process dies in the middle: the start carries a request id, so a repeat finds the child that was started instead of
starting a second one. A poll is just made again.

Run it with `python -m examples.patterns.parent_child`.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta
from uuid import uuid4

from dex import (
    AsyncClient,
    AsyncContext,
    Channel,
    Context,
    Flow,
    IdReusePolicy,
    LongPollTimeoutError,
    PersistenceSchema,
    Registry,
    StartFlowOptions,
    Step,
    StepDecision,
    StepList,
    StepMovement,
    Timer,
    Wait,
    dead_end,
    force_fail,
    go_to,
    go_to_many,
    graceful_complete,
)

POLL = timedelta(seconds=20)


@dataclass(frozen=True)
class Batch:
    """photos: the seconds that each takes, by name. at_once: how many may be under way together."""

    photos: dict[str, int]
    at_once: int


class Develop(Step[int]):
    def wait_for(self, context: Context, input: int) -> Wait:
        return Wait.until(Timer.by_duration(timedelta(seconds=input)))

    def execute(self, context: Context, input: int) -> StepDecision:
        return graceful_complete(f"developed in {input} s") if input < 100 else force_fail("the chemicals ran out")


class PhotoFlow(Flow[int]):
    """The child: develops one photo."""

    def get_steps(self) -> StepList[int]:
        return StepList.start_step(Develop)


tokens = Channel("tokens", None)
developed = Channel("developed", tuple[str, str])
"""A photo, and what became of it."""


class Begin(Step[Batch]):
    def execute(self, context: Context, input: Batch) -> StepDecision:
        for _ in range(input.at_once):
            tokens.publish(context, None)
        starts = (StepMovement.of(StartChild, photo) for photo in input.photos.items())
        return go_to_many(*starts, StepMovement.of(Collect, len(input.photos)))


class StartChild(Step[tuple[str, int]]):
    def wait_for(self, context: Context, input: tuple[str, int]) -> Wait:
        return Wait.until(tokens.for_one())

    async def execute(self, context: AsyncContext, input: tuple[str, int]) -> StepDecision:
        photo, seconds = input
        child_id = f"{context.flow_id}.{photo}"
        options = StartFlowOptions(
            id_reuse_policy=IdReusePolicy.DISALLOW, request_id=context.step_execution_id, ignore_already_started=True
        )
        async with AsyncClient(child_registry) as client:
            await client.start_flow(photo_flow, child_id, seconds, options)
        return go_to(AwaitChild, (photo, child_id))


class AwaitChild(Step[tuple[str, str]]):
    async def execute(self, context: AsyncContext, input: tuple[str, str]) -> StepDecision:
        photo, child_id = input
        async with AsyncClient(child_registry) as client:
            try:
                result = await client.wait_for_flow(child_id, timeout=POLL)
            except LongPollTimeoutError:
                return go_to(AwaitChild, input)
        developed.publish(context, (photo, result.error_message or result.single_output(str)))
        tokens.publish(context, None)
        return dead_end()


class Collect(Step[int]):
    def wait_for(self, context: Context, input: int) -> Wait:
        return Wait.until(developed.for_n(input))

    def execute(self, context: Context, input: int) -> StepDecision:
        return graceful_complete(dict(developed.results(context)))


class BatchFlow(Flow[Batch]):
    """The parent. Its output says of each photo what became of it."""

    def get_steps(self) -> StepList[Batch]:
        return StepList.start_step(Begin).other_steps(StartChild, AwaitChild, Collect)

    def get_persistence_schema(self) -> PersistenceSchema:
        return PersistenceSchema.of(tokens, developed)


photo_flow, batch_flow = PhotoFlow(), BatchFlow()
child_registry = Registry([photo_flow])
registry = Registry([batch_flow, photo_flow], allow_async_handlers=True)


def main() -> None:
    import dexray

    with dexray.connect(registry) as client:
        flow_id = f"batch-{uuid4()}"
        client.start_flow(batch_flow, flow_id, Batch({"sea": 1, "hill": 2, "city": 1}, at_once=2))
        for photo, outcome in client.wait_for_flow(flow_id).single_output(dict[str, str]).items():
            print(f"{photo:5} {outcome}")


if __name__ == "__main__":
    main()
