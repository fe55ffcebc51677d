"""Parallel SubFlows, and half of them is enough: a jury that has decided when a majority agrees.

Each juror is a Flow of its own, with a history and a timeout; here one thinks for a while and votes. A Step waits for
each of them and passes the vote on, and the verdict is given with the majority, whoever is still thinking. The Steps
that wait for the others are canceled. Their Flows are not: a child outlives its parent's interest, and ends by the
timeout that it was started with.

If a process dies in the middle: the Flow ID of a child follows from the Step execution that started it, so it is
started once. A child that ended while its parent was away is told to it when it is back.

Run it with `python -m examples.patterns.parallel_subflows`.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from datetime import timedelta
from uuid import uuid4

from dex import (
    Channel,
    Context,
    Flow,
    FlowStatus,
    FlowTimeoutPolicy,
    PersistenceSchema,
    Registry,
    Step,
    StepDecision,
    StepList,
    StepMovement,
    SubFlow,
    SubFlowOptions,
    Timer,
    Wait,
    dead_end,
    force_complete,
    go_to,
    go_to_many,
    graceful_complete,
)

votes = Channel("votes", str)
PATIENCE = SubFlowOptions(timeout=timedelta(hours=1), timeout_policy=FlowTimeoutPolicy.CANCEL)


@dataclass(frozen=True)
class Juror:
    name: str
    verdict: str
    seconds: int


class Think(Step[Juror]):
    def wait_for(self, context: Context, input: Juror) -> Wait:
        return Wait.until(Timer.by_duration(timedelta(seconds=input.seconds)))

    def execute(self, context: Context, input: Juror) -> StepDecision:
        return graceful_complete(input.verdict)


class JurorFlow(Flow[Juror]):
    """The child."""

    def get_steps(self) -> StepList[Juror]:
        return StepList.start_step(Think)


class Ask(Step[list[Juror]]):
    def execute(self, context: Context, input: list[Juror]) -> StepDecision:
        return go_to_many(
            *(StepMovement.of(AskJuror, juror) for juror in input), StepMovement.of(Count, (len(input), []))
        )


class AskJuror(Step[Juror]):
    def wait_for(self, context: Context, input: Juror) -> Wait:
        return Wait.until(SubFlow.run(juror_flow, input, PATIENCE))

    def execute(self, context: Context, input: Juror) -> StepDecision:
        answer = SubFlow.get_condition_results(context)
        votes.publish(context, answer.single_output(str) if answer.status is FlowStatus.COMPLETED else "no answer")
        return dead_end()


class Count(Step[tuple[int, list[str]]]):
    """Input: the size of the jury, and the votes so far."""

    def wait_for(self, context: Context, input: tuple[int, list[str]]) -> Wait:
        return Wait.until(votes.at_least(1))

    def execute(self, context: Context, input: tuple[int, list[str]]) -> StepDecision:
        jury, known = input
        known = [*known, *votes.results(context)]
        verdict, count = Counter(known).most_common(1)[0]
        if count * 2 > jury:
            return force_complete(f"{verdict}, with {count} of {jury} votes")
        if len(known) == jury:
            return force_complete("no majority")
        return go_to(Count, (jury, known))


class JuryFlow(Flow[list[Juror]]):
    """The parent."""

    def get_steps(self) -> StepList[list[Juror]]:
        return StepList.start_step(Ask).other_steps(AskJuror, Count)

    def get_persistence_schema(self) -> PersistenceSchema:
        return PersistenceSchema.of(votes)


juror_flow, jury_flow = JurorFlow(), JuryFlow()
registry = Registry([jury_flow, juror_flow])


def main() -> None:
    import dexray

    with dexray.connect(registry) as client:
        flow_id = f"jury-{uuid4()}"
        jury = [Juror("Ada", "not guilty", 1), Juror("Ben", "not guilty", 1), Juror("Cleo", "guilty", 3000)]
        client.start_flow(jury_flow, flow_id, jury)
        print(client.wait_for_flow(flow_id).single_output(str))


if __name__ == "__main__":
    main()
