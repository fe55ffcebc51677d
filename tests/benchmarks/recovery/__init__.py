"""What it takes to go on with N open Flows after their owner was killed.

    PYTHONPATH=sdk:. python -m tests.benchmarks.recovery [flows] [--database postgres] [--ray]

A sixth of the Flows each stands in every phase: running or ready (a handful of slots: most are ready), waiting for a
message, for a Timer that falls due meanwhile, for its second attempt, for a SubFlow (which is the last sixth). Then the
owner's process is killed, and another one on the same database goes on, with a handful of slots too.

Without `--ray` both owners are processes with the real engine, whose handlers run in their event loop: what is measured
is the engine and the database, and the statements can be counted. With it they are the FlowActors of an embedded Ray,
all killed at once with the Directory, and the handlers run on its workers.
"""
