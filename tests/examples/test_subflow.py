"""The SubFlow example, in process and in virtual time."""

from __future__ import annotations

from datetime import timedelta

import pytest

from dex import Client, FlowStatus
from dexray.testing import FlowTest
from examples.primitives.subflow import DEMO, Carrier, Parcel, parcel_flow, registry


def answers_of(client: Client, parcel: Parcel) -> list[str]:
    client.start_flow(parcel_flow, "p", parcel)
    return client.wait_for_flow("p").single_output(list[str])


# C5, C54
@pytest.mark.statement("B19", "B95", "B97")
def test_the_best_of_those_who_answered_in_time_carries_the_parcel() -> None:
    with FlowTest(registry) as test:
        assert answers_of(test.client, DEMO) == [
            "SubFlow:p-CompareAnswers-1-0 is COMPLETED",
            "SubFlow:p-CompareAnswers-1-1 is COMPLETED",
            "SubFlow:p-CompareAnswers-1-2 is FAILED Rock declined",
            "SubFlow:p-CompareAnswers-1-3 is RUNNING",
            "Snail carries it",
        ]
        assert test.status("SubFlow:p-CompareAnswers-1-3") == "RUNNING"
        test.advance(timedelta(days=1))
        late = test.client.wait_for_flow("SubFlow:p-CompareAnswers-1-3")
        assert late.status is FlowStatus.CANCELED


def test_nobody_is_waited_for_when_all_have_answered() -> None:
    with FlowTest(registry) as test:
        began = test.now()
        parcel = Parcel([Carrier("Rock", 0, 1), Carrier("Stone", 0, 2)], seconds=10**6)
        assert answers_of(test.client, parcel)[-1] == "nobody carries it"
        assert test.now() - began < timedelta(minutes=1)
