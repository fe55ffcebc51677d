"""Faults, chosen from a seed: which, on whom, for how long, when the next.

The choice of victims depends on who is there, so the same seed gives the same kinds at the same pace, and no more.
Pauses and outages end by themselves: `Faults.tick` is called often and does what has become due.
"""

from __future__ import annotations

import json
import random
import signal
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import psutil

from tests.benchmarks.soak.processes import Nodes, Producers, name_of, send
from tests.postgres import PostgresServer

LEAST = 1.5  # seconds between faults
CLUSTER_EVERY = 240.0  # seconds at least between one loss of the whole cluster and the next

WEIGHTS = {
    "kill flow_actor": 4.0,
    "pause flow_actor": 3.0,
    "kill directory": 2.0,
    "pause directory": 1.0,
    "kill task_worker": 4.0,
    "pause task_worker": 2.0,
    "kill async_worker": 2.0,
    "pause async_worker": 1.0,
    "kill detached": 2.0,
    "kill producer": 2.0,
    "pause producer": 1.5,
    "kill node": 1.5,
    "freeze node": 2.5,
    "database restart": 1.0,
    "database crash": 1.0,
    "database outage": 1.0,
    "database hangs": 1.0,
    "database cuts connections": 2.0,
    "lose cluster": 1.0,
    "lose head": 2.0,
}


class Faults:
    def __init__(
        self,
        seed: int,
        pace: float,
        nodes: Nodes,
        producers: Producers,
        server: PostgresServer,
        database: str,
        log: Path,
    ) -> None:
        """pace: mean seconds between faults. database: its name."""
        self._pace = max(pace, 2 * LEAST)
        self._chance = random.Random(f"faults/{seed}")
        self._nodes = nodes
        self._producers = producers
        self._server = server
        self._database = database
        self._log = log.open("a")
        self._due: list[tuple[float, Callable[[], None]]] = []
        self._next = time.monotonic() + 3.0
        self._lost_at = time.monotonic() - CLUSTER_EVERY / 2
        self._is_down = False  # the database
        self._nodes_away = 0
        self.counts: Counter[str] = Counter()

    def tick(self) -> None:
        now = time.monotonic()
        for entry in [entry for entry in self._due if entry[0] <= now]:
            self._due.remove(entry)
            entry[1]()
        if now < self._next:
            return
        for _ in range(self._chance.choice((1, 1, 1, 2))):  # now and then two at once
            self._one()
        self._next = time.monotonic() + LEAST + self._chance.expovariate(1 / (self._pace - LEAST))

    def end(self) -> None:
        """All is whole again."""
        for _, heal in self._due:
            heal()
        self._due.clear()
        for process in self._nodes.family():
            send(process, signal.SIGCONT)
        for _ in range(3 - len(self._nodes.raylets())):
            self._nodes.add()
        self.note("all faults have ended")

    def note(self, what: str) -> None:
        self._log.write(json.dumps({"at": time.time(), "what": what}) + "\n")
        self._log.flush()

    def _one(self) -> None:
        kind = self._chance.choices(list(WEIGHTS), list(WEIGHTS.values()))[0]
        seconds = round(self._chance.choice((1.0, 3.0, 8.0, 15.0)) * self._chance.uniform(0.5, 1.5), 1)
        what, _, who = kind.partition(" ")
        happened = ""
        match what, who:
            case "kill" | "pause", "producer":
                happened = self._strike(what, list(self._producers.processes()), seconds)
            case "kill" | "freeze", "node":
                happened = self._strike_node(what, seconds)
            case "kill" | "pause", _:
                happened = self._strike(what, self._nodes.workers(who), seconds)
            case "database", _:
                happened = self._strike_database(who, seconds)
            case _:
                happened = self._lose_cluster(who)
        if happened:
            self.counts[kind] += 1
            self.note(f"{kind}: {happened}")

    def _strike(self, what: str, candidates: list[psutil.Process], seconds: float) -> str:
        if not candidates:
            return ""
        victim = self._chance.choice(sorted(candidates, key=lambda process: process.pid))
        name = f"{victim.pid} {name_of(victim)}"
        if what == "kill":
            send(victim, signal.SIGKILL)
            return name
        send(victim, signal.SIGSTOP)
        self._later(seconds, lambda: send(victim, signal.SIGCONT))
        return f"{name} for {seconds} s"

    def _strike_node(self, what: str, seconds: float) -> str:
        """A worker node: its raylet is killed, and a new node comes later; or all of it freezes. When a frozen node
        thaws its workers come first: they work on as if nothing had been, before their raylet learns that it was
        given up."""
        raylets = [raylet for raylet in self._nodes.raylets() if raylet.pid != self._nodes.head]
        if not raylets or self._nodes_away:
            return ""
        raylet = self._chance.choice(sorted(raylets, key=lambda process: process.pid))
        self._nodes_away += 1
        if what == "kill":
            send(raylet, signal.SIGKILL)
            self._later(seconds, self._add_node)
            return f"{raylet.pid}, a new one after {seconds} s"
        workers = raylet.children(recursive=True)
        seconds = round(self._chance.uniform(5.0, 60.0), 1)  # some are given up meanwhile, and replaced
        for process in (raylet, *workers):
            send(process, signal.SIGSTOP)

        def thaw() -> None:
            for process in workers:
                send(process, signal.SIGCONT)
            self._later(1.0, lambda: send(raylet, signal.SIGCONT))
            self._later(6.0, self._add_node)

        self._later(seconds, thaw)
        return f"{raylet.pid} with {len(workers)} processes for {seconds} s"

    def _add_node(self) -> None:
        self._nodes_away = 0
        if len(self._nodes.raylets()) < 3:
            self._nodes.add()

    def _strike_database(self, what: str, seconds: float) -> str:
        if self._is_down:
            return ""
        server = self._server
        match what:
            case "restart":
                server.stop()
                server.start()
                return "in order"
            case "crash":
                server.stop(signal.SIGQUIT)
                server.start()
                return "without a checkpoint"
            case "outage":
                self._is_down = True
                server.stop(self._chance.choice((signal.SIGINT, signal.SIGQUIT)))
                self._later(seconds, self._database_up)
                return f"for {seconds} s"
            case "hangs":
                self._is_down = True
                family = [psutil.Process(server.pid), *psutil.Process(server.pid).children()]
                for process in family:
                    send(process, signal.SIGSTOP)

                def wake() -> None:
                    for process in family:
                        send(process, signal.SIGCONT)
                    self._is_down = False

                self._later(seconds, wake)
                return f"for {seconds} s"
            case _:
                cut = server.ask(
                    f"SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = '{self._database}' "
                    f"AND random() < {self._chance.choice((0.3, 1.0))}"
                )
                return f"{len(cut)} of them"

    def _database_up(self) -> None:
        self._server.start()
        self._is_down = False

    def _lose_cluster(self, what: str) -> str:
        """Every process of Ray, or the head's node alone, and every client at once; new clients find the next cluster
        on the same database."""
        if time.monotonic() - self._lost_at < CLUSTER_EVERY or self._nodes_away or self._is_down:
            return ""
        self._producers.kill_all()
        self._nodes.lose_head() if what == "head" else self._nodes.lose()
        self._lost_at = time.monotonic()
        return f"the next one is at {self._nodes.address}"

    def _later(self, seconds: float, heal: Callable[[], None]) -> None:
        self._due.append((time.monotonic() + seconds, heal))
