"""Searching for runs: the query language, and what of a run can be found.

    words          how values become what an index holds and a query is compared with
    syntax         the grammar, and from a text to a tree; mistakes are told with their place
    conditions     from a tree to conditions whose names and types are known to be right

Nothing here reads a database: `dexray.journal.searching` turns conditions into SQL, `dexray.engine.indexing` keeps the
index. The rules of the language are told for users in `docs/search.md`.

What holds
- **A condition is true or false**, never unknown: a run without the value that a comparison is about does not satisfy
  it, whatever its operator, and `NOT` is the plain opposite. So `NOT city = 'Rome'` finds runs without a city, and
  `city != 'Rome'` does not.
- **A key may have several values** (KEYWORD_ARRAY, the instances of an AttributeMap). `=`, `IN` and the orders ask
  whether one of them fits, `!=` and `NOT IN` whether there are any and none is equal.
- **No text of a query reaches a database as SQL**: names are looked up, values are bound parameters.
"""

from dexray.search.conditions import (
    ACTIVE_STEP_TYPES,
    And,
    Condition,
    KeyTest,
    Not,
    Or,
    RunTest,
    resolve,
)
from dexray.search.syntax import BadQuery, comparisons_of, parse
from dexray.search.words import as_word, words_of

__all__ = [
    "ACTIVE_STEP_TYPES",
    "And",
    "BadQuery",
    "Condition",
    "KeyTest",
    "Not",
    "Or",
    "RunTest",
    "as_word",
    "comparisons_of",
    "parse",
    "resolve",
    "words_of",
]
