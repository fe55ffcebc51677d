"""Train: a model for handwritten digits, from the data to the release, as one Flow.

    Prepare ──► 20 × Train (a few epochs each) ──► Select ──► 4 × Train (the finals) ──► Select ──► Register
                                                                                                        │
                                     Released ◄── a person says yes by RPC ◄── Approve (a week at most) ◄┘

- **Fan-out with resources.** Every candidate is a Step execution of its own, placed by Ray where its `StepResources`
  are free. On two cores two train at a time; on a cluster all of them do. Nothing of the Flow knows the difference.
- **Early stopping.** The first finalist that is good enough cancels its siblings, in the commit that makes it the
  winner. The others notice between two epochs and stop; what they return is refused.
- **Checkpoints.** After each epoch the network lies in a file, and a heartbeat says so. A new attempt goes on with it,
  and the finals with the files of the first round. Files may be large; the journal keeps numbers and scores.
- **A candidate that fails for good** is out, and the others go on without it.
- **Long trainings are `detached`.** The finals run in processes of their own, which survive the one that owns the Flow.
- **A registry of models** is a folder with a card for each; `released.json` says which of them is in use.

If a process dies in the middle: of a worker, its candidate goes on at the last checkpoint; of the Flow's owner, what
was done stays done, candidates of the first round go on at their checkpoints, and finalists don't even notice. If the
whole machine does, run it again with the same folder and ID. A training that was resumed ends with the same network as
one that was not: an epoch depends on the candidate, the data and the epoch before, and on nothing else. (Who wins the
finals also depends on who is first; with `good_enough` out of reach, all run to the end, and the best one wins.)

Run it with `python -m examples.pipelines.train --demo`, or for keeps with `--folder models --id digits-1`, and decide
later with `--folder models --id digits-1 --decide yes`.
"""

from __future__ import annotations

from examples.pipelines.train.flow import flow, registry

__all__ = ["flow", "registry"]
