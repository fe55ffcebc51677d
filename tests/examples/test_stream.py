"""The example of Streams, in process."""

from __future__ import annotations

from pathlib import Path

from examples.primitives import stream
from tests.examples.test_rpc_and_attribute import client_of


def test_a_story_is_heard_while_it_is_told(tmp_path: Path) -> None:
    with client_of(stream.registry, tmp_path) as client:
        story, chapter, sources = stream.an_evening(client, "story")
        assert story == " ".join(stream.STORY)
        assert chapter == 3
        assert sources == ("audience", "#Tell-1")
        assert client.wait_for_flow("story").single_output(int) == 3
