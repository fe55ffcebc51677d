"""The engine: many Flows, their machine, their journal and their effects, over ports.

A `FlowHost` owns Flows. It takes requests from clients and results from attempts, lets the machine decide, appends the
outcome to the journal, and lets effects and answers out when they are durable. It knows no Ray and no SQL: attempts go
through an `AttemptPort`, the journal through `Journal`, time through a `Clock`, and blocking calls through a
`Blocking`. The same host runs in a Ray actor, in a user's unit test, and in the simulator. All of it runs in one event
loop; nothing in it blocks.

What it promises
- A record is appended before anything of it is let out: an answer, an attempt, a cancellation. Only an attempt of an
  ASYNC method that follows an ASYNC completion may run ahead, and what a client is told is durable in any case.
- Records of one run are appended in order. When the database refuses one, the Flow has another owner: it is dropped
  from memory with all that was not durable, and whoever waited is told to ask again.
- When the database is away, Flows keep their state and wait, ASYNC ones too; calls fail as UNAVAILABLE in bounded time;
  all go on when it returns.
- Messages of Streams (`streams`) stand beside all this: best effort, in no record, and no Flow waits for them.
- A slot that was reserved for an attempt is given to its run or given back, whatever happens to the Flow between.
- One Flow's trouble (an unreadable journal, a violated invariant, a record that the database can't take, code that is
  not deployed) stops that Flow alone, and `describe` says why.
"""

from dexray.engine.clock import Clock, LoopClock
from dexray.engine.host import FlowHost
from dexray.engine.loading import NotMine
from dexray.engine.settings import HostLoad, HostSettings

__all__ = ["Clock", "FlowHost", "HostLoad", "HostSettings", "LoopClock", "NotMine"]
