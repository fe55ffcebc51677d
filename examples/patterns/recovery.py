"""Recovery on two levels: a Step that fails for good goes on with another, and that one with a third.

`on_execute_failure_proceed_to` names the Step that takes over when the attempts are used up. It gets the same input,
and `recovery_error` says what went wrong and whether an attempt may have run at all (`attempt_progress`). It is a Step
like any other and may have a route of its own. Only when the last one fails does the Flow fail.

If a process dies in the middle: that is one of the failures that use up attempts, so a Step that kills its worker
again and again leads here too. Its effects may have happened: look before undoing them.

Run it with `python -m examples.patterns.recovery`.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
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
    graceful_complete,
)

Send = Callable[[str], None]
"""Sends a message, or raises."""

TWICE = RetryPolicy(initial_interval=timedelta(seconds=1), maximum_attempts=2)


class SendByMail(Step[str]):
    def __init__(self, send: Send) -> None:
        self.send = send

    def get_step_options(self) -> StepOptions:
        return StepOptions(execute_retry=TWICE).on_execute_failure_proceed_to(SendByFax)

    def execute(self, context: Context, input: str) -> StepDecision:
        self.send(input)
        return graceful_complete("by mail")


class SendByFax(Step[str]):
    def __init__(self, send: Send) -> None:
        self.send = send

    def get_step_options(self) -> StepOptions:
        return StepOptions(execute_retry=TWICE).on_execute_failure_proceed_to(PutOnPile)

    def execute(self, context: Context, input: str) -> StepDecision:
        self.send(input)
        return graceful_complete(f"by fax, because {why(context)}")


class PutOnPile(Step[str]):
    def execute(self, context: Context, input: str) -> StepDecision:
        return graceful_complete(f"on the pile, because {why(context)}")


def why(context: Context) -> str:
    error = context.recovery_error
    return f"{error.detail} ({error.attempt_progress.name})" if error else "nobody knows why"


class RecoveryFlow(Flow[str]):
    def __init__(self, mail: Send, fax: Send) -> None:
        self.mail, self.fax = mail, fax

    def get_steps(self) -> StepList[str]:
        return StepList.start_step(SendByMail(self.mail)).other_steps(SendByFax(self.fax), PutOnPile)


def out_of_order(message: str) -> None:
    raise ConnectionError("the mail server is down")


def fax(message: str) -> None:
    if len(message) > 20:
        raise ValueError("too long for a fax")


flow = RecoveryFlow(out_of_order, fax)
registry = Registry([flow])


def main() -> None:
    import dexray

    with dexray.connect(registry) as client:
        for message in ("Hello!", "It was the best of times, it was the worst of times"):
            flow_id = f"message-{uuid4()}"
            client.start_flow(flow, flow_id, message)
            print("sent", client.wait_for_flow(flow_id).single_output(str))


if __name__ == "__main__":
    main()
