"""Step: the part that a Flow is cut into; here an oven gets hot, and a bread is baked at the second try.

A Step may first wait (`wait_for`) and then acts (`execute`). Each of the two is a commit of its own: what it wrote and
published counts when it has returned, and not at all when it raised. A method that raises is tried again, after pauses
that grow, until the Step's RetryPolicy ends the attempts and with them the Flow.

If a process dies in the middle: a method that had not returned runs again, as the next attempt; one that had, never.

Run it with `python -m examples.primitives.step`.
"""

from __future__ import annotations

from datetime import timedelta
from uuid import uuid4

from dex import (
    Attribute,
    Context,
    Flow,
    PersistenceSchema,
    Registry,
    RetryPolicy,
    Step,
    StepDecision,
    StepList,
    StepOptions,
    Timer,
    Wait,
    go_to,
    graceful_complete,
)

bread = Attribute("bread", str)


class Preheat(Step[int]):
    """Waits, then acts. The input is given to both methods: the seconds that the oven takes."""

    def wait_for(self, context: Context, input: int) -> Wait:
        return Wait.until(Timer.by_duration(timedelta(seconds=input)))

    def execute(self, context: Context, input: int) -> StepDecision:
        bread.set(context, "dough")
        return go_to(Bake, f"{input} s")


class Bake(Step[str]):
    """Acts only. The first attempt blows the fuse, and what it wrote is gone with it."""

    def get_step_options(self) -> StepOptions:
        return StepOptions(execute_retry=RetryPolicy(initial_interval=timedelta(seconds=1), maximum_attempts=3))

    def execute(self, context: Context, input: str) -> StepDecision:
        found = bread.get(context)
        bread.set(context, "half baked")
        if context.attempt == 1:
            raise RuntimeError("the fuse blew")
        return graceful_complete(f"{found} became bread at attempt {context.attempt}, after {input} of heating")


class StepFlow(Flow[int]):
    def get_steps(self) -> StepList[int]:
        return StepList.start_step(Preheat).other_steps(Bake)

    def get_persistence_schema(self) -> PersistenceSchema:
        return PersistenceSchema.of(bread)


flow = StepFlow()
registry = Registry([flow])


def main() -> None:
    import dexray

    with dexray.connect(registry) as client:
        flow_id = f"bread-{uuid4()}"
        client.start_flow(flow, flow_id, 1)
        print(client.wait_for_flow(flow_id).single_output(str))


if __name__ == "__main__":
    main()
