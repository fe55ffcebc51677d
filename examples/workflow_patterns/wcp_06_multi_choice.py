"""WCP-6: Multi-Choice.

After an activity one or more of several branches are taken, each by a condition of its own.

Criterion: a construct that takes any subset of the branches by evaluating data, with a default so that it isn't
empty.
Here: `go_to_many` of a computed list of movements. An empty one is refused, so the default is a must, not a habit.

Verdict: + `go_to_many` takes whatever was chosen.
"""

from __future__ import annotations

from dex import Context, Flow, Step, StepDecision, StepList, StepMovement, go_to_many, graceful_complete
from examples.workflow_patterns.common import Example, show


class TakeCall(Step[list[str]]):
    def execute(self, context: Context, input: list[str]) -> StepDecision:
        crews: dict[str, type[Step[None]]] = {"fire": SendEngine, "injury": SendAmbulance, "theft": SendPolice}
        chosen = [step for trouble, step in crews.items() if trouble in input]
        return go_to_many(*(StepMovement.of(step, None) for step in chosen or [CallBack]))


class Answer(Step[None]):
    def execute(self, context: Context, input: None) -> StepDecision:
        return graceful_complete(self.get_step_type())


class SendEngine(Answer): ...


class SendAmbulance(Answer): ...


class SendPolice(Answer): ...


class CallBack(Answer):
    """The default."""


class MultiChoiceFlow(Flow[list[str]]):
    def get_steps(self) -> StepList[list[str]]:
        return StepList.start_step(TakeCall()).other_steps(SendEngine(), SendAmbulance(), SendPolice(), CallBack())


example = Example(MultiChoiceFlow(), ["fire", "injury"])

if __name__ == "__main__":
    show()
