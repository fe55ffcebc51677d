"""An agent: a model that talks, asks for tools, hears of their results, and goes on until the task is done.

    Think ──► says something ──► waits for the person ──► Think …
          └─► asks for tools ──► one UseTool each, in parallel ──► Gather ──► Think …
          └─► is done ──► the Flow ends with its answer

The model stands behind a protocol, `Model`: it gets the conversation and answers with pieces, which are words or calls
of tools. The one here follows rules and needs no key; one that asks a service is as long.

- **Each tool call is a Step**: it has retries of its own, runs beside the others, is committed once, and shows up in
  the history with its input and result. A tool that fails for good is told to the model, which may try something else.
- **The person speaks by Channel**, at any time; what is said while the model thinks is heard at its next turn.
- **Words are a Stream**: they are there to read while the model still speaks.
- **The conversation is the state**, and has each turn once, however often a turn had to be repeated.

If a process dies in the middle: the turn of the model or the tool call that was under way runs again, and nothing else.
Words that were already shown are shown again. Tools that change the world get a key, under which to do it once.

Run it with `python -m examples.pipelines.agent`.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass
from datetime import timedelta
from typing import Protocol
from uuid import uuid4

from dex import (
    AsyncContext,
    Attribute,
    AttributeMatch,
    Channel,
    Context,
    Flow,
    PersistenceSchema,
    Registry,
    RetryPolicy,
    RPCResult,
    Step,
    StepDecision,
    StepList,
    StepMovement,
    StepOptions,
    Stream,
    Timer,
    Wait,
    dead_end,
    go_to,
    go_to_many,
    graceful_complete,
    rpc,
)


@dataclass(frozen=True)
class Said:
    """A line of the conversation. who: user, agent, or tool."""

    who: str
    text: str


@dataclass(frozen=True)
class ToolCall:
    tool: str
    argument: str


@dataclass(frozen=True)
class Done:
    """The model holds the task to be done."""

    answer: str


class Model(Protocol):
    """Pieces of the next turn: words as they come, calls of tools, or the end."""

    def turn(self, conversation: list[Said]) -> AsyncIterator[str | ToolCall | Done]: ...


class Tool(Protocol):
    async def __call__(self, argument: str, key: str) -> str:
        """key: the same in all attempts of a call, and no other's."""
        ...


class RuleModel:
    """Adds and looks up what it is asked for, tells what came of it, and says goodbye."""

    async def turn(self, conversation: list[Said]) -> AsyncIterator[str | ToolCall | Done]:
        asked = max(number for number, said in enumerate(conversation) if said.who == "user")
        question, results = conversation[asked].text, [said for said in conversation[asked + 1 :] if said.who == "tool"]
        if results:
            for word in f"I have found: {', '.join(said.text for said in results)}. Anything else?".split():
                await asyncio.sleep(0.01)
                yield f"{word} "
        elif "bye" in question:
            yield Done("Goodbye!")
        else:
            calls = [ToolCall("add", sum) for sum in re.findall(r"[\d.]+(?: ?\+ ?[\d.]+)+", question)]
            calls += [ToolCall("population", city) for city in re.findall(r"people in (\w+)", question)]
            for call in calls:
                yield call
            if not calls:
                yield "I can add numbers, and tell how many people live in a city."


async def add(argument: str, key: str) -> str:
    return f"{argument} = {sum(float(number) for number in argument.split('+')):g}"


async def population(argument: str, key: str) -> str:
    known = {"Oslo": 717_710, "Rome": 2_748_109, "Lima": 10_092_000}
    if argument not in known:
        raise LookupError(f"there is no city {argument}")
    return f"{argument} has {known[argument]:,} people"


conversation: Attribute[list[Said]] = Attribute("conversation", list[Said])
turns = Attribute("turns", int)
messages = Channel("messages", str)
results = Channel("results", str)
words = Stream("words", str, 500_000)


class Listen(Step[None]):
    """The person's turn; whoever says nothing for a day is done."""

    def wait_for(self, context: Context, input: None) -> Wait:
        return Wait.any_of(messages.at_least(1), Timer.by_duration(timedelta(days=1)))

    def execute(self, context: Context, input: None) -> StepDecision:
        heard = messages.results(context)
        if not heard:
            return graceful_complete("nobody said anything for a day")
        keep(context, *(Said("user", text) for text in heard))
        return go_to(Think, None)


class Think(Step[None]):
    """One turn of the model."""

    def __init__(self, model: Model) -> None:
        self.model = model

    def get_step_options(self) -> StepOptions:
        return StepOptions(
            execute_method_timeout=timedelta(minutes=5),
            execute_retry=RetryPolicy(initial_interval=timedelta(seconds=1), maximum_attempts=10),
        )

    async def execute(self, context: AsyncContext, input: None) -> StepDecision:
        shown = words.buffered_text(context, flush_interval=timedelta(seconds=1), max_buffered_bytes=32)
        spoken: list[str] = []
        calls: list[ToolCall] = []
        async for piece in self.model.turn(conversation.get(context) or []):
            match piece:
                case str():
                    shown.write(piece)
                    spoken.append(piece)
                case ToolCall():
                    calls.append(piece)
                case Done():
                    keep(context, Said("agent", piece.answer))
                    return graceful_complete(piece.answer)
        if spoken:
            keep(context, Said("agent", "".join(spoken).strip()))
        if calls:
            tools = (StepMovement.of(UseTool, call) for call in calls)
            return go_to_many(*tools, StepMovement.of(Gather, len(calls)))
        turns.set(context, turns.get(context) + 1)
        return go_to(Listen, None)


class UseTool(Step[ToolCall]):
    def __init__(self, tools: Mapping[str, Tool]) -> None:
        self.tools = tools

    def get_step_options(self) -> StepOptions:
        retry = RetryPolicy(initial_interval=timedelta(seconds=1), maximum_attempts=3)
        return StepOptions(execute_retry=retry).on_execute_failure_proceed_to(ToolFailed)

    async def execute(self, context: AsyncContext, input: ToolCall) -> StepDecision:
        tool = self.tools.get(input.tool)
        key = f"{context.flow_id}/{context.step_execution_id}"
        results.publish(context, await tool(input.argument, key) if tool else f"there is no tool {input.tool}")
        return dead_end()


class ToolFailed(Step[ToolCall]):
    def execute(self, context: Context, input: ToolCall) -> StepDecision:
        error = context.recovery_error
        results.publish(context, f"{input.tool} failed: {error.detail if error else 'for no known reason'}")
        return dead_end()


class Gather(Step[int]):
    def wait_for(self, context: Context, input: int) -> Wait:
        return Wait.until(results.for_n(input))

    def execute(self, context: Context, input: int) -> StepDecision:
        keep(context, *(Said("tool", result) for result in results.results(context)))
        return go_to(Think, None)


def keep(context: Context, *said: Said) -> None:
    conversation.set(context, [*(conversation.get(context) or []), *said])


class AgentFlow(Flow[None]):
    def __init__(self, model: Model, tools: Mapping[str, Tool]) -> None:
        self.model, self.tools = model, tools

    def get_steps(self) -> StepList[None]:
        return StepList.start_step(Listen).other_steps(Think(self.model), UseTool(self.tools), ToolFailed, Gather)

    def get_persistence_schema(self) -> PersistenceSchema:
        return PersistenceSchema.of(conversation, turns, messages, results, words)

    @rpc
    def read(self, context: Context) -> RPCResult[list[Said]]:
        return RPCResult(conversation.get(context) or [])


flow = AgentFlow(RuleModel(), {"add": add, "population": population})
registry = Registry([flow], allow_async_handlers=True)


def main() -> None:
    import dexray

    with dexray.connect(registry) as client:
        flow_id = f"agent-{uuid4()}"
        client.start_flow(flow, flow_id)
        questions = ("hello", "What is 19 + 23, and how many people in Oslo, or people in Atlantis?", "bye")
        for turn, text in enumerate(questions):
            if turn:
                client.wait_for_attribute_match(flow_id, turns, AttributeMatch.equal_to(turn))
            client.publish(flow_id, messages, text)
        client.wait_for_flow(flow_id)
        for said in client.get_attribute(flow_id, conversation) or []:
            print(f"{said.who + ':':<6} {said.text}")


if __name__ == "__main__":
    main()
