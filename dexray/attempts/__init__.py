"""What runs inside a Step attempt: from a task to a result.

    runner      the stages of one attempt: resolve, decode, call, conclude (`run_sync`, `run_async`)
    context     the Context that a handler sees
    runtime     the snapshot and the staged writes behind it
    results     a Wait, a StepDecision or an RPCResult, checked and encoded
    rpcs        which RPC a task is about
    failures    whatever was raised, as data
    reporter    what an attempt tells the outside while it runs
    code        a Registry packed for workers, and loaded there (`blame`: what could not be packed)

It knows nothing of Ray, of journals or of the machine: a task comes in, one result goes out, and a `Reporter`
takes the signs of life between.
"""

from dexray.attempts.code import CodeNotLoadable, load_registry, pack_registry
from dexray.attempts.reporter import Reporter, SilentReporter
from dexray.attempts.runner import run_async, run_sync

__all__ = [
    "CodeNotLoadable",
    "Reporter",
    "SilentReporter",
    "load_registry",
    "pack_registry",
    "run_async",
    "run_sync",
]
