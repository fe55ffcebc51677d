r"""The query language: its grammar, and from a text to a tree.

    query        = [ disjunction ]                         ; an empty query finds every run
    disjunction  = conjunction { "OR" conjunction }
    conjunction  = negation { "AND" negation }             ; AND binds closer than OR
    negation     = "NOT" negation | "(" disjunction ")" | comparison
    comparison   = name operator value
                 | name [ "NOT" ] "IN" "(" value { "," value } ")"
                 | name "IS" [ "NOT" ] "NULL"
    operator     = "=" | "!=" | "<>" | "<" | "<=" | ">" | ">="
    name         = a letter or "_", then letters, digits, "_", "." and "-"
                 | "`" any text "`"                        ; a "`" in it is written twice
    value        = "'" any text "'" | '"' any text '"'     ; the quote in it is written twice
                 | number | "TRUE" | "FALSE"

Keywords may be written in any case; names are told apart by case. A backslash in a text is a backslash.

Mistakes are `BadQuery`, with their place. What is bounded, so that no query can exhaust a service: its length, how deep
it nests, and how many values it compares with.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any, Final

from lark import Lark, Token, UnexpectedCharacters, UnexpectedInput, UnexpectedToken

LONGEST_QUERY: Final = 20_000  # characters
DEEPEST: Final = 50  # levels of AND, OR and NOT within each other
MOST_VALUES: Final = 1_000
MOST_COMPARISONS: Final = 200

_GRAMMAR: Final = r"""
query: disjunction?

?disjunction: conjunction (_OR conjunction)*
?conjunction: negation (_AND negation)*
?negation: _NOT negation -> negated
         | "(" disjunction ")"
         | comparison

comparison: name OPERATOR value                          -> compared
          | name _IN "(" value ("," value)* ")"          -> among
          | name _NOT _IN "(" value ("," value)* ")"     -> not_among
          | name _IS _NULL                               -> is_null
          | name _IS _NOT _NULL                          -> is_not_null

name: NAME | QUOTED_NAME
value: TEXT | NUMBER | TRUE | FALSE

_OR.2: /OR(?![\w.\-])/i
_AND.2: /AND(?![\w.\-])/i
_NOT.2: /NOT(?![\w.\-])/i
_IN.2: /IN(?![\w.\-])/i
_IS.2: /IS(?![\w.\-])/i
_NULL.2: /NULL(?![\w.\-])/i
TRUE.2: /TRUE(?![\w.\-])/i
FALSE.2: /FALSE(?![\w.\-])/i
OPERATOR: /<=|>=|<>|!=|=|<|>/
NAME: /[^\W\d][\w.\-]*/
QUOTED_NAME: /`(?:[^`]|``)+`/
TEXT: /'(?:[^']|'')*'/ | /"(?:[^"]|"")*"/
NUMBER: /[+\-]?(?:\d+(?:\.\d*)?|\.\d+)(?:[eE][+\-]?\d+)?(?![\w.])/

%import common.WS
%ignore WS
"""


class BadQuery(ValueError):
    """A query that can't be understood, or asks what can't be asked. `position` counts characters from 0."""

    def __init__(self, detail: str, query: str, position: int) -> None:
        self.detail = detail
        self.query = query
        self.position = position
        super().__init__(f"{detail}, at position {position + 1} of the query:\n{_pointed_at(query, position)}")


@dataclass(frozen=True, slots=True)
class Literal:
    """A value as it is written: a str, int, float or bool."""

    value: str | int | float | bool
    position: int


@dataclass(frozen=True, slots=True)
class Comparison:
    """operator: =, !=, <, <=, >, >=, IN, NOT IN, IS NULL or IS NOT NULL."""

    name: str
    operator: str
    values: tuple[Literal, ...]
    position: int = field(compare=False, default=0)


@dataclass(frozen=True, slots=True)
class Conjunction:
    """Without parts it is true."""

    parts: tuple[Tree, ...]


@dataclass(frozen=True, slots=True)
class Disjunction:
    parts: tuple[Tree, ...]


@dataclass(frozen=True, slots=True)
class Negation:
    part: Tree


Tree = Comparison | Conjunction | Disjunction | Negation


def parse(query: str) -> Tree:
    """The tree of a query; `Conjunction(())` for an empty one. Raises BadQuery."""
    if len(query) > LONGEST_QUERY:
        raise BadQuery(f"a query has at most {LONGEST_QUERY:,} characters, this one {len(query):,}", query[:200], 0)
    try:
        parsed = _PARSER.parse(query)
    except UnexpectedInput as error:
        raise _told(error, query) from None
    return _Builder(query).whole(parsed)


def comparisons_of(tree: Tree) -> Iterator[Comparison]:
    """Every comparison of a tree, in its order."""
    match tree:
        case Comparison():
            yield tree
        case Conjunction(parts) | Disjunction(parts):
            for part in parts:
                yield from comparisons_of(part)
        case Negation(part):
            yield from comparisons_of(part)


# From lark's tree to ours ---------------------------------------------------------------------------------------------

_PARSER: Final = Lark(_GRAMMAR, start="query", parser="lalr", lexer="basic", propagate_positions=True)

_OPERATORS: Final = {
    "among": "IN",
    "not_among": "NOT IN",
    "is_null": "IS NULL",
    "is_not_null": "IS NOT NULL",
}


class _Builder:
    """Builds the tree of one query, and counts what is bounded."""

    def __init__(self, query: str) -> None:
        self._query = query
        self._values = 0
        self._comparisons = 0

    def whole(self, parsed: Any) -> Tree:
        return self._tree(parsed.children[0], 1) if parsed.children else Conjunction(())

    def _tree(self, node: Any, depth: int) -> Tree:
        if depth > DEEPEST:
            raise BadQuery(f"a query nests at most {DEEPEST} levels deep", self._query, node.meta.start_pos)
        match node.data:
            case "conjunction":
                return Conjunction(tuple(self._tree(part, depth + 1) for part in node.children))
            case "disjunction":
                return Disjunction(tuple(self._tree(part, depth + 1) for part in node.children))
            case "negated":
                is_opposite = False
                while node.data == "negated":  # in a loop: nobody bounds how many there are in a row
                    is_opposite, node = not is_opposite, node.children[0]
                part = self._tree(node, depth + 1)
                return Negation(part) if is_opposite else part
        return self._comparison(node)

    def _comparison(self, node: Any) -> Comparison:
        name, *rest = node.children
        token = name.children[0]
        self._comparisons += 1
        self._values += len(rest)
        if self._comparisons > MOST_COMPARISONS or self._values > MOST_VALUES:
            raise BadQuery(
                f"a query has at most {MOST_COMPARISONS} comparisons and {MOST_VALUES:,} values",
                self._query,
                token.start_pos,
            )
        operator = _OPERATORS.get(node.data, "")
        if not operator:
            sign = rest.pop(0)
            operator = "!=" if sign == "<>" else str(sign)
        text = str(token)
        return Comparison(
            name=text[1:-1].replace("``", "`") if token.type == "QUOTED_NAME" else text,
            operator=operator,
            values=tuple(self._literal(value.children[0]) for value in rest),
            position=token.start_pos,
        )

    def _literal(self, token: Token) -> Literal:
        text, position = str(token), int(token.start_pos or 0)
        match token.type:
            case "TRUE" | "FALSE":
                return Literal(token.type == "TRUE", position)
            case "TEXT":
                quote = text[0]
                return Literal(text[1:-1].replace(quote * 2, quote), position)
        if text.lstrip("+-").isdigit():
            if len(text) > 40:
                raise BadQuery("this number does not fit into 64 bits", self._query, position)
            return Literal(int(text), position)
        number = float(text)
        if math.isinf(number):
            raise BadQuery("this number is too large for a float of 64 bits", self._query, position)
        return Literal(number, position)


# Mistakes -------------------------------------------------------------------------------------------------------------

_EXPECTED: Final = (  # what may come next, in the order in which it is told
    ({"NAME", "QUOTED_NAME"}, "a name"),
    ({"OPERATOR"}, "an operator (=, !=, <, <=, >, >=, IN, NOT IN, IS NULL)"),
    ({"TEXT", "NUMBER", "TRUE"}, "a value ('text', a number, TRUE or FALSE)"),
    ({"LPAR"}, '"("'),
    ({"RPAR"}, '")"'),
    ({"COMMA"}, '","'),
    ({"_AND"}, "AND"),
    ({"_OR"}, "OR"),
    ({"_NOT"}, "NOT"),
    ({"_IN"}, "IN"),
    ({"_NULL"}, "NULL"),
    ({"$END"}, "the end"),
)


def _told(error: UnexpectedInput, query: str) -> BadQuery:
    position = error.pos_in_stream if error.pos_in_stream is not None else len(query)
    if isinstance(error, UnexpectedCharacters):
        rest = query[position:]
        if rest[0] in "'\"`":
            what = "name in backticks" if rest[0] == "`" else "text"
            empty = " or has nothing in it" if rest[0] == "`" else ""
            return BadQuery(f"this {what} has no closing {rest[0]}{empty}", query, position)
        if rest[0].isdigit() or rest[0] in "+-.":
            return BadQuery("this is no number", query, position)
        return BadQuery(f"{rest[0]!r} means nothing here", query, position)
    assert isinstance(error, UnexpectedToken)
    at_end = error.token.type == "$END"
    found = "the query ends" if at_end else f"there is {_shown(str(error.token))}"
    position = len(query.rstrip()) if at_end else position
    return BadQuery(f"{found} where {_alternatives(error.accepts or error.expected)} was expected", query, position)


def _alternatives(expected: Iterable[str]) -> str:
    names = set(expected)
    words = [word for terminals, word in _EXPECTED if terminals & names]
    if "OPERATOR" in names:  # it names these already
        words = [word for word in words if word not in ("IN", "NOT")]
    return words[0] if len(words) == 1 else f"{', '.join(words[:-1])} or {words[-1]}"


def _shown(text: str) -> str:
    return text if len(text) <= 40 else f"{text[:39]}…"


def _pointed_at(query: str, position: int) -> str:
    """The line of the query, or as much of a long one as is around the place, with a caret below it."""
    begin = query.rfind("\n", 0, position) + 1
    end = query.find("\n", position)
    line = query[begin : len(query) if end < 0 else end].replace("\t", " ").replace("\r", " ")
    column = position - begin
    cut = max(0, column - 60)
    shown = ("…" if cut else "") + line[cut : column + 40] + ("…" if len(line) > column + 40 else "")
    return f"    {shown}\n    {' ' * (column - cut + bool(cut))}^"
