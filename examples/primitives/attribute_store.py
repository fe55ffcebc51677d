"""Attribute store: a table of your own that follows the Attributes of Flows, here the orders of a shop.

An Attribute with `sync_to_attribute_store` is a column, a Flow ID is a row. The table is yours: you make it, join it
and draw reports from it. A Flow names its stores in its FlowConfig (or the engine's setting `default_attribute_stores`
does), and where they are the engine is told when it starts.

If a process dies in the middle: what a row is to become is written together with what the Flow did, so it is sent
later, and maybe twice. If the table, or its database, is away, Flows go on, and the row gets the latest state when it
is back. A row never goes back to an earlier state.

Run it with `python -m examples.primitives.attribute_store`.
"""

from __future__ import annotations

import sqlite3
import tempfile
from contextlib import closing
from pathlib import Path
from uuid import uuid4

from dex import (
    Attribute,
    AttributeMap,
    Channel,
    Client,
    Context,
    Flow,
    FlowConfig,
    PersistenceSchema,
    Registry,
    StartFlowOptions,
    Step,
    StepDecision,
    StepList,
    Wait,
    go_to,
    graceful_complete,
)

customer = Attribute("customer", str, sync_to_attribute_store=True)
status = Attribute("status", str, sync_to_attribute_store=True)
items = AttributeMap("items", int, sync_to_attribute_store=True)
note = Attribute("note", str)  # stays in the Flow
payment = Channel("payment", str)


class Receive(Step[dict[str, int]]):
    def execute(self, context: Context, input: dict[str, int]) -> StepDecision:
        for article, count in input.items():
            items.set(context, article, count)
        status.set(context, "received")
        note.set(context, "call before delivery")
        return go_to(Pay, None)


class Pay(Step[None]):
    def wait_for(self, context: Context, input: None) -> Wait:
        return Wait.all_of(payment.for_one())

    def execute(self, context: Context, input: None) -> StepDecision:
        status.set(context, "paid")
        return graceful_complete()


class OrderFlow(Flow[dict[str, int]]):
    def get_steps(self) -> StepList[dict[str, int]]:
        return StepList.start_step(Receive()).other_steps(Pay())

    def get_persistence_schema(self) -> PersistenceSchema:
        return PersistenceSchema.of(customer, status, items, note, payment)


flow = OrderFlow()
registry = Registry([flow])
IN_SHOP = FlowConfig(attribute_store_names=["shop"])


def make_table(shop: Path) -> None:
    with closing(sqlite3.connect(shop)) as connection:
        connection.execute("CREATE TABLE orders (flow_id TEXT PRIMARY KEY, customer TEXT, status TEXT, items JSON)")


def orders(shop: Path) -> list[tuple[str, str, str]]:
    with closing(sqlite3.connect(shop)) as connection:
        return connection.execute("SELECT customer, status, items FROM orders ORDER BY customer").fetchall()


def an_order(client: Client, flow_id: str) -> None:
    options = StartFlowOptions(config_override=IN_SHOP).with_attribute(customer, "Ada")
    client.start_flow(flow, flow_id, {"bolts": 100, "nuts": 20}, options)
    client.publish(flow_id, payment, "cash")
    client.wait_for_flow(flow_id)


def main() -> None:
    import dexray

    with tempfile.TemporaryDirectory() as folder:
        shop = Path(folder) / "shop.db"
        make_table(shop)
        stores = {"shop": {"url": f"sqlite:///{shop}", "table": "orders"}}
        with dexray.connect(registry, attribute_stores=stores) as client:
            an_order(client, f"order-{uuid4()}")
        print(orders(shop))


if __name__ == "__main__":
    main()
