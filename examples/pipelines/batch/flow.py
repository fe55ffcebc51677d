"""The Flow of the batch; what it does, and what becomes of it when a process dies, is told in the package."""

from __future__ import annotations

from collections.abc import Generator
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any

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
    go_to_many,
    graceful_complete,
    rpc,
)
from examples.pipelines.batch.cleaning import BadContent, Cleaned, Cleaner
from examples.pipelines.files import sweep, write_json


@dataclass(frozen=True)
class Folders:
    source: str
    target: str


@dataclass(frozen=True)
class Job:
    """One file. number, of: for the progress."""

    folders: Folders
    file: str
    number: int
    of: int

    @property
    def source(self) -> Path:
        return Path(self.folders.source) / self.file

    @property
    def target(self) -> Path:
        return Path(self.folders.target) / f"{Path(self.file).stem}.parquet"


@dataclass(frozen=True)
class BadFile:
    file: str
    reason: str


@dataclass(frozen=True)
class Manifest:
    """What became of the folder: `manifest.json` in the target."""

    files: int
    rows: int
    dropped: int
    skipped: list[BadFile]


@dataclass(frozen=True)
class Round:
    """Files that are under way, and what was done before."""

    folders: Folders
    size: int
    before: list[Cleaned]


settled: Channel[Cleaned | None] = Channel("settled", Cleaned | None)
"""A message for each file: what it has become, or None when it is in quarantine."""
quarantine = Channel("quarantine", BadFile)
decisions = Channel("decisions", str)
is_waiting = Attribute("is_waiting", bool)
progress = Stream("progress", str, 200_000)


def clean_all(folders: Folders, files: list[str], before: list[Cleaned]) -> StepDecision:
    jobs = [Job(folders, file, number, len(files)) for number, file in enumerate(files, 1)]
    return go_to_many(
        *(StepMovement.of(Clean, job) for job in jobs), StepMovement.of(Settle, Round(folders, len(files), before))
    )


class Scan(Step[Folders]):
    def execute(self, context: Context, input: Folders) -> StepDecision:
        return clean_all(input, sorted(path.name for path in Path(input.source).glob("*.csv")), [])


class Clean(Step[Job]):
    def __init__(self, cleaner: Cleaner) -> None:
        self.cleaner = cleaner

    def get_step_options(self) -> StepOptions:
        return StepOptions(
            resources=StepResources(num_cpus=1, memory=200 * 1024**2),
            execute_method_timeout=timedelta(minutes=10),
            execute_retry=RetryPolicy(initial_interval=timedelta(seconds=1), maximum_attempts=5),
        ).on_execute_failure_proceed_to(GiveUp)

    def execute(self, context: Context, input: Job) -> Generator[StepOutput, None, StepDecision]:
        try:
            cleaned = self.cleaner.clean(input.source, input.target)
        except BadContent as error:  # anything else is tried again
            yield progress.write(context, f"{input.number}/{input.of} {input.file}: {error}")
            input.target.unlink(missing_ok=True)  # what was made of the file when it was not broken
            return put_aside(context, input, str(error))
        settled.publish(context, cleaned)
        became = f"{cleaned.rows} rows, {cleaned.dropped} dropped"
        yield progress.write(context, f"{input.number}/{input.of} {input.file}: {became}")
        return dead_end()


class GiveUp(Step[Job]):
    """A file whose attempts have all failed."""

    def execute(self, context: Context, input: Job) -> StepDecision:
        error = context.recovery_error
        return put_aside(context, input, error.detail if error else "it failed again and again")


def put_aside(context: Context, job: Job, reason: str) -> StepDecision:
    quarantine.publish(context, BadFile(job.file, reason))
    settled.publish(context, None)
    return dead_end()


class Settle(Step[Round]):
    """All files of a round are through, one way or the other."""

    def get_step_options(self) -> StepOptions:
        return StepOptions(execute_load_channels=(quarantine,))

    def wait_for(self, context: Context, input: Round) -> Wait:
        return Wait.until(settled.for_n(input.size)) if input.size else Wait.skip_immediately()

    def execute(self, context: Context, input: Round) -> StepDecision:
        done = [*input.before, *(cleaned for cleaned in settled.results(context) if cleaned is not None)]
        if quarantine.size(context) == 0:
            return finish(input.folders, done, [])
        is_waiting.set(context, True)
        return go_to_many(StepMovement.of(Decide, Round(input.folders, 0, done)))


class Decide(Step[Round]):
    """Some files are in quarantine: somebody says `retry` or `skip`, or nobody does."""

    def get_step_options(self) -> StepOptions:
        return StepOptions(execute_load_channels=(quarantine,))

    def wait_for(self, context: Context, input: Round) -> Wait:
        return Wait.any_of(decisions.for_one(), Timer.by_duration(timedelta(days=1)))

    def execute(self, context: Context, input: Round) -> StepDecision:
        bad = quarantine.pending_messages(context)
        is_waiting.set(context, False)
        if "retry" not in decisions.results(context):
            return finish(input.folders, input.before, [message.value for message in bad])
        for message in bad:
            quarantine.delete(context, message.message_id)
        return clean_all(input.folders, [message.value.file for message in bad], input.before)


def finish(folders: Folders, done: list[Cleaned], skipped: list[BadFile]) -> StepDecision:
    target = Path(folders.target)
    skipped.sort(key=lambda bad: bad.file)
    manifest = Manifest(len(done), sum(file.rows for file in done), sum(file.dropped for file in done), skipped)
    sweep(target)
    write_json(target / "manifest.json", manifest)
    return graceful_complete(manifest)


class BatchFlow(Flow[Folders]):
    def __init__(self, cleaner: Cleaner) -> None:
        self.cleaner = cleaner

    def get_steps(self) -> StepList[Folders]:
        return StepList.start_step(Scan).other_steps(Clean(self.cleaner), GiveUp, Settle, Decide)

    def get_persistence_schema(self) -> PersistenceSchema:
        return PersistenceSchema.of(settled, quarantine, decisions, is_waiting, progress)

    @rpc(load_channels=(quarantine,))
    def look(self, context: Context) -> RPCResult[list[BadFile]]:
        """What is in quarantine, and why."""
        return RPCResult([message.value for message in quarantine.pending_messages(context)])

    @rpc(lock_attributes=(is_waiting.lock(),))
    def retry(self, context: Context) -> RPCResult[bool]:
        """The files in quarantine were mended: whether that was expected."""
        return self._decide(context, "retry")

    @rpc(lock_attributes=(is_waiting.lock(),))
    def skip(self, context: Context) -> RPCResult[bool]:
        return self._decide(context, "skip")

    def _decide(self, context: Context, what: str) -> RPCResult[Any]:
        if was_waiting := is_waiting.get(context):
            is_waiting.set(context, False)
            decisions.publish(context, what)
        return RPCResult(was_waiting)


flow = BatchFlow(Cleaner())
registry = Registry([flow])
