"""Interruptible work: long loops that somebody may stop at any time, and that then tidy up after themselves.

Two archives are copied, side by side, in slices with a pause between them. A stop request is an Attribute, set by an
RPC. Each slice looks at it and leaves in order: what it has is consistent, and it says how far it came. (To cancel a
Step is quicker and ruder: what it was about to say is lost.)

If a process dies in the middle: a loop goes on with its last committed slice, and a stop request is not forgotten.

Run it with `python -m examples.patterns.interruptible`.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, replace
from datetime import timedelta
from uuid import uuid4

from dex import (
    Attribute,
    Context,
    Flow,
    PersistenceSchema,
    Registry,
    Step,
    StepDecision,
    StepList,
    StepMovement,
    Timer,
    Wait,
    go_to,
    go_to_many,
    graceful_complete,
    rpc,
)

stopped_by = Attribute("stopped_by", str)


@dataclass(frozen=True)
class Archive:
    """pause: seconds between two slices."""

    name: str
    slices: int
    pause: int = 1
    done: int = 0


class Begin(Step[list[Archive]]):
    def execute(self, context: Context, input: list[Archive]) -> StepDecision:
        return go_to_many(*(StepMovement.of(CopySlice, archive) for archive in input))


class CopySlice(Step[Archive]):
    def wait_for(self, context: Context, input: Archive) -> Wait:
        return Wait.until(Timer.by_duration(timedelta(seconds=input.pause)))

    def execute(self, context: Context, input: Archive) -> StepDecision:
        who = stopped_by.get(context)
        if who is not None:
            return graceful_complete(f"{input.name}: {input.done} of {input.slices}, stopped by {who}")
        copied = replace(input, done=input.done + 1)
        if copied.done < copied.slices:
            return go_to(CopySlice, copied)
        return graceful_complete(f"{input.name}: complete")


class InterruptibleFlow(Flow[list[Archive]]):
    def get_steps(self) -> StepList[list[Archive]]:
        return StepList.start_step(Begin).other_steps(CopySlice)

    def get_persistence_schema(self) -> PersistenceSchema:
        return PersistenceSchema.of(stopped_by)

    @rpc
    def stop(self, context: Context, input: str) -> None:
        stopped_by.set(context, input)


flow = InterruptibleFlow()
registry = Registry([flow])


def main() -> None:
    import dexray

    with dexray.connect(registry) as client:
        flow_id = f"copy-{uuid4()}"
        client.start_flow(flow, flow_id, [Archive("letters", 1), Archive("photos", 1000)])
        time.sleep(3)
        client.invoke_rpc(flow.stop, flow_id, "Ada")
        for completion in client.wait_for_flow(flow_id).completions:
            print(completion.decode(str))


if __name__ == "__main__":
    main()
