"""Parallel branches: several Steps at once, each with its own end; the Flow completes when all of them have ended.

`go_to_many` starts different Steps (static) or the same one several times (dynamic: as many as the input has). A branch
that ends with `graceful_complete(output)` adds an output to the Flow's result; which of them it is of says its Step
execution. When the branches have to meet inside the Flow, see `parallel_await.py`.

If a process dies in the middle: branches that had ended stay so; only those under way are tried again.

Run it with `python -m examples.patterns.parallel`.
"""

from __future__ import annotations

from uuid import uuid4

from dex import (
    Context,
    Flow,
    Registry,
    Step,
    StepDecision,
    StepList,
    StepMovement,
    go_to_many,
    graceful_complete,
)


class Publish(Step[list[str]]):
    """Splits: one index for the book, one cover, and a page for each text."""

    def execute(self, context: Context, input: list[str]) -> StepDecision:
        return go_to_many(
            StepMovement.of(MakeIndex, input),
            StepMovement.of(DrawCover, len(input)),
            *(StepMovement.of(SetPage, text) for text in input),
        )


class MakeIndex(Step[list[str]]):
    def execute(self, context: Context, input: list[str]) -> StepDecision:
        words = sorted({word.strip(".,").lower() for text in input for word in text.split()})
        return graceful_complete(f"index of {len(words)} words")


class DrawCover(Step[int]):
    def execute(self, context: Context, input: int) -> StepDecision:
        return graceful_complete(f"cover for {input} pages")


class SetPage(Step[str]):
    def execute(self, context: Context, input: str) -> StepDecision:
        return graceful_complete(f"page of {len(input.split())} words")


class ParallelFlow(Flow[list[str]]):
    def get_steps(self) -> StepList[list[str]]:
        return StepList.start_step(Publish).other_steps(MakeIndex, DrawCover, SetPage)


flow = ParallelFlow()
registry = Registry([flow])


def main() -> None:
    import dexray

    with dexray.connect(registry) as client:
        flow_id = f"book-{uuid4()}"
        client.start_flow(flow, flow_id, ["The sun rose.", "It set.", "The moon rose, too."])
        for completion in client.wait_for_flow(flow_id).completions:
            print(f"{completion.step_execution_id:12} {completion.decode(str)}")


if __name__ == "__main__":
    main()
