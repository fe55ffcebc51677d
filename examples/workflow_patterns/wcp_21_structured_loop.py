"""WCP-21: Structured Loop.

An activity is repeated while a condition holds, which is looked at before each turn (while) or after it (repeat), in
a loop with one way in and one way out.

Criterion: a construct that marks a loop as such, with its test before or after the body.
Here: a while loop is a Step that tests and goes to the body, which goes back; a repeat loop is a Step that goes to
itself. Each turn is a Step execution of its own, so a crash costs one turn at most. A Python loop inside one handler
is a loop, too, but its turns are not durable.

Verdict: +/- built from `go_to`, as any cycle is; nothing in the model says that this one is structured.
"""

from __future__ import annotations

from dex import Context, Flow, Step, StepDecision, StepList, go_to, graceful_complete
from examples.workflow_patterns.common import Example, show


class WhileBoxesLeft(Step[int]):
    """The test before each turn."""

    def execute(self, context: Context, input: int) -> StepDecision:
        return go_to(LoadBox, input) if input > 0 else go_to(Knock, 1)


class LoadBox(Step[int]):
    def execute(self, context: Context, input: int) -> StepDecision:
        return go_to(WhileBoxesLeft, input - 1)


class Knock(Step[int]):
    """Repeated until the door opens, at the third knock: the test after each turn."""

    def execute(self, context: Context, input: int) -> StepDecision:
        return go_to(Knock, input + 1) if input < 3 else go_to(Deliver, None)


class Deliver(Step[None]):
    def execute(self, context: Context, input: None) -> StepDecision:
        return graceful_complete("delivered")


class StructuredLoopFlow(Flow[int]):
    def get_steps(self) -> StepList[int]:
        return StepList.start_step(WhileBoxesLeft()).other_steps(LoadBox(), Knock(), Deliver())


example = Example(StructuredLoopFlow(), 2)

if __name__ == "__main__":
    show()
