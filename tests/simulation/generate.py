"""Flows that nobody would write: specs with every option, and handlers whose results are drawn by lot.

A Step's input is its fuel: what a movement gives on is less, and a Step without fuel ends its branch. So every Flow is
bounded, whatever its handlers do. When the faults have stopped (`calm`), handlers succeed, wait for nothing more and
end their branches.

Every result carries the token of the attempt that it came of: as a recorded event `#`, in the detail of a failure, as
the output of an RPC. By it the auditor finds the attempt in the workers' own log.
"""

from __future__ import annotations

import _random
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeVar

from dex.wire.service import FlowConfigSpec
from dex.wire.specs import (
    FailureRoute,
    FlowSpec,
    LoadSpec,
    MethodSpec,
    RetrySpec,
    RpcSpec,
    StepSpec,
    TimeoutHandlerSpec,
)
from dexray.protocol.attempts import (
    AttemptFailed,
    AttemptResult,
    AttemptTask,
    ConditionSpec,
    DecisionSpec,
    ExecuteSucceeded,
    Heartbeat,
    MovementSpec,
    RpcSucceeded,
    WaitForSucceeded,
    WaitSpec,
    Writes,
)
from dexray.protocol.subflows import SubFlowSpec

T = TypeVar("T")

NIL = b"\xc0"
STEPS = ("A", "B", "C", "D")
CHANNELS = ("a", "b", "m/1")
ATTRIBUTES = ("x", "y", "z/1", "z/2")
PARENT, CHILD = "Parent", "Child"
LONG = 400.0


class Dice(random.Random):
    def salted(self, salt: int) -> Dice:
        """Itself, as if it were new: that costs a quarter of a new one."""
        _random.Random.seed(self, salt)
        return self

    def chance(self, probability: float) -> bool:
        return self.random() < probability

    def pick(self, among: Sequence[T]) -> T:
        return among[int(self.random() * len(among))]


def text(value: str) -> bytes:
    """The payload of a bytes value."""
    data = value.encode()
    return b"\xc4" + bytes((len(data),)) + data


def number(value: int) -> bytes:
    return b"\xce" + value.to_bytes(4, "big")


def fuel_of(payload: bytes) -> int:
    return payload[0] if len(payload) == 1 and payload[0] < 0x80 else 0


# Specs ----------------------------------------------------------------------------------------------------------------


def method(dice: Dice) -> MethodSpec:
    retry = RetrySpec()
    if dice.chance(0.5):
        retry = RetrySpec(
            initial=dice.pick((0.0, 0.5, 1.0, 7.0)),
            coefficient=dice.pick((1.0, 2.0, 3.0)),
            maximum=dice.pick((1.0, 10.0, 100.0)),
            attempts=dice.pick((0, 1, 2, 3)),
            total=dice.pick((5.0, 300.0, 14400.0)),
        )
    load = LoadSpec()
    if dice.chance(0.2):
        load = LoadSpec(
            attribute_maps=("z",) if dice.chance(0.5) else (),
            attribute_map_instances=("z/1",) if dice.chance(0.3) else (),
            channels=("a",) if dice.chance(0.7) else (),
            channel_maps=("m",) if dice.chance(0.4) else (),
            channel_map_instances=("m/1",) if dice.chance(0.3) else (),
        )
    return MethodSpec(
        is_async=dice.chance(0.3),
        timeout=dice.pick((7200.0, 7200.0, 90.0)),
        retry=retry,
        durability=dice.pick(("", "", "SYNC", "ASYNC")),
        locks=dice.pick(((), (), (), ("x",), ("x", "y"), ("z/1",))),
        load=load,
        detached=dice.chance(0.1),
    )


def step(dice: Dice, name: str) -> StepSpec:
    route = FailureRoute(step_type=dice.pick(STEPS)) if dice.chance(0.3) else None
    return StepSpec(
        step_type=name,
        wait_for=method(dice) if dice.chance(0.55) else None,
        execute=method(dice),
        proceed_on_wait_failure=dice.chance(0.5),
        failure_route=route,
    )


def flow_type(dice: Dice, name: str) -> FlowSpec:
    return FlowSpec(
        flow_type=name,
        start_step=None if name == PARENT and dice.chance(0.08) else "A",
        steps={step_type: step(dice, step_type) for step_type in STEPS},
        rpcs={
            "read": RpcSpec(name="read"),
            "write": RpcSpec(name="write", is_async=True, timeout=20.0),
            "change": RpcSpec(name="change", transactional=True, load=LoadSpec(channels=("a",))),
            "lock": RpcSpec(name="lock", locks=("x",)),
        },
        channels=("a", "b"),
        channel_maps=("m",),
        attributes=("x", "y"),
        attribute_maps=("z",),
        has_timeout_handler=True,
    )


def timeout_handler(dice: Dice) -> TimeoutHandlerSpec:
    route = FailureRoute(step_type=dice.pick(STEPS)) if dice.chance(0.5) else None
    return TimeoutHandlerSpec(method=method(dice), failure_route=route)


def flow_config(dice: Dice) -> FlowConfigSpec:
    return FlowConfigSpec(step_durability=dice.pick((None, "SYNC", "ASYNC")))


# Handlers -------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Taste:
    """What the Flows of a schedule have a liking for: rare things meet each other where they are not rare."""

    failing: float = 0.1  # the probability that a handler raises
    cancel: float = 0.06
    conditional: float = 0.06
    fan_out: float = 0.35
    subflow: float = 0.15
    timer: float = 0.35
    write: float = 0.5
    ending: float = 0.2  # that a branch ends though it has fuel
    forced: float = 0.25  # that it ends its Flow then
    skipping: float = 0.12  # that a wait is for nothing
    fuel: tuple[int, ...] = (1, 2, 3, 4, 5)


def taste(dice: Dice) -> Taste:
    lasting = dice.chance(0.5)  # Flows that come far, in half of the schedules; in the others they end in many ways
    return Taste(
        failing=dice.pick((0.0, 0.03, 0.1) if lasting else (0.0, 0.1, 0.25)),
        cancel=dice.pick((0.0, 0.06, 0.4)),
        conditional=dice.pick((0.0, 0.02, 0.06) if lasting else (0.02, 0.06, 0.4)),
        fan_out=dice.pick((0.1, 0.35, 0.7)),
        subflow=dice.pick((0.0, 0.15, 0.4)),
        timer=dice.pick((0.1, 0.35, 0.6)),
        write=dice.pick((0.2, 0.5, 0.9)),
        skipping=dice.pick((0.12, 0.5)) if lasting else 0.12,
        ending=0.02 if lasting else 0.2,
        forced=0.05 if lasting else 0.25,
        fuel=dice.pick(((5, 10, 20), (20, 40, 60))) if lasting else (1, 2, 3, 4, 5),
    )


class Handlers:
    """What attempts come to."""

    def __init__(
        self, dice: Dice, types: dict[str, FlowSpec], likes: Taste, consumers: Callable[[str], list[tuple[str, str]]]
    ) -> None:
        """`consumers`: of a run, the Steps that have consumed messages and not finished: (type, Channel). A handler
        can't know of them; they are looked at so that what is rare is not too rare."""
        self._consumers = consumers
        self._dice = dice
        self._types = types
        self._likes = likes
        self._failing = likes.failing
        self._messages = 0
        self.calm = False

    def result(self, task: AttemptTask, token: int) -> AttemptResult:
        dice, method_name = self._dice, task.key.method
        if method_name == "rpc":
            return self._rpc(task, token)
        if not self.calm and dice.chance(self._failing):
            return AttemptFailed(
                error_type="builtins.ValueError",
                detail=f"#{token}",
                retryable=dice.chance(0.9),
                retry_after=dice.pick((None, None, 0.0, 0.2, 30.0)),
                heartbeat=Heartbeat(True, number(token)) if dice.chance(0.1) else None,
            )
        if method_name == "wait_for":
            return WaitForSucceeded(wait=self._wait(task), writes=self._writes(task, token, locals_=True))
        return ExecuteSucceeded(decision=self._decision(task, token), writes=self._writes(task, token))

    def _writes(self, task: AttemptTask, token: int, *, locals_: bool = False) -> Writes:
        dice = self._dice
        mark = (("#", number(token)),)
        if self.calm or not dice.chance(self._likes.write):
            return Writes(events=mark)
        attributes: dict[str, bytes | None] = {}
        if dice.chance(0.6):
            attributes = {dice.pick(ATTRIBUTES): dice.pick((number(token), number(token), None))}
        publications = []
        while dice.chance(0.35) and len(publications) < 3:
            self._messages += 1
            publications.append((dice.pick(CHANNELS), f"own-{self._messages}", text(f"own-{self._messages}")))
        deletions: tuple[tuple[str, str], ...] = ()
        if task.loaded_channels and dice.chance(0.5):
            deletions = tuple(
                (channel, messages[0][0]) for channel, messages in task.loaded_channels.items() if messages
            )
        return Writes(
            attributes=attributes,
            deletions=deletions,
            publications=tuple(publications),
            events=mark,
            locals={"k": number(token)} if locals_ and dice.chance(0.5) else {},
        )

    def _wait(self, task: AttemptTask) -> WaitSpec:
        dice = self._dice
        if self.calm or dice.chance(self._likes.skipping):
            return WaitSpec("skip_immediately")
        kind = dice.pick(("all_of", "any_of", "any_of", "any_of", "any_combination_of"))
        count = dice.pick((1, 1, 2, 2, 3))
        named = kind == "any_combination_of"
        conditions = tuple(self._condition(task, f"c{n}" if named else "") for n in range(count))
        if not named:
            return WaitSpec(kind, conditions)
        groups = [
            tuple(sorted(dice.sample(range(count), dice.pick(range(1, count + 1)))))
            for _ in range(dice.pick((1, 2, 2)))
        ]
        return WaitSpec(kind, conditions, tuple(groups))

    def _condition(self, task: AttemptTask, name: str) -> ConditionSpec:
        dice = self._dice
        what, likes = dice.random(), self._likes
        if what < likes.timer:
            return ConditionSpec("timer", name, duration=dice.pick((0.0, 1.0, 1.0, 5.0, 60.0, LONG)))
        fuel = fuel_of(task.input)
        if what < likes.timer + likes.subflow and fuel > 0 and task.flow_type == PARENT:
            child = SubFlowSpec(
                flow_type=CHILD,
                input=bytes((min(fuel - 1, 2),)),
                reuse_policy=dice.pick(("ATTACH", "RESTART_IF_PREVIOUS_EXITS_ABNORMALLY", "ALWAYS_RESTART")),
                timeout=dice.pick((0.0, 0.0, 30.0)),
            )
            return ConditionSpec("subflow", name, subflow=child)
        low = dice.pick((0, 1, 1, 1, 2))
        high = dice.pick((None, low, low, low + 1, max(low, 3)))
        return ConditionSpec("channel", name, channel=dice.pick(CHANNELS), at_least=low, at_most=high)

    def _movement(self, fuel: int, among: int = 1) -> MovementSpec:
        """One of so many that share the fuel."""
        dice = self._dice
        name = dice.pick(STEPS)
        override = step(dice, name) if dice.chance(0.08) else None
        return MovementSpec(name, bytes((max(0, fuel - 1) // among,)), override)

    def _decision(self, task: AttemptTask, token: int) -> DecisionSpec:
        dice, fuel = self._dice, fuel_of(task.input)
        output = number(token) if dice.chance(0.7) else None
        if self.calm:
            return DecisionSpec(kind="graceful_complete", output=output)
        likes = self._likes
        consumers = self._consumers(task.key.run_id) or [(step_type, "a") for step_type in STEPS]
        canceling = (dice.pick(consumers)[0],) if dice.chance(likes.cancel) else ()
        siblings = (dice.pick(STEPS),) if dice.chance(likes.cancel) else ()
        what = dice.random()
        if fuel and what >= likes.ending:
            count = dice.pick((2, 2, 3)) if dice.chance(likes.fan_out) else 1
            if dice.chance(likes.conditional):
                return DecisionSpec(
                    kind="force_complete_if_channels_empty",
                    output=output,
                    channels=dice.pick((("a",), ("a", "b"), ("b",), (dice.pick(consumers)[1],))),
                    fallback=self._movement(fuel),
                    canceling=canceling,
                )
            return DecisionSpec(
                kind="next",
                movements=tuple(self._movement(fuel, min(count, 2)) for _ in range(count)),
                canceling=canceling,
                canceling_siblings=siblings,
            )
        if not dice.chance(likes.forced):
            kind = dice.pick(("graceful_complete", "dead_end"))
        elif dice.chance(0.6):
            kind = "force_complete"
        else:
            return DecisionSpec(kind="force_fail", reason="drawn by lot")
        return DecisionSpec(
            kind=kind,
            output=output if kind != "dead_end" else None,
            canceling=canceling,
            canceling_siblings=siblings,
        )

    def _rpc(self, task: AttemptTask, token: int) -> AttemptResult:
        dice = self._dice
        if not self.calm and dice.chance(self._failing):
            return AttemptFailed(error_type="builtins.ValueError", detail=f"#{token}")
        if task.step_type == "__rpc/read" or (self.calm and task.step_type != "__rpc/lock"):
            return RpcSucceeded(output=number(token))
        writes = self._writes(task, token)
        movements = (self._movement(2),) if dice.chance(0.3) else ()
        return RpcSucceeded(
            output=number(token),
            writes=writes,
            movements=movements,
            canceling=(dice.pick(STEPS),) if dice.chance(self._likes.cancel) else (),
        )
