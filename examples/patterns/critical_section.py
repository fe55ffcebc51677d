"""Critical Section: parallel branches of one Flow take turns on a sequence of Steps.

Reviewers edit one contract. An edit takes two Steps, and two edits must never interleave. A lock of an Attribute
covers one method of one Step, which is too little here; so a Channel holds exactly one message, the token, and who
holds the token may work.

    StartContractEdits ──┬─> EnterContractEdit ─> EditContract ─> SaveContractEdit     one for each reviewer
      makes the token    │     takes the token      the work        gives it back
                         └─> FinishContractEdits                                       waits for all the records

Every way out of the section gives the token back, once, and leaves one record of its reviewer:

- **saved**: the last Step publishes record and token with its result.
- **failed**: a failed handoff or save, when its attempts are used up, goes on with ReleaseContractEditToken, which
  publishes both.
- **withdrawn**: a reviewer who thinks better of it leaves early; EditContract publishes both.
- **canceled**: CancelHandoffs cancels the handoff to reviewers who are called away. If one held the token by then,
  the token returns to the front of its Channel by itself: a canceled Step publishes nothing, and loses no message.

Cancel the handoff only, never a Step that works on the contract: such a Step took no token itself, so nothing would
give one back.

The one who cancels can't know whether it came in time, since that is decided when its result is saved: a handoff may
have moved on. A second message tells. Each reviewer who may be called away has a *seat*, which the handoff takes
together with the token. Saved, the handoff has used it up; canceled, the seat is back. ReportCanceledEdit takes the
seat if there is one: whoever got it writes the record.

If a process dies in the middle: the token is a message in the database, and belongs to the Step execution that took it,
whose next attempt goes on with it. It is given back with the result of a Step or not at all, so never twice.

Run it with `dexray demo`, or with `python -m examples.patterns.critical_section`.
"""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass, replace
from datetime import timedelta

from dex import (
    AsyncContext,
    Channel,
    ChannelMap,
    Context,
    Flow,
    PersistenceSchema,
    Registry,
    RetryPolicy,
    Step,
    StepDecision,
    StepList,
    StepMovement,
    StepOptions,
    Timer,
    Wait,
    dead_end,
    go_to,
    go_to_many,
    graceful_complete,
)

WORK_SECONDS = 0.2
"""How long each of the two Steps of an edit works on the contract."""
HESITATION_SECONDS = 5.0
"""How long the handoff of a reviewer who is called away takes, with the token in hand."""
CANCEL_AFTER = timedelta(seconds=1)


class ContractEditError(RuntimeError):
    """The contract could not be handed over, or an edit not be saved."""


@dataclass(frozen=True, slots=True)
class ContractEdit:
    """What one reviewer does. Reviewers have different names; the flags choose another exit than "saved"."""

    reviewer: str
    should_fail_handoff: bool = False
    should_fail_edit: bool = False
    should_withdraw: bool = False
    should_cancel_handoff: bool = False
    started_at_millis: int | None = None


@dataclass(frozen=True, slots=True)
class ContractEditRecord:
    """How the edit of one reviewer ended.

    outcome: saved, failed, withdrawn or canceled. An edit that never began has an interval of no length.
    """

    reviewer: str
    outcome: str
    started_at_millis: int
    finished_at_millis: int


CONTRACT_EDIT_TOKEN = Channel("contractEditToken", str)
CONTRACT_EDIT_SEAT = ChannelMap("contractEditSeat", str)
CONTRACT_EDIT_FINISHED = Channel("contractEditFinished", ContractEditRecord)


def current_time_millis() -> int:
    return time.time_ns() // 1_000_000


def report(context: Context, edit: ContractEdit, outcome: str) -> None:
    """Publishes the record of an edit."""
    now = current_time_millis()
    started = now if edit.started_at_millis is None else edit.started_at_millis
    CONTRACT_EDIT_FINISHED.publish(context, ContractEditRecord(edit.reviewer, outcome, started, now))


def leave_section(context: Context, edit: ContractEdit, outcome: str) -> StepDecision:
    """The way out for who holds the token: record and token are published in the one commit that ends the branch."""
    report(context, edit, outcome)
    CONTRACT_EDIT_TOKEN.publish(context, "contract")
    return dead_end()


def section_options() -> StepOptions:
    """For every Step between taking the token and giving it back."""
    retry = RetryPolicy(initial_interval=timedelta(seconds=1), maximum_attempts=2)
    return StepOptions(execute_retry=retry).on_execute_failure_proceed_to(ReleaseContractEditToken)


class StartContractEdits(Step[list[ContractEdit]]):
    """Makes the one token, and starts all branches."""

    def execute(self, context: Context, edits: list[ContractEdit]) -> StepDecision:
        CONTRACT_EDIT_TOKEN.publish(context, "contract")
        hesitant = [edit for edit in edits if edit.should_cancel_handoff]
        for edit in hesitant:
            CONTRACT_EDIT_SEAT.publish(context, edit.reviewer, "seat")
        return go_to_many(
            *(StepMovement.of(EnterHesitantly if edit in hesitant else EnterContractEdit, edit) for edit in edits),
            *([StepMovement.of(CancelHandoffs, hesitant)] if hesitant else []),
            StepMovement.of(FinishContractEdits, len(edits)),
        )


class EnterContractEdit(Step[ContractEdit]):
    """The handoff: takes the token and moves on. It does no protected work, so it may be canceled."""

    def get_step_options(self) -> StepOptions:
        return section_options()

    def wait_for(self, context: Context, edit: ContractEdit) -> Wait:
        return Wait.until(CONTRACT_EDIT_TOKEN.for_one())

    def execute(self, context: Context, edit: ContractEdit) -> StepDecision:
        if edit.should_fail_handoff:
            raise ContractEditError(f"the contract could not be handed to {edit.reviewer}")
        return go_to(EditContract, edit)


class EnterHesitantly(EnterContractEdit):
    """The handoff to a reviewer who will be called away: takes the token and the seat, and dawdles."""

    def wait_for(self, context: Context, edit: ContractEdit) -> Wait:
        return Wait.all_of(CONTRACT_EDIT_TOKEN.for_one(), CONTRACT_EDIT_SEAT.for_one(edit.reviewer))

    async def execute(self, context: AsyncContext, edit: ContractEdit) -> StepDecision:  # type: ignore[override]
        await asyncio.sleep(HESITATION_SECONDS)
        return super().execute(context, edit)


class EditContract(Step[ContractEdit]):
    """The first Step that works on the contract. Never cancel it."""

    def get_step_options(self) -> StepOptions:
        return section_options()

    async def execute(self, context: AsyncContext, edit: ContractEdit) -> StepDecision:
        started = replace(edit, started_at_millis=current_time_millis())
        if started.should_withdraw:
            return leave_section(context, started, "withdrawn")
        await asyncio.sleep(WORK_SECONDS)
        return go_to(SaveContractEdit, started)


class SaveContractEdit(Step[ContractEdit]):
    """The last Step that works on the contract. Never cancel it."""

    def get_step_options(self) -> StepOptions:
        return section_options()

    async def execute(self, context: AsyncContext, edit: ContractEdit) -> StepDecision:
        await asyncio.sleep(WORK_SECONDS)
        if edit.should_fail_edit:
            raise ContractEditError(f"the edit of {edit.reviewer} could not be saved")
        return leave_section(context, edit, "saved")


class ReleaseContractEditToken(Step[ContractEdit]):
    """The way out after a failure anywhere in the section."""

    def execute(self, context: Context, edit: ContractEdit) -> StepDecision:
        return leave_section(context, edit, "failed")


class CancelHandoffs(Step[list[ContractEdit]]):
    """Calls reviewers away: cancels the handoffs to them, those that are still there."""

    def wait_for(self, context: Context, edits: list[ContractEdit]) -> Wait:
        return Wait.until(Timer.by_duration(CANCEL_AFTER))

    def execute(self, context: Context, edits: list[ContractEdit]) -> StepDecision:
        reports = (StepMovement.of(ReportCanceledEdit, edit) for edit in edits)
        return go_to_many(*reports).with_canceling_steps(EnterHesitantly)


class ReportCanceledEdit(Step[ContractEdit]):
    """Writes the record of a reviewer whose handoff was canceled, which it knows by the seat; has no token to give."""

    def wait_for(self, context: Context, edit: ContractEdit) -> Wait:
        return Wait.until(CONTRACT_EDIT_SEAT.at_most(edit.reviewer, 1))

    def execute(self, context: Context, edit: ContractEdit) -> StepDecision:
        if CONTRACT_EDIT_SEAT.results(context, edit.reviewer):
            report(context, edit, "canceled")
        return dead_end()


class FinishContractEdits(Step[int]):
    """Waits until every reviewer has a record, and completes the Flow with all of them."""

    def wait_for(self, context: Context, edit_count: int) -> Wait:
        return Wait.until(CONTRACT_EDIT_FINISHED.for_n(edit_count))

    def execute(self, context: Context, edit_count: int) -> StepDecision:
        return graceful_complete(list(CONTRACT_EDIT_FINISHED.results(context)))


class ContractEditFlow(Flow[list[ContractEdit]]):
    """Edits of one contract by several reviewers, one at a time. Its output is a list of ContractEditRecord."""

    def get_steps(self) -> StepList[list[ContractEdit]]:
        return StepList.start_step(StartContractEdits()).other_steps(
            EnterContractEdit(),
            EnterHesitantly(),
            EditContract(),
            SaveContractEdit(),
            ReleaseContractEditToken(),
            CancelHandoffs(),
            ReportCanceledEdit(),
            FinishContractEdits(),
        )

    def get_persistence_schema(self) -> PersistenceSchema:
        return PersistenceSchema.of(CONTRACT_EDIT_TOKEN, CONTRACT_EDIT_SEAT, CONTRACT_EDIT_FINISHED)


contract_edit_flow = ContractEditFlow()
registry = Registry([contract_edit_flow], allow_async_handlers=True)

DEMO_EDITS = [
    ContractEdit("Ada", should_cancel_handoff=True),
    ContractEdit("Ben"),
    ContractEdit("Cleo", should_fail_handoff=True),
    ContractEdit("Dan", should_withdraw=True),
    ContractEdit("Eve", should_fail_edit=True),
    ContractEdit("Finn"),
]
"""One reviewer for each way out, and one more who must still get a turn."""


def main() -> None:
    import dexray

    with dexray.connect(registry) as client:
        flow_id = f"contract-{current_time_millis()}"
        client.start_flow(contract_edit_flow, flow_id, DEMO_EDITS)
        for record in client.wait_for_flow(flow_id).single_output(list[ContractEditRecord]):
            took = record.finished_at_millis - record.started_at_millis
            print(f"{record.reviewer:6} {record.outcome:10} {took:5} ms")


if __name__ == "__main__":
    main()
