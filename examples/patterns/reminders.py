"""Reminders: an invitation is repeated until it is answered, or until it is too late.

Two branches run side by side: one reminds at an interval, one waits for the deadline. Whichever ends the Flow ends the
other. An answer comes by an RPC, which publishes it and tells the guest at once that it counts.

If a process dies in the middle: a reminder that fell due is sent when there is a process again, and one that was being
sent may be sent twice. An answer that was confirmed is in the database. One that comes after the deadline is refused,
and the guest hears of it.

Run it with `python -m examples.patterns.reminders`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from uuid import uuid4

from dex import (
    Attribute,
    Channel,
    Context,
    Flow,
    PersistenceSchema,
    Registry,
    RPCResult,
    Step,
    StepDecision,
    StepList,
    StepMovement,
    Timer,
    Wait,
    force_complete,
    go_to,
    go_to_many,
    rpc,
)

Mailer = Callable[[str, str], None]
"""Sends a text to a guest."""

answers = Channel("answers", bool)
reminded = Attribute("reminded", int)


@dataclass(frozen=True)
class Invitation:
    guest: str
    remind_every: timedelta
    deadline: timedelta


class Invite(Step[Invitation]):
    def execute(self, context: Context, input: Invitation) -> StepDecision:
        return go_to_many(StepMovement.of(Remind, input), StepMovement.of(Deadline, input))


class Remind(Step[Invitation]):
    def __init__(self, mailer: Mailer) -> None:
        self.mailer = mailer

    def wait_for(self, context: Context, input: Invitation) -> Wait:
        return Wait.any_of(answers.for_one(), Timer.by_duration(input.remind_every))

    def execute(self, context: Context, input: Invitation) -> StepDecision:
        for accepts in answers.results(context):
            return force_complete(f"{input.guest} {'comes' if accepts else 'declines'}")
        self.mailer(input.guest, "Will you come?")
        reminded.set(context, reminded.get(context) + 1)
        return go_to(Remind, input)


class Deadline(Step[Invitation]):
    def wait_for(self, context: Context, input: Invitation) -> Wait:
        return Wait.until(Timer.by_duration(input.deadline))

    def execute(self, context: Context, input: Invitation) -> StepDecision:
        return force_complete(f"{input.guest} has not answered {reminded.get(context)} reminders")


class ReminderFlow(Flow[Invitation]):
    def __init__(self, mailer: Mailer) -> None:
        self.mailer = mailer

    def get_steps(self) -> StepList[Invitation]:
        return StepList.start_step(Invite).other_steps(Remind(self.mailer), Deadline)

    def get_persistence_schema(self) -> PersistenceSchema:
        return PersistenceSchema.of(answers, reminded)

    @rpc
    def answer(self, context: Context, input: bool) -> RPCResult[str]:
        answers.publish(context, input)
        return RPCResult("thank you")


def no_mail(guest: str, text: str) -> None: ...


flow = ReminderFlow(no_mail)
registry = Registry([flow])


def main() -> None:
    import dexray

    with dexray.connect(registry) as client:
        number = uuid4()
        for guest in ("Ada", "Ben"):
            invitation = Invitation(guest, remind_every=timedelta(seconds=1), deadline=timedelta(seconds=3))
            client.start_flow(flow, f"{guest}-{number}", invitation)
        print(client.invoke_rpc(flow.answer, f"Ada-{number}", True))
        for guest in ("Ada", "Ben"):
            print(client.wait_for_flow(f"{guest}-{number}").single_output(str))


if __name__ == "__main__":
    main()
