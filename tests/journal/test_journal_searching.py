"""What every journal finds: any query over any runs gives what its conditions say, page by page and counted.

`expected` asks a query of each run in plain Python, from the tree of the query alone; it knows nothing of indexes.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from sqlalchemy import Connection, delete

from dex.values import CodecRegistry
from dex.wire.specs import IndexSpec
from dexray.engine.indexing import entries_of
from dexray.journal import Append, Journal, RunChange, open_journal, schema
from dexray.journal import searching as sql
from dexray.journal.interface import IndexEntry
from dexray.search import parse, resolve
from dexray.search.syntax import Comparison, Conjunction, Disjunction, Negation, Tree
from tests.journal.builders import CLOSED, record, start

TYPES = {
    "city": ("KEYWORD",),
    "tags": ("KEYWORD_ARRAY",),
    "notes": ("FULL_TEXT",),
    "age": ("INT",),
    "price": ("DOUBLE",),
    "paid": ("BOOL",),
    "due": ("DATETIME",),
}
BEGAN = datetime(2026, 5, 1, tzinfo=UTC)
LONG = "x" * 3000
CODECS = CodecRegistry()


@dataclass(frozen=True)
class Run:
    """A run as a test knows it. closed_at and started_at: days since BEGAN."""

    run_id: str
    flow_id: str
    flow_type: str = "Order"
    status: str = "RUNNING"
    started_at: int = 0
    closed_at: int | None = None
    parent: str | None = None
    steps: tuple[str, ...] = ()
    attributes: dict[str, Any] = field(default_factory=dict)


def seconds(days: int) -> float:
    return (BEGAN + timedelta(days=days)).timestamp()


def entries(run: Run) -> dict[str, tuple[IndexEntry, ...]]:
    found = {
        key: entries_of(CODECS.encode_dynamic(value, where=key), IndexSpec(key=key, type=TYPES[key][0]), {})
        for key, value in run.attributes.items()
    }
    if run.steps:
        found[""] = tuple(IndexEntry("ActiveStepTypes", "KEYWORD_ARRAY", word=step) for step in run.steps)
    return found


def append_of(run: Run) -> Append:
    closed_at = None if run.closed_at is None else seconds(run.closed_at)
    return start(
        run.run_id,
        run.flow_id,
        flow_type=run.flow_type,
        started_at=seconds(run.started_at),
        parent=run.parent,
        change=RunChange(status=run.status, closed_at=closed_at),
        index=entries(run),
    )


def search(journal: Journal, query: str, page_size: int = 100, latest_only: bool = False) -> list[str]:
    """The run ids of all pages. The count is looked at on the way."""
    condition = resolve(parse(query), query, TYPES)
    found: list[str] = []
    token = ""
    while True:
        page, token = journal.search_runs(condition, latest_only=latest_only, page_size=page_size, page_token=token)
        assert len(page) <= page_size
        found += [run.row.run_id for run in page]
        if not token:
            break
    assert journal.count_runs(condition, latest_only=latest_only) == len(found)
    return found


# What a query means, in plain Python ----------------------------------------------------------------------------------


def expected(runs: Sequence[Run], tree: Tree) -> list[str]:
    found = [run for run in runs if holds(tree, run)]
    return [run.run_id for run in sorted(found, key=lambda run: (-run.started_at, run.run_id))]


def holds(tree: Tree, run: Run) -> bool:
    match tree:
        case Conjunction(parts):
            return all(holds(part, run) for part in parts)
        case Disjunction(parts):
            return any(holds(part, run) for part in parts)
        case Negation(part):
            return not holds(part, run)
    return compare(tree, run)


def compare(asked: Comparison, run: Run) -> bool:
    there, values = values_of(asked.name, run)
    wanted = [as_asked(asked.name, literal.value) for literal in asked.values]
    if asked.name == "notes":
        texts = [words(text) for text in values]
        equal = any(words(str(want)) <= text for want in wanted for text in texts)
    else:
        equal = any(value == want for value in values for want in wanted)
    match asked.operator:
        case "IS NULL":
            return not there
        case "IS NOT NULL":
            return there
        case "=" | "IN":
            return equal
        case "!=" | "NOT IN":
            return there and not equal
        case "<":
            return any(value < wanted[0] for value in values)
        case "<=":
            return any(value <= wanted[0] for value in values)
        case ">":
            return any(value > wanted[0] for value in values)
    assert asked.operator == ">="
    return any(value >= wanted[0] for value in values)


def values_of(name: str, run: Run) -> tuple[bool, list[Any]]:
    match name:
        case "FlowId" | "WorkflowId":
            return True, [run.flow_id]
        case "RunId":
            return True, [run.run_id]
        case "FlowType":
            return True, [run.flow_type]
        case "ExecutionStatus":
            return True, [run.status]
        case "StartTime":
            return True, [BEGAN + timedelta(days=run.started_at)]
        case "CloseTime":
            closed = run.closed_at
            return closed is not None, [] if closed is None else [BEGAN + timedelta(days=closed)]
        case "DexParentFlowID" | "ParentFlowId":
            return run.parent is not None, [] if run.parent is None else [run.parent]
        case "ActiveStepTypes":
            return bool(run.steps), list(run.steps)
    if name not in run.attributes:
        return False, []
    value = run.attributes[name]
    return True, list(value) if name == "tags" else [value]


def as_asked(name: str, value: Any) -> Any:
    if name in ("StartTime", "CloseTime", "due"):
        return datetime.fromisoformat(value)
    return value.upper() if name == "ExecutionStatus" else value


def words(text: str) -> set[str]:
    return set("".join(letter if letter.isalnum() or letter == "_" else " " for letter in text.casefold()).split())


# Random runs and random queries ---------------------------------------------------------------------------------------

CITIES = (
    "Rome",
    "rome",
    "L'Aquila",
    'say "hi"',
    "",
    "é",
    "Z",
    "a%b_c",
    "\\",
    "'; DROP TABLE runs; --",
    LONG,
    LONG + "y",
)
TEXTS = ("The quick brown fox", "quick QUICK", "", "!?", "fox_1 or fox 1", "ÄRGER straße")
DAYS = st.integers(-3, 3)
INTS = st.sampled_from([0, 1, -1, 7, 2**63 - 1, -(2**63)])
FLOATS = st.sampled_from([0.0, -0.5, 1.0, 1e300, 2.5, 5e-324])
MOMENTS = DAYS.map(lambda days: BEGAN + timedelta(days=days, microseconds=days))

ATTRIBUTES = st.fixed_dictionaries(
    {},
    optional={
        "city": st.sampled_from(CITIES),
        "tags": st.lists(st.sampled_from(CITIES), max_size=3),
        "notes": st.sampled_from(TEXTS),
        "age": INTS,
        "price": st.one_of(FLOATS, st.just(float("nan")), st.just(float("inf"))),
        "paid": st.booleans(),
        "due": MOMENTS,
    },
)


@st.composite
def runs_of(draw: st.DrawFn) -> list[Run]:
    return [
        Run(
            run_id=f"r{number}",
            flow_id=f"f{number}",
            flow_type=draw(st.sampled_from(["Order", "Trip"])),
            status=draw(st.sampled_from(["RUNNING", "COMPLETED", "FAILED"])),
            started_at=draw(DAYS),
            closed_at=draw(st.none() | DAYS),
            parent=draw(st.none() | st.sampled_from(["f0", "other"])),
            steps=draw(st.sampled_from([(), ("Buy",), ("Buy", "Ship")])),
            attributes=draw(ATTRIBUTES),
        )
        for number in range(draw(st.integers(0, 6)))
    ]


def text(value: str) -> st.SearchStrategy[str]:
    doubled = [quote + value.replace(quote, quote * 2) + quote for quote in "'\""]
    return st.sampled_from(doubled)


def texts(*values: str) -> st.SearchStrategy[str]:
    return st.sampled_from(values).flatmap(text)


def moments() -> st.SearchStrategy[str]:
    return MOMENTS.map(lambda moment: moment.isoformat()).flatmap(text)


VALUES = {
    "city": texts(*CITIES, "Paris"),
    "tags": texts(*CITIES, "Paris"),
    "notes": texts("quick", "Fox BROWN", "fox_1", "straße", "ärger", "nothing"),
    "age": INTS.map(str),
    "price": FLOATS.map(repr) | st.integers(-1, 2).map(str),
    "paid": st.sampled_from(["TRUE", "false"]),
    "due": moments(),
    "FlowId": texts("f0", "f1", "f2", "\x00"),
    "WorkflowId": texts("f3"),
    "RunId": texts("r0", "r4", "zzz"),
    "FlowType": texts("Order", "Trip", "order"),
    "ExecutionStatus": texts("Running", "COMPLETED", "failed"),
    "StartTime": moments(),
    "CloseTime": moments(),
    "DexParentFlowID": texts("f0", "other"),
    "ParentFlowId": texts("f0", "g"),
    "ActiveStepTypes": texts("Buy", "Ship", "Pay"),
}
ORDERED = {"city", "age", "price", "due", "FlowId", "RunId", "StartTime", "CloseTime", "DexParentFlowID"}


@st.composite
def comparisons(draw: st.DrawFn) -> str:
    name = draw(st.sampled_from(sorted(VALUES)))
    shown = f"`{name}`" if draw(st.booleans()) else name
    value = VALUES[name]
    operators = ["=", "!=", "<>", "in", "NOT IN", "is NULL", "IS not null"]
    operator = draw(st.sampled_from(operators + (["<", "<=", ">", ">="] * 2 if name in ORDERED else [])))
    if operator.casefold().endswith("in"):
        return f"{shown} {operator} ({', '.join(draw(st.lists(value, min_size=1, max_size=3)))})"
    if operator.casefold().startswith("is"):
        return f"{shown} {operator}"
    return f"{shown}{operator}{draw(value)}"


QUERIES = st.just("") | st.recursive(
    comparisons(),
    lambda inner: st.one_of(
        st.tuples(inner, st.sampled_from([" AND ", "\nor ", " OR "]), inner).map("".join),
        inner.map(lambda query: f"NOT {query}"),
        inner.map(lambda query: f"({query})"),
    ),
    max_leaves=6,
)


@pytest.mark.statement("C57", "D10")
@pytest.mark.parametrize("few", [0, 1000], ids=["walking the runs", "from the entries"])
def test_any_query_finds_what_it_says(
    journal: Journal, journal_url: str, few: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sql, "FEW", few)

    count = 150 if journal_url.startswith("sqlite") else 50  # the same statements, each of which takes longer

    @settings(max_examples=count, deadline=None, suppress_health_check=list(HealthCheck), database=None)
    @given(runs_of(), st.lists(QUERIES, min_size=1, max_size=5), st.integers(1, 4))
    def check(runs: list[Run], queries: list[str], page_size: int) -> None:
        empty(journal)
        journal.append([append_of(run) for run in runs])
        for query in queries:
            assert search(journal, query, page_size) == expected(runs, parse(query)), query

    check()


def empty(journal: Journal) -> None:
    def work(connection: Connection) -> None:
        for table in (schema.runs, schema.events, schema.attribute_index):
            connection.execute(delete(table))

    journal._database.write(work)  # type: ignore[attr-defined]


# One by one -----------------------------------------------------------------------------------------------------------


def test_pages_are_stable_while_runs_start_end_and_change(journal: Journal) -> None:
    runs = [Run(f"r{number}", f"f{number}", started_at=number, attributes={"age": 1}) for number in range(6)]
    journal.append([append_of(run) for run in runs])
    condition = resolve(parse("age = 1"), "age = 1", TYPES)
    seen: list[str] = []
    token = ""
    for number in range(3):
        page, token = journal.search_runs(condition, latest_only=False, page_size=2, page_token=token)
        seen += [run.row.run_id for run in page]
        journal.append([append_of(Run(f"new{number}", f"n{number}", started_at=90 + number, attributes={"age": 1}))])
        seq = number + 2
        journal.append([record("r5", seq, index={"age": entries(Run("", "", attributes={"age": number}))["age"]})])
    assert token == ""
    assert seen == ["r5", "r4", "r3", "r2", "r1", "r0"]


def test_a_value_is_found_from_the_record_on_that_brings_it_until_the_one_that_takes_it_away(journal: Journal) -> None:
    def value(city: str) -> dict[str, tuple[IndexEntry, ...]]:
        return entries(Run("", "", attributes={"city": city}))

    journal.append([start("r"), record("r", 2, index=value("Rome"))])
    assert search(journal, "city = 'Rome'") == ["r"]
    journal.append([record("r", 3, index=value("Paris")), record("r", 4, index=value("Oslo"))])
    assert search(journal, "city IN ('Rome', 'Paris')") == []
    assert search(journal, "city = 'Oslo'") == ["r"]
    journal.append([record("r", 5, index={"city": ()})])
    assert search(journal, "city IS NOT NULL") == []


def test_what_is_refused_changes_no_entry(journal: Journal) -> None:
    journal.append([append_of(Run("r", "f", attributes={"age": 1}))])
    changed = entries(Run("", "", attributes={"age": 2}))
    journal.append([record("r", 2, epoch=9, index=changed), record("r", 7, index=changed)])
    assert search(journal, "age = 1") == ["r"]


def test_a_replaced_run_is_found_unless_only_the_latest_are_wanted(journal: Journal) -> None:
    old = start("a", "f", started_at=1.0, change=CLOSED)
    journal.append([old, start("b", "f", started_at=2.0, replaces="a")])
    assert search(journal, "FlowId = 'f'") == ["b", "a"]
    assert search(journal, "FlowId = 'f'", latest_only=True) == ["b"]
    assert search(journal, "NOT FlowId = 'f'", latest_only=True) == []
    assert search(journal, "", latest_only=True) == ["b"]


def test_entries_of_another_type_than_the_condition_asks_for_do_not_fit(journal: Journal) -> None:
    """The code has changed: what was written as a BOOL is no INT."""
    old = IndexSpec(key="age", type="BOOL")
    journal.append([start("r", index={"age": entries_of(CODECS.encode_dynamic(True, where="age"), old, {})})])
    assert search(journal, "age = 1") == []
    assert search(journal, "age IS NULL") == ["r"]
    assert journal.index_types(["age", "city"]) == {"age": ("BOOL",)}


def test_several_sources_of_a_key_are_all_found(journal: Journal) -> None:
    index = {f"stock/{item}": (IndexEntry("age", "INT", whole=item),) for item in (1, 5)}
    journal.append([start("r", index=index)])
    assert search(journal, "age = 5 AND age < 2") == ["r"]
    assert search(journal, "age != 5") == []
    journal.append([record("r", 2, index={"stock/5": ()})])
    assert search(journal, "age = 5") == []
    assert search(journal, "age = 1") == ["r"]


@pytest.mark.parametrize(
    "attack", ["'; DROP TABLE runs; --", "' OR '1'='1", '" OR 1=1 --', "%", "_", "\\'", "\0", "x\0y"]
)
def test_no_text_is_anything_but_a_text(journal: Journal, attack: str) -> None:
    journal.append([append_of(Run("r", "f", attributes={"city": "Rome", "tags": ["Rome"], "notes": "Rome"}))])
    quoted = "'" + attack.replace("'", "''") + "'"
    for name in ("city", "tags", "FlowId", "RunId", "FlowType", "ActiveStepTypes", "ParentFlowId"):
        assert search(journal, f"{name} = {quoted}") == []
        assert search(journal, f"NOT {name} IN ({quoted})") == ["r"]
    journal.append([append_of(Run("s", "g", attributes={"city": attack}))])
    assert search(journal, f"city = {quoted}") == ["s"]


def test_a_nul_comes_before_every_id(journal: Journal) -> None:
    journal.append([start("r", "f")])
    assert search(journal, "FlowId < '\0' OR FlowId <= 'f\0' AND FlowId != 'f' OR RunId = 'r\0'") == []
    assert search(journal, "FlowId > '\0' AND FlowId < 'f\0' AND ParentFlowId IS NULL") == ["r"]


def test_long_texts_are_told_apart_behind_what_an_index_holds(journal: Journal) -> None:
    journal.append([append_of(Run(f"r{end}", f"f{end}", attributes={"city": LONG + end})) for end in "ab"])
    assert search(journal, f"city = '{LONG}a'") == ["ra"]
    assert search(journal, f"city != '{LONG}a'") == ["rb"]
    assert search(journal, "city > 'xxx'") == ["ra", "rb"]


def test_many_values_are_one_question(journal: Journal) -> None:
    journal.append([append_of(Run("r", "f", attributes={"age": 999}))])
    assert search(journal, f"age IN ({', '.join(map(str, range(1000)))})") == ["r"]
    assert search(journal, " OR ".join(f"age = {number}" for number in range(900, 1000))) == ["r"]
    assert search(journal, "NOT " * 901 + "age = 999") == []
    assert search(journal, "(" * 3000 + "age = 999" + ")" * 3000) == ["r"]


class TestPlans:
    """SQLite enters by an index, and sorts only what is few."""

    @pytest.fixture
    def plan_of(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
        monkeypatch.setattr(sql, "FEW", 20)
        path = tmp_path / "plans.db"
        journal = open_journal(path)
        journal.migrate()
        runs = [Run(f"r{n:03}", f"f{n}", attributes={"city": "Rome" if n else "Oslo", "age": n}) for n in range(100)]
        journal.append([append_of(run) for run in runs])

        def plan(query: str, latest_only: bool = False) -> str:
            condition = resolve(parse(query), query, TYPES)
            spoken: list[str] = []

            def listen(connection: Any) -> None:
                connection.connection.driver_connection.set_trace_callback(spoken.append)

            journal._database.read(listen)  # type: ignore[attr-defined]
            journal.search_runs(condition, latest_only=latest_only, page_size=5)
            (statement,) = [sentence for sentence in spoken if "ORDER BY runs.started_at" in sentence]
            with sqlite3.connect(path) as connection:
                return " / ".join(row[3] for row in connection.execute(f"EXPLAIN QUERY PLAN {statement}"))

        yield plan
        journal.close()

    def test_few_entries_lead_to_their_runs(self, plan_of: Any) -> None:
        for query in ("city = 'Oslo'", "age < 5", "city = 'Rome' AND age IN (1, 2)"):
            plan = plan_of(query)
            assert "SEARCH runs USING INDEX sqlite_autoindex_runs_1" in plan, plan
            assert "INDEX attribute_index_" in plan, plan

    def test_of_many_the_newest_runs_are_walked_and_each_is_tested_by_its_own_entries(self, plan_of: Any) -> None:
        for query in ("city = 'Rome'", "age >= 5", "city IS NOT NULL", "NOT city = 'Rome'", "FlowType = 'Order'", ""):
            for latest_only in (False, True):
                plan = plan_of(query, latest_only)
                assert "SCAN runs USING INDEX runs_newest" in plan, plan
                assert "TEMP B-TREE" not in plan, plan
                assert "attribute_index" not in plan or "run_id=?" in plan, plan

    def test_a_flow_id_leads_to_its_runs(self, plan_of: Any) -> None:
        for latest_only in (False, True):
            plan = plan_of("FlowId = 'f7'", latest_only)
            assert "runs_current" in plan, plan
            assert "SCAN" not in plan, plan
        assert "runs_replaced" in plan_of("FlowId IN ('f7', 'f8')")

    def test_the_children_of_a_flow_are_found_by_their_parent(self, plan_of: Any) -> None:
        assert "runs_of_parent" in plan_of("DexParentFlowID = 'f7'")
