"""From a text to a tree: what binds closer, how values are written, and how mistakes are told."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dex import quoted
from dexray.search import BadQuery, parse, resolve
from dexray.search.syntax import (
    LONGEST_QUERY,
    Comparison,
    Conjunction,
    Disjunction,
    Literal,
    Negation,
    Tree,
    comparisons_of,
)

TYPES = {"a": ("INT",), "b": ("KEYWORD",), "n": ("FULL_TEXT",)}


def is_(name: str, value: int = 1) -> Comparison:
    return Comparison(name, "=", (Literal(value, 0),))


def shape(tree: Tree) -> object:
    """A tree without places."""
    match tree:
        case Comparison(name, operator, values):
            return (name, operator, *(literal.value for literal in values))
        case Conjunction(parts):
            return ["AND", *map(shape, parts)]
        case Disjunction(parts):
            return ["OR", *map(shape, parts)]
        case Negation(part):
            return ["NOT", shape(part)]


def parsed(query: str) -> object:
    return shape(parse(query))


def refused(query: str) -> BadQuery:
    with pytest.raises(BadQuery) as caught:
        resolve(parse(query), query, TYPES)
    return caught.value


def test_not_binds_closer_than_and_and_and_closer_than_or() -> None:
    a, b, c = (("a", "=", 1), ("b", "=", 1), ("c", "=", 1))
    assert parsed("a=1 OR b=1 AND c=1") == ["OR", a, ["AND", b, c]]
    assert parsed("(a=1 OR b=1) AND c=1") == ["AND", ["OR", a, b], c]
    assert parsed("NOT a=1 AND b=1") == ["AND", ["NOT", a], b]
    assert parsed("NOT (a=1 AND b=1)") == ["NOT", ["AND", a, b]]
    assert parsed("NOT NOT a=1") == a
    assert parsed("NOT NOT NOT a=1") == ["NOT", a]
    assert parsed("a=1 and b=1 And c=1") == ["AND", a, b, c]


def test_an_empty_query_asks_nothing() -> None:
    for query in ("", "   ", "\n\t"):
        assert parsed(query) == ["AND"]


def test_every_operator_has_its_name() -> None:
    for sign, name in (("=", "="), ("!=", "!="), ("<>", "!="), ("<", "<"), ("<=", "<="), (">", ">"), (">=", ">=")):
        assert parsed(f"a{sign}1") == ("a", name, 1)
    assert parsed("a in (1,2)") == ("a", "IN", 1, 2)
    assert parsed("a NOT IN (1)") == ("a", "NOT IN", 1)
    assert parsed("a is null OR a IS NOT NULL") == ["OR", ("a", "IS NULL"), ("a", "IS NOT NULL")]


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("'x'", "x"),
        ('"x"', "x"),
        ("''", ""),
        ("'it''s'", "it's"),
        ('"say ""hi"""', 'say "hi"'),
        ("'say \"hi\"'", 'say "hi"'),
        ("'a\\'", "a\\"),
        ("' AND b = 1 '", " AND b = 1 "),
        ("'line\nbreak'", "line\nbreak"),
        ("7", 7),
        ("-7", -7),
        ("+7", 7),
        ("1.5", 1.5),
        ("1.", 1.0),
        (".5", 0.5),
        ("-1e3", -1000.0),
        ("9223372036854775808", 9223372036854775808),
        ("true", True),
        ("FALSE", False),
    ],
)
def test_a_value_is_what_is_written(text: str, value: object) -> None:
    (comparison,) = comparisons_of(parse(f"a = {text}"))
    (literal,) = comparison.values
    assert (literal.value, type(literal.value)) == (value, type(value))


def test_names_may_be_like_keywords_or_in_backticks() -> None:
    for name in ("android", "order_id", "notes", "inner", "a.b-c", "_x", "été", "TRUEST", "ISNULL"):
        assert parsed(f"{name} = 1") == (name, "=", 1)
    assert parsed("`and` = 1") == ("and", "=", 1)
    assert parsed("`my ``key``` = 1") == ("my `key`", "=", 1)


@given(st.text(st.characters(exclude_categories=["Cs"])))
def test_a_quoted_text_is_one_text_whatever_is_in_it(text: str) -> None:
    assert parsed(f"a = {quoted(text)} OR b = 1") == ["OR", ("a", "=", text), ("b", "=", 1)]


PIECES = [*"ab=<>!()'\"`,.1-", " ", "AND ", " OR ", "NOT ", " IN ", "é", "\0", "\n"]


@settings(max_examples=300)
@given(st.lists(st.sampled_from(PIECES)).map("".join))
def test_any_text_is_a_query_or_a_mistake_that_is_told_with_its_place(text: str) -> None:
    mistake = mistake_in(text)
    if mistake is not None:
        assert 0 <= mistake.position <= len(text)
        assert str(mistake).splitlines()[-1].strip() == "^"


def mistake_in(text: str) -> BadQuery | None:
    try:
        resolve(parse(text), text, TYPES)
    except BadQuery as error:
        return error
    return None


@pytest.mark.parametrize(
    ("query", "detail", "position"),
    [
        ("a = 1 b = 2", "there is b where AND, OR or the end was expected", 6),
        ("a", "the query ends where an operator (=, !=, <, <=, >, >=, IN, NOT IN, IS NULL) was expected", 1),
        ("a = 1 AND", 'the query ends where a name, "(" or NOT was expected', 9),
        ("(a = 1", 'the query ends where ")"', 6),
        ("a = 1)", "there is ) where the end was expected", 5),
        ("a IN ()", "there is ) where a value", 6),
        ("a IN 1", 'there is 1 where "(" was expected', 5),
        ("a = b", "there is b where a value", 4),
        ("a = 'b", "this text has no closing '", 4),
        ("`` = 1", "this name in backticks has no closing ` or has nothing in it", 0),
        ("a = 1x", "this is no number", 4),
        ("a = 1; DROP TABLE runs", "';' means nothing here", 5),
        ("a = 1 -- b", "this is no number", 6),
        ("c = 1", "there is no field or index key 'c'", 0),
        ("flowtype = 'x'", "did you mean FlowType?", 0),
        ("a = 9223372036854775808", "does not fit into 64 bits", 4),
        (f"a = {'9' * 50}", "does not fit into 64 bits", 4),
        ("a = 1.5", "a is INT and can't be compared with the number 1.5: write a whole number", 4),
        ("a = TRUE", "a is INT and can't be compared with TRUE", 4),
        ("a IN (1, 2, 'x')", "a is INT and can't be compared with the text 'x'", 12),
        ("n = '!?'", "this text has no word to look for", 4),
        ("n < 'x'", "n is FULL_TEXT, which has no order", 0),
        ("FlowType > 'x'", "FlowType has no order", 0),
        ("ExecutionStatus = 'Dead'", "ExecutionStatus is never 'Dead'", 18),
        ("StartTime > 5", "StartTime is a date and time and can't be compared with a whole number 5", 12),
        ("StartTime > 'noon'", "write it as in '2026-05-31T08:30:00Z'", 12),
        ("FlowId = 5", "FlowId is a text", 9),
    ],
)
def test_a_mistake_says_what_is_wrong_and_where(query: str, detail: str, position: int) -> None:
    error = refused(query)
    assert detail in error.detail
    assert error.position == position


def test_the_place_is_shown_in_its_line_and_in_a_part_of_a_long_one() -> None:
    error = refused("a = 1\nAND c = 2\nAND a = 3")
    assert str(error).splitlines()[-2:] == ["    AND c = 2", "        ^"]
    error = refused(" AND ".join(["a = 1"] * 50) + " AND c = 2" + " AND a = 1" * 50)
    shown, pointer = str(error).splitlines()[-2:]
    assert len(shown) < 120
    assert shown[pointer.index("^")] == "c"


def test_what_could_exhaust_a_service_is_refused() -> None:
    nested = "a = 1"
    for level in range(60):
        nested = f"({nested}) {'AND' if level % 2 else 'OR'} a = {level}"
    assert "nests at most 50 levels" in refused(nested).detail
    assert "at most 200 comparisons" in refused(" OR ".join(["a = 1"] * 201)).detail
    assert "1,000 values" in refused(f"a IN ({', '.join(['1'] * 1001)})").detail
    assert f"at most {LONGEST_QUERY:,} characters" in refused("(" * 30_000).detail
    assert "more than 100 words" in refused(f"n = '{' '.join(map(str, range(101)))}'").detail
    assert parsed("NOT " * 4999 + "a=1") == ["NOT", ("a", "=", 1)]
