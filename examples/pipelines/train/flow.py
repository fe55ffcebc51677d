"""The Flow of the training; what it does, and what becomes of it when a process dies, is told in the package."""

from __future__ import annotations

import os
import shutil
from collections.abc import Generator
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING

from dex import (
    Attribute,
    Channel,
    Context,
    Flow,
    PersistenceSchema,
    Registry,
    RetryPolicy,
    RPCResult,
    Step,
    StepDecision,
    StepList,
    StepMovement,
    StepOptions,
    StepOutput,
    StepResources,
    Stream,
    Timer,
    Wait,
    dead_end,
    force_fail,
    go_to,
    go_to_many,
    graceful_complete,
    heartbeat,
    rpc,
)
from examples.pipelines.train.digits import Candidate, Digits, candidates, load, save
from examples.pipelines.train.models import Card, Models

if TYPE_CHECKING:
    from sklearn.neural_network import MLPClassifier


@dataclass(frozen=True)
class Plan:
    """folder: for data, checkpoints and models; every node sees it. epochs: of the first round, and of a finalist in
    all. good_enough: the score at which the search is over."""

    folder: str
    first_epochs: int = 4
    all_epochs: int = 40
    finalists: int = 4
    good_enough: float = 0.97

    @property
    def data(self) -> Path:
        return Path(self.folder) / "digits.npz"

    def checkpoints(self, flow_id: str) -> Path:
        return Path(self.folder) / "checkpoints" / flow_id

    def checkpoint(self, flow_id: str, candidate: Candidate, epoch: int) -> Path:
        """A file for each epoch: whoever writes it, and however often, writes the same."""
        return self.checkpoints(flow_id) / f"{candidate.number:02}-{epoch:04}.pickle"


@dataclass(frozen=True)
class Training:
    """What one Step execution does: a candidate, from an epoch to an epoch, or until it is good enough."""

    plan: Plan
    candidate: Candidate
    begin: int
    end: int
    good_enough: float = 2.0  # never


@dataclass(frozen=True)
class Report:
    """How a candidate did. score -1: it failed for good."""

    candidate: Candidate
    epochs: int
    score: float


@dataclass(frozen=True)
class Round:
    plan: Plan
    size: int
    is_final: bool = False


@dataclass(frozen=True)
class Epoch:
    """A line of progress. process: in which it was trained, by which attempt."""

    candidate: int
    epoch: int
    score: float
    attempt: int
    process: int


stage = Attribute("stage", str)
card: Attribute[Card] = Attribute("card", Card)
reports = Channel("reports", Report)
winner = Channel("winner", Report)
verdict = Channel("verdict", tuple[bool, str])
progress = Stream("progress", Epoch, 500_000)


class Prepare(Step[Plan]):
    def __init__(self, digits: Digits) -> None:
        self.digits = digits

    def execute(self, context: Context, input: Plan) -> StepDecision:
        self.digits.prepare(input.data)
        stage.set(context, "first round")
        trainings = [Training(input, candidate, 0, input.first_epochs) for candidate in candidates()]
        return go_to_many(
            *(StepMovement.of(Train, training) for training in trainings),
            StepMovement.of(Select, Round(input, len(trainings))),
        )


class Train(Step[Training]):
    """Some epochs of one candidate; a new attempt goes on where the heartbeats of the last one ended."""

    def __init__(self, digits: Digits) -> None:
        self.digits = digits

    def get_step_options(self) -> StepOptions:
        return StepOptions(
            resources=StepResources(num_cpus=1),  # Ray gives NumPy as many threads
            heartbeat_timeout=timedelta(minutes=2),
            execute_method_timeout=timedelta(hours=12),
            execute_retry=RetryPolicy(initial_interval=timedelta(seconds=1), maximum_attempts=5),
        ).on_execute_failure_proceed_to(DropOut)

    def execute(self, context: Context, input: Training) -> Generator[StepOutput, None, StepDecision]:
        plan, candidate = input.plan, input.candidate
        pictures, labels = self.digits.load(plan.data, "train")
        unseen = self.digits.load(plan.data, "choose")
        epoch = context.get_last_heartbeat_value(int) or input.begin
        network = self._network(context.flow_id, plan, candidate, epoch)
        score = float(network.score(*unseen)) if epoch else 0.0
        while epoch < input.end and score < input.good_enough:
            if context.is_cancellation_requested():
                return dead_end()  # which is refused, like any other answer
            self.digits.epoch(candidate, network, pictures, labels)
            epoch += 1
            save(network, plan.checkpoint(context.flow_id, candidate, epoch))
            yield heartbeat(epoch)  # the file is there before anybody relies on it
            score = float(network.score(*unseen))
            yield progress.write(context, Epoch(candidate.number, epoch, score, context.attempt, os.getpid()))
        report = Report(candidate, epoch, score)
        if score >= input.good_enough:
            winner.publish(context, report)
            return dead_end().with_canceling_sibling_steps(Train)
        reports.publish(context, report)
        return dead_end()

    def _network(self, flow_id: str, plan: Plan, candidate: Candidate, epoch: int) -> MLPClassifier:
        return load(plan.checkpoint(flow_id, candidate, epoch)) if epoch else self.digits.begin(candidate)


class DropOut(Step[Training]):
    """A candidate whose attempts have all failed."""

    def execute(self, context: Context, input: Training) -> StepDecision:
        reports.publish(context, Report(input.candidate, 0, -1.0))
        return dead_end()


class Select(Step[Round]):
    """The end of a round: somebody has won, or all have reported."""

    def wait_for(self, context: Context, input: Round) -> Wait:
        return Wait.any_of(winner.for_one(), reports.for_n(input.size))

    def execute(self, context: Context, input: Round) -> StepDecision:
        heard = [*winner.results(context), *reports.results(context)]
        best = sorted(heard, key=lambda report: (-report.score, report.candidate.number))
        if best[0].score < 0:
            return force_fail(f"all {input.size} candidates have failed")
        plan = input.plan
        if input.is_final:
            return go_to(Register, (plan, best[0]))
        stage.set(context, "finals")
        finals = [
            Training(plan, report.candidate, report.epochs, plan.all_epochs, plan.good_enough)
            for report in best[: plan.finalists]
            if report.score >= 0
        ]
        return go_to_many(
            *(StepMovement.of(Train, training, options=StepOptions(detached=True)) for training in finals),
            StepMovement.of(Select, Round(plan, len(finals), is_final=True)),
        )


class Register(Step[tuple[Plan, Report]]):
    """Judges the best by pictures that played no part so far, and registers it under the Flow's ID."""

    def __init__(self, digits: Digits) -> None:
        self.digits = digits

    def execute(self, context: Context, input: tuple[Plan, Report]) -> StepDecision:
        plan, best = input
        file = plan.checkpoint(context.flow_id, best.candidate, best.epochs)
        score = float(load(file).score(*self.digits.load(plan.data, "test")))
        made = Card(context.flow_id, str(best.candidate), best.epochs, round(best.score, 4), round(score, 4))
        Models(Path(plan.folder)).register(made, file)
        card.set(context, made)
        stage.set(context, "waiting for approval")
        return go_to(Approve, plan)


class Approve(Step[Plan]):
    def wait_for(self, context: Context, input: Plan) -> Wait:
        return Wait.any_of(verdict.for_one(), Timer.by_duration(timedelta(days=7)))

    def execute(self, context: Context, input: Plan) -> StepDecision:
        said = verdict.results(context)
        shutil.rmtree(input.checkpoints(context.flow_id), ignore_errors=True)
        if said and said[0][0]:
            return go_to(Release, (input, said[0][1]))
        stage.set(context, f"refused by {said[0][1]}" if said else "nobody decided")
        return graceful_complete(f"{context.flow_id} is not released: {stage.get(context)}")


class Release(Step[tuple[Plan, str]]):
    def execute(self, context: Context, input: tuple[Plan, str]) -> StepDecision:
        plan, who = input
        Models(Path(plan.folder)).release(context.flow_id, who)
        stage.set(context, f"released by {who}")
        return graceful_complete(f"{context.flow_id} is released by {who}")


class TrainFlow(Flow[Plan]):
    """Its ID is the name of the model."""

    def __init__(self, digits: Digits) -> None:
        self.digits = digits

    def get_steps(self) -> StepList[Plan]:
        digits = self.digits
        return StepList.start_step(Prepare(digits)).other_steps(
            Train(digits), DropOut, Select, Register(digits), Approve, Release
        )

    def get_persistence_schema(self) -> PersistenceSchema:
        return PersistenceSchema.of(stage, card, reports, winner, verdict, progress)

    @rpc(lock_attributes=(stage.lock(),))
    def decide(self, context: Context, input: tuple[bool, str]) -> RPCResult[str]:
        """Whether the model is released, and who says so: the first word counts."""
        now, (is_good, who) = stage.get(context), input
        if now != "waiting for approval":
            return RPCResult(f"there is nothing to decide: {now or 'it has just begun'}")
        stage.set(context, f"{'approved' if is_good else 'refused'} by {who}")
        verdict.publish(context, input)
        return RPCResult(f"thank you, {who}")

    @rpc
    def look(self, context: Context) -> RPCResult[tuple[str, Card | None]]:
        """How far it is, and the model's card as soon as there is one."""
        return RPCResult((stage.get(context) or "", card.get(context)))


flow = TrainFlow(Digits())
registry = Registry([flow])
