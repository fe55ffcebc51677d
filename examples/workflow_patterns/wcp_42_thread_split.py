"""WCP-42: Thread Split.

At a point in one branch of a Flow, a given number of threads of control are started in that same branch.

Criterion: the number can be given, and all threads go through the same Steps, each on its own.
Here: `go_to_many` with the next Step as many times as wanted; each thread goes its way by `go_to` from there.

Verdict: + `go_to_many` may name one Step several times.
"""

from __future__ import annotations

from dex import Context, Flow, Step, StepDecision, StepList, StepMovement, go_to, go_to_many, graceful_complete
from examples.workflow_patterns.common import Example, show


class Divide(Step[int]):
    """The input: how many threads."""

    def execute(self, context: Context, input: int) -> StepDecision:
        return go_to_many(*(StepMovement.of(Draw, number) for number in range(input)))


class Draw(Step[int]):
    def execute(self, context: Context, input: int) -> StepDecision:
        return go_to(Cut, input)


class Cut(Step[int]):
    def execute(self, context: Context, input: int) -> StepDecision:
        return graceful_complete(input)


class ThreadSplitFlow(Flow[int]):
    def get_steps(self) -> StepList[int]:
        return StepList.start_step(Divide()).other_steps(Draw(), Cut())


example = Example(ThreadSplitFlow(), 4)

if __name__ == "__main__":
    show()
