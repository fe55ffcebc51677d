"""The Ray side: the only package that imports Ray.

    connect       joins or starts Ray, finds or makes the engine, deploys code, hands out a Client
    service       a client's way to the FlowActor that owns a Flow
    directory     the actor that keeps the lease, the pool of FlowActors, and Flows that lost their owner
    flow_actor    a FlowHost in an actor: it owns Flows
    lease         one engine for one database
    ray_attempts  the FlowActor's attempts: Ray tasks for synchronous handlers, async workers for asynchronous ones
    dispatch      how many attempts are handed out, and which share a task

Who ends, and what follows
- A worker: its attempts fail as WORKER_CRASHED, and the retry policies decide.
- A FlowActor: Ray starts it again. It raises the epochs of its runs, which fences its former life, and resumes them; attempts that were out fail
  as STARTED_ATTEMPT_INTERRUPTED. Meanwhile its clients repeat their calls with the same request ids.
- The Directory: Ray starts it again, and it finds the FlowActors by name. Nobody waits for it meanwhile but new connections.
- The cluster: the next one on the same database takes its lease, its deployments and its Flows over.
"""
