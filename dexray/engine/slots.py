"""Steps that are ready and wait for a slot: one queue for each kind of attempt.

Hand-outs follow the order in which the Steps became ready, over all kinds: a kind that finds no slot stands aside and
holds up nobody. Timeout handlers go first: they are what is left of a Flow that ran out of time.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from heapq import heapify, heappop, heapreplace

from dexray.engine.live import LiveFlow
from dexray.machine.state import TIMEOUT_HANDLER
from dexray.protocol.ports import AttemptPort

Kind = tuple[str, str, bool]  # flow type, step type, is async: what a port tells slots by
_Entry = tuple[int, LiveFlow, str]  # when it came, the Flow, its Step


class SlotQueues:
    """`hand_out(live, step_id)` returns False when the Step turned out not to be startable; its slot is given back."""

    def __init__(self, port: AttemptPort, hand_out: Callable[[LiveFlow, str], bool]) -> None:
        self._port = port
        self._hand_out = hand_out
        self._queues: dict[Kind, deque[_Entry]] = {}
        self._count = 0

    def put(self, kind: Kind, live: LiveFlow, step_id: str) -> None:
        if step_id in live.queued:
            return
        live.queued.add(step_id)
        self._count += 1
        self._queues.setdefault(kind, deque()).append((self._count, live, step_id))

    def pump(self) -> None:
        """Hands out as long as there are slots. A queue that finds none keeps its order."""
        if not self._queues:
            return
        heads = [(_rank(kind, queue), kind) for kind, queue in self._queues.items()]
        heapify(heads)
        while heads:
            kind = heads[0][1]
            queue = self._queues[kind]
            _, live, step_id = queue[0]
            if not (live.lost or live.problem) and not self._port.reserve(*kind):
                heappop(heads)
                continue
            queue.popleft()
            live.queued.discard(step_id)
            if not (live.lost or live.problem) and not self._hand_out(live, step_id):
                self._port.release(*kind)
            if queue:
                heapreplace(heads, (_rank(kind, queue), kind))
            else:
                heappop(heads)
                del self._queues[kind]

    def __len__(self) -> int:
        return sum(len(queue) for queue in self._queues.values())


def _rank(kind: Kind, queue: deque[_Entry]) -> tuple[bool, int]:
    return (kind[1] != TIMEOUT_HANDLER, queue[0][0])
