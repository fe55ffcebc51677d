"""Deployed code: a Registry packed into bytes on one machine and loaded on another.

`pack_registry` makes the bytes, names them by content (the deployment id) and describes the Flows.
`load_registry` gives the Registry back. The bytes are made by cloudpickle, with five rules of ours:

1. **What workers can't import travels by value.** Modules outside site-packages, dist-packages and the
   standard library, and outside `dex` and `dexray`, belong to the driver's own folder: their classes and
   functions are packed whole.
2. **Annotations travel resolved.** A class packed by value has no module whose names could resolve `"Order |
   None"` on the worker, so the strings of `from __future__ import annotations` are resolved while packing.
3. **Two deployments never share a class.** cloudpickle remembers classes by a random id, and loading a newer
   pickle of a class changes the older one in place: a Step of an old deployment would then use the Channels of
   a new one. We leave the id out. It would also change with every process, and the deployment id with it.
4. **A definition of an importable module travels by name.** The Channel that a Flow's schema reads from its
   module and the Channel that a Step instance holds must be one object on the worker too.
5. **What refers to itself is made empty first and filled after**: a module packed by value, and a Registry, which a
   handler may use to make a Client. Registries are filled at the very end, when all classes are complete.

The bytes hold Python bytecode: the workers must run the same minor version of Python. A module that a handler
imports inside its body is not packed; it must be importable on the worker.

The deployment id is a hash of the packed code, of the description of its Flows, and of the source files of
Flows and Steps that travel by name. It is the same for the same code packed twice in one process, and mostly
across processes. Two things differ there: the order of sets in the code, and pydantic models, whose compiled
schemas hold addresses. Then equal code gets another id, which is harmless: one more deployment.
"""

from __future__ import annotations

import hashlib
import importlib
import io
import pickle
import site
import sys
import sysconfig
import threading
import types
import typing
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import cloudpickle
import msgspec
from msgspec import Struct

from dex.errors import FlowDefinitionError
from dex.registry import Registry
from dex.wire.specs import DeploymentSpec
from dexray.attempts.blame import blame

PYTHON = f"{sys.version_info.major}.{sys.version_info.minor}"

_OURS = frozenset({"dex", "dexray"})
_MAIN = frozenset({"__main__", "__mp_main__"})
_MODULE_MACHINERY = frozenset({"__builtins__", "__spec__", "__loader__", "__cached__"})
_packing = threading.Lock()  # cloudpickle's list of modules to pack by value is one per process


class CodeNotLoadable(RuntimeError):
    """A deployment's code can't be loaded in this process.

    Attributes: `deployment_id`, `detail`, and `missing`, the name of the module that is not here ("" if none is).
    """

    def __init__(self, deployment_id: str, detail: str, missing: str = "") -> None:
        super().__init__(f"the code of deployment {deployment_id or '(unreadable)'} can't be loaded: {detail}")
        self.deployment_id = deployment_id
        self.detail = detail
        self.missing = missing

    def __reduce__(self) -> tuple[Any, ...]:
        return CodeNotLoadable, (self.deployment_id, self.detail, self.missing)


class _PackedCode(Struct, frozen=True, array_like=True):
    deployment_id: str
    python: str
    pickled: bytes


def pack_registry(registry: Registry) -> tuple[bytes, str, DeploymentSpec]:
    """Packs the code of a Registry: `(code, deployment_id, spec)`.

    Raises FlowDefinitionError, naming the Flow and the thing, when something that its code reaches can't be
    pickled.
    """
    with _packing:
        by_value = frozenset(_modules_by_value())
        registered = by_value - cloudpickle.list_registry_pickle_by_value()
        for name in registered:
            cloudpickle.register_pickle_by_value(sys.modules[name])
        try:
            pickled = _pickle(registry, by_value)
        finally:
            for name in registered:
                cloudpickle.unregister_pickle_by_value(sys.modules[name])
    deployment_id = _content_id(registry, pickled, by_value)
    code = msgspec.msgpack.encode(_PackedCode(deployment_id, PYTHON, pickled))
    return code, deployment_id, registry.describe(deployment_id)


def load_registry(code: bytes) -> Registry:
    """The Registry of packed code, with classes of its own.

    Raises CodeNotLoadable, which says what is missing and what to do.
    """
    try:
        packed = msgspec.msgpack.decode(code, type=_PackedCode)
    except msgspec.DecodeError as error:
        raise CodeNotLoadable("", f"these are no bytes of pack_registry ({error})") from error
    if packed.python != PYTHON:
        raise CodeNotLoadable(
            packed.deployment_id,
            f"it was packed by Python {packed.python}, and this worker runs Python {PYTHON}: "
            "run the workers with the Python of the driver, or deploy again from a driver with theirs",
        )
    try:
        registry = _loads(packed.pickled)
    except ModuleNotFoundError as error:
        missing = error.name or "?"
        raise CodeNotLoadable(
            packed.deployment_id,
            f"the module {missing!r} is not on this worker: install it in the workers' environment, "
            f'or give it to Ray with a runtime_env ("pip", "py_modules" or "working_dir")',
            missing,
        ) from error
    except (ImportError, AttributeError) as error:
        raise CodeNotLoadable(
            packed.deployment_id,
            f"a module on this worker is not the one of the driver ({error}): "
            "install the same version in the workers' environment, or give it to Ray with a runtime_env",
            getattr(error, "name", None) or "",
        ) from error
    except Exception as error:
        raise CodeNotLoadable(packed.deployment_id, f"unpacking it raised {type(error).__name__}: {error}") from error
    if not isinstance(registry, Registry):
        raise CodeNotLoadable(packed.deployment_id, f"it holds a {type(registry).__name__}, not a Registry")
    return registry


# Packing --------------------------------------------------------------------------------------------------------------


def _pickle(registry: Registry, by_value: frozenset[str]) -> bytes:
    references = _definitions_by_name(registry, by_value)

    def dumps(thing: object) -> bytes:
        buffer = io.BytesIO()
        pickler = _CodePickler(buffer, by_value, references)
        pickler.dump(thing)
        while pickler.registries:
            pickler.dump(pickler.registries.pop())
        return buffer.getvalue()

    try:
        return dumps(registry)
    except Exception as error:
        flow_type, thing, cause = blame(registry, dumps, error)
        raise FlowDefinitionError(
            f"Flow {flow_type!r} can't be deployed: {thing} can't be pickled ({cause}). "
            "Workers get the Flow's code as a pickle: make such an object inside the handler that uses it, "
            "or leave it out with __getstate__"
        ) from error


class _CodePickler(cloudpickle.Pickler):  # type: ignore[misc]
    def __init__(self, file: io.BytesIO, by_value: frozenset[str], references: Mapping[int, tuple[str, str]]) -> None:
        super().__init__(file, protocol=5)
        self._by_value = by_value
        self._references = references
        self.registries: list[tuple[Registry, tuple[Any, ...]]] = []
        """Met and not filled yet: each is dumped after what was asked for, with what it is made of."""

    def reducer_override(self, obj: Any) -> Any:
        reference = self._references.get(id(obj))
        if reference is not None:
            return _attribute_of, reference
        if isinstance(obj, types.ModuleType):
            return self._module(obj)
        if isinstance(obj, Registry):
            made_of = (tuple(obj.flows.values()), obj.codec_registry, obj.allow_async_handlers)
            self.registries.append((obj, made_of))
            return _empty_registry, ()
        if isinstance(obj, typing.TypeVar):
            reduced = self.dispatch_table[typing.TypeVar](obj)
            return _without_tracker(reduced, -1)
        reduced = super().reducer_override(obj)
        if not isinstance(reduced, tuple) or len(reduced) != 6:
            return reduced
        if isinstance(obj, types.FunctionType):
            _resolve_annotations(reduced[2][1], obj.__globals__, {})
            return reduced
        _resolve_annotations(reduced[2][0], _module_names(obj), {obj.__name__: obj})
        return _without_tracker(reduced, -2)

    def _module(self, module: types.ModuleType) -> Any:
        name = module.__name__
        if not self._travels(module):
            return NotImplemented
        state = {key: value for key, value in vars(module).items() if key not in _MODULE_MACHINERY}
        return _empty_module, (name,), state, None, None, _fill_module

    def _travels(self, module: types.ModuleType) -> bool:
        name = module.__name__
        if name in self._by_value or sys.modules.get(name) is not module:
            return True
        is_namespace = getattr(module, "__file__", None) is None and hasattr(module, "__path__")
        return is_namespace and any(other.startswith(name + ".") for other in self._by_value)


def _without_tracker(reduced: Any, position: int) -> Any:
    """The reduction without cloudpickle's random id, where there is one at that position of the arguments (rule 3)."""
    make, arguments, *rest = reduced
    if not getattr(make, "__name__", "").startswith(("_make_skeleton_", "_make_typevar")):
        return reduced
    changed = list(arguments)
    if isinstance(changed[position], str):
        changed[position] = None
    return (make, tuple(changed), *rest)


def _resolve_annotations(state: dict[str, Any], names: Mapping[str, Any], own_names: Mapping[str, Any]) -> None:
    """Replaces the annotations in `state` by resolved ones; what can't be resolved stays a string."""
    annotations = state.get("__annotations__")
    if not isinstance(annotations, dict) or not annotations:
        return
    state["__annotations__"] = {
        key: _resolved(hint, names, own_names) if _has_strings(hint) else hint for key, hint in annotations.items()
    }


def _has_strings(hint: Any) -> bool:
    if isinstance(hint, str | typing.ForwardRef):
        return True
    if typing.get_origin(hint) in (typing.Literal, typing.Annotated):
        return typing.get_origin(hint) is typing.Annotated and _has_strings(typing.get_args(hint)[0])
    return any(_has_strings(part) for part in _parts(hint))


def _parts(hint: Any) -> tuple[Any, ...]:
    parts: list[Any] = []
    for part in typing.get_args(hint):
        parts.extend(part if isinstance(part, list) else [part])
    return tuple(parts)


def _resolved(hint: Any, names: Mapping[str, Any], own_names: Mapping[str, Any]) -> Any:
    holder = types.SimpleNamespace(__annotations__={"hint": hint})
    try:
        return typing.get_type_hints(holder, dict(names), dict(own_names), include_extras=True)["hint"]
    except Exception:
        return hint


def _module_names(cls: type) -> Mapping[str, Any]:
    module = sys.modules.get(cls.__module__)
    return vars(module) if module is not None else {}


# Called while loading; their names are part of the packed format.


def _empty_module(name: str) -> types.ModuleType:
    return types.ModuleType(name)


def _empty_registry() -> Registry:
    return Registry.__new__(Registry)


def _loads(pickled: bytes) -> object:
    """The first object of a pickle; the Registries that were met are dumped after it, and filled when all is there."""
    stream = io.BytesIO(pickled)
    unpickler = pickle.Unpickler(stream)
    first = unpickler.load()
    registries: list[tuple[Registry, tuple[Any, ...]]] = []
    while stream.tell() < len(pickled):
        registries.append(unpickler.load())
    for registry, (flows, codecs, allow_async_handlers) in registries:
        registry.__init__(flows, codecs, allow_async_handlers=allow_async_handlers)  # type: ignore[misc]
    return first


def _fill_module(module: types.ModuleType, state: dict[str, Any]) -> None:
    vars(module).update(state)


def _attribute_of(module: str, path: str) -> Any:
    found: Any = importlib.import_module(module)
    for name in path.split("."):
        found = getattr(found, name)
    return found


# What travels how -----------------------------------------------------------------------------------------------------


def _modules_by_value() -> Iterator[str]:
    """The loaded modules that only this process is sure to have. (cloudpickle packs `__main__` by value always.)"""
    for name, module in list(sys.modules.items()):
        if isinstance(module, types.ModuleType) and module.__name__ == name and not _is_installed(module):
            yield name


def _is_installed(module: types.ModuleType) -> bool:
    name = module.__name__
    if name.partition(".")[0] in _OURS or name in _MAIN or name in sys.builtin_module_names:
        return True
    spec = getattr(module, "__spec__", None)
    if spec is not None and spec.origin in ("built-in", "frozen"):
        return True
    file = getattr(module, "__file__", None)
    if file is None:
        # A namespace package holds nothing itself. A module made by hand is nowhere to import from, but one
        # made by an installed module (six.moves and the like) comes into being again with it.
        return hasattr(module, "__path__") or _is_installed_child(name)
    return _is_installed_file(file)


def _is_installed_child(name: str) -> bool:
    parent = sys.modules.get(name.rpartition(".")[0])
    return isinstance(parent, types.ModuleType) and parent.__name__ != name and _is_installed(parent)


def _is_installed_file(file: str) -> bool:
    path = Path(file)
    if not {"site-packages", "dist-packages"}.isdisjoint(path.parts):
        return True
    return any(path.is_relative_to(folder) for folder in _installed_folders())


def _installed_folders() -> Iterator[str]:
    for key in ("stdlib", "platstdlib", "purelib", "platlib"):
        folder = sysconfig.get_path(key)
        if folder:
            yield folder
    yield from site.getsitepackages() if hasattr(site, "getsitepackages") else ()


def _classes(registry: Registry) -> Iterator[type]:
    for flow_type in registry.flows:
        definition = registry.definition(flow_type)
        yield from type(definition.flow).__mro__
        for step in definition.steps.values():
            yield from type(step.step).__mro__


def _definitions_by_name(registry: Registry, by_value: frozenset[str]) -> dict[int, tuple[str, str]]:
    """id of a definition -> where to import it from, for the definitions of modules that workers import (rule 4)."""
    wanted: dict[int, object] = {}
    for flow_type in registry.flows:
        definition = registry.definition(flow_type)
        for thing in (
            *definition.channels.values(),
            *definition.attributes.values(),
            *definition.streams.values(),
        ):
            wanted[id(thing)] = thing
    found: dict[int, tuple[str, str]] = {}
    for name, module in list(sys.modules.items()):
        if isinstance(module, types.ModuleType) and name not in by_value and name not in _MAIN:
            for key, value in list(vars(module).items()):
                if id(value) in wanted:
                    found.setdefault(id(value), (name, key))
    for cls in _classes(registry):
        if cls.__module__ not in by_value and cls.__module__ not in _MAIN and "<locals>" not in cls.__qualname__:
            for key, value in list(vars(cls).items()):
                if id(value) in wanted:
                    found.setdefault(id(value), (cls.__module__, f"{cls.__qualname__}.{key}"))
    return found


def _content_id(registry: Registry, pickled: bytes, by_value: frozenset[str]) -> str:
    digest = hashlib.sha256(pickled)
    digest.update(msgspec.msgpack.encode(registry.describe("")))
    files = {
        getattr(sys.modules.get(cls.__module__), "__file__", None)
        for cls in _classes(registry)
        if cls.__module__ not in by_value and cls.__module__.partition(".")[0] not in {*_OURS, *_MAIN, "builtins"}
    }
    for file in sorted(filter(None, files)):
        try:
            digest.update(Path(file).read_bytes())
        except OSError:
            continue  # a module in an archive: its name is in the pickle
    return digest.hexdigest()[:32]
