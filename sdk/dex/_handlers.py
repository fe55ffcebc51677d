"""What a handler is, told from its signature: its form, the type of its input, what it returns.

    sync        def execute(self, context: Context, input: T) -> StepDecision
    generator   def execute(self, context: Context, input: T) -> Generator[StepOutput, None, StepDecision]
    async       async def execute(self, context: AsyncContext, input: T) -> StepDecision

The forms differ in where they run and what they may do, so a handler whose annotations do not fit its form is refused
here, when the Registry is made, rather than at its first attempt.
"""

from __future__ import annotations

import collections.abc
import inspect
from collections.abc import Callable
from dataclasses import dataclass
from inspect import Parameter
from typing import Any, get_args, get_origin

from dex._annotations import Unresolvable, bindings, is_open, resolve, same_type, substitute, type_text
from dex.context import AsyncContext, Context
from dex.definitions import HandlerKind
from dex.errors import FlowDefinitionError
from dex.rpc import RPCResult
from dex.step import StepOutput

_POSITIONAL = (Parameter.POSITIONAL_ONLY, Parameter.POSITIONAL_OR_KEYWORD)


@dataclass(frozen=True, slots=True)
class Handler:
    """input_type is meaningless without an input. returns: the resolved annotation of what the handler gives in the
    end.
    """

    kind: HandlerKind
    has_input: bool
    input_type: Any
    returns: Any


class Signature:
    """Reads the handler `name` of `owner`, an instance of a Flow or a Step. `where` begins every error."""

    def __init__(self, where: str, owner: object, name: str, *, allow_async: bool) -> None:
        self._where = f"{where}, {name}"
        self._class = type(owner)
        self._bound_method: Callable[..., Any] = getattr(owner, name)
        self._function = inspect.unwrap(getattr(self._bound_method, "__func__", self._bound_method))
        defining = next((base for base in self._class.__mro__ if name in vars(base)), self._class)
        self._bound = bindings(self._class).get(defining, {})
        self._allow_async = allow_async

    def read(self, *, inputs: tuple[int, ...], declared_input: Any = None) -> Handler:
        """The handler. inputs: how many it may take besides the Context. declared_input: the argument of `Step[...]`,
        if known.
        """
        kind = self._kind()
        parameters = self._parameters(inputs)
        self._check_context(parameters[0], kind)
        has_input = len(parameters) == 2
        input_type = self._input_type(parameters[1], declared_input) if has_input else None
        return Handler(kind, has_input, input_type, self._returns(kind))

    def refusal(self, problem: str) -> FlowDefinitionError:
        return FlowDefinitionError(f"{self._where}: {problem}")

    # Form ------------------------------------------------------------------------------------------------------------

    def _kind(self) -> HandlerKind:
        if inspect.isasyncgenfunction(self._function):
            raise self.refusal(
                "an async generator can't be a handler: "
                "use `async def` with `await context.heartbeat(...)` instead of yield"
            )
        if inspect.iscoroutinefunction(self._function):
            if not self._allow_async:
                raise self.refusal(
                    "the handler is `async def`, and this Registry does not allow that: "
                    "write Registry([...], allow_async_handlers=True)"
                )
            return HandlerKind.ASYNC
        return HandlerKind.GENERATOR if inspect.isgeneratorfunction(self._function) else HandlerKind.SYNC

    def _parameters(self, inputs: tuple[int, ...]) -> list[Parameter]:
        parameters = inspect.signature(self._bound_method).parameters.values()
        positional = [parameter for parameter in parameters if parameter.kind in _POSITIONAL]
        taken = positional[: 1 + max(inputs)]
        required = [
            parameter
            for parameter in parameters
            if parameter.default is Parameter.empty
            and parameter.kind in (*_POSITIONAL, Parameter.KEYWORD_ONLY)
            and parameter not in taken
        ]
        if len(taken) - 1 not in inputs or required:
            shape = {
                (1,): "(self, context, input)",
                (0,): "(self, context)",
                (0, 1): "(self, context) or (self, context, input)",
            }[inputs]
            raise self.refusal(f"a handler takes {shape}, this one takes {inspect.signature(self._function)}")
        return taken

    # Annotations -----------------------------------------------------------------------------------------------------

    def _check_context(self, parameter: Parameter, kind: HandlerKind) -> None:
        wanted = "AsyncContext" if kind is HandlerKind.ASYNC else "Context"
        if parameter.annotation is Parameter.empty:
            raise self.refusal(f"parameter {parameter.name!r} has no annotation: write `{parameter.name}: {wanted}`")
        found = self._resolved(parameter.name, parameter.annotation)
        right = AsyncContext if kind is HandlerKind.ASYNC else Context
        if found is right:
            return
        why = {
            HandlerKind.ASYNC: "an async handler takes an AsyncContext",
            HandlerKind.GENERATOR: "a generator handler takes a Context",
            HandlerKind.SYNC: "a synchronous handler takes a Context",
        }[kind]
        raise self.refusal(f"{why}, `{parameter.name}` is annotated {type_text(found)}: write `: {wanted}`")

    def _input_type(self, parameter: Parameter, declared: Any) -> Any:
        name = parameter.name
        if parameter.annotation is Parameter.empty:
            raise self.refusal(f"input {name!r} has no annotation: write its type, which says how the input is decoded")
        try:
            found = substitute(resolve(parameter.annotation, self._function, self._class), self._bound)
        except Unresolvable as error:
            if declared is not None:
                return declared
            raise self._unresolvable(name, parameter.annotation, error) from error
        if is_open(found):
            raise self.refusal(
                f"the type of input {name!r} is {type_text(found)}, and nothing says what that stands for: "
                "give the generic base an argument, as in class MyStep(Base[int])"
            )
        if declared is not None and not same_type(declared, found):
            raise self.refusal(
                f"input {name!r} is annotated {type_text(found)}, but the class is declared with "
                f"{type_text(declared)}: make them the same"
            )
        return found

    def _returns(self, kind: HandlerKind) -> Any:
        annotation = inspect.signature(self._function).return_annotation
        if annotation is inspect.Signature.empty:
            raise self.refusal("it has no return annotation: write `-> …`")
        found = substitute(self._resolved("return", annotation), self._bound)
        if kind is not HandlerKind.GENERATOR:
            return found
        if get_origin(found) is not collections.abc.Generator or len(get_args(found)) != 3:
            raise self.refusal(
                "it yields, so it is a generator handler: "
                f"annotate it `-> Generator[StepOutput, None, …]`, not {type_text(found)}"
            )
        yielded, _, returned = get_args(found)
        if yielded not in (StepOutput, Any):
            raise self.refusal(f"a generator handler yields StepOutput, this one {type_text(yielded)}")
        return returned

    def _resolved(self, name: str, annotation: Any) -> Any:
        try:
            return resolve(annotation, self._function, self._class)
        except Unresolvable as error:
            raise self._unresolvable(name, annotation, error) from error

    def _unresolvable(self, name: str, annotation: Any, error: Unresolvable) -> FlowDefinitionError:
        return self.refusal(
            f"the annotation {annotation!r} of {name!r} can't be resolved ({error}): define or import it in the module "
            f"{self._class.__module__}, outside of functions and of `if TYPE_CHECKING:`"
        )


def rpc_output(signature: Signature, handler: Handler) -> tuple[bool, Any]:
    """Whether an RPC is a procedure, and the type of its output."""
    if handler.kind is HandlerKind.GENERATOR:
        raise signature.refusal("an RPC can't be a generator: it sends no heartbeats; return its result")
    if handler.returns is type(None):
        return True, None
    if get_origin(handler.returns) is RPCResult:
        (output,) = get_args(handler.returns)
        if not is_open(output):
            return False, output
    raise signature.refusal(
        f"an RPC returns RPCResult[Output], or None as a procedure; this one is annotated {type_text(handler.returns)}"
    )
