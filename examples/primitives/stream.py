"""Stream: progress to watch while a Step runs, here a storyteller's words.

A Stream belongs to a Flow ID and keeps its newest messages, up to a number of bytes. It is no state: what must not be
lost or doubled goes into Attributes and results. Messages stay when an attempt fails, and come again from the next one.

A generator Step yields the frames that `Stream.write` and `buffered_text` make; an asynchronous Step writes without
`yield`. Clients read on from a token, list the newest, and write too: here the audience's applause.

If a process dies in the middle: what was told stays told, and the next attempt tells it again from the start.

Run it with `python -m examples.primitives.stream`.
"""

from __future__ import annotations

from collections.abc import Generator, Iterator
from datetime import timedelta
from uuid import uuid4

from dex import (
    Client,
    Context,
    Flow,
    PersistenceSchema,
    Registry,
    Step,
    StepDecision,
    StepList,
    StepOutput,
    Stream,
    graceful_complete,
)

chapters = Stream("chapters", int, 1_000)
words = Stream("words", str, 100_000)

STORY = ("Once upon a time there was a Flow.", "It had but two Steps.", "They lived happily ever after.")
THE_END = "The end."


class Tell(Step[tuple[str, ...]]):
    def execute(self, context: Context, input: tuple[str, ...]) -> Generator[StepOutput, None, StepDecision]:
        for number, sentence in enumerate(input, 1):
            yield chapters.write(context, number)
            text = words.buffered_text(context, max_buffered_bytes=16)  # a message for every few words
            for word in sentence.split():
                yield from text.write(f"{word} ")
            yield from text.flush()
        yield words.write(context, THE_END)
        return graceful_complete(len(input))


class Storyteller(Flow[tuple[str, ...]]):
    def get_steps(self) -> StepList[tuple[str, ...]]:
        return StepList.start_step(Tell())

    def get_persistence_schema(self) -> PersistenceSchema:
        return PersistenceSchema.of(chapters, words)


flow = Storyteller()
registry = Registry([flow])


def listen(client: Client, flow_id: str) -> Iterator[str]:
    """The words as they come; whoever keeps the token can go on later, or elsewhere."""
    token = ""
    while True:
        message = client.read_stream(flow_id, words, token, timedelta(seconds=30))
        if message.value == THE_END:
            return
        yield message.value
        token = message.resume_token


def an_evening(client: Client, flow_id: str) -> tuple[str, int, tuple[str, ...]]:
    """The story, the chapters told last, and who wrote the last words."""
    client.start_flow(flow, flow_id, STORY)
    story = "".join(listen(client, flow_id)).strip()
    client.write_stream(flow_id, words, "audience", "Bravo!")
    last = client.list_stream_messages(flow_id, chapters, page_size=1).messages[0].value
    newest = client.list_stream_messages(flow_id, words, page_size=2)
    return story, last, tuple(message.source for message in newest.messages)


def main() -> None:
    import dexray

    with dexray.connect(registry) as client:
        print(an_evening(client, f"story-{uuid4()}"))


if __name__ == "__main__":
    main()
