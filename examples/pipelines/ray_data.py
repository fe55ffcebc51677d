"""Ray Data: a job of Ray Data as one Step of a Flow, with progress, cancellation and output that is there whole or not.

    Crunch (Ray Data does the work, all over the cluster) ──► Report (what has come of it)

Ray Data spreads the work and retries its own tasks; the Flow keeps what must not get lost: that the job is to be done,
that it is done, what came of it. The Step reads the job's batches and writes them to one Parquet file.

- **Resources.** The Step itself only looks on: `StepResources(num_cpus=0)`. It must hold no CPU that the job waits for.
- **Heartbeats** come with each batch, so a job that hangs is found out.
- **Cancellation.** Between two batches the Step looks whether it is wanted; leaving the loop ends Ray Data's tasks.
- **Idempotent output.** The file gets its name when it is whole, and its rows are in order, so that each attempt writes
  the same. A file that is there already is not made again.

If a process dies in the middle: Ray Data's tasks end with the process that runs the Step, what it has written is no
file yet, and the next attempt begins the job anew. A large job is several Steps, each for a part.

Run it with `python -m examples.pipelines.ray_data`.
"""

from __future__ import annotations

import tempfile
from collections.abc import Generator, Iterator
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any, Protocol
from uuid import uuid4

import pyarrow as pa
import pyarrow.parquet as pq

from dex import (
    Context,
    Flow,
    Registry,
    RetryPolicy,
    Step,
    StepDecision,
    StepList,
    StepOptions,
    StepOutput,
    StepResources,
    dead_end,
    go_to,
    graceful_complete,
    heartbeat,
)
from examples.pipelines.files import place_for

COLUMNS = pa.schema([("number", pa.int64()), ("square", pa.int64())])


@dataclass(frozen=True)
class Job:
    """The squares of so many numbers, to a file."""

    numbers: int
    target: str


class Dataset(Protocol):
    def batches(self, job: Job) -> Iterator[pa.Table]: ...


class Squares:
    """The job for Ray Data. Whatever ends in batches can stand here."""

    def batches(self, job: Job) -> Iterator[pa.Table]:
        import ray.data

        settings = ray.data.DataContext.get_current()
        settings.enable_progress_bars = False
        settings.execution_options.preserve_order = True
        numbers = ray.data.range(job.numbers, override_num_blocks=4)
        return iter(numbers.map_batches(_square).iter_batches(batch_size=1_000, batch_format="pyarrow"))


def _square(batch: dict[str, Any]) -> dict[str, Any]:
    return {"number": batch["id"], "square": batch["id"] ** 2}


class Crunch(Step[Job]):
    def __init__(self, dataset: Dataset) -> None:
        self.dataset = dataset

    def get_step_options(self) -> StepOptions:
        return StepOptions(
            resources=StepResources(num_cpus=0),
            heartbeat_timeout=timedelta(minutes=5),
            execute_method_timeout=timedelta(hours=6),
            execute_retry=RetryPolicy(initial_interval=timedelta(seconds=5), maximum_attempts=3),
        )

    def execute(self, context: Context, input: Job) -> Generator[StepOutput, None, StepDecision]:
        target = Path(input.target)
        if target.exists():
            return go_to(Report, input)
        rows = 0
        with place_for(target) as place:
            with pq.ParquetWriter(place.partial, COLUMNS) as writer:
                for batch in self.dataset.batches(input):
                    if context.is_cancellation_requested():
                        return dead_end()  # which is refused, like any other answer
                    writer.write_table(batch.cast(COLUMNS))
                    rows += batch.num_rows
                    yield heartbeat(rows)
            place.take()
        return go_to(Report, input)


class Report(Step[Job]):
    def execute(self, context: Context, input: Job) -> StepDecision:
        rows = pq.read_metadata(input.target).num_rows
        return graceful_complete(f"{rows} rows in {Path(input.target).name}")


class RayDataFlow(Flow[Job]):
    def __init__(self, dataset: Dataset) -> None:
        self.dataset = dataset

    def get_steps(self) -> StepList[Job]:
        return StepList.start_step(Crunch(self.dataset)).other_steps(Report)


flow = RayDataFlow(Squares())
registry = Registry([flow])


def main() -> None:
    import dexray

    with tempfile.TemporaryDirectory(prefix="squares-") as folder, dexray.connect(registry) as client:
        flow_id = f"squares-{uuid4()}"
        target = Path(folder) / "squares.parquet"
        client.start_flow(flow, flow_id, Job(10_000, str(target)))
        print(client.wait_for_flow(flow_id).single_output(str))
        print(*pq.read_table(target).slice(9_997).to_pylist(), sep="\n")


if __name__ == "__main__":
    main()
