"""Shortlist: two kinds of Flows that ask each other; candidates hear of it only if the employer wants that.

`EmployerOptInFlow` is an employer's consent, one Flow for each employer. `ShortlistFlow` is a candidate on a list: for
five minutes it can be revoked, then it asks the employer's Flow, and writes to the candidate if the answer is yes. An
employer without such a Flow, or with one that has ended, has not consented.

If a process dies in the middle: a question to the other Flow changes nothing and is asked again. The letter has a key,
so that it is sent once. A revocation that was accepted in the five minutes holds.

Run it with `python -m examples.products.shortlist_candidates`.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta
from typing import Protocol
from uuid import uuid4

from dex import (
    AsyncClient,
    AsyncContext,
    Attribute,
    AttributeIndex,
    Channel,
    Context,
    Flow,
    FlowNotActiveOrNotFoundError,
    IndexType,
    PersistenceSchema,
    Registry,
    RPCResult,
    Step,
    StepDecision,
    StepList,
    Timer,
    Wait,
    force_complete,
    go_to,
    graceful_complete,
    rpc,
)

# The employer's consent -----------------------------------------------------------------------------------------------

consent = Attribute("consent", bool)
opt_out = Channel("opt_out", None)


class OptIn(Step[None]):
    def execute(self, context: Context, input: None) -> StepDecision:
        consent.set(context, True)
        return go_to(OptOut, None)


class OptOut(Step[None]):
    def wait_for(self, context: Context, input: None) -> Wait:
        return Wait.until(opt_out.for_one())

    def execute(self, context: Context, input: None) -> StepDecision:
        consent.set(context, False)
        return force_complete()


class EmployerOptInFlow(Flow[None]):
    """Its Flow ID is the employer's."""

    def get_steps(self) -> StepList[None]:
        return StepList.start_step(OptIn).other_steps(OptOut)

    def get_persistence_schema(self) -> PersistenceSchema:
        return PersistenceSchema.of(consent, opt_out)

    @rpc
    def has_consented(self, context: Context) -> RPCResult[bool]:
        return RPCResult(consent.get(context))


# A candidate on a list ------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Candidate:
    employer: str
    name: str


class Mailer(Protocol):
    def send(self, to: str, text: str, key: str) -> None: ...


class NoMail:
    def send(self, to: str, text: str, key: str) -> None: ...


employer_id = Attribute("employer_id", str, index=AttributeIndex(IndexType.KEYWORD))
revoked = Channel("revoked", str)


class Shortlist(Step[Candidate]):
    def __init__(self, grace: timedelta) -> None:
        self.grace = grace

    def wait_for(self, context: Context, input: Candidate) -> Wait:
        employer_id.set(context, input.employer)
        return Wait.any_of(revoked.for_one(), Timer.by_duration(self.grace))

    def execute(self, context: Context, input: Candidate) -> StepDecision:
        for reason in revoked.results(context):
            return force_complete(f"revoked: {reason}")
        return go_to(SendEmail, input)


class SendEmail(Step[Candidate]):
    def __init__(self, mailer: Mailer) -> None:
        self.mailer = mailer

    async def execute(self, context: AsyncContext, input: Candidate) -> StepDecision:
        async with AsyncClient(employers) as client:
            try:
                wanted = await client.invoke_rpc(opt_in_flow.has_consented, input.employer)
            except FlowNotActiveOrNotFoundError:
                wanted = False
        if not wanted:
            return graceful_complete("not told: the employer has not consented")
        self.mailer.send(input.name, f"You are on the list of {input.employer}", context.flow_id)
        return graceful_complete("told")


class ShortlistFlow(Flow[Candidate]):
    def __init__(self, mailer: Mailer, grace: timedelta = timedelta(minutes=5)) -> None:
        self.mailer, self.grace = mailer, grace

    def get_steps(self) -> StepList[Candidate]:
        return StepList.start_step(Shortlist(self.grace)).other_steps(SendEmail(self.mailer))

    def get_persistence_schema(self) -> PersistenceSchema:
        return PersistenceSchema.of(employer_id, revoked)


opt_in_flow = EmployerOptInFlow()
employers = Registry([opt_in_flow])
shortlist_flow = ShortlistFlow(NoMail(), grace=timedelta(seconds=1))
registry = Registry([opt_in_flow, shortlist_flow], allow_async_handlers=True)


def main() -> None:
    import dexray

    with dexray.connect(registry) as client:
        number = uuid4()
        employer = f"acme-{number}"
        client.start_flow(opt_in_flow, employer)
        for name, of in (("Ada", employer), ("Ben", employer), ("Cleo", f"nobody-{number}")):
            client.start_flow(shortlist_flow, f"{name}-{number}", Candidate(of, name))
        client.publish(f"Ben-{number}", revoked, "a mistake")
        for name in ("Ada", "Ben", "Cleo"):
            print(name, client.wait_for_flow(f"{name}-{number}").single_output(str))
        client.publish(employer, opt_out, None)


if __name__ == "__main__":
    main()
