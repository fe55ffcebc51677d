"""The engine in one process: no Ray, real handlers, the same machine, host and journal.

`InProcessEngine` runs Flows in the running event loop, on any journal. In a `VirtualLoop` the time is virtual: when
nothing can happen before the next timer, the clock jumps there, so that a Flow that waits 30 days takes milliseconds.
"""

from dexray.testing.inprocess import InProcessEngine
from dexray.testing.virtual import VirtualClock, VirtualLoop, run_virtual

__all__ = ["InProcessEngine", "VirtualClock", "VirtualLoop", "run_virtual"]
