"""The walk through a handler and its helpers.

A helper is walked with the arguments of each call: that is how a Channel or the Context is still the same object inside
it. What can't be followed (a call of something unknown, code without a source, recursion) has an unknown value, never a
guessed one.
"""

from __future__ import annotations

import ast
import inspect
from functools import partial
from types import CodeType, FunctionType, MethodType
from typing import Any, Final

from dexray.visualize import builtin_calls, dex_calls
from dexray.visualize.arguments import Arguments, bind, positional
from dexray.visualize.facts import Facts
from dexray.visualize.scope import Scope, local_names
from dexray.visualize.source import FunctionNode, Sources, Where, is_generator, is_library, where
from dexray.visualize.statements import MOST_STATEMENTS, Statements
from dexray.visualize.values import (
    CONTEXT,
    UNKNOWN,
    ContextMethod,
    Items,
    LocalFunction,
    MadeMethod,
    Values,
    join,
    only,
)

_DEEPEST: Final = 10
_OURS: Final = ("dex", "dexray")


def handler_facts(sources: Sources, owner: Any, method: str) -> Facts:
    """What is in the source of a handler: a method of a Step or a Flow."""
    bound: Any = getattr(owner, method)
    function = bound.__func__ if isinstance(bound, MethodType) else None
    if isinstance(function, FunctionType) and is_library(function.__code__):
        function = _unwrapped(function)
    if not isinstance(function, FunctionType):
        return Facts(Where(type(owner).__module__, 0), unseen_movements=True, is_readable=False)
    facts = Facts(where(function.__code__))
    walk = _Walk(facts, sources, function, type(owner).__module__.partition(".")[0])
    try:
        returned = walk.run(function, Arguments([only(owner), only(CONTEXT), UNKNOWN]))
    except RecursionError:  # expressions nested in thousands
        return Facts(facts.where, unseen_movements=True, is_readable=False)
    if isinstance(returned.single, Items):  # of a generator
        returned = returned.single.returned
    facts.unseen_movements |= not dex_calls.is_result_seen(walk, returned)
    return facts


class _Walk(Statements):
    def __init__(self, facts: Facts, sources: Sources, root: FunctionType, package: str) -> None:
        super().__init__(facts, Scope(root, frozenset()))
        self._sources = sources
        self._root = root
        self._package = package
        self._stack: list[CodeType | ast.AST] = []

    # Calls -----------------------------------------------------------------------------------------------------------

    def call(self, callee: Any, arguments: Arguments, node: ast.Call | None) -> Values:
        answer = dex_calls.answer(self, callee, arguments, node)
        if answer is None:
            answer = builtin_calls.answer(self, callee, arguments)
        if answer is not None:
            return answer
        match callee:
            case LocalFunction():
                return self._run_local(callee, arguments)
            case FunctionType():
                return self._call_function(callee, arguments)
            case MethodType():
                return self.call(callee.__func__, arguments.behind(only(callee.__self__)), node)
            case partial():
                given = Arguments(
                    [*map(only, callee.args), *arguments.positional], {}, arguments.is_open, arguments.rest
                )
                given.keywords = {name: only(value) for name, value in callee.keywords.items()} | arguments.keywords
                return self.call(callee.func, given, node)
            case ContextMethod() | MadeMethod() | type():
                pass
            case _ if isinstance(wrapped := _unwrapped(callee), FunctionType):
                self._call_function(wrapped, arguments)
                return UNKNOWN
        self.escape(arguments)
        return UNKNOWN

    def _call_function(self, function: FunctionType, arguments: Arguments) -> Values:
        package = function.__module__.partition(".")[0] if function.__module__ else ""
        if package == self._package or not is_library(function.__code__):
            if package not in _OURS or package == self._package:
                return self.run(function, arguments)
        elif any(value is CONTEXT for given in arguments.all() for value in given.known) and package not in _OURS:
            return self.run(function, arguments)
        wrapped = _unwrapped(function)
        if wrapped is not function and isinstance(wrapped, FunctionType):
            self._call_function(wrapped, arguments)
            return UNKNOWN
        self.escape(arguments)
        return UNKNOWN

    def run(self, function: FunctionType, arguments: Arguments) -> Values:
        """Walks a function, and gives what it returns."""
        node = self._sources.node_of(function)
        if node is None:
            self.facts.is_readable &= function is not self._root
            self.escape(arguments)
            return UNKNOWN
        code = function.__code__
        scope = Scope(function, frozenset((*code.co_varnames, *code.co_cellvars)))
        defaults = dict(zip(reversed(positional(node)), map(only, reversed(function.__defaults__ or ())), strict=False))
        defaults |= {name: only(value) for name, value in (function.__kwdefaults__ or {}).items()}
        return self._run(code, node, scope, arguments, defaults)

    def _run_local(self, local: LocalFunction, arguments: Arguments) -> Values:
        node = local.node
        scope = Scope(local.scope.function, local_names(node), parent=local.scope)
        defaults = dict(zip(reversed(positional(node)), map(self.value, reversed(node.args.defaults)), strict=False))
        for argument, default in zip(node.args.kwonlyargs, node.args.kw_defaults, strict=True):
            if default is not None:
                defaults[argument.arg] = self.value(default)
        return self._run(node, node, scope, arguments, defaults)

    def _run(
        self,
        identity: CodeType | ast.AST,
        node: FunctionNode,
        scope: Scope,
        arguments: Arguments,
        defaults: dict[str, Values],
    ) -> Values:
        self.statements += 1
        is_too_much = len(self._stack) >= _DEEPEST or self.statements > MOST_STATEMENTS
        if is_too_much or self._stack.count(identity) > 1:
            self.escape(arguments)
            return UNKNOWN
        bind(scope, node, arguments, defaults)
        outer, self.scope = self.scope, scope
        left_loop, self._left_loop = self._left_loop, []
        is_guarded, self._is_guarded = self._is_guarded, False
        self._stack.append(identity)
        try:
            if isinstance(node, ast.Lambda):
                scope.returned = self.value(node.body)
            elif not self.block(node.body):
                scope.returned = join((scope.returned, only(None)))
        finally:
            self._stack.pop()
            self.scope, self._left_loop, self._is_guarded = outer, left_loop, is_guarded
        if is_generator(node):
            return only(Items(element=scope.yielded, returned=scope.returned))
        return scope.returned


def _unwrapped(function: Any) -> Any:
    """The function that a decorator has wrapped, if it says so."""
    try:
        return inspect.unwrap(function)
    except ValueError:
        return function  # it wraps itself
