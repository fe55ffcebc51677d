"""Texts as words of an index: whole as long as they are short, and told apart when they are long."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta, timezone

from hypothesis import given
from hypothesis import strategies as st

from dexray.search.words import LONGEST_WORD, MOST_WORDS, as_word, microseconds, moment_of, words_of


def test_a_short_text_is_its_own_word() -> None:
    for text in ("", "Rome", "é" * 512, "x" * LONGEST_WORD):
        assert as_word(text) == text


@given(st.text(st.sampled_from("aé\0\U0001f600"), max_size=20), st.integers(0, 700))
def test_every_word_is_short_and_has_no_nul(text: str, times: int) -> None:
    word = as_word(text * times)
    assert len(word.encode()) <= LONGEST_WORD
    assert "\0" not in word


def test_texts_that_differ_have_words_that_differ() -> None:
    long = "x" * 5000
    texts = [long, long + "y", long[:-1], "a\0b", "a\0c", "a\1b", "ab"]
    assert len({as_word(text) for text in texts}) == len(texts)
    assert as_word("a" + long) < as_word("b" + long)


def test_a_full_text_has_its_different_words_in_lower_case() -> None:
    assert words_of("The QUICK, quick brown_fox isn't 42-ish. ÄRGER") == (
        "the",
        "quick",
        "brown_fox",
        "isn",
        "t",
        "42",
        "ish",
        "ärger",
    )
    assert words_of("STRASSE Straße") == ("strasse",)
    assert words_of(" !? ") == ()
    assert len(words_of(" ".join(map(str, range(5000))))) == MOST_WORDS


def test_times_are_exact_to_the_microsecond() -> None:
    moment = datetime(2026, 5, 1, 12, 0, 0, 1, tzinfo=UTC)
    assert microseconds(moment) - microseconds(moment.replace(microsecond=0)) == 1
    assert microseconds(moment.astimezone(timezone(timedelta(hours=3)))) == microseconds(moment)
    assert microseconds(moment.replace(tzinfo=None)) == microseconds(moment)
    assert microseconds(datetime(1, 1, 1)) < 0 < microseconds(datetime.max)
    assert moment_of("2026-05-01") == datetime(2026, 5, 1)
    assert moment_of("tomorrow") is None
