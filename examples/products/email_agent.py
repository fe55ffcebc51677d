"""An e-mail agent: talks with a person, drafts a letter, and sends it at the agreed time unless told otherwise.

The model stands behind an interface, `Model`: it gets the conversation and answers with what to do next. The one here
follows simple rules and needs no key; one that asks a service is as long. All that matters happens in the Flow: the
conversation is its state, each turn of the model is a Step with retries, the waiting letter is a Step with a Timer, and
a new instruction replaces it. A word that comes when the letter is on its way comes too late.

If a process dies in the middle: a question to the model is asked again, and the conversation has each turn once. The
letter waits in the database, is sent after its time and never before it, and has a key by which it goes out once.

Run it with `python -m examples.products.email_agent`.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from datetime import timedelta
from typing import Protocol
from uuid import uuid4

from dex import (
    Attribute,
    AttributeMatch,
    Channel,
    Context,
    Flow,
    PersistenceSchema,
    Registry,
    RetryPolicy,
    RPCResult,
    Step,
    StepDecision,
    StepList,
    StepMovement,
    StepOptions,
    Timer,
    Wait,
    force_complete,
    go_to,
    go_to_many,
    rpc,
)


@dataclass(frozen=True)
class Letter:
    to: str
    text: str
    seconds: int


@dataclass(frozen=True)
class Turn:
    """What the model says, and the letter that it wants to have sent; cancel: none, and not the one that waits."""

    say: str
    letter: Letter | None = None
    cancel: bool = False


class Model(Protocol):
    def next_turn(self, conversation: list[str]) -> Turn: ...


class Mailer(Protocol):
    def send(self, letter: Letter, key: str) -> None: ...


class RuleModel:
    """Understands `send TEXT to NAME in SECONDS` and `cancel`."""

    def next_turn(self, conversation: list[str]) -> Turn:
        last = conversation[-1]
        if wanted := re.search(r"send (?P<text>.+) to (?P<to>\S+) in (?P<seconds>\d+)", last):
            letter = Letter(wanted["to"], wanted["text"], int(wanted["seconds"]))
            return Turn(f"I will write to {letter.to} in {letter.seconds} s", letter)
        if "cancel" in last:
            return Turn("It is canceled", cancel=True)
        return Turn("What shall I send, and to whom?")


class NoMail:
    def send(self, letter: Letter, key: str) -> None: ...


conversation: Attribute[list[str]] = Attribute("conversation", list[str])
turns = Attribute("turns", int)
said = Channel("said", str)


class Init(Step[str]):
    def execute(self, context: Context, input: str) -> StepDecision:
        conversation.set(context, [f"agent: Hello, {input}"])
        turns.set(context, 0)
        return go_to(Agent, None)


class Agent(Step[None]):
    def __init__(self, model: Model) -> None:
        self.model = model

    def get_step_options(self) -> StepOptions:
        return StepOptions(execute_retry=RetryPolicy(initial_interval=timedelta(seconds=1), maximum_attempts=10))

    def wait_for(self, context: Context, input: None) -> Wait:
        return Wait.until(said.at_least(1))

    def execute(self, context: Context, input: None) -> StepDecision:
        heard = [*(conversation.get(context) or []), *(f"user: {text}" for text in said.results(context))]
        turn = self.model.next_turn(heard)
        conversation.set(context, [*heard, f"agent: {turn.say}"])
        turns.set(context, turns.get(context) + 1)
        again = StepMovement.of(Agent, None)
        if turn.letter is not None:
            return go_to_many(again, StepMovement.of(Schedule, turn.letter)).with_canceling_steps(Schedule)
        return go_to_many(again).with_canceling_steps(Schedule) if turn.cancel else go_to_many(again)


class Schedule(Step[Letter]):
    """The letter waits here; whoever cancels this Step, cancels the letter."""

    def wait_for(self, context: Context, input: Letter) -> Wait:
        return Wait.until(Timer.by_duration(timedelta(seconds=input.seconds)))

    def execute(self, context: Context, input: Letter) -> StepDecision:
        return go_to(Sending, input)


class Sending(Step[Letter]):
    def __init__(self, mailer: Mailer) -> None:
        self.mailer = mailer

    def execute(self, context: Context, input: Letter) -> StepDecision:
        self.mailer.send(input, context.flow_id)
        return force_complete(f"sent to {input.to}")


class EmailAgentFlow(Flow[str]):
    """Started with the user's name. It ends when a letter was sent."""

    def __init__(self, model: Model, mailer: Mailer) -> None:
        self.model, self.mailer = model, mailer

    def get_steps(self) -> StepList[str]:
        return StepList.start_step(Init).other_steps(Agent(self.model), Schedule, Sending(self.mailer))

    def get_persistence_schema(self) -> PersistenceSchema:
        return PersistenceSchema.of(conversation, turns, said)

    @rpc
    def say(self, context: Context, input: str) -> None:
        said.publish(context, input)

    @rpc
    def read(self, context: Context) -> RPCResult[list[str]]:
        return RPCResult(conversation.get(context) or [])


flow = EmailAgentFlow(RuleModel(), NoMail())
registry = Registry([flow])


def main() -> None:
    import dexray

    with dexray.connect(registry) as client:
        flow_id = f"agent-{uuid4()}"
        client.start_flow(flow, flow_id, "Ada")
        instructions = (
            "good morning",
            "send kind regards to Ben in 600",
            "cancel that",
            "send best wishes to Cleo in 1",
        )
        for turn, text in enumerate(instructions):
            client.wait_for_attribute_match(flow_id, turns, AttributeMatch.equal_to(turn))
            client.invoke_rpc(flow.say, flow_id, text)
        print(client.wait_for_flow(flow_id).single_output(str))
        print(*client.invoke_rpc(flow.read, flow_id), sep="\n")


if __name__ == "__main__":
    main()
