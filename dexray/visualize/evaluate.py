"""Expressions, evaluated without running them: what each may stand for, and the calls in it.

Where a value is certain (a constant, the Step itself, an argument that a handler gives to its helper) it decides
conditions, so that a helper with a flag is followed only the way that its caller chose. A plain value of the module
may be another one elsewhere (`if DEBUG:`), so it decides nothing: that way counts as possible, but not as sure.
"""

from __future__ import annotations

import ast
from abc import ABC, abstractmethod
from collections.abc import Iterator
from contextlib import contextmanager
from types import ModuleType
from typing import Any

from dexray.visualize.arguments import Arguments
from dexray.visualize.facts import Facts
from dexray.visualize.operations import as_sure_as, at, combined, compared, each, items_of, table_of
from dexray.visualize.scope import Property, Scope, Unresolved, attribute_of
from dexray.visualize.values import (
    CONTEXT,
    NO_VALUE,
    NOTHING,
    PLAIN,
    STAND_INS,
    UNKNOWN,
    ContextMethod,
    Items,
    LocalFunction,
    Made,
    MadeMethod,
    MadeOptions,
    Super,
    Table,
    Values,
    join,
    only,
)


class Expressions(ABC):
    """Evaluates the expressions of the function at hand.

    unsure: above 0 on ways that may never be taken. caught: the classes of exceptions that stand around. reassigned:
    attributes that a handler sets, so that what they are now says nothing.
    """

    def __init__(self, facts: Facts, scope: Scope) -> None:
        self.facts = facts
        self.scope = scope
        self.unsure = 0
        self.caught: list[type] = []
        self.reassigned: set[str] = set()

    @abstractmethod
    def call(self, callee: Any, arguments: Arguments, node: ast.Call | None) -> Values:
        """What calling one object gives."""

    def value(self, node: ast.expr | None) -> Values:
        match node:
            case None:
                return only(None)
            case ast.Constant(value=value):
                return only(value)
            case ast.Name(id=name):
                return self.scope.find(name)
            case ast.Attribute():
                owners = self.value(node.value)
                return as_sure_as(owners, (self._attribute(owner, node.attr) for owner in each(owners)))
            case ast.Call():
                return self._call(node)
            case ast.IfExp():
                return self._choice(node)
            case ast.BoolOp():
                return self._bool(node)
            case ast.UnaryOp(op=ast.Not(), operand=operand):
                truth = self.truth(operand)
                return UNKNOWN if truth is None else only(not truth)
            case ast.Compare():
                return self._compare(node)
            case ast.BinOp():
                return self._binary(node)
            case ast.Tuple(elts=elements) | ast.List(elts=elements) | ast.Set(elts=elements):
                return only(self._display(elements))
            case ast.Dict():
                return only(self._dict(node))
            case ast.Subscript():
                return self._subscript(node)
            case ast.ListComp(elt=element) | ast.SetComp(elt=element) | ast.GeneratorExp(elt=element):
                return only(Items(element=self._comprehension(node.generators, element)[0]))
            case ast.DictComp():
                made = Table()
                made.add(*self._comprehension(node.generators, node.key, node.value))
                return only(made)
            case ast.Lambda():
                return only(LocalFunction(node, self.scope))
            case ast.NamedExpr(target=ast.Name(id=name), value=value):
                found = self.value(value)
                self.scope.bind(name, found)
                return found
            case ast.Await(value=value):
                return self.value(value)
            case ast.Yield(value=value):
                self._yields(NO_VALUE if value is None else self.value(value))
                return UNKNOWN
            case ast.YieldFrom(value=value):
                return self._yield_from(self.value(value))
            case ast.Starred(value=value):
                return self.value(value)
            case _:
                for child in ast.iter_child_nodes(node):
                    if isinstance(child, ast.expr):
                        self.value(child)
                return UNKNOWN

    # Names and attributes --------------------------------------------------------------------------------------------

    def _attribute(self, owner: Any, name: str) -> Values:
        if owner is NOTHING:
            return UNKNOWN
        if owner is CONTEXT:
            return only(ContextMethod(name))
        if isinstance(owner, Made | Items | Table | MadeOptions):
            return only(MadeMethod(owner, name))
        if type(owner) is dict:
            return only(MadeMethod(table_of(owner), name))
        if type(owner) in (tuple, list, set, frozenset):
            return only(MadeMethod(items_of(only(owner)), name))
        if (isinstance(owner, STAND_INS) and not isinstance(owner, Super)) or (
            name in self.reassigned and not isinstance(owner, ModuleType)
        ):
            return UNKNOWN
        try:
            found = attribute_of(owner, name)
        except Unresolved:
            return UNKNOWN
        return self.call(found.method, Arguments(), None) if isinstance(found, Property) else only(found)

    # Calls -----------------------------------------------------------------------------------------------------------

    def _call(self, node: ast.Call) -> Values:
        callees = self.value(node.func)
        arguments = self.arguments(node)
        if callees.is_open:
            self.escape(arguments)
        with self.on_unsure_way(not callees.is_sure or callees.is_open):
            answers = [self.call(callee, arguments, node) for callee in callees.known]
        return as_sure_as(callees, [*answers, UNKNOWN] if callees.is_open else answers)

    def arguments(self, node: ast.Call) -> Arguments:
        given = Arguments()
        for argument in node.args:
            if not isinstance(argument, ast.Starred):
                value = self.value(argument)
                if given.is_open:
                    given.rest = join((given.rest, value))
                else:
                    given.positional.append(value)
                continue
            items = items_of(self.value(argument.value))
            if items.exact is None or given.is_open:
                given.is_open = True
                given.rest = join((given.rest, items.element))
            else:
                given.positional.extend(items.exact)
        for keyword in node.keywords:
            value = self.value(keyword.value)
            if keyword.arg is not None:
                given.keywords[keyword.arg] = value
                continue
            table = value.single
            if isinstance(table, Table) and table.others is NO_VALUE:
                given.keywords |= {str(name): found for name, found in table.by_key.items()}
            else:
                given.is_open, given.rest = True, UNKNOWN
        return given

    def escape(self, arguments: Arguments) -> None:
        """The arguments go where they can't be followed."""
        for values in arguments.all():
            for value in values.known:
                if isinstance(value, Items | Table):
                    value.add(UNKNOWN) if isinstance(value, Items) else value.add(UNKNOWN, UNKNOWN)
                elif isinstance(value, LocalFunction):
                    with self.on_unsure_way():
                        self.call(value, Arguments(is_open=True, rest=UNKNOWN), None)

    @contextmanager
    def on_unsure_way(self, is_unsure: bool = True) -> Iterator[None]:
        self.unsure += is_unsure
        yield
        self.unsure -= is_unsure

    # Conditions ------------------------------------------------------------------------------------------------------

    def truth(self, node: ast.expr) -> bool | None:
        """Whether a condition holds, None when that can't be told."""
        found = self.value(node).single
        return bool(found) if isinstance(found, PLAIN) else None

    def is_settled(self, node: ast.expr) -> bool:
        """Whether a known condition is the same wherever this code runs: no plain value of the module is in it."""
        return not any(
            isinstance(name, ast.Name)
            and self.scope.is_global(name.id)
            and isinstance(self.scope.find(name.id).single, PLAIN)
            for name in ast.walk(node)
        )

    def tells_apart(self, test: ast.expr) -> bool:
        """Whether a condition may tell one of several objects from the others, or one Step from those it shares code
        with. What is done behind it is done with some of them only, and with which can't be told.
        """
        for node in ast.walk(test):
            if isinstance(node, ast.Attribute) and node.attr == "step_execution_id":
                return True
            compared: list[ast.expr] = []
            if isinstance(node, ast.Compare):
                compared = [node.left, *node.comparators]
            elif isinstance(node, ast.Call):
                compared = node.args
            elif node is test:
                compared = [test]
            if any(isinstance(part, ast.Name) and self.is_one_of_several(part.id) for part in compared):
                return True
        return False

    def is_one_of_several(self, name: str) -> bool:
        """Whether a name stands for several objects, at once or in turn."""
        scope: Scope | None = self.scope
        while scope is not None:
            if name in scope.looped:
                return True
            scope = scope.parent
        return len(self.scope.find(name).known) > 1

    def _choice(self, node: ast.IfExp) -> Values:
        truth = self.truth(node.test)
        if truth is not None and self.is_settled(node.test):
            return self.value(node.body if truth else node.orelse)
        tells_apart = self.tells_apart(node.test)
        with self.on_unsure_way(truth is False or tells_apart):
            body = self.value(node.body)
        with self.on_unsure_way(truth is True or tells_apart):
            other = self.value(node.orelse)
        return join((body, other)) if truth is None and not tells_apart else join((body, other)).unsure()

    def _bool(self, node: ast.BoolOp) -> Values:
        """`and` ends with the first false value, `or` with the first true one."""
        ends_with = isinstance(node.op, ast.Or)
        found: list[Values] = []
        is_unsure = False
        for part in node.values:
            with self.on_unsure_way(is_unsure):
                value = self.value(part)
            plain = value.single
            truth = bool(plain) if isinstance(plain, PLAIN) and self.is_settled(part) else None
            if truth is None or truth is ends_with or part is node.values[-1]:
                found.append(value)
            if truth is ends_with:
                break
            is_unsure |= truth is None and (isinstance(plain, PLAIN) or self.tells_apart(part))
        return join(found)

    def _compare(self, node: ast.Compare) -> Values:
        sides = [self.value(side) for side in (node.left, *node.comparators)]
        if len(sides) != 2:
            return UNKNOWN
        return compared(node.ops[0], *sides)

    def _binary(self, node: ast.BinOp) -> Values:
        sides = self.value(node.left), self.value(node.right)
        return combined(node.op, *sides)

    # Collections -----------------------------------------------------------------------------------------------------

    def _display(self, elements: list[ast.expr]) -> Items:
        exact: list[Values] = []
        loose: list[Values] = []
        for element in elements:
            if not isinstance(element, ast.Starred):
                exact.append(self.value(element))
                continue
            items = items_of(self.value(element.value))
            exact.extend(items.exact or ())
            if items.exact is None:
                loose.append(items.element)
        return Items(element=join((*exact, *loose))) if loose else Items(tuple(exact))

    def _dict(self, node: ast.Dict) -> Table:
        made = Table()
        for key, value in zip(node.keys, node.values, strict=True):
            found = self.value(value)
            if key is not None:
                made.add(self.value(key), found)
                continue
            inner = found.single
            if isinstance(inner, Table):
                for name, one in inner.by_key.items():
                    made.add(only(name), one)
                made.add(UNKNOWN, inner.others)
            else:
                made.add(UNKNOWN, UNKNOWN)
        return made

    def _subscript(self, node: ast.Subscript) -> Values:
        key, owners = self.value(node.slice), self.value(node.value)
        return as_sure_as(owners, (at(owner, key) for owner in each(owners)))

    def _comprehension(self, generators: list[ast.comprehension], *results: ast.expr) -> list[Values]:
        """The values of `results` for the elements."""
        targets = {
            name.id for generator in generators for name in ast.walk(generator.target) if isinstance(name, ast.Name)
        }
        outer = self.scope
        self.scope = Scope(outer.function, frozenset(targets), parent=outer)
        is_reached, is_unsure = True, False
        for generator in generators:
            items = items_of(self.value(generator.iter))
            is_reached &= items.exact != ()
            self.assign(generator.target, items.element)
            self.scope.looped |= {name.id for name in ast.walk(generator.target) if isinstance(name, ast.Name)}
            for condition in generator.ifs:
                truth = self.truth(condition)
                is_reached &= truth is not False or not self.is_settled(condition)
                is_unsure |= truth is False or self.tells_apart(condition)
        with self.on_unsure_way(is_unsure):
            found = [self.value(result) if is_reached else NO_VALUE for result in results]
        found = [value.unsure() for value in found] if is_unsure else found
        self.scope = outer
        return found

    def _yields(self, value: Values) -> None:
        self.scope.yielded = join((self.scope.yielded, value))

    def _yield_from(self, value: Values) -> Values:
        items = items_of(value)
        self._yields(items.element)
        return items.returned

    # Assignments -----------------------------------------------------------------------------------------------------

    def assign(self, target: ast.expr, values: Values) -> None:
        match target:
            case ast.Name(id=name):
                self.scope.bind(name, values)
            case ast.Tuple(elts=parts) | ast.List(elts=parts):
                self._unpack(parts, items_of(values))
            case ast.Starred(value=part):
                self.assign(part, only(Items(element=items_of(values).element)))
            case ast.Attribute(value=owner, attr=name):
                self.value(owner)
                self.reassigned.add(name)
            case ast.Subscript(value=owner, slice=key):
                at = self.value(key)
                for found in self.value(owner).known:
                    if isinstance(found, Table):
                        found.add(at, values)
                    elif isinstance(found, Items):
                        found.add(values)
            case _:
                pass

    def _unpack(self, parts: list[ast.expr], items: Items) -> None:
        star = next((index for index, part in enumerate(parts) if isinstance(part, ast.Starred)), None)
        exact = items.exact
        if exact is not None and star is None and len(exact) == len(parts):
            found = list(exact)
        elif exact is not None and star is not None and len(exact) >= len(parts) - 1:
            end = len(exact) - (len(parts) - 1 - star)
            found = [*exact[:star], only(Items(exact[star:end])), *exact[end:]]
        else:
            found = [items.element.unsure()] * len(parts)
        for part, value in zip(parts, found, strict=True):
            self.assign(part, value)
