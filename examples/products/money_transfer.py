"""Money transfer: from one account to another, and all undone when a part of it can't be done.

A saga. Two memos and two bookings are made, each in a Step of its own, each by a bank that may refuse or be away for a
while. When a Step has failed for good, `Compensate` cancels everything that may have been booked, and the Flow fails
with the reason.

Every booking has a key, made of the Flow ID and the Step's name: the bank does nothing for a key that it has seen. To
cancel a key that was never booked is no error, and keeps it from being booked later: an attempt that was given up as
lost may still be on its way.

If a process dies in the middle: the Step under way is tried again, with the same key. Money is moved once or not at
all, and never left between the accounts.

Run it with `python -m examples.products.money_transfer`.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta
from typing import Protocol
from uuid import uuid4

from dex import (
    Context,
    Flow,
    Registry,
    RetryPolicy,
    Step,
    StepDecision,
    StepList,
    StepOptions,
    force_fail,
    go_to,
    graceful_complete,
)


@dataclass(frozen=True)
class Transfer:
    """The amount is in cents."""

    source: str
    target: str
    amount: int


class Bank(Protocol):
    def balance(self, account: str) -> int: ...

    def note(self, account: str, text: str, key: str) -> None: ...

    def book(self, account: str, amount: int, key: str) -> None:
        """Adds an amount, which may be negative. Raises for an account that is closed."""

    def cancel(self, key: str) -> None:
        """Takes back what was noted or booked under a key, now or later."""


class DemoBank:
    """Has its books nowhere; knows that Carl's account is closed."""

    def balance(self, account: str) -> int:
        return 10_000

    def note(self, account: str, text: str, key: str) -> None: ...

    def book(self, account: str, amount: int, key: str) -> None:
        if account == "Carl":
            raise PermissionError("Carl's account is closed")

    def cancel(self, key: str) -> None: ...


class BankStep(Step[Transfer]):
    """A Step that asks the bank, again and again for a while, and then gives the transfer up."""

    def __init__(self, bank: Bank, patience: timedelta) -> None:
        self.bank, self.patience = bank, patience

    def get_step_options(self) -> StepOptions:
        retry = RetryPolicy(initial_interval=timedelta(seconds=1), total_duration=self.patience)
        return StepOptions(execute_retry=retry).on_execute_failure_proceed_to(Compensate)


class CheckBalance(BankStep):
    def execute(self, context: Context, input: Transfer) -> StepDecision:
        if self.bank.balance(input.source) < input.amount:
            return force_fail(f"{input.source} has not enough")
        return go_to(CreateDebitMemo, input)


class CreateDebitMemo(BankStep):
    def execute(self, context: Context, input: Transfer) -> StepDecision:
        self.bank.note(input.source, f"to {input.target}", key(context, CreateDebitMemo))
        return go_to(Debit, input)


class Debit(BankStep):
    def execute(self, context: Context, input: Transfer) -> StepDecision:
        self.bank.book(input.source, -input.amount, key(context, Debit))
        return go_to(CreateCreditMemo, input)


class CreateCreditMemo(BankStep):
    def execute(self, context: Context, input: Transfer) -> StepDecision:
        self.bank.note(input.target, f"from {input.source}", key(context, CreateCreditMemo))
        return go_to(Credit, input)


class Credit(BankStep):
    def execute(self, context: Context, input: Transfer) -> StepDecision:
        self.bank.book(input.target, input.amount, key(context, Credit))
        return graceful_complete(f"{input.amount} went from {input.source} to {input.target}")


class Compensate(Step[Transfer]):
    """Undoes, last first. It may not give up: its attempts have no end within the time that a bank takes to heal."""

    def __init__(self, bank: Bank) -> None:
        self.bank = bank

    def get_step_options(self) -> StepOptions:
        return StepOptions(execute_retry=RetryPolicy(total_duration=timedelta(days=30)))

    def execute(self, context: Context, input: Transfer) -> StepDecision:
        for step in (Credit, CreateCreditMemo, Debit, CreateDebitMemo):
            self.bank.cancel(key(context, step))
        error = context.recovery_error
        return force_fail(f"undone: {error.detail if error else 'unknown'}")


def key(context: Context, step: type[BankStep]) -> str:
    return f"{context.flow_id}/{step.__name__}"


class MoneyTransferFlow(Flow[Transfer]):
    def __init__(self, bank: Bank, patience: timedelta = timedelta(hours=1)) -> None:
        self.bank, self.patience = bank, patience

    def get_steps(self) -> StepList[Transfer]:
        others = (CreateDebitMemo, Debit, CreateCreditMemo, Credit)
        return StepList.start_step(CheckBalance(self.bank, self.patience)).other_steps(
            *(step(self.bank, self.patience) for step in others), Compensate(self.bank)
        )


flow = MoneyTransferFlow(DemoBank(), patience=timedelta(seconds=3))
registry = Registry([flow])


def main() -> None:
    import dexray

    with dexray.connect(registry) as client:
        for transfer in (Transfer("Ada", "Ben", 2500), Transfer("Ada", "Ben", 99_999), Transfer("Ada", "Carl", 1)):
            flow_id = f"transfer-{uuid4()}"
            client.start_flow(flow, flow_id, transfer)
            result = client.wait_for_flow(flow_id)
            print(result.status.name, result.error_message or result.single_output(str))
            steps = (event.step_execution_id for event in client.history(flow_id) if event.kind == "StepCompleted")
            print("  after", ", ".join(steps))


if __name__ == "__main__":
    main()
