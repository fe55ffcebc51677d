"""WCP-10: Arbitrary Cycles.

Parts of a Flow can be repeated, in cycles that have more than one way in or out.

Criterion: control can go back to any earlier point, without the cycle being a block with one entry and one exit.
Here: any Step may go to any other of its Flow. This cycle is entered at Draft or at Review, and left from Review
(published) or from Edit (withdrawn).

    Begin ──> Draft ──> Review ──> Publish
      └─────────^───────>^ │
                └── Edit <─┘ ──> Withdraw

Verdict: + `go_to` takes any Step of the Flow.
"""

from __future__ import annotations

from dex import Context, Flow, Step, StepDecision, StepList, go_to, graceful_complete
from examples.workflow_patterns.common import Example, show

Way = list[str]
"""The turns still to be taken, by name: one for each fork."""


class Begin(Step[Way]):
    def execute(self, context: Context, input: Way) -> StepDecision:
        return go_to(Draft if input[0] == "draft" else Review, input[1:])


class Draft(Step[Way]):
    def execute(self, context: Context, input: Way) -> StepDecision:
        return go_to(Review, input)


class Review(Step[Way]):
    def execute(self, context: Context, input: Way) -> StepDecision:
        return go_to(Publish, "published") if input[0] == "publish" else go_to(Edit, input[1:])


class Edit(Step[Way]):
    def execute(self, context: Context, input: Way) -> StepDecision:
        if input[0] == "withdraw":
            return go_to(Withdraw, "withdrawn")
        return go_to(Draft if input[0] == "draft" else Review, input[1:])


class Publish(Step[str]):
    def execute(self, context: Context, input: str) -> StepDecision:
        return graceful_complete(input)


class Withdraw(Step[str]):
    def execute(self, context: Context, input: str) -> StepDecision:
        return graceful_complete(input)


class ArbitraryCyclesFlow(Flow[Way]):
    def get_steps(self) -> StepList[Way]:
        return StepList.start_step(Begin()).other_steps(Draft(), Review(), Edit(), Publish(), Withdraw())


example = Example(ArbitraryCyclesFlow(), ["review", "edit", "draft", "edit", "review", "publish"])

if __name__ == "__main__":
    show()
