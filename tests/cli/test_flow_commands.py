"""`dexray flow …`: list, show, publish, stop and delete, over real Flows."""

from __future__ import annotations

import time
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest

from dex import Client, FlowStatus, IdReusePolicy, StartFlowOptions
from dex.wire.service import (
    DeleteFlow,
    DescribeFlow,
    FailureDescription,
    FlowDescription,
    GetHistory,
    HistoryEvent,
    HistoryPage,
    ListFlows,
    Publish,
    Request,
    StepDescription,
    StopFlow,
    StoreDescription,
)
from tests.cli.conftest import Engine, Shell, shell
from tests.cli.flows import NOTES, FragileFlow, Order, PriceFlow, approval_flow


def flow(engine: Engine, kind: type) -> Any:
    return next(flow for flow in engine.registry.flows.values() if type(flow) is kind)


def eventually(look: Callable[[], bool]) -> None:
    end = time.monotonic() + 20
    while not look():
        assert time.monotonic() < end, "it did not happen"
        time.sleep(0.005)


@pytest.fixture
def waiting(client: Client) -> str:
    """A Flow that waits for an approval."""
    client.start_flow(approval_flow, "a", Order("hat"))
    eventually(lambda: [step.phase for step in client.describe("a").steps] == ["waiting"])
    return "a"


# list ------------------------------------------------------------------------------------------


def test_list_shows_runs_newest_first(dexray: Shell, an_engine: Engine, client: Client, waiting: str) -> None:
    client.start_flow(flow(an_engine, PriceFlow), "p", Order("hat"))
    client.wait_for_flow("p")
    data = dexray("flow", "list", "--json").data
    assert [(entry["flow_id"], entry["flow_type"], entry["status"]) for entry in data["flows"]] == [
        ("p", "PriceFlow", "COMPLETED"),
        ("a", "ApprovalFlow", "RUNNING"),
    ]
    assert set(data["flows"][0]) == {"flow_id", "run_id", "flow_type", "status", "started_at", "closed_at", "indexed"}
    assert data["flows"][0]["closed_at"].endswith("+00:00")
    assert data["flows"][1]["closed_at"] is None
    assert data["next_page_token"] == ""
    shown = dexray("flow", "list").out
    assert "PriceFlow" in shown
    assert "COMPLETED" in shown


def test_list_filters_by_status_and_type(dexray: Shell, an_engine: Engine, client: Client, waiting: str) -> None:
    client.start_flow(flow(an_engine, PriceFlow), "p", Order("hat"))
    client.wait_for_flow("p")

    def ids(*options: str) -> list[str]:
        return [entry["flow_id"] for entry in dexray("flow", "list", "--json", *options).data["flows"]]

    assert ids("--status", "running") == ["a"]
    assert ids("--status", "COMPLETED") == ["p"]
    assert ids("--type", "ApprovalFlow") == ["a"]
    assert ids("--type", "PriceFlow", "--status", "running") == []


def test_list_and_count_take_a_query(dexray: Shell, an_engine: Engine, client: Client, waiting: str) -> None:
    client.start_flow(flow(an_engine, PriceFlow), "p", Order("hat"))
    client.wait_for_flow("p")
    again = StartFlowOptions(id_reuse_policy=IdReusePolicy.ALLOW_IF_NOT_RUNNING)
    client.start_flow(flow(an_engine, PriceFlow), "p", Order("hat"), again)
    client.wait_for_flow("p")

    def ids(*options: str) -> list[str]:
        return [entry["flow_id"] for entry in dexray("flow", "list", "--json", *options).data["flows"]]

    assert ids("--query", "state = 'asked'") == ["a"]
    assert ids("--query", "FlowId != 'a'", "--type", "PriceFlow", "--status", "completed") == ["p"]
    assert ids("--query", "FlowId != 'a'", "--every-run", "--type", "PriceFlow", "--status", "completed") == ["p", "p"]
    assert ids("--every-run", "--limit", "1", "--all") == ["p", "p", "a"]
    found = dexray("flow", "list", "--json", "--query", "state = 'asked'").data["flows"]
    assert found[0]["indexed"] == {"state": {"kind": "STRING", "data": "asked"}}
    assert dexray("flow", "count").out == "2\n"
    assert dexray("flow", "count", "--every-run").out == "3\n"
    assert dexray("flow", "count", "-q", "state = 'asked'", "--json").data == {"query": "state = 'asked'", "count": 1}


def test_a_wrong_query_is_shown_with_its_place(dexray: Shell) -> None:
    for verb in ("list", "count"):
        outcome = dexray("flow", verb, "--query", "state = 'asked' AND colour = 1")
        assert outcome.code == 1
        assert "no field or index key 'colour'" in outcome.err
        assert outcome.err.rstrip().endswith("^")


def test_list_turns_pages_or_takes_all_at_once(dexray: Shell, an_engine: Engine, client: Client) -> None:
    for number in range(5):
        client.start_flow(flow(an_engine, PriceFlow), f"p{number}", Order("hat"))
    seen: list[str] = []
    token = ""
    for _ in range(3):
        page = dexray("flow", "list", "--json", "--limit", "2", *(["--page", token] if token else [])).data
        seen += [entry["flow_id"] for entry in page["flows"]]
        token = page["next_page_token"]
    assert (sorted(seen), token) == ([f"p{number}" for number in range(5)], "")
    everything = dexray("flow", "list", "--json", "--limit", "2", "--all").data
    assert [entry["flow_id"] for entry in everything["flows"]] == seen
    assert "--page" in dexray("flow", "list", "--limit", "2").err


def test_an_empty_list_says_so(dexray: Shell) -> None:
    assert dexray("flow", "list").out == "no Flows\n"
    assert dexray("flow", "list", "--json").data == {"flows": [], "next_page_token": ""}


def test_a_status_that_does_not_exist_exits_with_2(dexray: Shell) -> None:
    assert dexray("flow", "list", "--status", "sleeping").code == 2


# show ------------------------------------------------------------------------------------------


def test_show_tells_what_an_open_step_waits_for_and_the_state_of_the_flow(
    dexray: Shell, client: Client, waiting: str
) -> None:
    client.publish("a", NOTES, "front/door".replace("/", " "), "hello")
    data = dexray("flow", "show", "a", "--json").data
    assert (data["flow_id"], data["flow_type"], data["status"]) == ("a", "ApprovalFlow", "RUNNING")
    (step,) = data["steps"]
    assert (step["step_execution_id"], step["phase"], step["method"]) == ("AwaitApproval-1", "waiting", "wait_for")
    assert "1 message on approvals" in step["waits_for"]
    assert data["attributes"] == {"state": "asked"}
    assert data["channels"]["notes/front%20door"] == 1
    assert data["events"][-1]["kind"] == "MessagePublished"
    shown = dexray("flow", "show", "a").out
    for text in ("ApprovalFlow", "AwaitApproval-1", "1 message on approvals", "notes/front%20door", "asked"):
        assert text in shown


def test_show_tells_the_last_failure_of_a_step(dexray: Shell, an_engine: Engine, client: Client) -> None:
    client.start_flow(flow(an_engine, FragileFlow), "f")
    eventually(lambda: [step.phase for step in client.describe("f").steps] == ["backoff"])
    (step,) = dexray("flow", "show", "f", "--json").data["steps"]
    assert step["last_failure"]["detail"] == "the shop is closed"
    assert step["retry_at"].endswith("+00:00")
    assert "ConnectionError: the shop is closed" in dexray("flow", "show", "f").out


def test_show_has_as_many_of_the_last_events_as_wanted(dexray: Shell, waiting: str) -> None:
    every = dexray("flow", "show", "a", "--json", "--events", "100").data["events"]
    assert [event["number"] for event in every] == list(range(1, len(every) + 1))
    assert dexray("flow", "show", "a", "--json", "--events", "2").data["events"] == every[-2:]
    assert dexray("flow", "show", "a", "--json", "--events", "0").data["events"] == []


def test_show_of_an_unknown_flow_exits_with_1(dexray: Shell) -> None:
    outcome = dexray("flow", "show", "nobody")
    assert outcome.code == 1
    assert outcome.err.startswith("error: ")
    assert outcome.err.count("\n") == 1
    error = dexray("flow", "show", "nobody", "--json").error
    assert (error["type"], error["code"], error["exit_code"]) == ("FlowNotFoundError", "NOT_FOUND", 1)


def test_show_tells_why_a_flow_is_parked(monkeypatch: pytest.MonkeyPatch) -> None:
    failure = FailureDescription("shop.Closed", "no", attempt=3)
    step = StepDescription(
        step_type="Buy",
        step_execution_id="Buy-1",
        from_step_execution_id="",
        method="execute",
        phase="running",
        attempt=4,
        since=1.0,
        waits_for="attempt 4 of execute to finish",
        last_failure=failure,
    )
    description = FlowDescription(
        flow_id="x",
        run_id="r",
        flow_type="Shop",
        status="RUNNING",
        started_at=1.0,
        steps=(step,),
        problem="no code is deployed for Flow type Shop",
        owner="flow-actor-1",
        attribute_stores=(
            StoreDescription(name="reports"),
            StoreDescription(name="shop", behind_since=1.0, problem="there is no table orders"),
        ),
    )

    class Service:
        async def call(self, request: Request[Any]) -> Any:
            if isinstance(request, DescribeFlow):
                return description
            assert isinstance(request, GetHistory)
            number = request.after + 1
            event = HistoryEvent(number=number, kind="FlowStarted", at=1.0)
            return HistoryPage(run_id="r", events=(event,), closed=False, more=number < 2)

    dexray = shell(Service(), monkeypatch)
    shown = dexray("flow", "show", "x").out
    for text in (
        "parked: no code is deployed",
        "flow-actor-1",
        "Buy-1 runs attempt 4 of execute, since 1970-01-01T00:00:01+00:00; attempt 3 failed with shop.Closed: no.",
        "running execute",
        "there is no table orders",
    ):
        assert text in shown
    assert "reports" not in shown  # is up to date
    data = dexray("flow", "show", "x", "--json").data
    assert [event["number"] for event in data["events"]] == [1, 2]
    assert data["steps"][0]["since"] == "1970-01-01T00:00:01.000+00:00"


# publish ------------------------------------------------------------------------------------------


def test_a_json_object_arrives_as_the_dataclass_that_the_channel_declares(
    dexray: Shell, client: Client, waiting: str
) -> None:
    outcome = dexray("flow", "publish", "a", "approvals", '{"by": "Ada", "granted": true}', "--json")
    assert outcome.code == 0
    assert outcome.data["channel"] == "approvals"
    assert len(outcome.data["message_ids"]) == 1
    result = client.wait_for_flow("a", timedelta(seconds=20))
    assert result.single_output(str) == "hat: Ada"


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("1", 1),
        ("1.0", 1.0),
        ("null", None),
        ("true", True),
        ('"text"', "text"),
        ("[1, [2.5, null]]", [1, [2.5, None]]),
        ('{"a": {"b": []}}', {"a": {"b": []}}),
    ],
)
def test_each_json_type_keeps_its_type(an_engine: Engine, dexray: Shell, waiting: str, text: str, value: Any) -> None:
    dexray("flow", "publish", "a", "approvals", text)
    (sent,) = [request for request in an_engine.requests if isinstance(request, Publish)]
    decoded = an_engine.registry.codec_registry.decode(sent.values[0], Any, where="message")
    assert (decoded, type(decoded)) == (value, type(value))


def test_several_messages_go_to_one_instance_of_a_map(dexray: Shell, client: Client, waiting: str) -> None:
    outcome = dexray("flow", "publish", "a", "notes", '"one"', '"two"', "--instance", "back door")
    assert outcome.code == 0
    assert len(outcome.out.split()) == 2
    assert client.describe("a").channels["notes/back%20door"] == 2


def test_the_same_request_id_publishes_once(dexray: Shell, client: Client, waiting: str) -> None:
    command = ("flow", "publish", "a", "notes", '"one"', "--instance", "door", "--request-id", "r1", "--json")
    assert dexray(*command).data == dexray(*command).data
    assert client.describe("a").channels["notes/door"] == 1


def test_a_large_message_travels_beside_the_request(an_engine: Engine, dexray: Shell, waiting: str) -> None:
    text = "x" * 20_000
    assert dexray("flow", "publish", "a", "notes", f'"{text}"', "--instance", "door").code == 0
    (sent,) = [request for request in an_engine.requests if isinstance(request, Publish)]
    assert len(sent.values[0]) < 100
    assert len(sent.blobs) == 1


@pytest.mark.parametrize(("text", "says"), [("hello", "text needs quotes"), ("{", "not JSON"), (str(2**70), "64")])
def test_a_message_that_is_no_value_exits_with_2(dexray: Shell, waiting: str, text: str, says: str) -> None:
    outcome = dexray("flow", "publish", "a", "approvals", text)
    assert outcome.code == 2
    assert says in outcome.err


def test_an_undeclared_channel_is_named(dexray: Shell, waiting: str) -> None:
    outcome = dexray("flow", "publish", "a", "aprovals", "1", "--json")
    assert outcome.code == 1
    assert "declares no Channel 'aprovals'" in outcome.error["message"]
    assert outcome.error["code"] == "INVALID_ARGUMENT"


# stop ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "status"),
    [((), "CANCELED"), (("--type", "terminate"), "TERMINATED"), (("--type", "FAIL", "--reason", "sold out"), "FAILED")],
)
def test_stop_ends_a_flow_without_a_question_when_there_is_no_terminal(
    dexray: Shell, client: Client, waiting: str, options: tuple[str, ...], status: str
) -> None:
    outcome = dexray("flow", "stop", "a", *options, stdin="")
    assert outcome.code == 0
    result = client.wait_for_flow("a", timedelta(seconds=20))
    assert result.status is FlowStatus[status]
    if status == "FAILED":
        assert "sold out" in result.error_message
        assert "sold out" in dexray("flow", "show", "a").out


@pytest.mark.parametrize(("answer", "code"), [("y\n", 0), ("n\n", 1)])
def test_stop_asks_in_a_terminal(
    an_engine: Engine, dexray: Shell, waiting: str, monkeypatch: pytest.MonkeyPatch, answer: str, code: int
) -> None:
    monkeypatch.setattr("dexray.cli.terminal.Terminal.can_ask", True)
    outcome = dexray("flow", "stop", "a", stdin=answer)
    assert outcome.code == code
    assert "Cancel Flow 'a'?" in outcome.err
    assert any(isinstance(request, StopFlow) for request in an_engine.requests) == (code == 0)


def test_yes_spares_the_question(dexray: Shell, waiting: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("dexray.cli.terminal.Terminal.can_ask", True)
    outcome = dexray("flow", "stop", "a", "--yes", stdin="")
    assert (outcome.code, outcome.err) == (0, "")


def test_stop_in_json(dexray: Shell, waiting: str) -> None:
    data = dexray("flow", "stop", "a", "--reason", "late", "--json").data
    assert data == {"flow_id": "a", "stop_type": "CANCEL", "reason": "late"}


def test_a_closed_flow_cannot_be_stopped_again(dexray: Shell, client: Client, waiting: str) -> None:
    assert dexray("flow", "stop", "a").code == 0
    client.wait_for_flow("a", timedelta(seconds=20))
    outcome = dexray("flow", "stop", "a", "--json")
    assert (outcome.code, outcome.error["type"]) == (1, "FlowNotActiveOrNotFoundError")


# the frame ------------------------------------------------------------------------------------------


def test_an_error_that_nobody_foresaw_is_one_line_with_its_class(monkeypatch: pytest.MonkeyPatch) -> None:
    class Broken:
        async def call(self, request: ListFlows) -> Any:
            raise LookupError("two\nlines")

    dexray = shell(Broken(), monkeypatch)
    outcome = dexray("flow", "list")
    assert (outcome.code, outcome.err) == (1, "error: LookupError: two lines\n")
    assert "Traceback" in dexray("flow", "list", "--debug").err
    assert dexray.left == 2


def test_a_flow_id_with_control_characters_is_refused_before_an_engine_is_asked(dexray: Shell) -> None:
    for command in (("show", "a\nb"), ("stop", ""), ("publish", "a\x00", "c", "1")):
        assert dexray("flow", *command).code == 2
    assert dexray.places == []


# delete ----------------------------------------------------------------------------------------


def test_delete_removes_a_closed_flow(dexray: Shell, client: Client, waiting: str) -> None:
    open_still = dexray("flow", "delete", "a", "--json")
    assert open_still.code == 1
    assert "Stop it first" in open_still.error["message"]
    client.stop_flow("a")
    client.wait_for_flow("a", timedelta(seconds=20))
    assert dexray("flow", "delete", "a", "--json").data == {"flow_id": "a", "run_id": None}
    gone = dexray("flow", "show", "a", "--json")
    assert (gone.code, gone.error["code"]) == (1, "NOT_FOUND")
    assert dexray("flow", "delete", "a").code == 1


def test_delete_of_one_run_asks_in_a_terminal(
    an_engine: Engine, dexray: Shell, client: Client, waiting: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("dexray.cli.terminal.Terminal.can_ask", True)
    outcome = dexray("flow", "delete", "a", "--run", "r-1", stdin="n\n")
    assert outcome.code == 1
    assert "Delete run r-1 of Flow 'a'" in outcome.err
    assert not any(isinstance(request, DeleteFlow) for request in an_engine.requests)
    assert "has no run 'r-1'" in dexray("flow", "delete", "a", "--run", "r-1", "--yes").err
