"""Which thing can't be pickled: the name in the error of a deployment that fails.

A pickle's error names a type at best ("cannot pickle '_thread.lock' object"). The way from the Flow to the
culprit is found by trying the parts one by one, from the Flow downwards, as long as a part fails too. It only
runs when packing has failed.
"""

from __future__ import annotations

import types
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from dex.registry import Registry

_DEPTH = 8


def blame(registry: Registry, dumps: Callable[[object], bytes], error: Exception) -> tuple[str, str, Exception]:
    """(Flow type, the thing in words, its own error). Falls back to the Registry as a whole."""
    for flow_type, flow in registry.flows.items():
        failure = _failure(flow, dumps)
        if failure is None:
            continue
        path, culprit, error = _deepest(flow, dumps, failure)
        where = f"{type(flow).__name__}{''.join(path)}"
        return flow_type, f"{where} (of type {type(culprit).__name__})", error
    return ", ".join(registry.flows), "something beside the Flows, such as a codec,", error


def _failure(thing: object, dumps: Callable[[object], bytes]) -> Exception | None:
    try:
        dumps(thing)
    except Exception as error:
        return error
    return None


def _deepest(thing: object, dumps: Callable[[object], bytes], error: Exception) -> tuple[list[str], object, Exception]:
    path: list[str] = []
    seen = {id(thing)}
    for _ in range(_DEPTH):
        for step, part in _parts(thing):
            if id(part) in seen:
                continue
            seen.add(id(part))
            failure = _failure(part, dumps)
            if failure is not None:
                path.append(step)
                thing, error = part, failure
                break
        else:
            break
    return path, thing, error


def _parts(thing: Any) -> Iterator[tuple[str, object]]:
    """What a pickle of `thing` would hold, with the words for the way there."""
    if isinstance(thing, types.FunctionType):
        for name in thing.__code__.co_names:
            if name in thing.__globals__:
                yield f", global {name}", thing.__globals__[name]
        for name, cell in zip(thing.__code__.co_freevars, thing.__closure__ or (), strict=False):
            if _is_filled(cell):
                yield f", closed-over {name}", cell.cell_contents
        for default in thing.__defaults__ or ():
            yield ", a default argument", default
    elif isinstance(thing, types.MethodType):
        yield "", thing.__func__
        yield ".__self__", thing.__self__
    elif isinstance(thing, Mapping):
        for key, value in thing.items():
            yield f"[{key!r:.40}]", value
    elif isinstance(thing, list | tuple | set | frozenset):
        for index, value in enumerate(thing):
            yield f"[{index}]", value
    else:
        yield from _attributes(thing)


def _attributes(thing: Any) -> Iterator[tuple[str, object]]:
    for name, value in list(getattr(thing, "__dict__", {}).items()):
        if not (name.startswith("__") and name.endswith("__")) or name == "__init__":
            yield f".{name}", value
    if not isinstance(thing, type | types.ModuleType):
        yield "", type(thing)


def _is_filled(cell: types.CellType) -> bool:
    try:
        cell.cell_contents  # noqa: B018
    except ValueError:
        return False
    return True
