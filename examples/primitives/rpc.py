"""RPC: a meeting that people join, ask about and open while it waits.

An RPC is a method of the Flow, and a client calls it by that method: a type checker knows what goes in and comes out.
A **function** returns an RPCResult with its output, a **procedure** returns None. Either may read and write Attributes,
publish messages, start Steps (`next_steps`) and cancel Steps, all of it committed together. One that changes nothing is
a read, and answers for closed Flows too. With a lock, no other holder of that lock comes in between.

If a process dies in the middle: all that an RPC did is committed together with its answer. A call whose answer got
lost is repeated by the client under its request id, and gets the first answer.

Run it with `python -m examples.primitives.rpc`.
"""

from __future__ import annotations

from uuid import uuid4

from dex import (
    Attribute,
    Channel,
    Client,
    Context,
    Flow,
    PersistenceSchema,
    Registry,
    RPCResult,
    Step,
    StepDecision,
    StepList,
    StepMovement,
    Wait,
    graceful_complete,
    rpc,
)

guests: Attribute[list[str]] = Attribute("guests", list[str])
closed_by = Channel("closed_by", str)


class Meet(Step[str]):
    """The meeting itself, under way until somebody closes it."""

    def wait_for(self, context: Context, input: str) -> Wait:
        return Wait.until(closed_by.for_one())

    def execute(self, context: Context, input: str) -> StepDecision:
        (host,) = closed_by.results(context)
        return graceful_complete(f"{input}: closed by {host}, {len(guests.get(context) or [])} guests")


class RpcFlow(Flow[None]):
    """It has no start Step: the RPC `open` starts the first one."""

    def get_steps(self) -> StepList[None]:
        return StepList.without_start_step(Meet())

    def get_persistence_schema(self) -> PersistenceSchema:
        return PersistenceSchema.of(guests, closed_by)

    @rpc(lock_attributes=(guests.lock(),))
    def join(self, context: Context, input: str) -> RPCResult[int]:
        """A function with an input: adds a guest, and tells how many there are. No two can be the same number."""
        present = [*(guests.get(context) or []), input]
        guests.set(context, present)
        return RPCResult(len(present))

    @rpc
    def who(self, context: Context) -> RPCResult[list[str]]:
        """A function that only reads."""
        return RPCResult(guests.get(context) or [])

    @rpc
    def open(self, context: Context, input: str) -> RPCResult[str]:
        """A function that starts a Step."""
        return RPCResult(f"{input} begins", next_steps=(StepMovement.of(Meet, input),))

    @rpc
    def close(self, context: Context, input: str) -> None:
        """A procedure: its message ends the Step's wait."""
        closed_by.publish(context, input)


flow = RpcFlow()
registry = Registry([flow])


def meet(client: Client, flow_id: str) -> list[str]:
    """A whole meeting; what was said of it."""
    client.start_flow(flow, flow_id)
    said = [client.invoke_rpc(flow.open, flow_id, "Stand-up")]
    said += [f"{name} is number {client.invoke_rpc(flow.join, flow_id, name)}" for name in ("Ada", "Ben")]
    client.invoke_rpc(flow.close, flow_id, "Ada")
    said.append(client.wait_for_flow(flow_id).single_output(str))
    return [*said, f"there were {', '.join(client.invoke_rpc(flow.who, flow_id))}"]


def main() -> None:
    import dexray

    with dexray.connect(registry) as client:
        print(*meet(client, f"meeting-{uuid4()}"), sep="\n")


if __name__ == "__main__":
    main()
