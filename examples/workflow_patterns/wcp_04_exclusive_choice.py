"""WCP-4: Exclusive Choice.

After an activity exactly one of several branches is taken, by what the Flow knows at that moment.

Criterion: a construct that evaluates data and takes one branch, never two and never none.
Here: `execute` looks at its input and returns one `go_to`. A handler returns one decision, so two can't be taken;
one that returned none would fail its attempt, and commit nothing.

Verdict: + a decision is one value, chosen by plain Python.
"""

from __future__ import annotations

from dex import Context, Flow, Step, StepDecision, StepList, go_to, graceful_complete
from examples.workflow_patterns.common import Example, show


class Judge(Step[int]):
    def execute(self, context: Context, input: int) -> StepDecision:
        if input < 100:
            return go_to(PayOut, input)
        return go_to(AskManager, input) if input < 1000 else go_to(SendInspector, input)


class PayOut(Step[int]):
    def execute(self, context: Context, input: int) -> StepDecision:
        return graceful_complete(f"{input} paid")


class AskManager(Step[int]):
    def execute(self, context: Context, input: int) -> StepDecision:
        return graceful_complete(f"{input} asked for")


class SendInspector(Step[int]):
    def execute(self, context: Context, input: int) -> StepDecision:
        return graceful_complete(f"{input} looked into")


class ExclusiveChoiceFlow(Flow[int]):
    def get_steps(self) -> StepList[int]:
        return StepList.start_step(Judge()).other_steps(PayOut(), AskManager(), SendInspector())


example = Example(ExclusiveChoiceFlow(), 250)

if __name__ == "__main__":
    show()
