"""Heartbeat: a long Step that shows it is alive, and goes on where its last attempt ended; here an import of rows.

A generator Step yields `heartbeat(value)`, an asynchronous one awaits `context.heartbeat(value)`. Silence for longer
than the `heartbeat_timeout` ends the attempt, so a hung worker is found in seconds and not in hours. The value is a
checkpoint: the next attempt reads the last one that arrived. Between two rows the Step looks whether it should stop.

If a process dies in the middle: the next attempt begins at the last stored checkpoint, which may be a little older than
the last one sent. So a row may be imported twice: make it an upsert.

Run it with `python -m examples.primitives.heartbeat`.
"""

from __future__ import annotations

from collections.abc import Generator
from datetime import timedelta
from uuid import uuid4

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
    dead_end,
    graceful_complete,
    heartbeat,
)

BAD_ROW = 6


class Import(Step[int]):
    """Imports `input` rows; the first attempt stumbles over one of them."""

    def get_step_options(self) -> StepOptions:
        return StepOptions(
            execute_method_timeout=timedelta(seconds=60),
            heartbeat_timeout=timedelta(seconds=10),
            execute_retry=RetryPolicy(initial_interval=timedelta(seconds=1), maximum_attempts=3),
        )

    def execute(self, context: Context, input: int) -> Generator[StepOutput, None, StepDecision]:
        first = context.get_last_heartbeat_value(int) or 0
        for row in range(first, input):
            if context.is_cancellation_requested():
                return dead_end()
            if row == BAD_ROW and context.attempt == 1:
                raise RuntimeError(f"the connection broke at row {row}")
            yield heartbeat(row + 1)  # rows up to here are in
        return graceful_complete(f"attempt {context.attempt} imported rows {first} to {input - 1}")


class HeartbeatFlow(Flow[int]):
    def get_steps(self) -> StepList[int]:
        return StepList.start_step(Import)


flow = HeartbeatFlow()
registry = Registry([flow])


def main() -> None:
    import dexray

    with dexray.connect(registry) as client:
        flow_id = f"import-{uuid4()}"
        client.start_flow(flow, flow_id, 10)
        print(client.wait_for_flow(flow_id).single_output(str))


if __name__ == "__main__":
    main()
