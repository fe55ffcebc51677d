"""Attribute and AttributeMap: the state of a Flow, here a warehouse.

An Attribute is one value, an AttributeMap many under keys of their own. Every handler sees all Attributes and the keys
of all maps; the values of a map are loaded where they are asked for, the whole map or single instances. Writes are
committed with the result of the handler that made them, and None deletes.

A lock keeps other holders of it out while a handler runs: two deliveries of one article follow each other, those of
different articles do not meet.

If a process dies in the middle: a delivery that was answered is in the stock; one that was not is repeated by the
client under its request id, and counts once. A lock ends with the attempt that holds it.

Run it with `python -m examples.primitives.attribute`.
"""

from __future__ import annotations

from uuid import uuid4

from dex import (
    Attribute,
    AttributeIndex,
    AttributeMap,
    Client,
    Context,
    Flow,
    IndexType,
    PersistenceSchema,
    Registry,
    RPCInvokeOptions,
    RPCResult,
    Step,
    StepDecision,
    StepList,
    StepOptions,
    dead_end,
    rpc,
)

town = Attribute("town", str, index=AttributeIndex(IndexType.KEYWORD))
moves = Attribute("moves", int)
stock = AttributeMap("stock", int)


class Open(Step[str]):
    def get_step_options(self) -> StepOptions:
        return StepOptions(execute_lock_attributes=(town.lock(),))

    def execute(self, context: Context, input: str) -> StepDecision:
        town.set(context, input)
        return dead_end()


class AttributeFlow(Flow[str]):
    def get_steps(self) -> StepList[str]:
        return StepList.start_step(Open())

    def get_persistence_schema(self) -> PersistenceSchema:
        return PersistenceSchema.of(town, moves, stock)

    @rpc(is_transactional=True)
    def deliver(self, context: Context, input: tuple[str, int]) -> RPCResult[int]:
        """The caller knows the article, so it is the call that loads and locks it."""
        article, count = input
        left = stock.get(context, article) + count
        stock.set(context, article, left or None)
        moves.set(context, moves.get(context) + 1)
        return RPCResult(left)

    @rpc(load_attribute_maps=(stock,))
    def shelves(self, context: Context) -> RPCResult[dict[str, int]]:
        return RPCResult({article: stock.get(context, article) for article in stock.get_all_instance_keys(context)})


flow = AttributeFlow()
registry = Registry([flow])


def deliver(client: Client, flow_id: str, article: str, count: int) -> int:
    options = RPCInvokeOptions(
        lock_attribute_map_instances=(stock.lock(article),), load_attribute_map_instances=(stock.load(article),)
    )
    return client.invoke_rpc(flow.deliver, flow_id, (article, count), options=options)


def a_day(client: Client, flow_id: str) -> dict[str, int]:
    """What is on the shelves in the end: an article of which nothing is left is on none."""
    client.start_flow(flow, flow_id, "Turin")
    for article, count in (("bolts", 100), ("nuts", 20), ("bolts", -30), ("nuts", -20)):
        deliver(client, flow_id, article, count)
    return client.invoke_rpc(flow.shelves, flow_id)


def main() -> None:
    import dexray

    with dexray.connect(registry) as client:
        print(a_day(client, f"warehouse-{uuid4()}"))


if __name__ == "__main__":
    main()
