"""Statements: both ways of an `if`, the rounds of a loop, what a `try` catches.

Both ways of an `if` are gone, each with its own names, and joined behind it; loops are gone twice, so that a name
which one round sets is known in the next. A condition that tells one of several objects from the others makes its ways
unsure, and, where one of them leaves, all that follows.
"""

from __future__ import annotations

import ast
import contextlib
import importlib.util
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Final

from dexray.visualize.evaluate import Expressions
from dexray.visualize.facts import Facts
from dexray.visualize.operations import items_of
from dexray.visualize.scope import Scope, joined
from dexray.visualize.values import UNKNOWN, Items, LocalFunction, Values, join, only

MOST_STATEMENTS: Final = 5_000
"""What the walk through one handler may take, calls counted in. One that needs more has parts that can't be told."""


class Statements(Expressions):
    """Walks the statements of the function at hand. statements: how many have been walked in all."""

    def __init__(self, facts: Facts, scope: Scope) -> None:
        super().__init__(facts, scope)
        self.statements = 0
        self._is_guarded = False
        self._left_loop: list[dict[str, Values]] = []

    # Statements ------------------------------------------------------------------------------------------------------

    def block(self, statements: list[ast.stmt]) -> bool:
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
        self.statements += 1
        if self.statements > MOST_STATEMENTS:
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
                before.single.add(items_of(added).element)  # in place, for all who hold the list
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
                leaves = self.block(statements)
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
            return self.block(node.body if truth else node.orelse)
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
                leaves = self.block(case.body)
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
        items = items_of(self.value(node.iter))
        self.scope.looped |= {name.id for name in ast.walk(node.target) if isinstance(name, ast.Name)}
        if items.exact != ():
            self._rounds(node.body, lambda: self.assign(node.target, items.element))
        return self.block(node.orelse) and not _breaks(node)

    def _while(self, node: ast.While) -> bool:
        truth = self.truth(node.test)
        is_settled = self.is_settled(node.test)
        if truth is False and is_settled:
            return self.block(node.orelse)
        with self.on_unsure_way(truth is False):
            self._rounds(node.body, lambda: self.value(node.test))
        if truth is True and is_settled and not _breaks(node):
            return True
        return self.block(node.orelse) and not _breaks(node)

    def _rounds(self, body: list[ast.stmt], begin: Any) -> None:
        before = dict(self.scope.names)
        outer, self._left_loop = self._left_loop, [before]
        is_guarded = self._is_guarded
        for _ in range(2):
            begin()
            if not self.block(body):
                self._left_loop.append(self.scope.names)
            self.scope.names = before
            self._continue_from([dict(names) for names in self._left_loop])
        self._left_loop, self._is_guarded = outer, is_guarded

    # Exceptions and contexts -----------------------------------------------------------------------------------------

    def _try(self, node: ast.Try | ast.TryStar) -> bool:
        before = dict(self.scope.names)
        with self._catching(caught for handler in node.handlers for caught in self._classes(handler.type)):
            leaves = self.block(node.body)
        after_body = self.scope.names
        ends: list[dict[str, Values]] = []
        if not leaves and not self.block(node.orelse):
            ends.append(self.scope.names)
        for handler in node.handlers:
            self.scope.names = joined(before, after_body)
            if handler.name is not None:
                self.scope.bind(handler.name, UNKNOWN)
            if not self.block(handler.body):
                ends.append(self.scope.names)
        self.scope.names = joined(before, after_body)
        self._continue_from(ends)
        return self.block(node.finalbody) or not ends

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
            leaves = self.block(node.body)
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
                yield from (kind for kind in items_of(only(value)).element.known if isinstance(kind, type))

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
