"""What clients were told, against what is in the journal, and against what the plans say must come out."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Protocol

from tests.benchmarks.soak.audit_journal import EARLY, values_of
from tests.benchmarks.soak.evidence import Evidence, Row, Run
from tests.benchmarks.soak.records import Record


class Add(Protocol):
    def __call__(self, kind: str, text: str, flow: str) -> None: ...


EXPLAINED = {"UNAVAILABLE", "DEADLINE_EXCEEDED", "ABORTED", "RESOURCE_EXHAUSTED"}
"""Errors that ask to repeat the call."""
STOPPED = {"CANCEL": "CANCELED", "TERMINATE": "TERMINATED", "FAIL": "FAILED"}


@dataclass(slots=True)
class Story:
    """All that one producer wrote of one Flow, in order, and what the journal has of it."""

    flow: str
    kind: str = ""
    plan: dict[str, Any] = field(default_factory=dict)
    records: list[Record] = field(default_factory=list)
    runs: list[Run] = field(default_factory=list)
    children: list[Run] = field(default_factory=list)
    rows: list[Row] = field(default_factory=list)

    def said(self, what: str) -> list[Record]:
        return [record for record in self.records if record["what"] == what]

    def acked(self, prefix: str) -> list[Record]:
        """Of each call the first acknowledgement; a life that was killed at that moment is told again."""
        firsts: dict[str, Record] = {}
        for record in self.said("acked"):
            if record["key"].startswith(prefix):
                firsts.setdefault(record["request"], record)
        return list(firsts.values())

    @property
    def output(self) -> Any:
        """The one output that was told, None without."""
        outputs = self.said("ended")[0]["outputs"] if self.said("ended") else []
        return outputs[0] if len(outputs) == 1 else None


def audit_clients(evidence: Evidence, add: Add) -> None:
    stories = stories_of(evidence)
    for story in stories:
        _audit_errors(story, add)
        if not story.runs and any(record["key"] == "delete" for record in story.said("asked")):
            _brief(story, partial(add, flow=story.flow))  # nobody saw its run between its end and its deletion
        elif _audit_start(story, add) and _audit_end(story, add):
            _OF_KIND[story.kind](story, partial(add, flow=story.flow))
    known = {story.flow for story in stories}
    for run in evidence.runs:
        if run.parent is None and run.flow_id not in known:
            add("out of nowhere", "no client has begun this Flow", run.flow_id)
    ended: Counter[str] = Counter(story.kind for story in stories if story.said("ended"))
    for kind in {story.kind for story in stories} - set(ended):
        add("too few", f"no Flow of the kind {kind} has ended", "")


def stories_of(evidence: Evidence) -> list[Story]:
    stories: dict[str, Story] = {}
    for records in evidence.records.values():
        for record in records:
            story = stories.setdefault(record["flow"], Story(record["flow"]))
            story.records.append(record)
            if record["what"] == "begun":
                story.kind, story.plan = record["kind"], record["plan"]
    children: dict[str, list[Run]] = defaultdict(list)
    for run in evidence.runs:
        if run.parent is not None:
            children[run.parent].append(run)
        elif run.flow_id in stories:
            stories[run.flow_id].runs.append(run)
            stories[run.flow_id].rows += evidence.rows.get(run.run_id, [])
    for story in stories.values():
        story.children = children.get(story.flow, [])
    return list(stories.values())


def _audit_errors(story: Story, add: Add) -> None:
    for record in story.said("refused"):
        # A Nap may be over before it is woken.
        is_late = record["is_closed"] and story.kind == "naps" and record["operation"] == "publish"
        if record["code"] not in EXPLAINED and not is_late:
            add("an error", f"{record['operation']}: {record['code']}: {record['detail']}", story.flow)


def _audit_start(story: Story, add: Add) -> bool:
    """Whether it is there, once."""
    started = story.acked("start")
    if not started:
        add("unsettled", "its start was never acknowledged", story.flow)
        return False
    travels = len(story.acked("back"))
    if len(story.runs) != 1 + travels:
        what = "a lost start" if len(story.runs) <= travels else "a doubled start"
        calls = f"its start and {travels} time travels were" if travels else "its start was"
        add(what, f"{calls} acknowledged, and the journal has {len(story.runs)} runs", story.flow)
        return False
    answer = started[0]["answer"]
    if answer not in (story.runs[0].run_id, "started by a former life"):
        add("a lost start", f"run {answer} was acknowledged, the journal has {story.runs[0].run_id}", story.flow)
    return True


def _audit_end(story: Story, add: Add) -> bool:
    """Whether it ended as it should."""
    ended = story.said("ended")
    if not ended:
        add("unsettled", "no client was told of its end", story.flow)
        return False
    told = {(record["status"], str(record["outputs"])) for record in ended}
    if len(told) > 1:
        add("two ends", f"clients were told {sorted(told)}", story.flow)
    status = ended[0]["status"]
    if status != story.runs[-1].status:
        add("two ends", f"clients were told {status}, the journal says {story.runs[-1].status}", story.flow)
    wanted = "COMPLETED"
    if story.kind == "stay":
        wanted = STOPPED[story.plan["how"]]
    elif story.kind == "flaky" and not story.plan["fails"]:
        wanted = "FAILED"
    if status != wanted:
        add("a wrong end", f"{status} instead of {wanted}: {ended[0]['error'][:300]}", story.flow)
        return False
    return True


Judge = Callable[[Story, Callable[[str, str], None]], None]


def _letters(story: Story, add: Callable[[str, str], None]) -> None:
    """Each letter once, those of a writer in his order; in what the Flow took and in what the journal has."""
    for where, letters in (("taken", list(story.output or [])), ("journal", values_of(story.rows, "letter"))):
        acked = [value for record in story.acked("") for value in record.get("values", [])]
        counted = Counter(letters)
        if lost := [value for value in acked if not counted[value]]:
            add("a lost message", f"{where}: acknowledged, and not there: {lost}")
        if doubled := [value for value, count in counted.items() if count > 1]:
            add("a doubled message", f"{where}: there more than once: {doubled}")
        for writer, count in story.plan["writers"].items():
            own = [value for value in letters if value.startswith(f"{writer}:")]
            if sorted(set(own), key=_number) != list(dict.fromkeys(own)) or any(_number(one) >= count for one in own):
                add("out of order", f"{where}: letters of {writer} are {own}")


def _number(letter: str) -> int:
    return int(letter.rpartition(":")[2])


def _naps(story: Story, add: Callable[[str, str], None]) -> None:
    wakes = [record for record in story.said("asked") if record["key"] == "wake"]
    woken = [nap for nap in story.output or [] if nap[2] == "message"]
    if [nap[0] for nap in story.output or []] != story.plan["seconds"]:
        add("a wrong output", f"naps of {story.plan['seconds']} s became {story.output}")
    if len(woken) > min(1, len(wakes)):
        add("a doubled message", f"woken {len(woken)} times: {story.output}")
    for asked, took, why in story.output or []:
        if why == "timer" and took < asked * EARLY:
            add("an early timer", f"{asked} s took {took:.3f} s by the wall")


def _fan(story: Story, add: Callable[[str, str], None]) -> None:
    if story.output != list(range(story.plan["width"])):
        add("a wrong output", f"{story.plan['width']} branches gave {story.output}")


def _counter(story: Story, add: Callable[[str, str], None]) -> None:
    """Every add is there once: the answers, put in order, are the sums of one another."""
    adds = {record["request"]: record for record in story.acked("add-")}
    planned = sum(amount for amounts in story.plan["adds"] for amount in amounts)
    if story.output != [planned, 3]:
        add("a lost or doubled RPC", f"adds of {planned} and marks up to 3 came to {story.output}")
    before = 0
    for record in sorted(adds.values(), key=lambda record: record["answer"]):
        if record["answer"] != before + record["amount"]:
            add(
                "a lost or doubled RPC", f"{record['key']} of {record['amount']} gave {record['answer']} after {before}"
            )
        before = record["answer"]
    _reads(story, add)


def _reads(story: Story, add: Callable[[str, str], None]) -> None:
    """A read shows all that was acknowledged before it began, and nothing that was not asked before it ended."""
    acked: dict[str, int] = {}
    asked: dict[str, int] = {}
    marks_acked, marks_asked = 0, 0
    began: dict[str, tuple[int, int]] = {}
    for record in story.records:
        match record["what"]:
            case "asked" if "amount" in record:
                asked[record["request"]] = record["amount"]
            case "acked" if "amount" in record:
                acked[record["request"]] = record["amount"]
            case "asked" if record["key"].startswith("mark-"):
                marks_asked = record["value"]
            case "acked" if record["key"].startswith("mark-"):
                marks_acked = record["value"]
            case "reading":
                began[record["name"]] = (sum(acked.values()), marks_acked)
            case "read" if record["name"] in began:
                least_total, least_mark = began.pop(record["name"])
                if record["name"] == "found":
                    if record["value"] != 1:
                        add("a stale search", f"a mark was acknowledged, and {record['value']} runs are found by it")
                    continue
                is_mark = record["name"] == "mark"
                least, most = (least_mark, marks_asked) if is_mark else (least_total, sum(asked.values()))
                if not least <= record["value"] <= most:
                    add("a stale read", f"{record['name']} read {record['value']}, which is not in {least}..{most}")
            case _:
                pass


def _parent(story: Story, add: Callable[[str, str], None]) -> None:
    wanted = [-1 if child < 0 else child * 10 for child in story.plan["children"]]
    if story.output != wanted:
        add("a wrong output", f"children {story.plan['children']} gave {story.output}")
    if len(story.children) != len(wanted):
        add("a doubled start", f"{len(wanted)} SubFlows were wanted, the journal has {len(story.children)}")


def _flaky(story: Story, add: Callable[[str, str], None]) -> None:
    if story.plan["fails"] and story.output != "recovered":
        add("a wrong output", f"{story.output}")


def _train(story: Story, add: Callable[[str, str], None]) -> None:
    if story.output != story.plan["seconds"]:
        add("a wrong output", f"{story.output}")


def _stream(story: Story, add: Callable[[str, str], None]) -> None:
    """Best effort for Steps, in order within an attempt; what a client was told is written is there."""
    if story.output != story.plan["messages"]:
        add("a wrong output", f"{story.output}")
    for record in story.said("read"):
        last: dict[str, int] = {}
        for source, value in record["value"]:
            attempt, _, number = value.partition(":")
            if not source.startswith("#"):
                continue
            if int(number) <= last.get(attempt, -1):
                add("out of order", f"Stream: {value} after {last[attempt]} of the same attempt")
            last[attempt] = int(number)
        there = {value for source, value in record["value"] if not source.startswith("#")}
        if lost := [one["key"] for one in story.acked("news-") if one["key"].replace("news", "client") not in there]:
            add("a lost message", f"Stream: acknowledged, and not there: {lost}")


def _trip(story: Story, add: Callable[[str, str], None]) -> None:
    """What came from outside after the point is in the new run as well, in order, and once."""
    if story.output != list(range(story.plan["stops"])):
        add("a lost or doubled message", f"{story.plan['stops']} stops became {story.output}")
    (back,) = story.acked("back")
    if back["answer"] != story.runs[-1].run_id:
        add("a lost time travel", f"run {back['answer']} was acknowledged, the last one is {story.runs[-1].run_id}")


def _brief(story: Story, add: Callable[[str, str], None]) -> None:
    if story.output != 0:
        add("a wrong output", f"{story.output}")
    for record in story.said("read"):
        if record["value"] is not True:
            add("a stale read", "its deletion was acknowledged, and it could be described")


def _stay(story: Story, add: Callable[[str, str], None]) -> None:
    if story.output is not None:
        add("a wrong output", f"{story.output}")


_OF_KIND: dict[str, Judge] = {
    "letters": _letters,
    "naps": _naps,
    "fan": _fan,
    "counter": _counter,
    "parent": _parent,
    "flaky": _flaky,
    "train": _train,
    "stream": _stream,
    "trip": _trip,
    "brief": _brief,
    "stay": _stay,
}
