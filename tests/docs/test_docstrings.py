"""Every name that users import says what it is for, what its fields and members mean, and what it raises."""

from __future__ import annotations

import ast
import dataclasses
import enum
import functools
import importlib
import inspect
import itertools
import pkgutil
import re
import textwrap
from collections.abc import Iterator
from typing import Any

import pytest

import dex
import dexray
import dexray.testing

PACKAGES = [dex, dexray, dexray.testing]
EXPORTS = [(package.__name__, name) for package in PACKAGES for name in package.__all__]
CLASSES = [
    (package, name) for package, name in EXPORTS if inspect.isclass(getattr(importlib.import_module(package), name))
]

SAY_ENOUGH = {"StatusCode", "ErrorSubStatus", "FlowStatus", "WireKind"}
"""Enums whose members are the usual words of their field."""


def found(package: str, name: str) -> Any:
    return getattr(importlib.import_module(package), name)


def own_docstring(thing: Any) -> str:
    """Its own: none that is inherited, or that a dataclass makes up."""
    docstring = vars(thing).get("__doc__") if inspect.isclass(thing) else thing.__doc__
    return "" if not docstring or docstring.startswith(f"{getattr(thing, '__name__', '')}(") else docstring


def public_parts(thing: type) -> Iterator[tuple[str, Any]]:
    """Its methods and properties that are ours, from its bases too."""
    seen: set[str] = set()
    for base in thing.__mro__:
        if base.__module__.split(".")[0] not in ("dex", "dexray"):
            continue
        for name, part in vars(base).items():
            function = part.__func__ if isinstance(part, staticmethod | classmethod) else part
            if isinstance(function, property):
                function = function.fget
            if not name.startswith("_") and inspect.isfunction(function) and name not in seen:
                seen.add(name)
                yield name, function


@functools.cache
def documented_constants() -> set[str]:
    """Module-level names with a docstring below them."""
    names: set[str] = set()
    for package in (dex, dexray.testing):
        for module in pkgutil.walk_packages(package.__path__, f"{package.__name__}."):
            source = inspect.getsource(importlib.import_module(module.name))
            body = ast.parse(source).body
            for statement, following in itertools.pairwise(body):
                target = statement.target if isinstance(statement, ast.AnnAssign) else None
                is_text = isinstance(following, ast.Expr) and isinstance(following.value, ast.Constant)
                if isinstance(target, ast.Name) and is_text:
                    names.add(target.id)
    return names


@pytest.mark.parametrize(("package", "name"), EXPORTS)
def test_it_says_what_it_is_for(package: str, name: str) -> None:
    thing = found(package, name)
    if not inspect.isclass(thing) and not inspect.isfunction(thing):
        assert name in documented_constants(), f"{package}.{name}: a docstring below it is missing"
        return
    docstring = own_docstring(thing)
    assert len(docstring) > 20, f"{package}.{name} has no docstring of its own"
    assert docstring[0].isupper() or docstring[0] in "`…", f"{package}.{name}: {docstring[:40]}"
    assert re.search(r"[.:!?)\]}…'\"]\s*$", docstring), f"{package}.{name}: its docstring ends in the middle"


@pytest.mark.parametrize(("package", "name"), CLASSES)
def test_its_methods_and_properties_say_what_they_do(package: str, name: str) -> None:
    silent = [part for part, function in public_parts(found(package, name)) if not function.__doc__]
    assert sorted(set(silent)) == [], f"{package}.{name}"


@pytest.mark.parametrize(("package", "name"), CLASSES)
def test_its_fields_and_members_are_told(package: str, name: str) -> None:
    thing = found(package, name)
    members: list[str] = []
    if dataclasses.is_dataclass(thing) and name.endswith(("Options", "Config", "Policy", "Resources", "Settings")):
        members = [field.name for field in dataclasses.fields(thing) if not field.metadata.get("doc")]
    elif issubclass(thing, enum.Enum) and name not in SAY_ENOUGH:
        members = [member.name for member in thing if member.name != "DEFAULT"]
    text = f"{own_docstring(thing)} {_literals_below_members(thing)}"
    untold = [member for member in members if not is_told(member, text)]
    assert untold == [], f"the docstring of {package}.{name} says nothing of these"


def is_told(member: str, text: str) -> bool:
    """As in `name: what it is`, or by a part of it behind or before "…" that stands for several."""
    if re.search(rf"(?<!\w){member}(:|,| needs| \()", text):
        return True
    parts = member.split("_")
    endings = {f"…_{'_'.join(parts[i:])}" for i in range(1, len(parts))}
    beginnings = {f"{'_'.join(parts[:i])}_…" for i in range(1, len(parts))}
    middles = {f"…_{'_'.join(parts[i:j])}_…" for i in range(1, len(parts)) for j in range(i + 1, len(parts))}
    return any(each in text for each in endings | beginnings | middles)


def _literals_below_members(thing: type) -> str:
    body = ast.parse(textwrap.dedent(inspect.getsource(thing))).body[0]
    assert isinstance(body, ast.ClassDef)
    told = [
        statement.targets[0].id
        for statement, following in itertools.pairwise(body.body)
        if isinstance(statement, ast.Assign) and isinstance(statement.targets[0], ast.Name)
        if isinstance(following, ast.Expr) and isinstance(following.value, ast.Constant)
    ]
    return " ".join(f"{name}:" for name in told)


@pytest.mark.parametrize(("package", "name"), EXPORTS)
def test_the_errors_that_it_raises_are_told(package: str, name: str) -> None:
    thing = found(package, name)
    functions: list[tuple[str, Any]] = [(name, thing)] if inspect.isfunction(thing) else []
    if inspect.isclass(thing):
        functions = [(f"{name}.{part}", function) for part, function in public_parts(thing)]
    for label, function in functions:
        raised = _raised(function)
        docstring = function.__doc__ or ""
        assert [error for error in raised if error not in docstring] == [], f"{package}.{label} does not say"


def _raised(function: Any) -> list[str]:
    """The classes of errors that its own body raises; that an argument of another type is a TypeError goes unsaid."""
    try:
        tree = ast.parse(textwrap.dedent(inspect.getsource(function)))
    except (OSError, TypeError):
        return []
    names: set[str] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Raise) and isinstance(node.exc, ast.Call) and isinstance(node.exc.func, ast.Name):
            names.add(node.exc.func.id)
    return sorted(
        name
        for name in names - {"TypeError"}
        if name.endswith(("Error", "Forever", "Problem", "NotMet")) and name[0] != "_"
    )
