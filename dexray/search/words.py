"""How texts become words of an index.

A database bounds what an index holds (PostgreSQL to a third of a page) and may take no NUL character. So a word has at
most `LONGEST_WORD` bytes: a longer text, or one with NULs, is cut and gets a digest of the whole behind it. Equal texts
have equal words, different texts different ones, and the order of words is the order of texts by code points as far as
the cut.
"""

from __future__ import annotations

import hashlib
import re
from datetime import UTC, datetime, timedelta
from typing import Final

LONGEST_WORD: Final = 1024  # bytes in UTF-8
MOST_WORDS: Final = 1000
"""Different words of one full text that are found; further ones are not."""

_WORD: Final = re.compile(r"\w+")
_DIGEST: Final = 80  # bytes kept free for it
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)


def as_word(text: str) -> str:
    """What stands for a text in an index."""
    body = text.encode()
    if len(body) <= LONGEST_WORD and "\0" not in text:
        return text
    start = body[: LONGEST_WORD - _DIGEST].decode("utf-8", "ignore").replace("\0", "\1")
    return f"{start}\uffff{hashlib.sha256(body).hexdigest()}"


def words_of(text: str, most: int = MOST_WORDS) -> tuple[str, ...]:
    """The different words of a full text in the order of their first use: letters, digits and underscores that stand
    together, regardless of case."""
    words: dict[str, None] = {}
    for found in _WORD.finditer(text.casefold()):
        words[as_word(found.group())] = None
        if len(words) == most:
            break
    return tuple(words)


def microseconds(moment: datetime) -> int:
    """Since 1970, exactly; a time without a zone is UTC."""
    zoned = moment if moment.tzinfo is not None else moment.replace(tzinfo=UTC)
    return (zoned - _EPOCH) // timedelta(microseconds=1)


def moment_of(text: str) -> datetime | None:
    """A date, or date and time, in ISO 8601; None for anything else."""
    try:
        return datetime.fromisoformat(text.strip())
    except ValueError:
        return None
