"""Conditions: a query whose names are known, and whose values have the types that the names have.

What can be asked of a run

    field                              type                    in the database
    --------------------------------   ---------------------   -----------------------------------------
    FlowId, WorkflowId                 text                    its row
    RunId                              text                    its row
    FlowType                           text, not ordered       its row
    ExecutionStatus                    a FlowStatus            its row
    StartTime, CloseTime               a date and time         its row
    DexParentFlowID, ParentFlowId      text                    its row; only a SubFlow has one
    ActiveStepTypes                    a list of Step types    entries, as far as ActiveStepSearchMode says
    the index key of an Attribute      the key's IndexType     entries

`resolve` leaves few operators: `in` and the orders ask for a value that fits, `present` for any value at all. The
others are said with AND, OR and NOT.
"""

from __future__ import annotations

import difflib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Final, NamedTuple

from dex.names import SEARCH_FIELDS
from dexray.search.syntax import BadQuery, Comparison, Conjunction, Disjunction, Literal, Negation, Tree
from dexray.search.words import as_word, microseconds, moment_of, words_of

IN: Final = "in"
PRESENT: Final = "present"
ORDERS: Final = ("<", "<=", ">", ">=")

ACTIVE_STEP_TYPES: Final = "ActiveStepTypes"

Scalar = str | int | float


@dataclass(frozen=True, slots=True)
class RunTest:
    """A column of the run's row has one of the values, or is in this order to the only one. operator: in, <, <=, >, >=
    or present. A column without a value satisfies none."""

    column: str
    operator: str
    values: tuple[Scalar, ...] = ()


@dataclass(frozen=True, slots=True)
class KeyTest:
    """Some entry of the run under this key, and of this IndexType, fits. column: word, whole or real; "" for
    present."""

    key: str
    type: str
    column: str
    operator: str
    values: tuple[Scalar, ...] = ()


@dataclass(frozen=True, slots=True)
class And:
    """Without parts it is true."""

    parts: tuple[Condition, ...]


@dataclass(frozen=True, slots=True)
class Or:
    """Without parts it is false."""

    parts: tuple[Condition, ...]


@dataclass(frozen=True, slots=True)
class Not:
    part: Condition


Condition = RunTest | KeyTest | And | Or | Not


class _Field(NamedTuple):
    column: str
    kind: str  # text, identifier, status or moment
    is_optional: bool = False


_FIELDS: Final[dict[str, _Field]] = {
    "FlowId": _Field("flow_id", "text"),
    "WorkflowId": _Field("flow_id", "text"),
    "RunId": _Field("run_id", "text"),
    "FlowType": _Field("flow_type", "identifier"),
    "ExecutionStatus": _Field("status", "status"),
    "StartTime": _Field("started_at", "moment"),
    "CloseTime": _Field("closed_at", "moment", True),
    "DexParentFlowID": _Field("parent", "text", True),
    "ParentFlowId": _Field("parent", "text", True),
}
assert {*_FIELDS, ACTIVE_STEP_TYPES} == SEARCH_FIELDS

STATUSES: Final = ("RUNNING", "COMPLETED", "FAILED", "CANCELED", "TERMINATED", "CONTINUED_AS_NEW")

COLUMNS: Final[Mapping[str, str]] = {
    "KEYWORD": "word",
    "KEYWORD_ARRAY": "word",
    "FULL_TEXT": "word",
    "INT": "whole",
    "BOOL": "whole",
    "DATETIME": "whole",
    "DOUBLE": "real",
}
"""Where the values of an IndexType are."""


def resolve(tree: Tree, query: str, types: Mapping[str, Sequence[str]]) -> Condition:
    """The condition that a tree stands for. types: the IndexTypes of each index key. Raises BadQuery."""
    return _Resolver(query, types).condition(tree)


class _Misfit(Exception):
    """A value that its field or key can't be compared with: why, and which one."""

    def __init__(self, why: str, literal: Literal | None = None) -> None:
        super().__init__(why)
        self.literal = literal


class _Resolver:
    def __init__(self, query: str, types: Mapping[str, Sequence[str]]) -> None:
        self._query = query
        self._types = types

    def condition(self, tree: Tree) -> Condition:
        match tree:
            case Conjunction(parts):
                return And(tuple(self.condition(part) for part in parts))
            case Disjunction(parts):
                return Or(tuple(self.condition(part) for part in parts))
            case Negation(part):
                return Not(self.condition(part))
        return self._comparison(tree)

    def _comparison(self, asked: Comparison) -> Condition:
        try:
            field = _FIELDS.get(asked.name)
            if field is not None:
                return _negated(asked, partial(_of_run, asked, field))
            types = ("KEYWORD_ARRAY",) if asked.name == ACTIVE_STEP_TYPES else self._types.get(asked.name, ())
            if not types:
                raise self._unknown(asked)
            return self._of_key(asked, types)
        except _Misfit as misfit:
            position = asked.position if misfit.literal is None else misfit.literal.position
            raise BadQuery(str(misfit), self._query, position) from None

    def _of_key(self, asked: Comparison, types: Sequence[str]) -> Condition:
        """A key that deployed Flows give different types means whichever of them the values fit."""
        fitting: list[Condition] = []
        misfits: list[_Misfit] = []
        for type in types:
            try:
                fitting.append(_negated(asked, partial(_of_type, asked, type)))
            except _Misfit as misfit:
                misfits.append(misfit)
        if not fitting:
            raise misfits[0]
        if asked.operator == "IS NULL":
            return And(tuple(fitting))
        return fitting[0] if len(fitting) == 1 else Or(tuple(fitting))

    def _unknown(self, asked: Comparison) -> BadQuery:
        known = sorted({*SEARCH_FIELDS, *self._types})
        near = difflib.get_close_matches(asked.name, known, 1) or [
            name for name in known if name.casefold() == asked.name.casefold()
        ]
        hint = f"did you mean {near[0]}?" if near else f"known are {', '.join(known)}"
        return BadQuery(
            f"there is no field or index key {asked.name!r} ({hint})",
            self._query,
            asked.position,
        )


def _negated(asked: Comparison, positive: Callable[[str], Condition]) -> Condition:
    """Says !=, NOT IN and IS NULL with what `positive` makes of the operator without its negation."""
    match asked.operator:
        case "IS NULL":
            return Not(positive(PRESENT))
        case "IS NOT NULL":
            return positive(PRESENT)
        case "!=" | "NOT IN":
            return And((positive(PRESENT), Not(positive(IN))))
        case "=" | "IN":
            return positive(IN)
    return positive(asked.operator)


# Fields of the run ----------------------------------------------------------------------------------------------------


def _of_run(asked: Comparison, field: _Field, operator: str) -> Condition:
    if operator == PRESENT:
        return RunTest(field.column, PRESENT) if field.is_optional else And(())
    if operator in ORDERS and field.kind in ("identifier", "status"):
        raise _Misfit(f"{asked.name} has no order: it is compared with =, != and IN")
    if field.kind == "status":
        return RunTest(field.column, operator, tuple(_status(asked.name, literal) for literal in asked.values))
    if field.kind == "moment":
        return RunTest(field.column, operator, tuple(_seconds(asked.name, literal) for literal in asked.values))
    # Not every database takes a NUL. No id or type has one, nor has the character that comes next.
    texts = tuple(_text(asked.name, "a text", literal).replace("\0", "\1") for literal in asked.values)
    return RunTest(field.column, operator, texts)


def _status(name: str, literal: Literal) -> str:
    text = _text(name, "a status", literal)
    wanted = text.replace("_", "").casefold()
    for status in STATUSES:
        if status.replace("_", "").casefold() == wanted:
            return status
    raise _Misfit(f"{name} is never {text!r}: it is one of {', '.join(STATUSES)}", literal)


def _seconds(name: str, literal: Literal) -> float:
    return _moment(name, "a date and time", literal) / 1e6


# Index keys -----------------------------------------------------------------------------------------------------------


def _of_type(asked: Comparison, type: str, operator: str) -> Condition:
    name, column = asked.name, COLUMNS[type]
    if operator == PRESENT:
        return KeyTest(name, type, "", PRESENT)
    if operator in ORDERS and type in ("FULL_TEXT", "KEYWORD_ARRAY", "BOOL"):
        raise _Misfit(f"{name} is {type}, which has no order: it is compared with =, != and IN")
    if type == "FULL_TEXT":
        return _full_text(asked)
    values = tuple(_typed(name, type, literal) for literal in asked.values)
    return KeyTest(name, type, column, operator, values)


def _full_text(asked: Comparison) -> Condition:
    """One of the texts has all its words in the run's."""
    texts: list[Condition] = []
    for literal in asked.values:
        words = words_of(_text(asked.name, "FULL_TEXT", literal), 101)
        if not words:
            raise _Misfit(f"{asked.name} is FULL_TEXT, and this text has no word to look for", literal)
        if len(words) > 100:
            raise _Misfit(f"{asked.name} is FULL_TEXT, and this text has more than 100 words", literal)
        texts.append(And(tuple(KeyTest(asked.name, "FULL_TEXT", "word", IN, (word,)) for word in words)))
    return texts[0] if len(texts) == 1 else Or(tuple(texts))


def _typed(name: str, type: str, literal: Literal) -> Scalar:
    value = literal.value
    match type:
        case "KEYWORD" | "KEYWORD_ARRAY":
            return as_word(_text(name, type, literal))
        case "DATETIME":
            return _moment(name, type, literal)
        case "BOOL":
            if isinstance(value, bool):
                return int(value)
            raise _wrong(name, "BOOL", literal, "write TRUE or FALSE")
        case "DOUBLE":
            if isinstance(value, float) or type_of(value) == "a whole number":
                return float(value)
            raise _wrong(name, "DOUBLE", literal, "write a number without quotes")
    if type_of(value) != "a whole number":
        raise _wrong(name, type, literal, "write a whole number without quotes")
    assert isinstance(value, int)
    if not -(1 << 63) <= value < 1 << 63:
        raise _Misfit(f"{name} is INT, and this number does not fit into 64 bits", literal)
    return value


def _text(name: str, what: str, literal: Literal) -> str:
    if isinstance(literal.value, str):
        return literal.value
    raise _wrong(name, what, literal, "write the text in quotes")


def _moment(name: str, what: str, literal: Literal) -> int:
    found = moment_of(literal.value) if isinstance(literal.value, str) else None
    if found is None:
        raise _wrong(name, what, literal, "write it as in '2026-05-31T08:30:00Z'")
    return microseconds(found)


def _wrong(name: str, what: str, literal: Literal, way_out: str) -> _Misfit:
    value = literal.value
    shown = f"the text {value!r}" if isinstance(value, str) else f"{type_of(value)} {value!r}"
    if isinstance(value, bool):
        shown = str(value).upper()
    return _Misfit(f"{name} is {what} and can't be compared with {shown}: {way_out}", literal)


def type_of(value: Scalar | bool) -> str:
    if isinstance(value, bool):
        return "a truth value"
    if isinstance(value, int):
        return "a whole number"
    return "the number" if isinstance(value, float) else "a text"
