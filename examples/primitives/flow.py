"""Flow: all that can be said when one is started, and what can be changed while it runs.

A campaign collects donations until somebody closes it, or until its time is over: then its timeout handler decides.
`StartFlowOptions` are for one run and stay as they are. `FlowConfig` can be updated while the Flow runs; here the Steps
of a busy campaign give up a commit each for speed (`StepDurability.ASYNC`).

If a process dies in the middle: the timeout is a Timer in the database, and so is the configuration. A start that was
not answered is repeated under its request id, and starts one run.

Run it with `python -m examples.primitives.flow`.
"""

from __future__ import annotations

from datetime import timedelta
from uuid import uuid4

from dex import (
    Attribute,
    Channel,
    Client,
    Context,
    Flow,
    FlowConfig,
    FlowTimeoutHandlerOptions,
    FlowTimeoutPolicy,
    IdReusePolicy,
    PersistenceSchema,
    Registry,
    RetryPolicy,
    RPCResult,
    StartFlowOptions,
    Step,
    StepDecision,
    StepDurability,
    StepList,
    Wait,
    force_complete,
    go_to,
    graceful_complete,
    rpc,
)

goal = Attribute("goal", int)
total = Attribute("total", int)
donations = Channel("donations", int)
close = Channel("close", type(None))  # a message without a value: that it came is all that counts


class Collect(Step[None]):
    def wait_for(self, context: Context, input: None) -> Wait:
        return Wait.any_of(donations.at_least(1), close.for_one())

    def execute(self, context: Context, input: None) -> StepDecision:
        total.set(context, total.get(context) + sum(donations.results(context)))
        if close.results(context):
            return graceful_complete(f"closed with {total.get(context)} of {goal.get(context)}")
        return go_to(Collect, None)


class CampaignFlow(Flow[None]):
    def get_steps(self) -> StepList[None]:
        return StepList.start_step(Collect())

    def get_persistence_schema(self) -> PersistenceSchema:
        return PersistenceSchema.of(goal, total, donations, close)

    def handle_timeout(self, context: Context) -> StepDecision:
        return force_complete(f"time is over, with {total.get(context)} of {goal.get(context)}")

    @rpc
    def missing(self, context: Context) -> RPCResult[int]:
        return RPCResult(goal.get(context) - total.get(context))


flow = CampaignFlow()
registry = Registry([flow])


def options(flow_id: str, days: int, amount: int) -> StartFlowOptions:
    """The request id follows from the campaign: whoever starts it, and however often, starts it once."""
    return StartFlowOptions(
        timeout=timedelta(days=days),
        timeout_policy=FlowTimeoutPolicy.HANDLER,
        timeout_handler_options=FlowTimeoutHandlerOptions(retry=RetryPolicy(maximum_attempts=5)),
        id_reuse_policy=IdReusePolicy.DISALLOW,
        request_id=f"start {flow_id}",
        ignore_already_started=True,
        config_override=FlowConfig(step_durability=StepDurability.SYNC),
    ).with_attribute(goal, amount)


def campaign(client: Client, flow_id: str) -> list[str]:
    run_id = client.start_flow(flow, flow_id, None, options(flow_id, days=30, amount=100))
    again = client.start_flow(flow, flow_id, None, options(flow_id, days=30, amount=100))
    said = [f"started {len({run_id, again})} time"]
    client.update_flow_config(flow_id, FlowConfig(step_durability=StepDurability.ASYNC))
    client.publish(flow_id, donations, 20, 30)
    client.publish(flow_id, close, None)
    said.append(client.wait_for_flow(flow_id).single_output(str))
    return [*said, f"{client.invoke_rpc(flow.missing, flow_id)} were missing"]


def main() -> None:
    import dexray

    with dexray.connect(registry) as client:
        print(*campaign(client, f"campaign-{uuid4()}"), sep="\n")


if __name__ == "__main__":
    main()
