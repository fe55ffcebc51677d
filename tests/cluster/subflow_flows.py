"""Parents with children that take a moment, so that processes can be killed under them."""

from __future__ import annotations

import time
from dataclasses import dataclass

from dex import Context, Flow, Step, StepDecision, StepList, SubFlow, Wait, go_to, graceful_complete
from tests.cluster.kill_flows import Job, leave_line

ROUNDS = 3
WIDTH = 2


class Labor(Step[Job]):
    def execute(self, context: Context, input: Job) -> StepDecision:
        leave_line(context, input)
        time.sleep(input.seconds)
        return graceful_complete(input.step)


class Laboring(Flow[Job]):
    def get_steps(self) -> StepList[Job]:
        return StepList.start_step(Labor())


@dataclass(frozen=True)
class Plan:
    job: Job
    total: int = 0


class Gather(Step[Plan]):
    """Rounds 1 to 3: two children each, whose outputs are added up."""

    def wait_for(self, context: Context, input: Plan) -> Wait:
        return Wait.all_of(*(SubFlow.run(LABORING, input.job) for _ in range(WIDTH)))

    def execute(self, context: Context, input: Plan) -> StepDecision:
        total = input.total + sum(
            SubFlow.get_condition_results(context, number).single_output(int) for number in range(WIDTH)
        )
        job = input.job
        if job.step == ROUNDS:
            return graceful_complete(total)
        return go_to(Gather, Plan(Job(job.folder, job.step + 1, job.seconds), total))


class Gathering(Flow[Plan]):
    def get_steps(self) -> StepList[Plan]:
        return StepList.start_step(Gather())


LABORING, GATHERING = Laboring(), Gathering()
EXPECTED = WIDTH * sum(range(1, ROUNDS + 1))
