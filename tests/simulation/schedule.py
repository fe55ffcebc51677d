"""One schedule: what is drawn from a seed, how it runs, and how it comes to its end.

A `Plan` holds all that is drawn before the run: Flow types, settings, how bad the weather is, and the actions, each
with a time and a salt of its own. So an action means the same whatever other actions there are, and a plan that fails
can be made smaller by leaving actions out. What is drawn during the run (how long a message takes, what a handler
returns) comes from one stream that the seed begins.

A run has two parts. First the actions happen: clients ask, owners die. Then all faults stop, handlers succeed and
clients publish what waits wait for: every Flow has to settle, and every client to be answered.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Coroutine
from dataclasses import dataclass, field, replace
from typing import Any

from dex.wire.specs import DeploymentSpec, FlowSpec
from dexray.engine import FlowHost, HostSettings
from tests.simulation import actions
from tests.simulation.auditor import Auditor
from tests.simulation.clients import Clients
from tests.simulation.cluster import Directory, Life, Network, Weather
from tests.simulation.detached import Actors
from tests.simulation.generate import CHILD, PARENT, Dice, Handlers, Taste, flow_type, taste
from tests.simulation.kernel import Livelock, World
from tests.simulation.memory import Database
from tests.simulation.witness import Witness

ROUNDS = (1.0, 3.0, 10.0, 30.0, 100.0, 300.0, 500.0, *[400.0] * 12, *[4_000.0] * 6)  # seconds, until all have settled


FEEDS = 12  # how often waiting Flows get messages behind the last action


@dataclass(frozen=True, slots=True)
class Action:
    at: float
    kind: str
    salt: int

    def __str__(self) -> str:
        return f"{self.at:10.4f} {self.kind} ({self.salt})"


@dataclass(frozen=True)
class Plan:
    seed: int
    owners: tuple[str, ...]
    offsets: dict[str, float]
    settings: HostSettings
    slots: int
    latencies: tuple[float, ...]
    delays: tuple[float, ...]  # of handlers
    weather: Weather
    likes: Taste
    types: dict[str, FlowSpec]
    actions: tuple[Action, ...]
    lasts: float  # seconds behind the last action, until all faults stop

    @property
    def clocks_agree(self) -> bool:
        return not any(self.offsets.values()) and all(action.kind != "step the clock" for action in self.actions)


def draw(seed: int) -> Plan:
    dice = Dice(seed)
    owners = dice.pick((("one",), ("one", "two"), ("one", "two"), ("one", "two", "three")))
    rough = dice.pick((0.0, 0.0, 1.0, 1.0, 2.0))
    weather = Weather()
    if rough:
        weather = Weather(
            cut_before=dice.pick((0.0, 0.02, 0.1)) * rough,
            cut_after=dice.pick((0.0, 0.02, 0.1)) * rough,
            slow_reads=dice.pick((0.0, 0.0, 0.1)),
            lost=dice.pick((0.0, 0.02, 0.1)),
            late=dice.pick((0.0, 0.02, 0.1, 0.3)),
            crashed=dice.pick((0.0, 0.05, 0.2)),
            hung=dice.pick((0.0, 0.03)),
            returned=dice.pick((0.0, 0.05)),
            repeated=dice.pick((0.0, 0.2)),
            deaf=dice.pick((0.0, 0.5)),
        )
    settings = HostSettings(
        checkpoint_records=dice.pick((1, 3, 200)),
        idle_flows=dice.pick((1, 2, 2000)),
        outage_patience=dice.pick((0.5, 10.0)),
        active_flows=dice.pick((0, 0, 0, 1, 2)),
        recovery_width=dice.pick((1, 32)),
        dispatch_wait=dice.pick((2.0, 10.0)),
        sweep_seconds=60.0,
    )
    offsets = {owner: dice.pick((3600.0, -3600.0, 5.0)) for owner in owners if dice.chance(0.08)}
    return Plan(
        seed=seed,
        owners=owners,
        offsets=offsets,
        settings=settings,
        slots=dice.pick((1, 2, 5, 100)),
        latencies=dice.pick(((0.001,), (0.0005, 0.004), (0.001, 0.001, 0.02))),
        delays=dice.pick(((0.001, 0.002, 0.01, 0.3), (0.001, 1.5), (0.2, 0.3, 0.7))),
        weather=weather,
        likes=taste(dice),
        types={name: flow_type(dice, name) for name in (PARENT, CHILD)},
        actions=tuple(_actions(dice)),
        lasts=dice.pick((0.5, 5.0, 60.0, 60.0, 500.0)),
    )


def _actions(dice: Dice) -> list[Action]:
    found = []
    at = 0.0
    pace = dice.pick((0.002, 0.05, 0.05, 0.5, 5.0))
    for number in range(dice.pick((8, 15, 25, 40))):
        kind = "start" if number == 0 else dice.pick(actions.MENU)
        found.append(Action(at, kind, dice.getrandbits(30)))
        at += pace * dice.pick((0.0, 0.3, 1.0, 2.0))
    return found


@dataclass
class Result:
    plan: Plan
    findings: list[tuple[str, str]]
    steps: int
    flows: int
    closed: Counter[str]
    faults: Counter[str]
    features: Counter[str]
    callbacks: int
    lines: list[str] | None
    digest: str = ""

    @property
    def checks(self) -> set[str]:
        return {check for check, _ in self.findings}


class Schedule:
    def __init__(self, plan: Plan, *, trace: bool = False) -> None:
        self.plan = plan
        self.world = World(trace=trace)
        self.dice = Dice(plan.seed + 1)
        self._salted = Dice(0)
        self.faults: Counter[str] = Counter()
        self.features: Counter[str] = Counter()
        self.weather = replace(plan.weather)
        self.out_until = 0.0
        self.owners = plan.owners
        self.deployment = DeploymentSpec(deployment_id="d1", flows=plan.types)
        self.auditor = Auditor(plan.types, self.features, self.world, clocks_agree=plan.clocks_agree)
        self.log = self.auditor.log
        self.witness = Witness(self.auditor)
        self.database = Database()
        self.database.taps.append(self.auditor)
        self.handlers = Handlers(self.dice, plan.types, plan.likes, self.consumers)
        self.network = Network(self)
        self.detached = Actors(self)
        self.clients = Clients(self)
        self.lives: dict[str, Life] = {}
        self.hosts: list[FlowHost] = []
        self.directory = Directory(self)
        self.directory.offsets.update(plan.offsets)

    def latency(self) -> float:
        return self.dice.pick(self.plan.latencies)

    def spawn(self, what: Coroutine[Any, Any, None]) -> None:
        self.clients.spawn(what)

    # The run ----------------------------------------------------------------------------------------------------------

    def run(self) -> Result:
        with _Errors(self):
            try:
                self._act()
                self._settle()
                self._conclude()
            except Livelock as livelock:
                self.auditor.require(False, "livelock", livelock)
        for failure in self.world.failures:
            self.auditor.require(False, "engine error", failure)
        runs = self.auditor.runs.values()
        return Result(
            plan=self.plan,
            findings=self.auditor.findings,
            steps=self.auditor.calls_committed,
            flows=len(self.auditor.of_flow),
            closed=Counter(run.status for run in runs),
            faults=self.faults,
            features=self.features + self.witness.told_counts,
            callbacks=self.world.callbacks,
            lines=self.world.lines,
            digest=self.world.digest() if self.world.lines is not None else "",
        )

    def _act(self) -> None:
        for owner in self.owners:
            self.directory.begin(owner)
        for action in self.plan.actions:
            self.world.fate.call_at(action.at, self._perform, action)
        last = self.plan.actions[-1].at if self.plan.actions else 0.0
        for number in range(FEEDS):
            at = last + self.plan.lasts * (number + 1) / (FEEDS + 1)
            self.world.fate.call_at(at, self._perform, Action(at, "feed", self.plan.seed + number))
        self.world.run(last + self.plan.lasts)

    def _perform(self, action: Action) -> None:
        self.world.say("", action.kind)
        actions.PERFORM[action.kind](self, self._salted.salted(action.salt))

    def _settle(self) -> None:
        """The faults stop; whatever waits gets what it waits for."""
        self.world.say("", "all faults stop")
        self.weather.__init__()  # type: ignore[misc]
        self.out_until = 0.0
        self.handlers.calm = True
        self.directory.mend()
        for seconds in ROUNDS:
            self.world.run(self.world.now + seconds)
            if self.clients.idle and not self.open_flows() and not self.auditor.findings:
                return
            if self.auditor.findings:
                return
            for flow_id in self.open_flows():
                self.clients.help(flow_id)
        open_flows = self.open_flows()
        self.auditor.require(not open_flows, "liveness", "still open:", *(self._picture(one) for one in open_flows))
        self.auditor.require(self.clients.idle, "liveness", "never answered:", self.clients.waiting())

    def open_flows(self) -> list[str]:
        return [flow_id for flow_id, runs in self.auditor.of_flow.items() if not runs[-1].status]

    def consumers(self, run_id: str) -> list[tuple[str, str]]:
        """Steps of a run that have consumed messages and not finished: their types, and the Channels."""
        run = self.auditor.runs.get(run_id)
        return [(step.type, channel) for step in (run.steps.values() if run else ()) for channel, _ in step.consumed]

    def waited_for(self, flow_id: str) -> list[str]:
        """The Channels that Steps of a Flow wait on."""
        runs = self.auditor.of_flow.get(flow_id)
        return [
            condition["channel"]
            for step in (runs[-1].steps.values() if runs else ())
            for condition in step.wait.get("conditions", ())
            if step.phase == "waiting" and condition["kind"] == "channel"
        ]

    def _picture(self, flow_id: str) -> str:
        run = self.auditor.of_flow[flow_id][-1]
        steps = [f"{step.id} {step.method} {step.phase} {step.attempt} {step.retry_at}" for step in run.steps.values()]
        return f"{flow_id} {run.run_id} {steps} {run.queues}"

    def _conclude(self) -> None:
        if self.auditor.findings:
            return
        if any(life.port.taken or life.port.out for life in self.lives.values()):
            self.world.run(self.world.now + 200.0)  # they come home
        self.witness.conclude()
        for life in self.lives.values():
            taken, out = life.port.taken, len(life.port.out)
            self.auditor.require(taken == out, "slots", life.name, "taken", taken, "out", out)
            for flow in life.host.flows.values():
                self.auditor.require(not flow.problem, "trouble", flow.flow_id, flow.problem)


class _Errors(logging.Handler):
    """What the engine logs as an error is a finding. `undisturbed` keeps it from making up anything less."""

    def __init__(self, schedule: Schedule) -> None:
        super().__init__(logging.ERROR)
        self._schedule = schedule
        self._logger = logging.getLogger("dexray")

    def emit(self, record: logging.LogRecord) -> None:
        if self._schedule.auditor.lenient:
            return
        cause = record.exc_info[1] if record.exc_info else None
        self._schedule.auditor.require(False, "engine error", record.getMessage(), repr(cause) if cause else "")

    def __enter__(self) -> None:
        self._before = (self._logger.propagate, self._logger.handlers)
        self._logger.propagate = False
        self._logger.handlers = [self]

    def __exit__(self, *error: object) -> None:
        self._logger.propagate, self._logger.handlers = self._before


def run_seed(seed: int, *, trace: bool = False) -> Result:
    return Schedule(draw(seed), trace=trace).run()


__all__ = ["Action", "Plan", "Result", "Schedule", "draw", "field", "run_seed"]
