"""The client: what can be done with a Flow from outside, here a tour of a night watchman's.

A client starts Flows, feeds them (messages, Attributes, RPCs), looks at them (live state, history, lists, searches) and
stops them. All of it is strongly consistent: what one call was told is durable, and the next call sees it.

If the client's process dies in the middle: the Flow goes on. A call whose answer got lost may be repeated under the
same `request_id`, and has one effect. If the engine's process dies: clients repeat their calls until it is back.

Run it with `python -m examples.primitives.client_apis`.
"""

from __future__ import annotations

from collections.abc import Iterator
from uuid import uuid4

from dex import (
    Attribute,
    AttributeIndex,
    AttributeMatch,
    Channel,
    Client,
    Context,
    Flow,
    FlowStatus,
    IndexType,
    PersistenceSchema,
    Registry,
    StartFlowOptions,
    Step,
    StepDecision,
    StepList,
    StopFlowOptions,
    StopType,
    Wait,
    go_to,
)

place = Attribute("place", str, index=AttributeIndex(IndexType.KEYWORD))
rounds = Attribute("rounds", int)
bells = Channel("bells", int)


class Watch(Step[None]):
    def wait_for(self, context: Context, input: None) -> Wait:
        return Wait.until(bells.for_one())

    def execute(self, context: Context, input: None) -> StepDecision:
        rounds.set(context, rounds.get(context) + sum(bells.results(context)))
        return go_to(Watch, None)


class ClientApisFlow(Flow[None]):
    def get_steps(self) -> StepList[None]:
        return StepList.start_step(Watch)

    def get_persistence_schema(self) -> PersistenceSchema:
        return PersistenceSchema.of(place, rounds, bells)


flow = ClientApisFlow()
registry = Registry([flow])


def tour(client: Client, flow_id: str) -> Iterator[str]:
    # Start, with a first value of an Attribute. The same request_id again: the same run.
    once = StartFlowOptions(request_id="begin", ignore_already_started=True).with_attribute(place, "museum")
    run_id = client.start_flow(flow, flow_id, None, once)
    yield f"started {len({run_id, client.start_flow(flow, flow_id, None, once)})} run"

    # Feed.
    client.set_attribute(flow_id, place, "harbour")
    client.publish(flow_id, bells, 1, 2, request_id="two bells")
    client.publish(flow_id, bells, 1, 2, request_id="two bells")  # a repeat: no effect

    # Look.
    yield f"watches at the {client.get_attribute(flow_id, place)}"
    client.wait_for_attribute_match(flow_id, rounds, AttributeMatch.equal_to(3))
    (step,) = client.describe(flow_id).steps
    yield f"{step.step_execution_id} is open"
    listed = client.list_flows(flow_type=flow.get_flow_type(), status=FlowStatus.RUNNING)
    yield f"listed: {any(entry.flow_id == flow_id for entry in listed.flows)}"
    found = client.search_flows("place = 'harbour' AND ExecutionStatus = 'RUNNING'", page_size=100)
    yield f"found: {any(entry.flow_id == flow_id for entry in found.flows)}"
    yield f"{sum(event.kind == 'MessagePublished' for event in client.history(flow_id))} bells in its history"

    # Stop.
    client.stop_flow(flow_id, StopFlowOptions(StopType.CANCEL, reason="the sun is up"))
    result = client.wait_for_flow(flow_id)
    yield f"{result.status.name}"


def main() -> None:
    import dexray

    with dexray.connect(registry) as client:
        for said in tour(client, f"watchman-{uuid4()}"):
            print(said)


if __name__ == "__main__":
    main()
