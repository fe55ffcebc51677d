"""The walk through a handler and its helpers, statement by statement.

Both ways of an `if` are gone, each with its own names, and joined behind it; loops are gone twice, so that a name
which one round sets is known in the next. A helper is walked with the arguments of each call: that is how a Channel
or the Context is still the same object inside it. What can't be followed (a call of something unknown, code without a
source, recursion) has an unknown value, never a guessed one.
"""

from __future__ import annotations

import ast
import contextlib
import importlib.util
import inspect
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from types import CodeType, FunctionType, MethodType
from typing import Any, Final

from dexray.visualize import builtin_calls, dex_calls
from dexray.visualize.evaluate import Arguments, Expressions
from dexray.visualize.facts import Facts
from dexray.visualize.scope import Scope, joined, local_names
from dexray.visualize.source import FunctionNode, Sources, is_generator, is_library, where
from dexray.visualize.values import (
    CONTEXT,
    NO_VALUE,
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
_MOST_STATEMENTS: Final = 5_000
"""What the walk through one handler may take, calls counted in. One that needs more has parts that can't be told."""
_OURS: Final = ("dex", "dexray")


def handler_facts(sources: Sources, owner: Any, method: str) -> Facts:
    """What is in the source of a handler: a method of a Step or a Flow."""
    bound: MethodType = getattr(owner, method)
    function: Any = bound.__func__
    if isinstance(function, FunctionType) and is_library(function.__code__):
        function = _unwrapped(function)
    if not isinstance(function, FunctionType):
        return Facts(where((lambda: None).__code__), unseen_movements=True, is_readable=False)
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


class _Walk(Expressions):
    def __init__(self, facts: Facts, sources: Sources, root: FunctionType, package: str) -> None:
        super().__init__(facts, Scope(root, frozenset()))
        self._sources = sources
        self._root = root
        self._package = package
        self._stack: list[CodeType | ast.AST] = []
        self._statements = 0
        self._is_guarded = False
        self._left_loop: list[dict[str, Values]] = []

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
        defaults = dict(
            zip(reversed(_positional(node)), map(only, reversed(function.__defaults__ or ())), strict=False)
        )
        defaults |= {name: only(value) for name, value in (function.__kwdefaults__ or {}).items()}
        return self._run(code, node, scope, arguments, defaults)

    def _run_local(self, local: LocalFunction, arguments: Arguments) -> Values:
        node = local.node
        scope = Scope(local.scope.function, local_names(node), parent=local.scope)
        defaults = dict(zip(reversed(_positional(node)), map(self.value, reversed(node.args.defaults)), strict=False))
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
        self._statements += 1
        is_too_much = len(self._stack) >= _DEEPEST or self._statements > _MOST_STATEMENTS
        if is_too_much or self._stack.count(identity) > 1:
            self.escape(arguments)
            return UNKNOWN
        _bind(scope, node, arguments, defaults)
        outer, self.scope = self.scope, scope
        left_loop, self._left_loop = self._left_loop, []
        is_guarded, self._is_guarded = self._is_guarded, False
        self._stack.append(identity)
        try:
            if isinstance(node, ast.Lambda):
                scope.returned = self.value(node.body)
            elif not self._block(node.body):
                scope.returned = join((scope.returned, only(None)))
        finally:
            self._stack.pop()
            self.scope, self._left_loop, self._is_guarded = outer, left_loop, is_guarded
        if is_generator(node):
            return only(Items(element=scope.yielded, returned=scope.returned))
        return scope.returned

    # Statements ------------------------------------------------------------------------------------------------------

    def _block(self, statements: list[ast.stmt]) -> bool:
        """Walks statements; whether they surely leave, so that what follows is never reached."""
        was_guarded, self._is_guarded, is_unsure = self._is_guarded, False, False
        try:
            for statement in statements:
                if self._statement(statement):
                    return True
                if self._is_guarded and not is_unsure:
                    is_unsure = True
                    self.unsure += 1
            return False
        finally:
            self.unsure -= is_unsure
            self._is_guarded |= was_guarded

    def _statement(self, node: ast.stmt) -> bool:
        self._statements += 1
        if self._statements > _MOST_STATEMENTS:
            self.facts.unseen_movements = True
            return False
        match node:
            case ast.Expr(value=value):
                self.value(value)
            case ast.Return(value=value):
                self.scope.returned = join((self.scope.returned, self.value(value)))
                return True
            case ast.Raise():
                for part in (node.exc, node.cause):
                    if part is not None:
                        self.value(part)
                return True
            case ast.Break() | ast.Continue():
                self._left_loop.append(dict(self.scope.names))
                return True
            case ast.Assign(targets=targets, value=value):
                found = self.value(value)
                for target in targets:
                    self.assign(target, found)
            case ast.AnnAssign(target=target, value=ast.expr() as value):
                self.assign(target, self.value(value))
            case ast.AugAssign():
                self._augment(node)
            case ast.If():
                return self._if(node)
            case ast.For() | ast.AsyncFor():
                return self._for(node)
            case ast.While():
                return self._while(node)
            case ast.Try() | ast.TryStar():
                return self._try(node)
            case ast.With() | ast.AsyncWith():
                return self._with(node)
            case ast.Match():
                return self._match(node)
            case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name):
                is_plain = not node.decorator_list
                self.scope.bind(name, only(LocalFunction(node, self.scope)) if is_plain else UNKNOWN)
            case ast.ClassDef(name=name):
                self.scope.bind(name, UNKNOWN)
            case ast.Global(names=names) | ast.Nonlocal(names=names):
                self.scope.outer_names.update(names)
            case ast.Import() | ast.ImportFrom():
                self._import(node)
            case ast.Assert(test=test):
                self.value(test)
            case ast.Delete(targets=targets):
                for target in targets:
                    if isinstance(target, ast.Name):
                        self.scope.bind(target.id, UNKNOWN)
            case _:
                pass
        return False

    def _augment(self, node: ast.AugAssign) -> None:
        added = self.value(node.value)
        if isinstance(node.target, ast.Name):
            before = self.scope.find(node.target.id)
            if isinstance(before.single, Items):
                before.single.add(self.items(added).element)  # in place, for all who hold the list
            else:
                self.scope.bind(node.target.id, UNKNOWN)
        else:
            self.assign(node.target, UNKNOWN)

    def _ways(self, ways: list[tuple[list[ast.stmt], bool]]) -> bool:
        """Walks several blocks of which one is taken, each of which may be unsure; whether all of them leave.

        Where some leave and those that go on are unsure, so is all that follows: a condition guards it.
        """
        before = self.scope.names
        after: dict[str, Values] | None = None
        was_guarded = is_guarded = self._is_guarded
        some_leave, is_sure = False, False
        for statements, is_unsure in ways:
            self.scope.names = dict(before)
            self._is_guarded = was_guarded
            with self.on_unsure_way(is_unsure):
                leaves = self._block(statements)
            is_guarded |= self._is_guarded and not leaves
            some_leave |= leaves
            if not leaves:
                is_sure |= not is_unsure
                after = self.scope.names if after is None else joined(after, self.scope.names)
        self.scope.names = before if after is None else after
        self._is_guarded = is_guarded or (some_leave and not is_sure)
        return after is None

    def _if(self, node: ast.If) -> bool:
        truth = self.truth(node.test)
        if truth is not None and self.is_settled(node.test):
            return self._block(node.body if truth else node.orelse)
        tells_apart = self.tells_apart(node.test)
        return self._ways([(node.body, truth is False or tells_apart), (node.orelse, truth is True or tells_apart)])

    def _match(self, node: ast.Match) -> bool:
        subject = self.value(node.subject)
        before = self.scope.names
        after: list[dict[str, Values]] = []
        is_complete = some_leave = False
        tells_apart = self.tells_apart(node.subject)
        for case in node.cases:
            self.scope.names = dict(before)
            for pattern in ast.walk(case.pattern):
                if isinstance(pattern, ast.MatchAs | ast.MatchStar) and pattern.name is not None:
                    self.scope.bind(pattern.name, subject if pattern is case.pattern else UNKNOWN)
                elif isinstance(pattern, ast.MatchMapping) and pattern.rest is not None:
                    self.scope.bind(pattern.rest, UNKNOWN)
            if case.guard is not None:
                self.value(case.guard)
            with self.on_unsure_way(tells_apart):
                leaves = self._block(case.body)
            if not leaves:
                after.append(self.scope.names)
            some_leave |= leaves
            is_complete |= case.guard is None and isinstance(case.pattern, ast.MatchAs) and case.pattern.pattern is None
        if not is_complete:
            after.append(before)
        self.scope.names = before
        self._continue_from(after)
        self._is_guarded |= some_leave and tells_apart
        return not after

    def _continue_from(self, many: list[dict[str, Values]]) -> None:
        for index, names in enumerate(many):
            self.scope.names = names if index == 0 else joined(self.scope.names, names)

    # Loops -----------------------------------------------------------------------------------------------------------

    def _for(self, node: ast.For | ast.AsyncFor) -> bool:
        items = self.items(self.value(node.iter))
        self.scope.looped |= {name.id for name in ast.walk(node.target) if isinstance(name, ast.Name)}
        if items.exact != ():
            self._rounds(node.body, lambda: self.assign(node.target, items.element))
        return self._block(node.orelse) and not _breaks(node)

    def _while(self, node: ast.While) -> bool:
        truth = self.truth(node.test)
        is_settled = self.is_settled(node.test)
        if truth is False and is_settled:
            return self._block(node.orelse)
        with self.on_unsure_way(truth is False):
            self._rounds(node.body, lambda: self.value(node.test))
        if truth is True and is_settled and not _breaks(node):
            return True
        return self._block(node.orelse) and not _breaks(node)

    def _rounds(self, body: list[ast.stmt], begin: Any) -> None:
        before = dict(self.scope.names)
        outer, self._left_loop = self._left_loop, [before]
        is_guarded = self._is_guarded
        for _ in range(2):
            begin()
            if not self._block(body):
                self._left_loop.append(self.scope.names)
            self.scope.names = before
            self._continue_from([dict(names) for names in self._left_loop])
        self._left_loop, self._is_guarded = outer, is_guarded

    # Exceptions and contexts -----------------------------------------------------------------------------------------

    def _try(self, node: ast.Try | ast.TryStar) -> bool:
        before = dict(self.scope.names)
        with self._catching(caught for handler in node.handlers for caught in self._classes(handler.type)):
            leaves = self._block(node.body)
        after_body = self.scope.names
        ends: list[dict[str, Values]] = []
        if not leaves and not self._block(node.orelse):
            ends.append(self.scope.names)
        for handler in node.handlers:
            self.scope.names = joined(before, after_body)
            if handler.name is not None:
                self.scope.bind(handler.name, UNKNOWN)
            if not self._block(handler.body):
                ends.append(self.scope.names)
        self.scope.names = joined(before, after_body)
        self._continue_from(ends)
        return self._block(node.finalbody) or not ends

    def _with(self, node: ast.With | ast.AsyncWith) -> bool:
        suppressed: list[type] = []
        for item in node.items:
            call = item.context_expr
            self.value(call)
            if isinstance(call, ast.Call) and self.value(call.func).single is contextlib.suppress:
                suppressed += [kind for argument in call.args for kind in self._classes(argument)]
            if item.optional_vars is not None:
                self.assign(item.optional_vars, UNKNOWN)
        with self._catching(iter(suppressed)):
            leaves = self._block(node.body)
        return leaves and not suppressed

    @contextmanager
    def _catching(self, classes: Iterator[type]) -> Iterator[None]:
        count = len(self.caught)
        self.caught += classes
        yield
        del self.caught[count:]

    def _classes(self, node: ast.expr | None) -> Iterator[type]:
        if node is None:
            return
        for value in self.value(node).known:
            if isinstance(value, type):
                yield value
            elif isinstance(value, Items | tuple):
                yield from (kind for kind in self.items(only(value)).element.known if isinstance(kind, type))

    # Imports ---------------------------------------------------------------------------------------------------------

    def _import(self, node: ast.Import | ast.ImportFrom) -> None:
        """A module that was imported already is looked at; none is imported for it."""
        if isinstance(node, ast.Import):
            for alias in node.names:
                name = alias.name if alias.asname is not None else alias.name.partition(".")[0]
                module = sys.modules.get(name)
                self.scope.bind(alias.asname or name, UNKNOWN if module is None else only(module))
            return
        name = "." * node.level + (node.module or "")
        if node.level:
            try:
                name = importlib.util.resolve_name(name, self.scope.function.__globals__.get("__package__") or "")
            except ImportError:
                name = ""
        module = sys.modules.get(name)
        for alias in node.names:
            found = UNKNOWN if module is None else self._attribute(module, alias.name)
            self.scope.bind(alias.asname or alias.name, found)


def _unwrapped(function: Any) -> Any:
    """The function that a decorator has wrapped, if it says so."""
    try:
        return inspect.unwrap(function)
    except ValueError:
        return function  # it wraps itself


def _positional(node: FunctionNode) -> list[str]:
    return [argument.arg for argument in (*node.args.posonlyargs, *node.args.args)]


def _bind(scope: Scope, node: FunctionNode, arguments: Arguments, defaults: dict[str, Values]) -> None:
    names = _positional(node)
    for index, name in enumerate(names):
        given = arguments.get(index, name)
        scope.names[name] = defaults.get(name, UNKNOWN) if given is None else given
    for argument in node.args.kwonlyargs:
        missing = UNKNOWN if arguments.is_open else defaults.get(argument.arg, UNKNOWN)
        scope.names[argument.arg] = arguments.keywords.get(argument.arg, missing)
    if node.args.vararg is not None:
        rest = tuple(arguments.positional[len(names) :])
        items = Items(element=join((*rest, arguments.rest))) if arguments.is_open else Items(rest)
        scope.names[node.args.vararg.arg] = only(items)
    if node.args.kwarg is not None:
        scope.names[node.args.kwarg.arg] = UNKNOWN
    scope.first = scope.names[names[0]] if names else NO_VALUE


def _breaks(loop: ast.For | ast.AsyncFor | ast.While) -> bool:
    """Whether a `break` of this loop is in it."""
    pending: list[ast.AST] = list(loop.body)
    while pending:
        node = pending.pop()
        if isinstance(node, ast.Break):
            return True
        if not isinstance(node, ast.For | ast.AsyncFor | ast.While | ast.FunctionDef | ast.AsyncFunctionDef):
            pending.extend(ast.iter_child_nodes(node))
    return False
