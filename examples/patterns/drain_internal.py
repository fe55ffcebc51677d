"""Drain a queue that Steps fill: the consumer has handled every message before the Flow ends.

Readers publish pages while a printer takes them, in batches as large as there are. Nobody knows beforehand how many
pages will come. The printer must not stop while one is left, nor wait for one that will never come: a second Channel
tells how many readers are through. Of two conditions of `any_of` that are met at once, the one declared first wins, so
"all are through" counts only when no page is left; and a reader's pages are committed before or with its word.

If a process dies in the middle: a reader that had not returned has published nothing, and reads again. Pages taken by
the printer stay with its execution until that is done.

Run it with `python -m examples.patterns.drain_internal`.
"""

from __future__ import annotations

from uuid import uuid4

from dex import (
    Attribute,
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
    go_to,
    go_to_many,
    graceful_complete,
)

Book = tuple[str, int]
"""Its name, and the number of its pages."""

pages = Channel("pages", str)
through = Channel("through", None)
printed: Attribute[list[str]] = Attribute("printed", list[str])


class Begin(Step[list[Book]]):
    def execute(self, context: Context, input: list[Book]) -> StepDecision:
        readers = (StepMovement.of(Read, book) for book in input)
        return go_to_many(*readers, StepMovement.of(Print, len(input)))


class Read(Step[Book]):
    """A producer."""

    def execute(self, context: Context, input: Book) -> StepDecision:
        name, count = input
        for number in range(1, count + 1):
            pages.publish(context, f"{name} {number}")
        through.publish(context, None)
        return dead_end()


class Print(Step[int]):
    """The consumer. The input is the number of readers."""

    def wait_for(self, context: Context, input: int) -> Wait:
        return Wait.any_of(pages.at_least(1), through.for_n(input))

    def execute(self, context: Context, input: int) -> StepDecision:
        batch = pages.results(context)
        if not batch:
            return graceful_complete(printed.get(context) or [])
        printed.set(context, [*(printed.get(context) or []), *batch])
        return go_to(Print, input)


class DrainInternalFlow(Flow[list[Book]]):
    def get_steps(self) -> StepList[list[Book]]:
        return StepList.start_step(Begin).other_steps(Read, Print)

    def get_persistence_schema(self) -> PersistenceSchema:
        return PersistenceSchema.of(pages, through, printed)


flow = DrainInternalFlow()
registry = Registry([flow])


def main() -> None:
    import dexray

    with dexray.connect(registry) as client:
        flow_id = f"printer-{uuid4()}"
        client.start_flow(flow, flow_id, [("Emma", 3), ("Ulysses", 5)])
        print(*client.wait_for_flow(flow_id).single_output(list[str]), sep="\n")


if __name__ == "__main__":
    main()
