"""WCP-22: Recursion.

An activity invokes itself, or the process that it is part of, while it is being done.

Criterion: a process can contain itself as a sub-process, with an end to it that data decide.
Here: `SubFlow.run` takes the Flow's own instance. A list is sorted by sorting its halves, each in a Flow of its own.

Verdict: + a Flow may be its own SubFlow.
"""

from __future__ import annotations

from heapq import merge

from dex import Context, Flow, Step, StepDecision, StepList, SubFlow, Wait, graceful_complete
from examples.workflow_patterns.common import Example, show


class SortHalves(Step[list[int]]):
    def wait_for(self, context: Context, input: list[int]) -> Wait:
        if len(input) < 2:
            return Wait.skip_immediately()
        middle = len(input) // 2
        return Wait.all_of(SubFlow.run(recursion_flow, input[:middle]), SubFlow.run(recursion_flow, input[middle:]))

    def execute(self, context: Context, input: list[int]) -> StepDecision:
        if len(input) < 2:
            return graceful_complete(input)
        halves = (SubFlow.get_condition_results(context, index).single_output(list[int]) for index in (0, 1))
        return graceful_complete(list(merge(*halves)))


class RecursionFlow(Flow[list[int]]):
    def get_steps(self) -> StepList[list[int]]:
        return StepList.start_step(SortHalves())


recursion_flow = RecursionFlow()
example = Example(recursion_flow, [3, 1, 4, 1, 5])

if __name__ == "__main__":
    show()
