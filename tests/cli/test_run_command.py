"""`dexray run`: code, input, result and exit codes."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from dexray.cli.options import Place
from tests.cli.conftest import Shell

MODULE = "tests.cli.flows"


def test_a_flow_that_completes_prints_its_output_and_exits_with_0(dexray: Shell) -> None:
    outcome = dexray("run", f"{MODULE}:PriceFlow", "--id", "p", "--input", '{"item": "hat", "count": 2}')
    assert outcome.code == 0
    assert json.loads(outcome.out) == {"item": "hat", "price": 15.0}
    assert "Flow 'p' started" in outcome.err
    assert "COMPLETED" in outcome.err


def test_json_output_has_the_whole_result_and_leaves_stderr_empty(dexray: Shell) -> None:
    outcome = dexray("run", f"{MODULE}:PriceFlow", "--id", "p", "--input", '{"item": "hat"}', "--json", "--watch")
    assert outcome.code == 0
    assert outcome.err == ""
    data = outcome.data
    assert data.pop("run_id")
    assert data == {
        "flow_id": "p",
        "status": "COMPLETED",
        "error_type": None,
        "error_message": "",
        "completions": [
            {
                "step_type": "Price",
                "step_execution_id": "Price-1",
                "has_output": True,
                "output": {"item": "hat", "price": 7.5},
            }
        ],
    }


def test_a_flow_that_fails_exits_with_1_and_says_why(dexray: Shell) -> None:
    outcome = dexray("run", f"{MODULE}:RefusingFlow", "--id", "r", "--input", '"no stock"')
    assert (outcome.code, outcome.out) == (1, "")
    assert "Flow 'r' is FAILED" in outcome.err
    assert "no stock" in outcome.err


def test_a_failed_flow_is_a_result_in_json_and_exits_with_1(dexray: Shell) -> None:
    outcome = dexray("run", f"{MODULE}:RefusingFlow", "--id", "r", "--input", '"no stock"', "--json")
    assert outcome.code == 1
    assert (outcome.data["status"], outcome.data["error_message"]) == ("FAILED", "no stock")


def test_a_flow_that_is_not_done_in_time_exits_with_3_and_is_kept(dexray: Shell) -> None:
    target = (f"{MODULE}:approval_flow", "--id", "a", "--input", '{"item": "hat"}', "--timeout", "0.1")
    outcome = dexray("run", *target)
    assert outcome.code == 3
    assert "still running after 0.1 s" in outcome.err
    assert "dexray flow show a" in outcome.err
    assert dexray("flow", "show", "a", "--json").data["status"] == "RUNNING"


def test_watching_times_out_the_same_way(dexray: Shell) -> None:
    target = (f"{MODULE}:approval_flow", "--id", "a", "--input", '{"item": "hat"}', "--timeout", "0.4", "--watch")
    outcome = dexray("run", *target)
    assert outcome.code == 3
    assert "AwaitApproval-1" in outcome.err


def test_watching_without_a_terminal_writes_a_line_for_each_event(dexray: Shell) -> None:
    outcome = dexray("run", f"{MODULE}:PriceFlow", "--id", "p", "--input", '{"item": "hat"}', "--watch")
    assert outcome.code == 0
    assert "started as PriceFlow" in outcome.err
    assert "Price-1" in outcome.err
    assert "\x1b" not in outcome.err + outcome.out
    assert json.loads(outcome.out)["item"] == "hat"


def test_an_id_is_made_when_none_is_given(dexray: Shell) -> None:
    first, second = (
        dexray("run", f"{MODULE}:PriceFlow", "--input", '{"item": "hat"}', "--json").data["flow_id"] for _ in range(2)
    )
    assert first.startswith("PriceFlow-")
    assert first != second


def test_a_class_in_a_file_can_be_run(dexray: Shell, tmp_path: Path) -> None:
    code = tmp_path / "my_flows.py"
    code.write_text(
        "from dex import Context, Flow, Step, StepDecision, StepList, graceful_complete\n"
        "class Twice(Step[int]):\n"
        "    def execute(self, context: Context, input: int) -> StepDecision:\n"
        "        return graceful_complete(input * 2)\n"
        "class TwiceFlow(Flow[int]):\n"
        "    def get_steps(self) -> StepList[int]:\n"
        "        return StepList.start_step(Twice())\n"
    )
    outcome = dexray("run", f"{code}:TwiceFlow", "--input", "21")
    assert (outcome.code, outcome.out.strip()) == (0, "42")


def test_input_comes_from_a_file_or_from_stdin(dexray: Shell, tmp_path: Path) -> None:
    path = tmp_path / "order.json"
    path.write_text('{"item": "hat", "count": 3}')
    target = ("run", f"{MODULE}:PriceFlow", "--json", "--input")
    assert dexray(*target, f"@{path}").data["completions"][0]["output"]["price"] == 22.5
    assert dexray(*target, "-", stdin='{"item": "cap"}').data["completions"][0]["output"]["item"] == "cap"


@pytest.mark.parametrize(
    ("target", "text", "says"),
    [
        ("nothing_here:Flow", "{}", "no module 'nothing_here'"),
        ("tests.cli.flows", "{}", "write module:Flow"),
        ("tests.cli.flows:Missing", "{}", "its Flows are ApprovalFlow"),
        ("tests.cli.flows:not_a_flow", "{}", "is no Flow but 7"),
        ("tests.cli.flows:NeedsArguments", "{}", "can't be made without arguments"),
        ("/nowhere/at/all.py:Flow", "{}", "there is no file /nowhere/at/all.py"),
        ("tests.cli.flows:PriceFlow", "{", "not JSON"),
        ("tests.cli.flows:PriceFlow", '{"item": 3}', "item"),
        ("tests.cli.flows:PriceFlow", '{"item": "hat", "colour": "red"}', "colour"),
        ("tests.cli.flows:PriceFlow", "@/nowhere.json", "can't be read"),
    ],
)
def test_what_cannot_be_used_is_named_and_exits_with_2(dexray: Shell, target: str, text: str, says: str) -> None:
    outcome = dexray("run", target, "--input", text)
    assert outcome.code == 2
    assert says in outcome.err
    assert outcome.err.count("\n") == 1
    assert dexray.places == []  # no engine was started for nothing


def test_a_missing_input_is_named(dexray: Shell) -> None:
    outcome = dexray("run", f"{MODULE}:PriceFlow")
    assert outcome.code == 2
    assert "needs an --input" in outcome.err


def test_a_file_that_raises_is_one_line_and_a_traceback_only_with_debug(dexray: Shell, tmp_path: Path) -> None:
    code = tmp_path / "broken_flows.py"
    code.write_text("1 / 0\n")
    outcome = dexray("run", f"{code}:Flow")
    assert (outcome.code, "ZeroDivisionError: division by zero" in outcome.err) == (2, True)
    assert "Traceback" not in outcome.err
    assert "Traceback" in dexray("run", f"{code}:Flow", "--debug").err


def test_an_id_that_runs_already_exits_with_1(dexray: Shell) -> None:
    target = ("run", f"{MODULE}:approval_flow", "--id", "a", "--input", '{"item": "hat"}', "--timeout", "0")
    assert dexray(*target).code == 3
    outcome = dexray(*target, "--json")
    assert outcome.code == 1
    assert outcome.error["type"] == "FlowAlreadyStartedError"
    assert outcome.error["flow_id"] == "a"
    assert outcome.out == ""


def test_options_name_the_engine_and_it_is_left_at_the_end(dexray: Shell) -> None:
    place = ("--database", "/d/x.db", "--address", "10.0.0.1:6379", "--namespace", "ns")
    dexray("run", f"{MODULE}:PriceFlow", "--input", '{"item": "hat"}', *place)
    dexray("run", f"{MODULE}:RefusingFlow", "--input", '"no"')
    assert dexray.places == [Place("/d/x.db", "10.0.0.1:6379", "ns"), Place()]
    assert dexray.left == 2


def test_ctrl_c_while_waiting_exits_with_130_leaves_the_engine_and_keeps_the_flow(
    dexray: Shell, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupt(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("dexray.cli.start.wait", interrupt)
    outcome = dexray("run", f"{MODULE}:approval_flow", "--id", "a", "--input", '{"item": "hat"}')
    assert outcome.code == 130
    assert "Flow 'a' is kept" in outcome.err
    assert dexray.left == 1
