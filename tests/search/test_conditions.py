"""What resolving leaves of a query: few operators, and the types that names have."""

from __future__ import annotations

import pytest

from dexray.search import And, BadQuery, Condition, KeyTest, Not, Or, RunTest, parse, resolve

TYPES = {"size": ("INT", "KEYWORD"), "a": ("INT",)}


def resolved(query: str) -> Condition:
    return resolve(parse(query), query, TYPES)


def of(type: str, *values: int | str) -> KeyTest:
    return KeyTest("size", type, "whole" if type == "INT" else "word", "in", values)


def there(type: str) -> KeyTest:
    return KeyTest("size", type, "", "present")


def test_a_key_that_flows_give_two_types_means_the_one_that_the_values_fit() -> None:
    assert resolved("size = 5") == of("INT", 5)
    assert resolved("size IN ('S', 'L')") == of("KEYWORD", "S", "L")
    assert resolved("size != 5") == And((there("INT"), Not(of("INT", 5))))
    with pytest.raises(BadQuery, match="size is INT and can't be compared with TRUE"):
        resolved("size = TRUE")
    with pytest.raises(BadQuery, match="size is INT"):
        resolved("size IN (5, 'L')")


def test_a_key_of_two_types_has_a_value_when_there_is_one_of_either() -> None:
    assert resolved("size IS NOT NULL") == Or((there("INT"), there("KEYWORD")))
    assert resolved("size IS NULL") == And((Not(there("INT")), Not(there("KEYWORD"))))


def test_fields_become_columns_of_the_run() -> None:
    assert resolved("FlowId <> 'f'") == And((And(()), Not(RunTest("flow_id", "in", ("f",)))))
    assert resolved("CloseTime IS NOT NULL") == RunTest("closed_at", "present")
    assert resolved("StartTime < '1970-01-01T00:00:02.5Z'") == RunTest("started_at", "<", (2.5,))
    assert resolved("ExecutionStatus IN ('running', 'Continued_As_New')") == RunTest(
        "status", "in", ("RUNNING", "CONTINUED_AS_NEW")
    )


def test_a_time_without_a_zone_is_utc() -> None:
    assert resolved("StartTime >= '1970-01-02'") == RunTest("started_at", ">=", (86400.0,))
    assert resolved("StartTime >= '1970-01-02T01:00:00+01:00'") == RunTest("started_at", ">=", (86400.0,))
