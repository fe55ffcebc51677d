"""Calling RPCs: what a client's `invoke_rpc` takes, sends and gives back.

The method is given as the bound method of the registered Flow instance, so that a type checker knows the input and the
output of the handler behind it:

    total = await client.invoke_rpc(cart.add, "cart-7", Item("wheel", 4))    # int, if add returns RPCResult[int]

A call is sent once, and again only while the service is away, always under one request id: what it writes is applied
once. A failure of the handler is told to the caller and not retried.
"""

from __future__ import annotations

from collections.abc import Coroutine
from typing import Any, Protocol, TypeVar, overload

from dex.client_calls import ServiceCaller
from dex.client_requests import RequestBuilder
from dex.options import RPCInvokeOptions
from dex.registry import Registry
from dex.rpc import RPCResult
from dex.values import attach

InputT = TypeVar("InputT")
InputT_contra = TypeVar("InputT_contra", contravariant=True)
OutputT = TypeVar("OutputT")
OutputT_co = TypeVar("OutputT_co", covariant=True)


class Procedure(Protocol):
    """An RPC without input and output: `(self, context) -> None`."""

    def __call__(self, context: Any, /) -> Coroutine[Any, Any, None] | None: ...


class ProcedureOf(Protocol[InputT_contra]):
    """An RPC with an input and without an output."""

    def __call__(self, context: Any, input: InputT_contra, /) -> Coroutine[Any, Any, None] | None: ...


class Function(Protocol[OutputT_co]):
    """An RPC without input and with an output."""

    def __call__(self, context: Any, /) -> RPCResult[OutputT_co] | Coroutine[Any, Any, RPCResult[OutputT_co]]: ...


class FunctionOf(Protocol[InputT_contra, OutputT_co]):
    """An RPC with input and output."""

    def __call__(
        self, context: Any, input: InputT_contra, /
    ) -> RPCResult[OutputT_co] | Coroutine[Any, Any, RPCResult[OutputT_co]]: ...


class RpcCalls:
    """The part of AsyncClient that calls RPCs."""

    _registry: Registry
    _requests: RequestBuilder
    _caller: ServiceCaller

    @overload
    async def invoke_rpc(
        self,
        method: FunctionOf[InputT, OutputT],
        flow_id: str,
        input: InputT,
        *,
        run_id: str = "",
        options: RPCInvokeOptions | None = None,
        request_id: str | None = None,
    ) -> OutputT: ...

    @overload
    async def invoke_rpc(
        self,
        method: ProcedureOf[InputT],
        flow_id: str,
        input: InputT,
        *,
        run_id: str = "",
        options: RPCInvokeOptions | None = None,
        request_id: str | None = None,
    ) -> None: ...

    @overload
    async def invoke_rpc(
        self,
        method: Function[OutputT],
        flow_id: str,
        input: None = None,
        *,
        run_id: str = "",
        options: RPCInvokeOptions | None = None,
        request_id: str | None = None,
    ) -> OutputT: ...

    @overload
    async def invoke_rpc(
        self,
        method: Procedure,
        flow_id: str,
        input: None = None,
        *,
        run_id: str = "",
        options: RPCInvokeOptions | None = None,
        request_id: str | None = None,
    ) -> None: ...

    async def invoke_rpc(
        self,
        method: Any,
        flow_id: str,
        input: Any = None,
        *,
        run_id: str = "",
        options: RPCInvokeOptions | None = None,
        request_id: str | None = None,
    ) -> Any:
        """Calls an RPC, given as the bound method of the registered Flow, and returns its output; None of a procedure.

            await client.invoke_rpc(flow.approve, "order-17", 5)

        run_id: "" is the current run. A closed run, be it an earlier one, answers handlers that change nothing.
        options: map instances to lock and to load, in addition to what the RPC's decorator names.
        request_id: a call that wrote something is done once for its id; repeated, it has the first one's answer.

        Raises FlowNotActiveOrNotFoundError for a Flow that is unknown, or closed when the handler writes;
        WorkerInvocationError when the handler raised, with its type and text; RpcLockConflictError when a lock is held
        by someone else, or the data of an isolated RPC keeps changing under it (nothing was done: call again);
        ChannelMessageNotFoundError when an isolated RPC deletes a message that is not there; RequestTimeoutError when
        the RPC's timeout is over; DexServiceError UNAVAILABLE when no worker took it within 10 s, or the worker was
        lost (nothing was applied). FlowDefinitionError for a method that is not a registered RPC, ValueMappingError for
        an input of another type.
        """
        flow, rpc = self._registry.rpc_of(method)
        request = self._requests.invoke_rpc(flow, rpc, flow_id, input, run_id, options, request_id)
        answer = await self._caller.call(request)
        if answer.output is None or rpc.is_procedure:
            return None
        where = f"output of RPC {flow.flow_type}.{rpc.name}"
        return self._registry.codec_registry.decode(attach(answer.output, answer.blobs), rpc.output_type, where=where)
