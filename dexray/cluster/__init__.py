"""The Ray side: the only package that imports Ray.

    connect       finds or makes the engine, deploys code, hands out a Client
    ray_session   this process and Ray: which one it is, who shares it, and when it ends
    service       a client's way to the FlowActor that owns a Flow
    directory     the actor that keeps the lease, the pool of FlowActors, and Flows that lost their owner
    draining      FlowActors leave nodes that are being removed
    flow_actor    a FlowHost in an actor: it owns Flows
    router        the way from one FlowActor to the Flows of the others
    lease         one engine for one database
    code_check    tries code on a worker before it is deployed
    ray_attempts  the FlowActor's attempts: Ray tasks for synchronous handlers, async workers for asynchronous ones
    outbox        Stream messages on their way from a worker to the owner
    dispatch      how many attempts are handed out, and which share a task

Who ends, and what follows
- A worker: its attempts fail as WORKER_CRASHED, and the retry policies decide.
- A FlowActor: Ray starts it again. It raises the epochs of its runs, which fences its former life, and resumes them;
  attempts that were out fail as STARTED_ATTEMPT_INTERRUPTED. Meanwhile its clients repeat their calls with the same
  request ids.
- The Directory: Ray starts it again, and it finds the FlowActors by name. Nobody waits for it meanwhile but new
  connections.
- A node: what ran there ends as above, when Ray has seen it; see docs/operations.md for how long that takes. One that
  is removed in order is left before: see `draining`.
- The cluster: the next one on the same database takes its lease, its deployments and its Flows over.
- The program that started an embedded Ray: the kernel ends Ray with it.
"""

import os
import sys

if "ray" not in sys.modules:
    # Ray reads this as it is imported. Its default folds lines of several workers into one when only numbers differ,
    # and Flows print such lines: "order 7 is paid", "order 8 is paid".
    os.environ.setdefault("RAY_DEDUP_LOGS", "0")
