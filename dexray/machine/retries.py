"""When the next attempt may start: a pure policy and nothing else.

Finite and monotone for any legal policy, up to any attempt number: the power is never formed where it would overflow.
"""

from __future__ import annotations

import math

from dex.wire.specs import RetrySpec


def backoff(policy: RetrySpec, attempt: int) -> float:
    """The delay in seconds after failed attempt number `attempt` (from 1)."""
    if policy.initial <= 0.0:
        return 0.0
    if policy.initial >= policy.maximum:
        return policy.maximum
    if policy.coefficient <= 1.0:
        return policy.initial
    exponent = (attempt - 1) * math.log(policy.coefficient)
    if exponent >= math.log(policy.maximum / policy.initial):
        return policy.maximum
    return float(min(policy.maximum, policy.initial * policy.coefficient ** (attempt - 1)))


def next_attempt_at(
    policy: RetrySpec, *, attempt: int, first_started_at: float, now: float, retry_after: float | None
) -> float | None:
    """When attempt `attempt + 1` may start, or None when `attempt` was the last.

    The total duration is only looked at here, after a failure: it never cuts an attempt, and a retry that queued past
    it still runs.
    """
    if policy.attempts and attempt >= policy.attempts:
        return None
    if now - first_started_at >= policy.total:
        return None
    return now + (backoff(policy, attempt) if retry_after is None else retry_after)
