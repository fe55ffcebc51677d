"""Steps that are ready and wait for a slot: one queue for each kind of attempt, first come first served."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

from dexray.engine.live import LiveFlow
from dexray.protocol.ports import AttemptPort

Kind = tuple[str, str, bool]  # flow type, step type, is async: what a port tells slots by


class SlotQueues:
    """`hand_out(live, step_id)` returns False when the Step turned out not to be startable; its slot is given back."""

    def __init__(self, port: AttemptPort, hand_out: Callable[[LiveFlow, str], bool]) -> None:
        self._port = port
        self._hand_out = hand_out
        self._queues: dict[Kind, deque[tuple[LiveFlow, str]]] = {}

    def put(self, kind: Kind, live: LiveFlow, step_id: str) -> None:
        if step_id in live.queued:
            return
        live.queued.add(step_id)
        self._queues.setdefault(kind, deque()).append((live, step_id))

    def pump(self) -> None:
        """Hands out as long as there are slots. A queue that finds none keeps its order."""
        for kind in list(self._queues):
            queue = self._queues[kind]
            while queue:
                live, step_id = queue[0]
                if live.lost or live.problem:
                    queue.popleft()
                    live.queued.discard(step_id)
                    continue
                if not self._port.reserve(*kind):
                    break
                queue.popleft()
                live.queued.discard(step_id)
                if not self._hand_out(live, step_id):
                    self._port.release(*kind)
            if not queue:
                del self._queues[kind]

    def __len__(self) -> int:
        return sum(len(queue) for queue in self._queues.values())
