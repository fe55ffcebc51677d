"""From a Flow object to its FlowDefinition: every mistake that can be seen in a Flow by itself is refused here, by
  name.

The order is that of a reader: the Flow's type, its schema, its Steps, its RPCs, its timeout handler. What options say
  is checked
when they are described (`_describe`).
"""

from __future__ import annotations

import inspect
from collections.abc import Iterable
from typing import Any

from dex._annotations import argument_of, same_type, type_text
from dex._handlers import Signature, rpc_output
from dex.attribute import Attribute, AttributeMap
from dex.channel import Channel, ChannelMap
from dex.decision import StepDecision
from dex.definitions import FlowDefinition, HandlerKind, RpcDefinition, StepDefinition
from dex.errors import FlowDefinitionError
from dex.flow import Flow, PersistenceSchema, StepList
from dex.flow import StartT as FLOW_START
from dex.names import RESERVED_IN_STEP_TYPES, check_name, check_type_name
from dex.options import StepOptions
from dex.rpc import rpc_options_of
from dex.step import InputT as STEP_INPUT
from dex.step import Step
from dex.stream import Stream
from dex.values import CodecRegistry
from dex.wait import Wait


class FlowChecker:
    """Checks one Flow."""

    def __init__(self, flow: Flow[Any], codecs: CodecRegistry, allow_async: bool) -> None:
        self._flow = flow
        self._codecs = codecs
        self._allow_async = allow_async
        self._flow_type = flow_type_of(flow)
        self._where = f"Flow {self._flow_type!r}"

    def definition(self) -> FlowDefinition:
        attributes, channels, streams = self._schema()
        steps, start_step = self._steps()
        return FlowDefinition(
            flow=self._flow,
            flow_type=self._flow_type,
            steps=steps,
            start_step=start_step,
            attributes=attributes,
            channels=channels,
            streams=streams,
            rpcs=self._rpcs(),
            timeout_handler=self._timeout_handler(),
        )

    # Schema ----------------------------------------------------------------------------------------------------------

    def _schema(
        self,
    ) -> tuple[
        dict[str, Attribute[Any] | AttributeMap[Any]],
        dict[str, Channel[Any] | ChannelMap[Any]],
        dict[str, Stream[Any]],
    ]:
        schema = _called(self._where, "get_persistence_schema", self._flow.get_persistence_schema)
        if not isinstance(schema, PersistenceSchema):
            raise FlowDefinitionError(
                f"{self._where}: get_persistence_schema() returns a PersistenceSchema, got {type(schema).__name__}: "
                "write PersistenceSchema.of(...)"
            )
        return (
            self._by_name("Attribute", schema.attributes, (Attribute, AttributeMap)),
            self._by_name("Channel", schema.channels, (Channel, ChannelMap)),
            self._by_name("Stream", schema.streams, (Stream,)),
        )

    def _by_name(self, kind: str, definitions: Iterable[Any], kinds: tuple[type, ...]) -> dict[str, Any]:
        found: dict[str, Any] = {}
        for definition in definitions:
            if type(definition) not in kinds:
                raise FlowDefinitionError(
                    f"{self._where}: its schema lists {type(definition).__name__} {definition!r} among the {kind}s"
                )
            if definition.name in found:
                raise FlowDefinitionError(
                    f"{self._where}: two {kind}s are named {definition.name!r}: names are unique in a Flow"
                )
            self._check_type(f"{type(definition).__name__} {definition.name!r}", definition.value_type)
            found[definition.name] = definition
        return found

    def _check_type(self, what: str, value_type: Any) -> None:
        where = f"{self._where}, {what}"
        try:
            self._codecs.resolve(value_type)
        except (TypeError, ValueError) as error:
            raise FlowDefinitionError(f"{where}: no codec takes the type {type_text(value_type)}: {error}") from error

    # Steps -----------------------------------------------------------------------------------------------------------

    def _steps(self) -> tuple[dict[str, StepDefinition], StepDefinition | None]:
        listed = _called(self._where, "get_steps", self._flow.get_steps)
        if not isinstance(listed, StepList):
            raise FlowDefinitionError(
                f"{self._where}: get_steps() returns a StepList, got {type(listed).__name__}: "
                "write StepList.start_step(MyStep()).other_steps(...)"
            )
        if len(listed.start_steps) > 1:
            names = ", ".join(repr(step.get_step_type()) for step in listed.start_steps)
            raise FlowDefinitionError(
                f"{self._where}: it has more than one start Step ({names}): keep one, "
                "and give the others to other_steps(...)"
            )
        found: dict[str, StepDefinition] = {}
        classes: dict[type, str] = {}
        for step in listed.all_steps:
            known = self._step(step)
            if known.step_type in found:
                raise FlowDefinitionError(
                    f"{self._where}: two Steps have the type {known.step_type!r}: list each Step once, "
                    "or override get_step_type()"
                )
            if type(step) in classes:
                raise FlowDefinitionError(
                    f"{self._where}: Steps {classes[type(step)]!r} and {known.step_type!r} are of one class "
                    f"{type(step).__name__}: movements name a Step by its class, so give each a class of its own"
                )
            found[known.step_type] = known
            classes[type(step)] = known.step_type
        start = next(iter(found.values())) if listed.start_steps else None
        if start is not None:
            self._check_start_type(start)
        return found, start

    def _check_start_type(self, start: StepDefinition) -> None:
        declared = argument_of(type(self._flow), Flow, FLOW_START)
        if declared is not None and not same_type(declared, start.input_type):
            raise FlowDefinitionError(
                f"{self._where}: it is declared Flow[{type_text(declared)}], but its start Step {start.step_type!r} "
                f"takes {type_text(start.input_type)}: the input of a Flow is that of its start Step"
            )

    def _step(self, step: Any) -> StepDefinition:
        if not isinstance(step, Step):
            raise FlowDefinitionError(
                f"{self._where}: get_steps() lists {type(step).__name__} {step!r}, which is no Step"
            )
        name = type(step).__name__
        try:
            step_type = check_type_name("Step", step.get_step_type(), RESERVED_IN_STEP_TYPES)
        except (TypeError, ValueError) as error:
            raise FlowDefinitionError(f"{self._where}, Step class {name}: {error}") from None
        where = f"{self._where}, Step {step_type!r}"
        execute = Signature(where, step, "execute", allow_async=self._allow_async)
        declared = argument_of(type(step), Step, STEP_INPUT)
        acts = execute.read(inputs=(1,), declared_input=declared)
        _check_return(execute, acts.returns, StepDecision)
        wait_kind: HandlerKind | None = None
        if type(step).wait_for is not Step.wait_for:
            wait_for = Signature(where, step, "wait_for", allow_async=self._allow_async)
            waits = wait_for.read(inputs=(1,), declared_input=declared)
            _check_return(wait_for, waits.returns, Wait)
            wait_kind = waits.kind
            if not same_type(waits.input_type, acts.input_type):
                raise FlowDefinitionError(
                    f"{where}: wait_for takes {type_text(waits.input_type)} and execute {type_text(acts.input_type)}: "
                    "both get the same input"
                )
        self._check_type(f"Step {step_type!r}, input", acts.input_type)
        options = _called(where, "get_step_options", step.get_step_options)
        if options is not None and not isinstance(options, StepOptions):
            raise FlowDefinitionError(
                f"{where}: get_step_options() returns StepOptions or None, got {type(options).__name__}"
            )
        return StepDefinition(step, step_type, acts.input_type, acts.kind, wait_kind, options or StepOptions())

    # RPCs and the timeout --------------------------------------------------------------------------------------------

    def _rpcs(self) -> dict[str, RpcDefinition]:
        found: dict[str, RpcDefinition] = {}
        for method_name in dir(type(self._flow)):
            attribute = inspect.getattr_static(type(self._flow), method_name, None)
            options = rpc_options_of(getattr(attribute, "__func__", attribute))
            if options is None:
                continue
            name = method_name if options.name is None else options.name
            where = f"{self._where}, RPC {name!r}"
            if isinstance(attribute, staticmethod | classmethod):
                raise FlowDefinitionError(
                    f"{where}: an RPC is a plain method, {method_name} is a {type(attribute).__name__}"
                )
            try:
                check_name("RPC", name)
            except (TypeError, ValueError) as error:
                raise FlowDefinitionError(f"{self._where}, RPC method {method_name}: {error}") from None
            if name in found:
                raise FlowDefinitionError(
                    f"{self._where}: two RPCs are named {name!r} ({found[name].method_name} and {method_name}): "
                    "give one another name with @rpc(name=…)"
                )
            found[name] = self._rpc(where, name, method_name, options)
        return found

    def _rpc(self, where: str, name: str, method_name: str, options: Any) -> RpcDefinition:
        signature = Signature(where, self._flow, method_name, allow_async=self._allow_async)
        handler = signature.read(inputs=(0, 1))
        is_procedure, output_type = rpc_output(signature, handler)
        if handler.has_input:
            self._check_type(f"RPC {name!r}, input", handler.input_type)
        if not is_procedure:
            self._check_type(f"RPC {name!r}, output", output_type)
        return RpcDefinition(
            name=name,
            method_name=method_name,
            has_input=handler.has_input,
            input_type=handler.input_type,
            is_procedure=is_procedure,
            output_type=output_type,
            kind=handler.kind,
            options=options,
        )

    def _timeout_handler(self) -> HandlerKind | None:
        if type(self._flow).handle_timeout is Flow.handle_timeout:
            return None
        signature = Signature(self._where, self._flow, "handle_timeout", allow_async=self._allow_async)
        handler = signature.read(inputs=(0,))
        _check_return(signature, handler.returns, StepDecision)
        return handler.kind


def flow_type_of(flow: object) -> str:
    """The type of a Flow instance; FlowDefinitionError for anything that is none."""
    if isinstance(flow, type) and issubclass(flow, Flow):
        raise FlowDefinitionError(
            f"a Registry takes Flow instances, got the class {flow.__name__}: write Registry([{flow.__name__}()])"
        )
    if not isinstance(flow, Flow):
        raise FlowDefinitionError(f"a Registry takes Flow instances, got {type(flow).__name__}: {flow!r}")
    try:
        return check_type_name("Flow", flow.get_flow_type())
    except (TypeError, ValueError) as error:
        raise FlowDefinitionError(f"Flow class {type(flow).__name__}: {error}") from None


def _check_return(signature: Signature, found: Any, wanted: type) -> None:
    if found is not wanted:
        raise signature.refusal(
            f"it returns a {wanted.__name__}, this one is annotated {type_text(found)}: write `-> {wanted.__name__}`"
        )


def _called(where: str, name: str, method: Any) -> Any:
    """What a method of the user's returns; what it raises is a mistake of the definition."""
    try:
        return method()
    except FlowDefinitionError as error:
        raise FlowDefinitionError(f"{where}: {error}") from error
    except Exception as error:
        raise FlowDefinitionError(f"{where}: {name}() raised {type(error).__name__}: {error}") from error
