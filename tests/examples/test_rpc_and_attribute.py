"""The examples of RPCs and Attributes, in process."""

from __future__ import annotations

from dex import FlowStatus
from dexray.testing import FlowTest
from examples.primitives import attribute, rpc


def test_a_meeting_is_joined_closed_and_remembered() -> None:
    with FlowTest(rpc.registry) as test:
        client = test.client
        assert rpc.meet(client, "meeting") == [
            "Stand-up begins",
            "Ada is number 1",
            "Ben is number 2",
            "Stand-up: closed by Ada, 2 guests",
            "there were Ada, Ben",
        ]
        assert client.describe_flow("meeting").status is FlowStatus.COMPLETED


def test_a_warehouse_counts_and_forgets_what_is_gone() -> None:
    with FlowTest(attribute.registry) as test:
        client = test.client
        assert attribute.a_day(client, "warehouse") == {"bolts": 70}
        assert client.get_attribute("warehouse", attribute.town) == "Turin"
        assert client.get_attribute("warehouse", attribute.moves) == 4
