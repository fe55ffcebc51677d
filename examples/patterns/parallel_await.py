"""Parallel branches that meet: split the work, wait for all the parts, go on with their results in one Step.

Each branch publishes its part and ends in a dead end. The join, started together with the branches, waits for as many
messages as there are branches: `for_n(count)`. Parts come in the order in which they get ready, so each says which one
it is.

If a process dies in the middle: a branch publishes its part in the commit that ends it, so a part is there once or not
yet, however often the branch was tried.

Run it with `python -m examples.patterns.parallel_await`.
"""

from __future__ import annotations

from dataclasses import dataclass
from uuid import uuid4

from dex import (
    Channel,
    Context,
    Flow,
    PersistenceSchema,
    Registry,
    Step,
    StepDecision,
    StepList,
    StepMovement,
    Wait,
    dead_end,
    go_to_many,
    graceful_complete,
)


@dataclass(frozen=True)
class Part:
    number: int
    text: str


counts = Channel("counts", tuple[int, int])
"""The number of a part, and how many words it has."""


class Split(Step[str]):
    def execute(self, context: Context, input: str) -> StepDecision:
        parts = [Part(number, text) for number, text in enumerate(input.split("."), 1) if text.strip()]
        if not parts:
            return graceful_complete({})
        return go_to_many(*(StepMovement.of(CountWords, part) for part in parts), StepMovement.of(Join, len(parts)))


class CountWords(Step[Part]):
    def execute(self, context: Context, input: Part) -> StepDecision:
        counts.publish(context, (input.number, len(input.text.split())))
        return dead_end()


class Join(Step[int]):
    def wait_for(self, context: Context, input: int) -> Wait:
        return Wait.until(counts.for_n(input))

    def execute(self, context: Context, input: int) -> StepDecision:
        return graceful_complete(dict(sorted(counts.results(context))))


class ParallelAwaitFlow(Flow[str]):
    def get_steps(self) -> StepList[str]:
        return StepList.start_step(Split).other_steps(CountWords, Join)

    def get_persistence_schema(self) -> PersistenceSchema:
        return PersistenceSchema.of(counts)


flow = ParallelAwaitFlow()
registry = Registry([flow])


def main() -> None:
    import dexray

    with dexray.connect(registry) as client:
        flow_id = f"words-{uuid4()}"
        client.start_flow(flow, flow_id, "The sun rose. It set. The moon rose, too.")
        for sentence, count in client.wait_for_flow(flow_id).single_output(dict[int, int]).items():
            print(f"sentence {sentence} has {count} words")


if __name__ == "__main__":
    main()
