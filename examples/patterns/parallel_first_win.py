"""First wins: several branches try the same, the first one to succeed decides, and the others are canceled.

The winner's decision cancels its siblings in the commit that makes it the winner. So there is one winner, even when two
have the answer at the same moment: the second to be committed is canceled by then, and what it returns is refused. A
branch that fails drops out of the race without ending it; when all have dropped out, the Flow says so.

If a process dies in the middle: the race is decided or it is not. Cancellation itself is cooperative: an asynchronous
handler gets CancelledError, a synchronous one looks at `is_cancellation_requested()`.

Run it with `python -m examples.patterns.parallel_first_win`.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from uuid import uuid4

from dex import (
    AsyncContext,
    Channel,
    Context,
    Flow,
    PersistenceSchema,
    Registry,
    RetryPolicy,
    Step,
    StepDecision,
    StepList,
    StepMovement,
    StepOptions,
    Wait,
    dead_end,
    force_fail,
    go_to,
    go_to_many,
    graceful_complete,
)

out = Channel("out", str)
"""Who has dropped out."""


@dataclass(frozen=True)
class Mirror:
    """A server that has the file after so many seconds; never, when it is broken."""

    name: str
    seconds: float
    is_broken: bool = False


class Begin(Step[list[Mirror]]):
    def execute(self, context: Context, input: list[Mirror]) -> StepDecision:
        return go_to_many(*(StepMovement.of(Download, mirror) for mirror in input), StepMovement.of(AllOut, len(input)))


class Download(Step[Mirror]):
    def get_step_options(self) -> StepOptions:
        return StepOptions(execute_retry=RetryPolicy(maximum_attempts=1)).on_execute_failure_proceed_to(DropOut)

    async def execute(self, context: AsyncContext, input: Mirror) -> StepDecision:
        await asyncio.sleep(input.seconds)
        if input.is_broken:
            raise ConnectionError(f"{input.name} is broken")
        return go_to(Unpack, input.name).with_canceling_sibling_steps(Download, AllOut)


class DropOut(Step[Mirror]):
    def execute(self, context: Context, input: Mirror) -> StepDecision:
        out.publish(context, input.name)
        return dead_end()


class AllOut(Step[int]):
    def wait_for(self, context: Context, input: int) -> Wait:
        return Wait.until(out.for_n(input))

    def execute(self, context: Context, input: int) -> StepDecision:
        return force_fail(f"no mirror has the file: {', '.join(sorted(out.results(context)))}")


class Unpack(Step[str]):
    def execute(self, context: Context, input: str) -> StepDecision:
        return graceful_complete(f"the file came from {input}")


class FirstWinFlow(Flow[list[Mirror]]):
    def get_steps(self) -> StepList[list[Mirror]]:
        return StepList.start_step(Begin).other_steps(Download, DropOut, AllOut, Unpack)

    def get_persistence_schema(self) -> PersistenceSchema:
        return PersistenceSchema.of(out)


flow = FirstWinFlow()
registry = Registry([flow], allow_async_handlers=True)


def main() -> None:
    import dexray

    with dexray.connect(registry) as client:
        flow_id = f"download-{uuid4()}"
        mirrors = [Mirror("Oslo", 60.0), Mirror("Rome", 0.1, is_broken=True), Mirror("Lima", 0.5)]
        client.start_flow(flow, flow_id, mirrors)
        print(client.wait_for_flow(flow_id).single_output(str))


if __name__ == "__main__":
    main()
