"""What can happen in a schedule: the calls of clients, and fate. Each action draws what it needs from its own dice."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from dex.wire import service as s
from tests.simulation.generate import (
    ATTRIBUTES,
    CHANNELS,
    CHILD,
    PARENT,
    STEPS,
    Dice,
    flow_config,
    number,
    text,
    timeout_handler,
)

if TYPE_CHECKING:
    from tests.simulation.schedule import Schedule

PATIENCE = (1.0, 4.0, 15.0)
POLICIES = ("DEFAULT", "ALLOW_IF_PREVIOUS_FAILED", "ALLOW_IF_NOT_RUNNING", "ALLOW_TERMINATE_IF_RUNNING", "DISALLOW")


def a_flow(schedule: Schedule, dice: Dice) -> str:
    """Mostly one that is open, as the database has it; it may be a child."""
    if dice.chance(0.7) and (open_flows := schedule.open_flows()):
        return dice.pick(open_flows)
    return dice.pick(schedule.clients.flow_ids) if schedule.clients.flow_ids else "f1"


# Clients --------------------------------------------------------------------------------------------------------------


def start(schedule: Schedule, dice: Dice) -> None:
    clients = schedule.clients
    again = bool(clients.flow_ids) and dice.chance(0.3)
    flow_id = dice.pick(clients.flow_ids) if again else f"f{len(clients.flow_ids) + 1}"
    if not again:
        clients.flow_ids.append(flow_id)
    timeout = dice.pick((0.0, 0.0, 0.0, 2.0, 30.0, 900.0))
    policy = dice.pick(("FAIL", "CANCEL", "HANDLER", "HANDLER")) if timeout else ""
    name = clients.name("start")
    clients.spawn(
        clients.call_once(
            s.StartFlow(
                flow_id=flow_id,
                flow_type=dice.pick((PARENT, PARENT, CHILD)),
                input=bytes((dice.pick(schedule.plan.likes.fuel),)),
                request_id=dice.pick((f"r-{flow_id}", name)),
                call_id=name,
                fresh=True,
                id_reuse_policy=dice.pick(POLICIES),
                ignore_already_started=dice.chance(0.5),
                timeout=timeout,
                timeout_policy=policy,
                timeout_handler=timeout_handler(dice) if policy == "HANDLER" else None,
                config=flow_config(dice),
                attributes={"x": number(dice.getrandbits(20))} if dice.chance(0.4) else {},
            ),
            dice.pick(PATIENCE),
        )
    )


def publish(schedule: Schedule, dice: Dice) -> None:
    batches = [dice.pick((1, 1, 2)) for _ in range(dice.pick((1, 1, 2, 4)))]
    clients, flow_id = schedule.clients, a_flow(schedule, dice)
    waited = schedule.waited_for(flow_id) if dice.chance(0.7) else []
    clients.spawn(clients.produce(flow_id, dice.pick(waited or CHANNELS), batches, dice.pick(PATIENCE)))


def feed(schedule: Schedule, dice: Dice) -> None:
    """Whatever waits for messages gets some, that Flows come far."""
    clients = schedule.clients
    for flow_id, runs in schedule.auditor.of_flow.items():
        if not runs[-1].status:
            for channel in schedule.waited_for(flow_id)[:2]:
                clients.spawn(clients.produce(flow_id, channel, [dice.pick((1, 2))], 15.0))


def set_attribute(schedule: Schedule, dice: Dice) -> None:
    clients = schedule.clients
    value = number(1 << 31 | dice.getrandbits(30)) if dice.chance(0.8) else None
    request = s.SetAttribute(
        flow_id=a_flow(schedule, dice),
        name=dice.pick(ATTRIBUTES),
        value=value,
        request_id=clients.name("a"),
        fresh=True,
    )
    clients.spawn(clients.call_once(request, dice.pick(PATIENCE)))


def stop(schedule: Schedule, dice: Dice) -> None:
    clients = schedule.clients
    request = s.StopFlow(
        flow_id=a_flow(schedule, dice),
        stop_type=dice.pick(("CANCEL", "TERMINATE", "FAIL")),
        reason="enough",
        request_id=clients.name("s"),
        fresh=True,
    )
    clients.spawn(clients.call_once(request, dice.pick(PATIENCE)))


def rpc(schedule: Schedule, dice: Dice) -> None:
    clients = schedule.clients
    flow_id = a_flow(schedule, dice)
    runs = schedule.auditor.of_flow.get(flow_id)
    request = s.InvokeRpc(
        flow_id=flow_id,
        flow_type=runs[-1].type if runs else PARENT,
        rpc=dice.pick(("read", "write", "write", "change", "lock")),
        locks=dice.pick(((), (), ("z/1",))),
        request_id=clients.name("rpc"),
        fresh=True,
    )
    clients.spawn(clients.call_once(request, dice.pick((4.0, 90.0))))


def wait_for_flow(schedule: Schedule, dice: Dice) -> None:
    clients = schedule.clients
    request = s.WaitForFlow(flow_id=a_flow(schedule, dice), timeout=dice.pick((0.5, 20.0)))
    clients.spawn(clients.call_once(request, 40.0))


def wait_for_step(schedule: Schedule, dice: Dice) -> None:
    clients = schedule.clients
    request = s.WaitForStep(
        flow_id=a_flow(schedule, dice),
        step=f"{dice.pick(STEPS)}-{dice.pick((1, 1, 2))}",
        request_id=clients.name("w") if dice.chance(0.5) else "derived",
        timeout=dice.pick((0.5, 20.0)),
        limit=dice.pick((0.0, 3.0)),
        keep=dice.chance(0.5),
    )
    clients.spawn(clients.call_once(request, 40.0))


def wait_for_attribute(schedule: Schedule, dice: Dice) -> None:
    clients = schedule.clients
    request = s.WaitForAttribute(
        flow_id=a_flow(schedule, dice),
        name=dice.pick(ATTRIBUTES),
        operator=dice.pick((">", "!=", "<=")),
        operand=number(dice.pick((3, 1 << 31))),
        request_id=clients.name("w"),
        timeout=dice.pick((0.5, 20.0)),
    )
    clients.spawn(clients.call_once(request, 40.0))


def look(schedule: Schedule, dice: Dice) -> None:
    clients, flow_id = schedule.clients, a_flow(schedule, dice)
    what = dice.random()
    request: s.AnyRequest
    if what < 0.35:
        request = s.DescribeFlow(flow_id=flow_id)
    elif what < 0.7:
        request = s.GetAttribute(flow_id=flow_id, name=dice.pick(ATTRIBUTES))
    elif what < 0.85:
        request = s.GetHistory(flow_id=flow_id, limit=7, wait=dice.pick((0.0, 1.0)))
    else:
        request = s.ReadStream(flow_id=flow_id, stream="s", timeout=dice.pick((0.0, 2.0)))
    clients.spawn(clients.call_once(request, 15.0))


def write_stream(schedule: Schedule, dice: Dice) -> None:
    clients = schedule.clients
    request = s.WriteStream(
        flow_id=a_flow(schedule, dice), stream="s", source="client", value=text(clients.name("line")), capacity=100
    )
    clients.spawn(clients.call_once(request, dice.pick(PATIENCE)))


def skip_timer(schedule: Schedule, dice: Dice) -> None:
    clients, flow_id = schedule.clients, a_flow(schedule, dice)
    runs = schedule.auditor.of_flow.get(flow_id)
    waiting = [step.id for step in runs[-1].steps.values() if step.phase == "waiting"] if runs else []
    step = dice.pick([*waiting, *waiting, "sys:timeout_handler-1"])
    request = s.SkipTimer(flow_id=flow_id, step=step, request_id=clients.name("skip"), fresh=True)
    clients.spawn(clients.call_once(request, dice.pick(PATIENCE)))


def update_config(schedule: Schedule, dice: Dice) -> None:
    clients = schedule.clients
    request = s.UpdateFlowConfig(
        flow_id=a_flow(schedule, dice), config=flow_config(dice), request_id=clients.name("cfg"), fresh=True
    )
    clients.spawn(clients.call_once(request, dice.pick(PATIENCE)))


def time_travel(schedule: Schedule, dice: Dice) -> None:
    clients, flow_id = schedule.clients, a_flow(schedule, dice)
    step = dice.pick(STEPS)
    request = s.TimeTravel(
        flow_id=flow_id,
        point=dice.pick(("BEGINNING", "STEP_TYPE", "STEP_EXECUTION_ID", "HISTORY_EVENT_TIME")),
        history_event_time=1_700_000_000.0 + schedule.world.now * dice.random(),
        step_type=step,
        step=f"{step}-1",
        method=dice.pick(("wait_for", "execute")),
        skip_writes_reapply=dice.chance(0.3),
        request_id=clients.name("tt"),
        fresh=True,
    )
    clients.spawn(clients.call_once(request, dice.pick(PATIENCE)))


# Fate -----------------------------------------------------------------------------------------------------------------


def an_owner(schedule: Schedule, dice: Dice) -> str:
    return dice.pick(schedule.owners)


def an_adopter(schedule: Schedule, dice: Dice) -> str:
    return dice.pick(schedule.owners) if dice.chance(0.4) else ""


def kill(schedule: Schedule, dice: Dice) -> None:
    schedule.directory.kill(an_owner(schedule, dice), dice.pick((0.0, 0.01, 1.0, 15.0)), an_adopter(schedule, dice))


def kill_soon(schedule: Schedule, dice: Dice) -> None:
    """Between two callbacks of the owner, wherever that may be."""
    owner, after, adopter = an_owner(schedule, dice), dice.pick((0.0, 0.5)), an_adopter(schedule, dice)
    life = schedule.lives.get(owner)
    if life is not None and not life.process.is_held:
        life.process.after(1 + int(dice.random() * 60), lambda: schedule.directory.kill(owner, after, adopter))


def pause(schedule: Schedule, dice: Dice) -> None:
    seconds = dice.pick((0.05, 2.0, 20.0, 70.0))
    schedule.directory.pause(
        an_owner(schedule, dice),
        seconds,
        seconds * dice.pick((0.1, 0.5, 2.0)),
        an_adopter(schedule, dice),
        dice.pick((0.01, 1.0, 30.0)),
    )


def pause_soon(schedule: Schedule, dice: Dice) -> None:
    owner = an_owner(schedule, dice)
    seconds, share, goes_on = dice.pick((0.05, 2.0, 20.0)), dice.pick((0.1, 0.5)), dice.pick((0.01, 1.0))
    adopter, life = an_adopter(schedule, dice), schedule.lives.get(owner)
    if life is not None and not life.process.is_held:
        life.process.after(
            1 + int(dice.random() * 60),
            lambda: schedule.directory.pause(owner, seconds, seconds * share, adopter, goes_on),
        )


def orderly_stop(schedule: Schedule, dice: Dice) -> None:
    schedule.directory.stop(an_owner(schedule, dice), dice.pick((0.0, 1.0)))


def outage(schedule: Schedule, dice: Dice) -> None:
    schedule.faults["outage"] += 1
    schedule.out_until = schedule.world.now + dice.pick((0.02, 1.0, 30.0))


def partition(schedule: Schedule, dice: Dice) -> None:
    """One owner can't reach the database."""
    life = schedule.lives.get(an_owner(schedule, dice))
    if life is not None:
        schedule.faults["partition"] += 1
        life.wire.out_until = schedule.world.now + dice.pick((0.5, 10.0, 60.0))


def step_clock(schedule: Schedule, dice: Dice) -> None:
    owner, seconds = an_owner(schedule, dice), dice.pick((3600.0, -3600.0, 3600.0, -3600.0, 7.0))
    schedule.faults["clock step"] += 1
    schedule.directory.offsets[owner] = schedule.directory.offsets.get(owner, 0.0) + seconds
    life = schedule.lives.get(owner)
    if life is not None and not life.process.is_dead:
        life.clock.step(seconds)


def redeploy(schedule: Schedule, dice: Dice) -> None:
    schedule.directory.deploy()


PERFORM: dict[str, Callable[[Schedule, Dice], None]] = {
    "start": start,
    "publish": publish,
    "feed": feed,
    "set an Attribute": set_attribute,
    "stop": stop,
    "invoke an RPC": rpc,
    "wait for the Flow": wait_for_flow,
    "wait for a Step": wait_for_step,
    "wait for an Attribute": wait_for_attribute,
    "look": look,
    "write to a Stream": write_stream,
    "skip a Timer": skip_timer,
    "update the config": update_config,
    "time travel": time_travel,
    "kill": kill,
    "kill soon": kill_soon,
    "pause": pause,
    "pause soon": pause_soon,
    "stop in order": orderly_stop,
    "outage": outage,
    "partition": partition,
    "step the clock": step_clock,
    "deploy anew": redeploy,
}

_WEIGHTS = {
    "start": 5,
    "publish": 6,
    "feed": 10,
    "set an Attribute": 2,
    "stop": 1,
    "invoke an RPC": 4,
    "wait for the Flow": 1,
    "wait for a Step": 1,
    "wait for an Attribute": 1,
    "look": 2,
    "write to a Stream": 1,
    "skip a Timer": 1,
    "update the config": 1,
    "time travel": 1,
    "kill": 2,
    "kill soon": 3,
    "pause": 1,
    "pause soon": 1,
    "stop in order": 1,
    "outage": 1,
    "partition": 1,
    "step the clock": 1,
    "deploy anew": 1,
}
MENU = tuple(kind for kind, weight in _WEIGHTS.items() for _ in range(weight))
