"""What a type checker knows of the clients.

Lines marked `# error` must be refused, all others accepted: `test_client_typing` asks mypy.
"""

from __future__ import annotations

from datetime import timedelta
from typing import assert_type

from dex import (
    AsyncClient,
    AsyncContext,
    Attribute,
    AttributeMap,
    AttributeMatch,
    Channel,
    ChannelMap,
    Client,
    Context,
    Flow,
    RPCInvokeOptions,
    RPCResult,
    StartFlowOptions,
    rpc,
)


class Cart(Flow[int]):
    @rpc
    def add(self, context: Context, input: int) -> RPCResult[str]:
        return RPCResult(str(input))

    @rpc
    def total(self, context: Context) -> RPCResult[float]:
        return RPCResult(0.0)

    @rpc
    def drop(self, context: Context, input: int) -> None: ...

    @rpc
    async def clear(self, context: AsyncContext) -> None: ...

    @rpc(timeout=timedelta(seconds=5))
    async def names(self, context: AsyncContext) -> RPCResult[list[str] | None]:
        return RPCResult(None)


class Ping(Flow[None]): ...


cart, ping = Cart(), Ping()
approval, parts = Channel("approval", bool), ChannelMap("parts", int)
count, note = Attribute("count", int), Attribute("note", str)
stock, names = AttributeMap("stock", float), AttributeMap("names", str)


def count_up(number: int) -> None: ...


def blocking(client: Client) -> None:
    assert_type(client.start_flow(cart, "c", 5), str)
    client.start_flow(ping, "p")
    client.start_flow(ping, "p", None, StartFlowOptions(), request_id="r")
    client.start_flow(cart, "c", "five")  # error
    client.start_flow(cart, "c")  # error
    client.start_flow(ping, "p", 5)  # error

    assert_type(client.publish("c", approval, True, False), tuple[str, ...])
    client.publish("c", parts, "wheel", 4, 5, request_id="r")
    client.publish("c", approval, "yes")  # error
    client.publish("c", parts, "wheel", "four")  # error
    client.publish("c", count, 4)  # error

    assert_type(client.get_attribute("c", count), int)
    assert_type(client.get_attribute("c", note), str | None)
    assert_type(client.get_attribute("c", stock, "x"), float)
    assert_type(client.get_attribute("c", names, "x"), str | None)
    print(client.get_attribute("c", note), f"{client.get_attribute('c', names, 'x')}", client.get_attribute("c", count))
    client.get_attribute("c", stock)  # error

    client.set_attribute("c", note, "hi")
    client.set_attribute("c", note, None)
    client.set_attribute("c", names, "x", "hi", request_id="r")
    client.set_attribute("c", note, 5)  # error
    client.set_attribute("c", names, "hi")  # error

    assert_type(client.invoke_rpc(cart.add, "c", 5), str)
    assert_type(client.invoke_rpc(cart.total, "c"), float)
    client.invoke_rpc(cart.drop, "c", 5)
    client.invoke_rpc(cart.clear, "c")
    assert_type(client.invoke_rpc(cart.names, "c", options=RPCInvokeOptions()), list[str] | None)
    client.invoke_rpc(cart.add, "c", 5, run_id="r", request_id="q")
    client.invoke_rpc(cart.add, "c", "five")  # error
    client.invoke_rpc(cart.add, "c")  # error
    client.invoke_rpc(cart.total, "c", 5)  # error
    client.invoke_rpc(cart.clear, "c", 5)  # error
    client.invoke_rpc(cart.drop, "c", None)  # error
    client.invoke_rpc(cart.get_flow_type, "c")  # error
    client.invoke_rpc(cart.add, "c", 5, options=StartFlowOptions())  # error
    count_up(client.invoke_rpc(cart.add, "c", 5))  # error

    assert_type(client.wait_for_attribute_match("c", note, AttributeMatch.equal_to("x")), str)
    assert_type(client.wait_for_attribute_match("c", stock, "x", AttributeMatch.less_than(3.0)), float)
    client.wait_for_attribute_match("c", note, "x")  # error


async def asynchronous(client: AsyncClient) -> None:
    assert_type(await client.start_flow(cart, "c", 5), str)
    await client.start_flow(ping, "p")
    await client.start_flow(cart, "c", "five")  # error

    assert_type(await client.publish("c", parts, "wheel", 4), tuple[str, ...])
    await client.publish("c", parts, 4)  # error

    assert_type(await client.get_attribute("c", count), int)
    assert_type(await client.get_attribute("c", names, "x"), str | None)

    assert_type(await client.invoke_rpc(cart.add, "c", 5), str)
    assert_type(await client.invoke_rpc(cart.total, "c"), float)
    assert_type(await client.invoke_rpc(cart.names, "c"), list[str] | None)
    await client.invoke_rpc(cart.drop, "c", 5)
    await client.invoke_rpc(cart.clear, "c")
    await client.invoke_rpc(cart.add, "c", "five")  # error
    await client.invoke_rpc(cart.names, "c", 5)  # error
    async for event in client.history("c", follow=True):
        assert_type(event.number, int)
