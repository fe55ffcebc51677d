"""The report as data, as text and as a Mermaid flowchart; and every example, read."""

from __future__ import annotations

import importlib
import json
import re
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from dex import (
    Attribute,
    AttributeMap,
    Channel,
    ChannelMap,
    Context,
    Flow,
    PersistenceSchema,
    Registry,
    RPCResult,
    Step,
    StepDecision,
    StepList,
    StepMovement,
    StepOptions,
    Stream,
    SubFlow,
    Timer,
    Wait,
    go_to,
    go_to_many,
    graceful_complete,
    rpc,
)
from dexray.visualize import analyse, data_of, mermaid_of, text_of
from tests.visualize.kit import Made, report_of

paid = Channel("paid", int)
notes = ChannelMap("notes", str)
state = Attribute("state", str)
stock = AttributeMap("stock", int)
progress = Stream("progress", str, 1000)
child = Made()


class Begin(Step[int]):
    def get_step_options(self) -> StepOptions:
        return StepOptions(
            execute_load_attribute_maps=(stock,),
            execute_load_channel_map_instances=(notes.load_messages("red"),),
            execute_lock_attributes=(state.lock(), stock.lock("pear")),
        ).on_execute_failure_proceed_to(Repair)

    def execute(self, context: Context, input: int) -> StepDecision:
        return go_to_many(StepMovement.of(Finish, str(input))).with_canceling_steps(Repair)


class Repair(Step[int]):
    def execute(self, context: Context, input: int) -> StepDecision:
        notes.publish(context, "red", "repaired")
        return go_to(Begin, input)


class Finish(Step[str]):
    def get_step_type(self) -> str:
        return 'Finish "it" | <b>[now]'

    def wait_for(self, context: Context, input: str) -> Wait:
        return Wait.any_of(
            paid.for_one(), notes.for_n(input, 2), Timer.by_duration(timedelta(days=2)), SubFlow.run(child, None)
        )

    def execute(self, context: Context, input: str) -> StepDecision:
        return graceful_complete(input)


class Shop(Flow[int]):
    def get_steps(self) -> StepList[int]:
        return StepList.start_step(Begin()).other_steps(Repair(), Finish())

    def get_persistence_schema(self) -> PersistenceSchema:
        return PersistenceSchema.of(paid, notes, state, stock, progress)

    @rpc(name="push", load_attribute_maps=(stock,), lock_attributes=(state.lock(),))
    def hurry(self, context: Context, input: list[int]) -> RPCResult[int]:
        return RPCResult(stock.get(context, "pear"), (StepMovement.of(Repair, 1),))

    @rpc
    def note(self, context: Context) -> None:
        notes.publish(context, "red", "asked")

    def handle_timeout(self, context: Context) -> StepDecision:
        return go_to(Repair, 0)


FINISH = 'Finish "it" | <b>[now]'


def test_the_data_tell_all_of_a_flow() -> None:
    flow = data_of(report_of(Shop()))["flows"][0]
    assert flow["type"] == "Shop"
    begin, repair, finish = flow["steps"]
    here = {"file": "tests/visualize/test_pictures.py", "complete": True}
    assert {name: value for name, value in begin.items() if name != "line"} == here | {
        "name": "Begin",
        "start": True,
        "input": "int",
        "waits": [],
        "channels": [],
        "timers": [],
        "subflows": [],
        "waits_complete": True,
        "decisions": ["next"],
        "goes_to": [FINISH],
        "cancels": ["Repair"],
        "publishes": [],
        "failure_route": "Repair",
        "loads": {"execute": ["stock", "notes/red"]},
        "locks": {"execute": ["state", "stock/pear"]},
    }
    assert (repair["start"], repair["goes_to"], repair["publishes"]) == (False, ["Begin"], ["notes"])
    assert finish["waits"] == ["any_of"]
    assert finish["channels"] == [
        {"name": "paid", "condition": "for_one"},
        {"name": "notes[…]", "condition": "for_n"},
    ]
    assert (finish["timers"], finish["subflows"]) == ([{"seconds": 172800.0}], ["Made"])
    assert (finish["decisions"], finish["failure_route"]) == (["graceful_complete"], None)
    push, note = sorted(flow["rpcs"], key=lambda found: str(found["name"]), reverse=True)
    assert {name: value for name, value in push.items() if name != "line"} == here | {
        "name": "push",
        "method": "hurry",
        "input": "list[int]",
        "output": "int",
        "goes_to": ["Repair"],
        "cancels": [],
        "publishes": [],
        "loads": ["stock"],
        "locks": ["state"],
    }
    assert (note["input"], note["output"], note["publishes"]) == (None, None, ["notes"])
    assert flow["timeout_handler"]["goes_to"] == ["Repair"]
    assert flow["channels"] == [
        {"name": "paid", "kind": "Channel", "type": "int"},
        {"name": "notes", "kind": "ChannelMap", "type": "str"},
    ]
    assert [found["kind"] for found in flow["attributes"]] == ["Attribute", "AttributeMap"]
    assert flow["streams"] == [{"name": "progress", "kind": "Stream", "type": "str"}]


def test_the_data_are_json_with_a_version() -> None:
    data = data_of(report_of(Shop()))
    assert json.loads(json.dumps(data)) == data
    assert (data["schema_version"], data["diagnostics"]) == ("1.0", [])


def test_the_text_is_a_tree_of_each_flow() -> None:
    console = Console(width=160, no_color=True)
    with console.capture() as captured:
        for part in text_of(report_of(Shop())):
            console.print(part, markup=False)
    text = captured.get()
    for line in (
        "Flow Shop",
        "├── Begin(int)  start",
        "│   ├── goes to  " + FINISH,
        "│   ├── cancels  Repair",
        "│   ├── fails  Repair",
        "│   ├── loads  stock, notes/red in execute",
        "│   └── locks  state, stock/pear in execute",
        "│   ├── waits  any_of paid.for_one, notes[…].for_n, timer 2 d, SubFlow Made",
        "│   └── ends with  graceful_complete",
        "├── RPC push(list[int]) -> int",
        "├── handle_timeout",
        "├── channels  paid: int, notes: str by instance",
    ):
        assert line in text, text


def test_the_flowchart_draws_every_way_and_escapes_every_name() -> None:
    chart = mermaid_of(report_of(Shop()))
    lines = [line.strip() for line in chart.splitlines()]
    assert lines[0] == "flowchart TD"
    assert lines[1] == 'subgraph f0["Shop"]'
    assert lines[-1] == "end"
    for line in (
        'f0s2["Finish #34;it#34; #124; #60;b#62;#91;now#93;<br/>any_of paid.for_one, notes#91;…#93;.for_n, '
        'timer 2 d, 1 more"]',
        'f0start(["int"]) --> f0s0',
        "f0s0 --> f0s2",
        "f0s0 -. fails .-> f0s1",
        "f0s0 --x f0s1",
        'f0s2 --> f0complete(["complete"])',
        'f0timeout{{"handle_timeout"}}',
        "f0timeout --> f0s1",
    ):
        assert line in lines, chart
    edge = r"\w+(\(\[\"[^\"]*\"\]\))? (-->|--x|-\. fails \.->|-\.->) \w+(\(\[\"[^\"]*\"\]\))?"
    node = r"\w+(\[\"[^\"]*\"\]|\[/\"[^\"]*\"/\]|\{\{\"[^\"]*\"\}\})"
    assert all(re.fullmatch(rf"{edge}|{node}|subgraph {node}|end", line) for line in lines[1:])


# Examples -------------------------------------------------------------------------------------------------------------

ROOT = Path(__file__).parents[2]
EXAMPLES = sorted(
    ".".join(path.relative_to(ROOT).with_suffix("").parts)
    for path in (ROOT / "examples").rglob("*.py")
    if path.name != "__init__.py" and "Registry(" in path.read_text()
)


@pytest.mark.statement("B193")
@pytest.mark.parametrize("name", EXAMPLES)
def test_every_example_is_read_to_its_end_and_has_no_errors(name: str) -> None:
    module = importlib.import_module(name)
    registries: list[Any] = [value for value in vars(module).values() if isinstance(value, Registry)]
    for registry in registries:
        report = analyse(registry)
        assert report.errors == ()
        for graph in report.flows:
            assert not graph.has_unseen_targets, graph.flow_type
            assert not graph.has_unseen_movements, graph.flow_type
