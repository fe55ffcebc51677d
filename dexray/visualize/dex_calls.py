"""Calls of dex, and what they tell: uses of definitions, waits, movements, decisions, options.

Only the very functions and methods of dex count, under whatever name a handler has them. A movement is noted where it
is made, so it is found wherever a handler keeps it; what a handler returns tells whether all have been seen.
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterable
from datetime import timedelta
from types import FunctionType, MethodType
from typing import Any, Final

from dex import (
    Attribute,
    AttributeMap,
    Channel,
    ChannelMap,
    ConditionCombination,
    Flow,
    RPCResult,
    StepDecision,
    StepMovement,
    StepOptions,
    Stream,
    SubFlow,
    Timer,
    Wait,
    dead_end,
    force_complete,
    force_complete_if_channels_empty,
    force_fail,
    go_to,
    go_to_many,
    graceful_complete,
)
from dex.options import ExecuteFailureRoute
from dex.wait import ChannelCondition, SubFlowCondition, TimerCondition
from dexray.visualize.arguments import Arguments
from dexray.visualize.evaluate import Expressions
from dexray.visualize.facts import Cancel, Condition, Doing, Movement, ResultRead, Use
from dexray.visualize.operations import items_of
from dexray.visualize.options import fields_of
from dexray.visualize.source import where
from dexray.visualize.values import (
    CONTEXT,
    NO_VALUE,
    NOTHING,
    UNKNOWN,
    ContextMethod,
    Kind,
    Made,
    MadeLoad,
    MadeMethod,
    MadeOptions,
    Values,
    join,
    only,
)

_Answer = Callable[[Expressions, Arguments, ast.Call | None], Values]

_DOING: Final = {
    "get": Doing.READ_VALUE,
    "pending_messages": Doing.READ_MESSAGES,
    "find_pending_message": Doing.READ_MESSAGES,
    "results": Doing.READ_RESULTS,
    "publish": Doing.PUBLISH,
    "set": Doing.WRITE,
    "delete": Doing.WRITE,
    "write": Doing.WRITE,
    "buffered_text": Doing.WRITE,
    "size": Doing.OTHER,
    "get_map_size": Doing.OTHER,
    "get_all_instance_keys": Doing.OTHER,
}
_CONDITIONS: Final = ("for_one", "for_n", "at_least", "at_most", "for_range")
_WITHOUT_INSTANCE: Final = ("get_map_size", "get_all_instance_keys")


def answer(walk: Expressions, callee: Any, arguments: Arguments, node: ast.Call | None) -> Values | None:
    """What a call of dex gives, None when it is no call of dex."""
    match callee:
        case MethodType(__self__=Attribute() | AttributeMap() | Channel() | ChannelMap() | Stream()):
            return _definition(walk, callee.__self__, callee.__func__.__name__, arguments, node)
        case MethodType(__self__=StepOptions()):
            return _options_method(callee.__self__, callee.__func__.__name__, arguments)
        case MethodType(__self__=StepDecision() | RPCResult()):
            note_real(walk, callee.__self__)
            return _made_method(walk, Made(Kind.DECISION), callee.__func__.__name__, arguments, node)
        case ContextMethod(name="has_timer_fired"):
            walk.facts.add_result_read(ResultRead(_text(node, "has_timer_fired"), **_place(walk, node)))
            return UNKNOWN
        case MadeMethod(owner=Made() as made):
            return _made_method(walk, made, callee.name, arguments, node)
        case MadeMethod(owner=MadeOptions()):
            return _options_method(callee.owner, callee.name, arguments)
        case FunctionType() | type() if callee in _CALLS:
            return _CALLS[callee](walk, arguments, node)
        case _:
            return None


def is_result_seen(walk: Expressions, returned: Values) -> bool:
    """Whether all that a handler may return is known. What it returns ready-made is noted."""
    is_seen = not returned.is_open
    for value in returned.known:
        if isinstance(value, Made):
            is_seen &= not value.has_unseen
        else:
            is_seen &= value is None or note_real(walk, value)
    return is_seen


def note_real(walk: Expressions, value: Any) -> bool:
    """Notes what is in a decision, a result or a Wait that was made before any handler ran; whether it is one."""
    facts = walk.facts
    match value:
        case StepDecision():
            facts.decisions[value.kind.value] = None
            fallback = () if value.fallback is None else (value.fallback,)
            _note_movements(walk, (*value.movements, *fallback))
            _note_cancels(walk, only(*value.canceling_steps, *value.canceling_sibling_steps), None)
        case RPCResult():
            _note_movements(walk, value.next_steps)
            _note_cancels(walk, only(*value.canceling_steps), None)
        case StepMovement():
            _note_movements(walk, (value,))
        case Wait():
            facts.waits[value.kind.value] = None
            for condition in value.conditions:
                note_real(walk, condition)
        case ChannelCondition():
            _waits_for(walk, value.channel, only(value.instance), "for_range", None)
        case TimerCondition():
            facts.conditions[Condition(kind="timer", seconds=value.duration.total_seconds())] = None
        case SubFlowCondition():
            facts.conditions[Condition(kind="subflow", subflow=value.flow.get_flow_type())] = None
        case _:
            return False
    return True


# Definitions ----------------------------------------------------------------------------------------------------------


def _definition(
    walk: Expressions, definition: Any, name: str, arguments: Arguments, node: ast.Call | None
) -> Values | None:
    is_map = isinstance(definition, AttributeMap | ChannelMap)
    if name in _CONDITIONS:
        instance = _given(arguments, 0, "instance") if is_map else None
        _waits_for(walk, definition, instance, name, node)
        return only(Made(Kind.CONDITION))
    if name in ("load", "load_messages"):
        key = _given(arguments, 0, "instance").single
        return only(getattr(definition, name)(key) if isinstance(key, str) and key else MadeLoad(definition))
    if name not in _DOING:
        return UNKNOWN if name == "lock" else None
    context = _given(arguments, 0, "context")
    instance = _given(arguments, 1, "instance") if is_map and name not in _WITHOUT_INSTANCE else None
    place = _place(walk, node)
    place["is_sure"] = place["is_sure"] and context.single is CONTEXT
    walk.facts.add_use(Use(_DOING[name], definition, instance, _text(node, name), _receiver(node, definition), **place))
    return UNKNOWN


def _waits_for(walk: Expressions, channel: Any, instance: Values | None, operation: str, node: ast.Call | None) -> None:
    text = _text(node, operation)
    walk.facts.add_use(Use(Doing.WAIT, channel, instance, text, _receiver(node, channel), **_place(walk, node)))
    walk.facts.conditions[Condition(channel=channel.name + _key(instance), operation=operation)] = None


def _key(instance: Values | None) -> str:
    if instance is None or instance.single is None:
        return ""
    return f"[{instance.single}]" if isinstance(instance.single, str) else "[…]"


# Movements and decisions ----------------------------------------------------------------------------------------------


def _go_to(walk: Expressions, arguments: Arguments, node: ast.Call | None) -> Values:
    walk.facts.decisions["next"] = None
    _moves(walk, _given(arguments, 0, "step"), None, node)
    return only(Made(Kind.DECISION))


def _movement(walk: Expressions, arguments: Arguments, node: ast.Call | None) -> Values:
    _moves(walk, _given(arguments, 0, "step"), arguments.get(2, "options"), node)
    return only(Made(Kind.MOVEMENT))


def _moves(walk: Expressions, steps: Values, options: Values | None, node: ast.Call | None) -> None:
    if steps.is_open:
        walk.facts.unseen_targets |= options is None
        walk.facts.unseen_movements |= options is not None
    for step in steps.known:
        place = _place(walk, node)
        place["is_sure"] = place["is_sure"] and steps.is_sure and not steps.is_open
        place.pop("caught")
        walk.facts.add_movement(Movement(step, options, _text(node, "movement"), **place))


def _go_to_many(walk: Expressions, arguments: Arguments, node: ast.Call | None) -> Values:
    walk.facts.decisions["next"] = None
    is_seen = _all_seen(walk, arguments.all())
    return only(Made(Kind.DECISION, has_unseen=not is_seen))


def _all_seen(walk: Expressions, movements: Iterable[Values]) -> bool:
    """Whether these are movements that have been noted. Ready-made ones are noted now."""
    is_seen = True
    for values in movements:
        is_seen &= not values.is_open
        for value in values.known:
            is_seen &= not value.has_unseen if isinstance(value, Made) else note_real(walk, value)
    return is_seen


def _closing(kind: str) -> _Answer:
    def close(walk: Expressions, arguments: Arguments, node: ast.Call | None) -> Values:
        walk.facts.decisions[kind] = None
        return only(Made(Kind.DECISION))

    return close


def _complete_if_empty(walk: Expressions, arguments: Arguments, node: ast.Call | None) -> Values:
    walk.facts.decisions["force_complete_if_channels_empty"] = None
    is_seen = _all_seen(walk, [_given(arguments, 1, "fallback")])
    for values in (*arguments.positional[2:], arguments.rest):
        for channel in values.known:
            if isinstance(channel, Channel) and values.is_sure and not values.is_open:
                text = _text(node, "force_complete_if_channels_empty")
                walk.facts.add_use(Use(Doing.OTHER, channel, None, text, channel.name, **_place(walk, node)))
    return only(Made(Kind.DECISION, has_unseen=not is_seen))


def _rpc_result(walk: Expressions, arguments: Arguments, node: ast.Call | None) -> Values:
    movements = arguments.get(1, "next_steps")
    is_seen = movements is None or _all_seen(walk, [items_of(movements).element])
    cancels = arguments.get(2, "canceling_steps")
    _note_cancels(walk, NO_VALUE if cancels is None else items_of(cancels).element, node)
    return only(Made(Kind.RPC_RESULT, has_unseen=not is_seen))


def _decision(walk: Expressions, arguments: Arguments, node: ast.Call | None) -> Values:
    """A decision put together by hand: legal, and not looked into."""
    return only(Made(Kind.DECISION, has_unseen=True))


def _made_method(
    walk: Expressions, made: Made, name: str, arguments: Arguments, node: ast.Call | None
) -> Values | None:
    if name not in ("with_canceling_steps", "with_canceling_sibling_steps"):
        return UNKNOWN
    _note_cancels(walk, join(arguments.all()), node)
    return only(made)


def _note_movements(walk: Expressions, movements: Iterable[Any]) -> None:
    for movement in movements:
        if isinstance(movement, StepMovement):
            _moves(walk, only(movement.step), None if movement.options is None else only(movement.options), None)


def _note_cancels(walk: Expressions, steps: Values, node: ast.Call | None) -> None:
    for step in steps.known:
        place = _place(walk, node)
        place["is_sure"] = place["is_sure"] and steps.is_sure and not steps.is_open
        place.pop("caught")
        walk.facts.add_cancel(Cancel(step, _text(node, "canceling_steps"), **place))


# Waits ----------------------------------------------------------------------------------------------------------------


def _wait(kind: str) -> _Answer:
    def wait(walk: Expressions, arguments: Arguments, node: ast.Call | None) -> Values:
        walk.facts.waits[kind] = None
        is_seen = _all_seen(walk, arguments.all())
        return only(Made(Kind.WAIT, has_unseen=not is_seen))

    return wait


def _combination(walk: Expressions, arguments: Arguments, node: ast.Call | None) -> Values:
    return only(Made(Kind.CONDITION, has_unseen=not _all_seen(walk, arguments.all())))


def _timer(walk: Expressions, arguments: Arguments, node: ast.Call | None) -> Values:
    length = _given(arguments, 0, "duration").single
    seconds = length.total_seconds() if isinstance(length, timedelta) else None
    walk.facts.conditions[Condition(kind="timer", seconds=seconds)] = None
    return only(Made(Kind.CONDITION))


def _subflow(walk: Expressions, arguments: Arguments, node: ast.Call | None) -> Values:
    flows = _given(arguments, 0, "flow")
    for flow in flows.known:
        if isinstance(flow, Flow):
            walk.facts.conditions[Condition(kind="subflow", subflow=flow.get_flow_type())] = None
    if flows.is_open:
        walk.facts.conditions[Condition(kind="subflow")] = None
    return only(Made(Kind.CONDITION))


def _subflow_result(walk: Expressions, arguments: Arguments, node: ast.Call | None) -> Values:
    place = _place(walk, node)
    place["is_sure"] = place["is_sure"] and _given(arguments, 0, "context").single is CONTEXT
    walk.facts.add_result_read(ResultRead(_text(node, "SubFlow"), **place))
    return UNKNOWN


# Options --------------------------------------------------------------------------------------------------------------


def _options(walk: Expressions, arguments: Arguments, node: ast.Call | None) -> Values:
    if arguments.is_open or arguments.positional:
        return UNKNOWN
    return only(MadeOptions(dict(arguments.keywords)))


def _options_method(options: Any, name: str, arguments: Arguments) -> Values:
    fields = dict(fields_of(options) or {})
    if name == "on_execute_failure_proceed_to":
        target = _given(arguments, 0, "step").single
        given = arguments.get(1, "options")
        their_options = None if given is None else given.single
        if target is not NOTHING and (their_options is None or isinstance(their_options, StepOptions)):
            return only(MadeOptions(fields | {"execute_failure": only(ExecuteFailureRoute(target, their_options))}))
        return only(MadeOptions(fields | {"execute_failure": UNKNOWN}))
    other = _given(arguments, 0, "other").single
    replaced = fields_of(other)
    return UNKNOWN if name != "merged_with" or replaced is None else only(MadeOptions(fields | dict(replaced)))


# Places ---------------------------------------------------------------------------------------------------------------


def _given(arguments: Arguments, position: int, name: str) -> Values:
    return arguments.get(position, name) or UNKNOWN


def _place(walk: Expressions, node: ast.Call | None) -> dict[str, Any]:
    return {
        "where": where(walk.scope.function.__code__, node),
        "is_sure": walk.unsure == 0,
        "caught": tuple(walk.caught),
    }


def _text(node: ast.Call | None, name: str) -> str:
    return name if node is None else " ".join(ast.unparse(node).split())


def _receiver(node: ast.Call | None, definition: Any) -> str:
    if node is not None and isinstance(node.func, ast.Attribute):
        return ast.unparse(node.func.value)
    return str(definition.name)


_CALLS: Final[dict[Any, _Answer]] = {
    go_to: _go_to,
    go_to_many: _go_to_many,
    graceful_complete: _closing("graceful_complete"),
    force_complete: _closing("force_complete"),
    force_fail: _closing("force_fail"),
    dead_end: _closing("dead_end"),
    force_complete_if_channels_empty: _complete_if_empty,
    StepMovement: _movement,
    StepMovement.of: _movement,
    StepDecision: _decision,
    RPCResult: _rpc_result,
    StepOptions: _options,
    Wait.skip_immediately: _wait("skip_immediately"),
    Wait.until: _wait("until"),
    Wait.all_of: _wait("all_of"),
    Wait.any_of: _wait("any_of"),
    Wait.any_combination_of: _wait("any_combination_of"),
    ConditionCombination.of: _combination,
    Timer.by_duration: _timer,
    SubFlow.run: _subflow,
    SubFlow.get_condition_results: _subflow_result,
    SubFlow.get_flow_id: _subflow_result,
}
