"""From `module:Flow` to a Flow that can be started, and from JSON to its input."""

from __future__ import annotations

import importlib
import importlib.util
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

from dex import Flow, Registry, ValueMappingError
from dexray.cli.problems import UsageProblem


def load_flow(target: str) -> tuple[Registry, Flow[Any]]:
    """The Flow, an instance or a class, that `module:Name` or `path/to/file.py:Name` names; with a Registry of it.

    A Registry in the same module that holds the Flow is used: it knows SubFlows and codecs. Raises UsageProblem when
    the target names no Flow, FlowDefinitionError when the Flow's definition is wrong.
    """
    place, _, name = target.rpartition(":")
    if not place or not name:
        raise UsageProblem(f"{target!r} is no target: write module:Flow or path/to/file.py:Flow")
    module = _module(place)
    return _flow(module, target, _named(module, place, name))


def load_flows(target: str) -> tuple[Registry, tuple[str, ...]]:
    """A Registry, and the types of the Flows in it that a target names.

    `module:Flow` names one, `module:registry` all of a Registry, and `module` or `path/to/file.py` all of the module:
    those of its Registry, or without one the Flows that are defined in it. Raises as `load_flow`.
    """
    place, _, name = target.rpartition(":") if not target.endswith(".py") else (target, "", "")
    if not place:
        place, name = name, ""
    if not place:
        raise UsageProblem(f"{target!r} is no target: write module, module:Flow or path/to/file.py:Flow")
    module = _module(place)
    if name:
        found = _named(module, place, name)
        if isinstance(found, Registry):
            return found, tuple(found.flows)
        registry, flow = _flow(module, target, found)
        return registry, (flow.get_flow_type(),)
    registries = [value for value in vars(module).values() if isinstance(value, Registry)]
    distinct = list({id(registry): registry for registry in registries}.values())
    if len(distinct) > 1:
        names = [name for name, value in vars(module).items() if isinstance(value, Registry)]
        raise UsageProblem(f"{place} has several Registries ({', '.join(names)}): name one, as {place}:{names[0]}")
    registry = distinct[0] if distinct else Registry(_flows_of(module, place), allow_async_handlers=True)
    return registry, tuple(registry.flows)


def _module(place: str) -> ModuleType:
    return _load_file(Path(place)) if place.endswith(".py") else _import(place)


def _named(module: ModuleType, place: str, name: str) -> Any:
    found: Any = module
    for part in name.split("."):
        if not hasattr(found, part):
            raise UsageProblem(f"{place} has no {name!r}{_instead(module)}")
        found = getattr(found, part)
    return found


def _flows_of(module: ModuleType, place: str) -> list[Flow[Any]]:
    """The Flows of a module without a Registry: instances, and classes of its own that can be made."""
    flows: dict[str, Flow[Any]] = {}
    for value in vars(module).values():
        if isinstance(value, Flow):
            flows[value.get_flow_type()] = value
    for value in vars(module).values():
        if not isinstance(value, type) or not issubclass(value, Flow) or value.__module__ != module.__name__:
            continue
        if any(type(flow) is value for flow in flows.values()):
            continue
        try:
            flow = value()
        except TypeError:
            continue  # it takes arguments: instances of it count
        flows.setdefault(flow.get_flow_type(), flow)
    if not flows:
        raise UsageProblem(f"{place} has no Flow that can be made without arguments: name an instance, as module:flow")
    return list(flows.values())


def _flow(module: ModuleType, target: str, found: Any) -> tuple[Registry, Flow[Any]]:
    kind = found if isinstance(found, type) else type(found)
    if not issubclass(kind, Flow):
        raise UsageProblem(f"{target} is no Flow but {found!r}{_instead(module)}")
    for registry in vars(module).values():
        if isinstance(registry, Registry):
            for flow in registry.flows.values():
                if flow is found or type(flow) is found:
                    return registry, flow
    if isinstance(found, type):
        try:
            found = found()
        except TypeError as error:
            raise UsageProblem(f"{target} can't be made without arguments ({error}): name an instance of it") from error
    return Registry([found], allow_async_handlers=True), found


def read_input(registry: Registry, flow: Flow[Any], text: str | None) -> Any:
    """The Flow's input from JSON text; `-` reads stdin, `@file` a file, None is no input. Raises UsageProblem."""
    start = registry.definition(flow.get_flow_type()).start_step
    if start is None:
        if text is not None:
            raise UsageProblem(f"Flow {flow.get_flow_type()!r} has no start Step, so it takes no --input")
        return None
    if text == "-":
        text = sys.stdin.read()
    elif text is not None and text.startswith("@"):
        try:
            text = Path(text[1:]).read_text()
        except (OSError, UnicodeDecodeError) as error:
            raise UsageProblem(f"--input {text}: the file can't be read: {error}") from error
    try:
        return registry.codec_registry.decode_json("null" if text is None else text, start.input_type, "--input")
    except ValueMappingError as error:
        hint = "" if text is not None else f" (Flow {flow.get_flow_type()!r} needs an --input)"
        raise UsageProblem(f"{error.detail}{hint}") from error


def _import(name: str) -> ModuleType:
    folder = str(Path.cwd())
    if folder not in sys.path:
        sys.path.insert(0, folder)
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        missing = error.name or ""
        if name == missing or name.startswith(missing + "."):
            raise UsageProblem(f"there is no module {missing!r} here or among the installed ones") from error
        raise UsageProblem(f"{name} can't be imported: it needs {missing!r}, which is not installed") from error
    except Exception as error:
        raise UsageProblem(f"{name} can't be imported: {type(error).__name__}: {error}") from error


def _load_file(path: Path) -> ModuleType:
    path = path.absolute()
    if not path.is_file():
        raise UsageProblem(f"there is no file {path}")
    folder = str(path.parent)
    if folder not in sys.path:
        sys.path.insert(0, folder)
    if not path.stem.isidentifier() or path.stem in sys.modules:
        return load_module(path, f"dexray_target_{abs(hash(str(path))):x}")
    return load_module(path, path.stem)


def load_module(path: Path, name: str) -> ModuleType:
    """The module in a file, under a name. Raises UsageProblem when it can't be loaded."""
    spec = importlib.util.spec_from_file_location(name, path)
    if spec is None or spec.loader is None:
        raise UsageProblem(f"{path} is no Python file")
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    try:
        spec.loader.exec_module(module)
    except Exception as error:
        del sys.modules[name]
        raise UsageProblem(f"{path} can't be loaded: {type(error).__name__}: {error}") from error
    return module


def _instead(module: ModuleType) -> str:
    names = [
        name
        for name, value in vars(module).items()
        if isinstance(value, Flow)
        or (isinstance(value, type) and issubclass(value, Flow) and value.__module__ == module.__name__)
    ]
    return f": its Flows are {', '.join(sorted(names))}" if names else ", and no Flow at all"
