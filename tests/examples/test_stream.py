"""The example of Streams, in process."""

from __future__ import annotations

from dexray.testing import FlowTest
from examples.primitives import stream


def test_a_story_is_heard_while_it_is_told() -> None:
    with FlowTest(stream.registry) as test:
        client = test.client
        story, chapter, sources = stream.an_evening(client, "story")
        assert story == " ".join(stream.STORY)
        assert chapter == 3
        assert sources == ("audience", "#Tell-1")
        assert client.wait_for_flow("story").single_output(int) == 3
