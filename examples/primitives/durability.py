"""Durability: speed where a repeat is harmless, safety where it is not; here a robot counts screws, then pays for them.

SYNC (the default): what a Step returned is in the database before anything follows from it. ASYNC: the next Step starts
at once, and the commits of many follow together, within about 20 ms. Set it for a Flow (`FlowConfig.step_durability`),
or for a method of a Step, as here: `Count` is ASYNC, `Pay` is SYNC.

If a process dies in the middle: the last ASYNC Steps may be lost, and run again from the last commit. That is fine for
`Count`, which only computes. A SYNC Step first has everything before it committed, so `Pay` never pays for a count that
is forgotten afterwards; and what a client was told is durable in both modes.

Run it with `python -m examples.primitives.durability`.
"""

from __future__ import annotations

import time
from uuid import uuid4

from dex import (
    Context,
    Flow,
    FlowConfig,
    Registry,
    StartFlowOptions,
    Step,
    StepDecision,
    StepDurability,
    StepList,
    StepOptions,
    go_to,
    graceful_complete,
)


class Count(Step[tuple[int, int]]):
    """Input: how many are counted, and how many there are. Its durability is that of the Flow's configuration."""

    def execute(self, context: Context, input: tuple[int, int]) -> StepDecision:
        counted, total = input
        return go_to(Count, (counted + 1, total)) if counted < total else go_to(Pay, counted)


class Pay(Step[int]):
    """Whatever the configuration says: this one is safe."""

    def get_step_options(self) -> StepOptions:
        return StepOptions(execute_durability=StepDurability.SYNC)

    def execute(self, context: Context, input: int) -> StepDecision:
        return graceful_complete(f"paid for {input} screws")


class DurabilityFlow(Flow[tuple[int, int]]):
    def get_steps(self) -> StepList[tuple[int, int]]:
        return StepList.start_step(Count).other_steps(Pay)


flow = DurabilityFlow()
registry = Registry([flow])


def with_durability(durability: StepDurability) -> StartFlowOptions:
    return StartFlowOptions(config_override=FlowConfig(step_durability=durability))


def main() -> None:
    import dexray

    with dexray.connect(registry) as client:
        for durability in (StepDurability.SYNC, StepDurability.ASYNC):
            flow_id = f"screws-{uuid4()}"
            began = time.monotonic()
            client.start_flow(flow, flow_id, (0, 100), with_durability(durability))
            said = client.wait_for_flow(flow_id).single_output(str)
            print(f"{durability.name:5} {said} in {time.monotonic() - began:.2f} s")


if __name__ == "__main__":
    main()
