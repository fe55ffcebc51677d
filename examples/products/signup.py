"""Signup: a name is taken, a letter is sent, and sent again each day until its reader has followed the link.

The Flow ID is the user's name, so two who want the same name at the same moment can't both get it: the start of the
Flow decides, and nobody has to look first. `sign_up` turns the refusal into words.

If a process dies in the middle: of the web server, then the user tries again, with the same request id for the same
form, and is told that all is well instead of that the name is taken. Of the engine, then it goes on.

Run it with `python -m examples.products.signup`.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta
from typing import Protocol
from uuid import uuid4

from dex import (
    Attribute,
    Channel,
    Client,
    Context,
    Flow,
    FlowAlreadyStartedError,
    IdReusePolicy,
    PersistenceSchema,
    Registry,
    RPCResult,
    StartFlowOptions,
    Step,
    StepDecision,
    StepList,
    Timer,
    Wait,
    go_to,
    graceful_complete,
    rpc,
)


@dataclass(frozen=True)
class Form:
    name: str
    mail: str


class Mailer(Protocol):
    def send(self, to: str, text: str) -> None: ...


class NoMail:
    def send(self, to: str, text: str) -> None: ...


is_verified = Attribute("is_verified", bool)
letters = Attribute("letters", int)
verified = Channel("verified", None)


class Submit(Step[Form]):
    def __init__(self, mailer: Mailer) -> None:
        self.mailer = mailer

    def execute(self, context: Context, input: Form) -> StepDecision:
        self.mailer.send(input.mail, f"Welcome, {input.name}! Please follow the link.")
        letters.set(context, 1)
        return go_to(Verify, input)


class Verify(Step[Form]):
    def __init__(self, mailer: Mailer, remind_after: timedelta) -> None:
        self.mailer, self.remind_after = mailer, remind_after

    def wait_for(self, context: Context, input: Form) -> Wait:
        return Wait.any_of(Timer.by_duration(self.remind_after), verified.for_one())

    def execute(self, context: Context, input: Form) -> StepDecision:
        if verified.results(context):
            return graceful_complete(f"{input.name} is verified after {letters.get(context)} letters")
        if not is_verified.get(context):
            self.mailer.send(input.mail, f"{input.name}, please follow the link.")
            letters.set(context, letters.get(context) + 1)
        return go_to(Verify, input)


class UserSignupFlow(Flow[Form]):
    def __init__(self, mailer: Mailer, remind_after: timedelta = timedelta(hours=24)) -> None:
        self.mailer, self.remind_after = mailer, remind_after

    def get_steps(self) -> StepList[Form]:
        return StepList.start_step(Submit(self.mailer)).other_steps(Verify(self.mailer, self.remind_after))

    def get_persistence_schema(self) -> PersistenceSchema:
        return PersistenceSchema.of(is_verified, letters, verified)

    @rpc(is_transactional=True)
    def verify(self, context: Context) -> RPCResult[str]:
        """What the link calls, once or often."""
        if is_verified.get(context):
            return RPCResult("you are verified already")
        is_verified.set(context, True)
        verified.publish(context, None)
        return RPCResult("you are verified")


flow = UserSignupFlow(NoMail(), remind_after=timedelta(seconds=1))
registry = Registry([flow])


def sign_up(client: Client, form: Form, form_id: str) -> str:
    """form_id: made with the form, so that a form that is sent twice is the same one."""
    once = StartFlowOptions(id_reuse_policy=IdReusePolicy.DISALLOW, request_id=form_id, ignore_already_started=True)
    try:
        client.start_flow(flow, form.name, form, once)
    except FlowAlreadyStartedError:
        return f"the name {form.name} is taken"
    return "look into your letterbox"


def main() -> None:
    import time

    import dexray

    with dexray.connect(registry) as client:
        form = Form(f"ada-{uuid4()}", "ada@example.org")
        print(sign_up(client, form, "form 1"))
        print(sign_up(client, form, "form 1"))
        print(sign_up(client, Form(form.name, "ben@example.org"), "form 2"))
        time.sleep(1.5)
        print(client.invoke_rpc(flow.verify, form.name))
        print(client.wait_for_flow(form.name).single_output(str))


if __name__ == "__main__":
    main()
