"""WCP-5: Simple Merge.

Alternative branches, of which only one is ever active, come together into one without any waiting.

Criterion: a construct at which several branches meet, each arrival being passed on at once.
Here: each branch returns `go_to` of the same Step. A Step doesn't know, nor care, how many lead to it.

Verdict: + several Steps go to the same one.
"""

from __future__ import annotations

from dex import Context, Flow, Step, StepDecision, StepList, go_to, graceful_complete
from examples.workflow_patterns.common import Example, show


class Choose(Step[str]):
    def execute(self, context: Context, input: str) -> StepDecision:
        return go_to(TakeCash, 10) if input == "cash" else go_to(ChargeCard, 10)


class TakeCash(Step[int]):
    def execute(self, context: Context, input: int) -> StepDecision:
        return go_to(Receipt, f"{input} in cash")


class ChargeCard(Step[int]):
    def execute(self, context: Context, input: int) -> StepDecision:
        return go_to(Receipt, f"{input} by card")


class Receipt(Step[str]):
    def execute(self, context: Context, input: str) -> StepDecision:
        return graceful_complete(f"received {input}")


class SimpleMergeFlow(Flow[str]):
    def get_steps(self) -> StepList[str]:
        return StepList.start_step(Choose()).other_steps(TakeCash(), ChargeCard(), Receipt())


example = Example(SimpleMergeFlow(), "card")

if __name__ == "__main__":
    show()
