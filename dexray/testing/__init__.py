"""Testing Flows: in this process under a virtual clock, or on a real Ray cluster, with the same test.

    flow_test   `FlowTest`: clients, time, faults, errors; everything in the thread of the test
    looking     what a test sees of a Flow, and the assertions on it; the same on every engine
    seen        a Flow as its journal has it
    on_ray      `RayFlowTest`: the same face over a real local cluster
    pytest_plugin   the fixtures `flow_test` and `ray_flow_test`, and the flag `--dexray-on`

and below them

    driver      runs the engine's loop a call at a time
    clients     Client and AsyncClient that do
    faults      worker processes that die, a database that is away
    inprocess   the engine without Ray: `InProcessEngine` runs Flows in the running event loop, on any journal
    virtual     an event loop in which a month is over at once, and the engine's clock over it

Nothing here is imported before it is used, so that the plugin costs those nothing who have it installed and don't use
it.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from dexray.testing.errors import (
        EngineProblem,
        FaultNotMet,
        FlowTestError,
        NeverAtRest,
        WaitsForever,
        WaitsForTime,
    )
    from dexray.testing.flow_test import FlowTest, HandlerError
    from dexray.testing.inprocess import InProcessEngine
    from dexray.testing.looking import ANYTHING, Ran
    from dexray.testing.on_ray import RayFlowTest
    from dexray.testing.seen import OpenStep, PendingTimer, StepRun
    from dexray.testing.virtual import VirtualClock, VirtualLoop, run_virtual

__all__ = [
    "ANYTHING",
    "EngineProblem",
    "FaultNotMet",
    "FlowTest",
    "FlowTestError",
    "HandlerError",
    "InProcessEngine",
    "NeverAtRest",
    "OpenStep",
    "PendingTimer",
    "Ran",
    "RayFlowTest",
    "StepRun",
    "VirtualClock",
    "VirtualLoop",
    "WaitsForTime",
    "WaitsForever",
    "run_virtual",
]

_MODULES = {
    "errors": ("EngineProblem", "FaultNotMet", "FlowTestError", "NeverAtRest", "WaitsForTime", "WaitsForever"),
    "flow_test": ("FlowTest", "HandlerError"),
    "inprocess": ("InProcessEngine",),
    "looking": ("ANYTHING", "Ran"),
    "on_ray": ("RayFlowTest",),
    "seen": ("OpenStep", "PendingTimer", "StepRun"),
    "virtual": ("VirtualClock", "VirtualLoop", "run_virtual"),
}
_WHERE = {name: module for module, names in _MODULES.items() for name in names}


def __getattr__(name: str) -> Any:
    if name in _WHERE:
        return getattr(importlib.import_module(f"dexray.testing.{_WHERE[name]}"), name)
    raise AttributeError(f"module 'dexray.testing' has no attribute {name!r}")
