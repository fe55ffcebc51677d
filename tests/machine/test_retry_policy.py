"""The delay before the next attempt is finite, monotone and never over its maximum, for any policy and any attempt."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dex.wire.specs import RetrySpec
from dexray.machine.retries import backoff, next_attempt_at
from tests.machine.build import examples

LONGEST = 2.0**31 - 1
attempts = st.one_of(st.integers(1, 70), st.integers(1, 10**6))
policies = st.builds(
    RetrySpec,
    initial=st.one_of(st.just(0.0), st.floats(1e-6, LONGEST), st.integers(0, 10).map(float)),
    coefficient=st.one_of(st.just(1.0), st.floats(1.0, 1.0001), st.floats(1.0, 10.0), st.floats(1.0, 1e9)),
    maximum=st.one_of(st.floats(1e-6, LONGEST), st.integers(1, 1000).map(float)),
    attempts=st.integers(0, 10**6),
    total=st.floats(0.0, LONGEST),
)


@examples(300)
@given(policies, attempts)
def test_the_delay_is_finite_and_between_nothing_and_the_maximum(policy: RetrySpec, attempt: int) -> None:
    delay = backoff(policy, attempt)
    assert math.isfinite(delay)
    assert 0.0 <= delay <= policy.maximum


@examples(300)
@given(policies, attempts, attempts)
def test_a_later_attempt_never_waits_less(policy: RetrySpec, one: int, other: int) -> None:
    sooner, later = sorted((one, other))
    assert backoff(policy, sooner) <= backoff(policy, later)


@examples(300)
@given(policies, st.integers(1, 40))
def test_the_delay_is_the_initial_one_times_the_coefficient_per_retry(policy: RetrySpec, attempt: int) -> None:
    expected = policy.initial
    for _ in range(attempt - 1):
        expected = min(expected * policy.coefficient, policy.maximum)
    assert backoff(policy, attempt) == pytest.approx(min(expected, policy.maximum))


def test_a_fresh_policy_doubles_from_a_second_to_a_hundred() -> None:
    assert [backoff(RetrySpec(), attempt) for attempt in range(1, 10)] == [1, 2, 4, 8, 16, 32, 64, 100, 100]


@examples(300)
@given(
    policy=policies,
    attempt=attempts,
    began=st.floats(0, 1e10),
    elapsed=st.floats(-1e5, 1e10),
    retry_after=st.one_of(st.none(), st.floats(0, LONGEST)),
)
def test_a_next_attempt_is_allowed_by_number_and_by_time_and_lies_ahead(
    policy: RetrySpec, attempt: int, began: float, elapsed: float, retry_after: float | None
) -> None:
    now = began + elapsed
    at = next_attempt_at(policy, attempt=attempt, first_started_at=began, now=now, retry_after=retry_after)
    over = policy.attempts > 0 and attempt >= policy.attempts
    late = now - began >= policy.total
    assert (at is None) == (over or late)
    if at is not None:
        assert at == now + (backoff(policy, attempt) if retry_after is None else retry_after)


@examples(100)
@given(policies, st.integers(1, 200))
def test_a_limited_policy_allows_exactly_its_number_of_attempts(policy: RetrySpec, limit: int) -> None:
    limited = RetrySpec(initial=policy.initial, coefficient=policy.coefficient, maximum=policy.maximum, attempts=limit)
    attempt = 1
    while next_attempt_at(limited, attempt=attempt, first_started_at=0.0, now=1.0, retry_after=None) is not None:
        attempt += 1
    assert attempt == limit
