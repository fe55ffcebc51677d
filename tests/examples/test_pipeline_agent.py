"""The agent, in process: what it says, which tools it uses, and what is repeated when something breaks."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from datetime import timedelta

import pytest

from dex import Registry
from dexray.testing import FlowTest
from examples.pipelines.agent import (
    AgentFlow,
    Done,
    Gather,
    RuleModel,
    Said,
    Think,
    ToolCall,
    UseTool,
    add,
    conversation,
    messages,
    population,
    turns,
    words,
)

MakeTest = Callable[..., FlowTest]
QUESTION = "What is 19 + 23, and how many people in Oslo?"
ANSWER = "I have found: 19 + 23 = 42, Oslo has 717,710 people. Anything else?"


class CountingTools:
    """Counts the calls by their key; `fails` of them fail first."""

    def __init__(self, fails: int = 0) -> None:
        self.fails = fails
        self.keys: list[str] = []

    async def population(self, argument: str, key: str) -> str:
        self.keys.append(key)
        if self.fails:
            self.fails -= 1
            raise ConnectionError("no line to the registry office")
        return await population(argument, key)


def talk(in_process: MakeTest, model: object = None, tools: CountingTools | None = None) -> tuple[FlowTest, AgentFlow]:
    flow = AgentFlow(model or RuleModel(), {"add": add, "population": (tools or CountingTools()).population})
    test = in_process(Registry([flow], allow_async_handlers=True))
    test.client.start_flow(flow, "talk")
    return test, flow


def heard(test: FlowTest) -> list[str]:
    return [said.text for said in test.attribute("talk", conversation) if said.who == "agent"]


def test_it_uses_tools_in_parallel_and_tells_what_they_found(in_process: MakeTest) -> None:
    test, flow = talk(in_process)
    test.client.publish("talk", messages, QUESTION)
    test.advance(timedelta(seconds=5))
    said = test.client.invoke_rpc(flow.read, "talk")
    assert said[0] == Said("user", QUESTION)
    assert sorted(line.text for line in said[1:3]) == ["19 + 23 = 42", "Oslo has 717,710 people"]
    assert {line.who for line in said[1:3]} == {"tool"}
    assert [step.step_type for step in test.steps_run("talk")].count("UseTool") == 2
    test.client.publish("talk", messages, "bye")
    assert test.client.wait_for_flow("talk").single_output(str) == "Goodbye!"
    assert test.client.invoke_rpc(flow.read, "talk")[-1] == Said("agent", "Goodbye!")


def test_words_are_there_while_the_model_speaks(in_process: MakeTest) -> None:
    test, _ = talk(in_process)
    test.client.publish("talk", messages, QUESTION)
    test.advance(timedelta(seconds=5))
    shown = [message.value for message in reversed(test.client.list_stream_messages("talk", words, 50).messages)]
    assert len(shown) > 1
    assert "".join(shown).strip() == heard(test)[0]


def test_what_is_said_while_it_thinks_is_heard_at_its_next_turn(in_process: MakeTest) -> None:
    test, _ = talk(in_process)
    test.client.publish("talk", messages, "hello", "and what is 1 + 2?")
    test.client.publish("talk", messages, "bye")
    assert test.client.wait_for_flow("talk").single_output(str) == "Goodbye!"
    assert [said.text for said in test.attribute("talk", conversation) if said.who == "user"][-1] == "bye"


def test_a_tool_that_fails_is_tried_again_under_the_same_key(in_process: MakeTest) -> None:
    tools = CountingTools(fails=2)
    test, _ = talk(in_process, tools=tools)
    test.client.publish("talk", messages, QUESTION)
    test.advance(timedelta(minutes=1))
    assert "Oslo has 717,710 people" in heard(test)[0]
    assert len(tools.keys) == 3
    assert len(set(tools.keys)) == 1


@pytest.mark.parametrize(
    ("question", "answer"),
    [
        ("people in Atlantis", "population failed: there is no city Atlantis"),
        ("people in Oslo", "population failed: no line to the registry office"),
    ],
)
def test_the_model_hears_of_a_tool_that_fails_for_good(in_process: MakeTest, question: str, answer: str) -> None:
    test, _ = talk(in_process, tools=CountingTools(fails=3 if "Oslo" in question else 0))
    test.client.publish("talk", messages, question)
    test.advance(timedelta(minutes=1))
    assert heard(test) == [f"I have found: {answer}. Anything else?"]


class Inventing:
    """A model that asks for a tool that does not exist, and then breaks down in the middle of a sentence, once."""

    def __init__(self) -> None:
        self.broken = False

    async def turn(self, conversation: list[Said]) -> AsyncIterator[str | ToolCall | Done]:
        if conversation[-1].who == "user":
            yield ToolCall("telephone", "0")
            return
        yield f"{conversation[-1].text}, "
        if not self.broken:
            self.broken = True
            raise TimeoutError("the service is overloaded")
        yield "I am sorry"


def test_a_turn_that_breaks_is_repeated_and_is_in_the_conversation_once(in_process: MakeTest) -> None:
    test, _ = talk(in_process, Inventing())
    test.client.publish("talk", messages, "call me")
    test.advance(timedelta(minutes=1))
    assert heard(test) == ["there is no tool telephone, I am sorry"]
    assert [error.attempt for error in test.errors] == [1]


@pytest.mark.parametrize("when", ["before", "after"])
@pytest.mark.parametrize("step", [Think, UseTool, Gather])
def test_a_worker_that_is_killed_repeats_one_step_and_nothing_else(
    in_process: MakeTest, step: object, when: str
) -> None:
    test, _ = talk(in_process)
    test.kill_worker_on_attempt(step, 1, when=when)
    test.client.publish("talk", messages, QUESTION)
    test.advance(timedelta(minutes=1))
    assert len(test.attribute("talk", conversation)) == 4
    assert sum(ran.attempts - 1 for ran in test.steps_run("talk")) == 1


def test_the_conversation_survives_the_end_of_everything(in_process: MakeTest) -> None:
    test, _ = talk(in_process)
    test.client.publish("talk", messages, "hello")
    test.advance(timedelta(seconds=5))
    test.restart(down=timedelta(hours=3))
    test.client.publish("talk", messages, "what is 1 + 2?")
    test.advance(timedelta(seconds=5))
    assert heard(test)[-1] == "I have found: 1 + 2 = 3. Anything else?"
    assert test.attribute("talk", turns) == 2
    test.advance(timedelta(days=1))
    assert test.client.wait_for_flow("talk").single_output(str) == "nobody said anything for a day"
