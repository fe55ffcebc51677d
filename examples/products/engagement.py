"""Engagement: an employer's offer, repeated daily until it is accepted, declined, opted out of, or too old.

The decision comes by an RPC. It settles the status, ends the reminders, and starts a Step that tells the other system,
all in one commit: there is no moment in which an offer is accepted and a reminder still goes out. The first decision
counts; a second one hears what was decided.

If a process dies in the middle: the decision is committed as a whole or not. Telling the other system is tried until
it has been heard, and may be heard twice.

Run it with `python -m examples.products.engagement`.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta
from typing import Protocol
from uuid import uuid4

from dex import (
    Attribute,
    AttributeIndex,
    Client,
    Context,
    Flow,
    IndexType,
    PersistenceSchema,
    Registry,
    RetryPolicy,
    RPCResult,
    Step,
    StepDecision,
    StepExecutionId,
    StepList,
    StepMovement,
    StepOptions,
    Timer,
    Wait,
    dead_end,
    force_complete,
    go_to,
    go_to_many,
    quoted,
    rpc,
)


@dataclass(frozen=True)
class Offer:
    employer: str
    seeker: str
    remind_every: timedelta = timedelta(days=1)
    expires_after: timedelta = timedelta(days=60)


class Messages(Protocol):
    def remind(self, seeker: str, text: str) -> None: ...

    def notify(self, system: str, text: str) -> None: ...


class NoMessages:
    def remind(self, seeker: str, text: str) -> None: ...

    def notify(self, system: str, text: str) -> None: ...


status = Attribute("status", str, index=AttributeIndex(IndexType.KEYWORD, "EngagementStatus"))
employer = Attribute("employer", str, index=AttributeIndex(IndexType.KEYWORD))
opted_out = Attribute("opted_out", bool)


class Initialize(Step[Offer]):
    def execute(self, context: Context, input: Offer) -> StepDecision:
        status.set(context, "initiated")
        employer.set(context, input.employer)
        return go_to_many(StepMovement.of(ProcessTimeout, input), StepMovement.of(Reminder, input))


class ProcessTimeout(Step[Offer]):
    def wait_for(self, context: Context, input: Offer) -> Wait:
        return Wait.until(Timer.by_duration(input.expires_after))

    def execute(self, context: Context, input: Offer) -> StepDecision:
        if status.get(context) != "initiated":
            return dead_end()
        status.set(context, "expired")
        return go_to(NotifyExternalSystem, "expired").with_canceling_steps(Reminder)


class Reminder(Step[Offer]):
    def __init__(self, messages: Messages) -> None:
        self.messages = messages

    def wait_for(self, context: Context, input: Offer) -> Wait:
        return Wait.until(Timer.by_duration(input.remind_every))

    def execute(self, context: Context, input: Offer) -> StepDecision:
        if opted_out.get(context):
            return dead_end()
        self.messages.remind(input.seeker, f"{input.employer} would like to hear from you")
        return go_to(Reminder, input)


class NotifyExternalSystem(Step[str]):
    def __init__(self, messages: Messages) -> None:
        self.messages = messages

    def get_step_options(self) -> StepOptions:
        return StepOptions(execute_retry=RetryPolicy(total_duration=timedelta(days=7)))

    def execute(self, context: Context, input: str) -> StepDecision:
        self.messages.notify("applicants", f"{context.flow_id} is {input}")
        return force_complete(input)


class EngagementFlow(Flow[Offer]):
    def __init__(self, messages: Messages) -> None:
        self.messages = messages

    def get_steps(self) -> StepList[Offer]:
        return StepList.start_step(Initialize).other_steps(
            ProcessTimeout, Reminder(self.messages), NotifyExternalSystem(self.messages)
        )

    def get_persistence_schema(self) -> PersistenceSchema:
        return PersistenceSchema.of(status, employer, opted_out)

    @rpc(lock_attributes=(status.lock(),))
    def decide(self, context: Context, input: bool) -> RPCResult[str]:
        """Accepts or declines, and returns what holds from now on: this decision or an earlier one."""
        known = status.get(context)
        if known not in (None, "initiated"):
            return RPCResult(known)
        decision = "accepted" if input else "declined"
        status.set(context, decision)
        told = RPCResult(decision, next_steps=(StepMovement.of(NotifyExternalSystem, decision),))
        return told.with_canceling_steps(Reminder, ProcessTimeout)

    @rpc
    def opt_out_of_reminders(self, context: Context) -> None:
        opted_out.set(context, True)


flow = EngagementFlow(NoMessages())
registry = Registry([flow])


def open_offers(client: Client, employer: str) -> list[str]:
    """The Flow IDs of an employer's offers that nobody has decided on yet."""
    query = f"employer = {quoted(employer)} AND EngagementStatus = 'initiated'"
    return [entry.flow_id for entry in client.search_flows(query, page_size=100).flows]


def main() -> None:
    import dexray

    with dexray.connect(registry) as client:
        flow_id = f"offer-{uuid4()}"
        client.start_flow(flow, flow_id, Offer("Acme", "Ada", remind_every=timedelta(seconds=1)))
        client.wait_for_step_completion(flow_id, StepExecutionId(Reminder, 2))
        print("open:", flow_id in open_offers(client, "Acme"))
        print(client.invoke_rpc(flow.decide, flow_id, True))
        print("open:", flow_id in open_offers(client, "Acme"))
        print(client.wait_for_flow(flow_id).single_output(str))
        done = [event.step_execution_id for event in client.history(flow_id) if event.kind == "StepCompleted"]
        print(sum(step.startswith("Reminder-") for step in done), "reminders were sent")


if __name__ == "__main__":
    main()
