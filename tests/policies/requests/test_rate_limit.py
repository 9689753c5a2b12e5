"""Quotas: what passes, what is refused and for how long, what is given back."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from blockwright.policies.requests.rate_limit import DAY, Limits, Quotas
from blockwright.tests.claims import claim

NOON = 10 * DAY + DAY / 2


def quotas(**limits: int) -> Quotas:
    return Quotas({"acme": Limits(**limits)})


def test_without_limits_everything_passes_and_nothing_is_shown() -> None:
    verdict = Quotas({}).admit("acme", 10**9, 0.0, NOON)
    assert not verdict.refused
    assert verdict.requests is None
    assert verdict.tokens is None


@claim("Quotas by requests, tokens and concurrency hold over all gateways", of="security")
def test_requests_per_minute_are_a_bucket() -> None:
    q = quotas(requests_per_minute=6)
    assert [q.admit("acme", 1, 0.0, NOON).refused for _ in range(6)] == [""] * 6
    verdict = q.admit("acme", 1, 0.0, NOON)
    assert verdict.refused == "requests_per_minute"
    assert verdict.retry_after == pytest.approx(10.0)
    assert verdict.requests is not None
    assert (verdict.requests.limit, verdict.requests.remaining) == (6, 0)
    assert verdict.requests.reset == pytest.approx(60.0)
    assert q.admit("acme", 1, 10.0, NOON).refused == ""


def test_a_refused_request_is_charged_nothing() -> None:
    q = quotas(requests_per_minute=2, tokens_per_minute=100)
    assert q.admit("acme", 101, 0.0, NOON).refused == "tokens_per_minute"
    verdict = q.admit("acme", 100, 0.0, NOON)
    assert not verdict.refused
    assert verdict.requests is not None
    assert verdict.requests.remaining == 1


def test_what_can_never_pass_has_no_time_to_wait_for() -> None:
    assert quotas(tokens_per_minute=100).admit("acme", 101, 0.0, NOON).retry_after is None
    assert quotas(tokens_per_day=100).admit("acme", 101, 0.0, NOON).retry_after is None


def test_unused_tokens_are_given_back_at_the_end() -> None:
    q = quotas(tokens_per_minute=100, tokens_per_day=1000)
    assert not q.admit("acme", 100, 0.0, NOON).refused
    q.end("acme", 100, 30, 0.0)
    assert not q.admit("acme", 70, 0.0, NOON).refused
    assert q.admit("acme", 1, 0.0, NOON).refused == "tokens_per_minute"


def test_the_day_ends_at_midnight() -> None:
    q = quotas(tokens_per_day=100)
    assert not q.admit("acme", 60, 0.0, NOON).refused
    verdict = q.admit("acme", 60, 0.0, NOON)
    assert verdict.refused == "tokens_per_day"
    assert verdict.retry_after == pytest.approx(DAY / 2)
    assert not q.admit("acme", 60, DAY / 2, NOON + DAY / 2).refused


def test_concurrent_requests_are_freed_by_their_end() -> None:
    q = quotas(concurrent_requests=1)
    assert not q.admit("acme", 1, 0.0, NOON).refused
    assert q.admit("acme", 1, 0.0, NOON).refused == "concurrent_requests"
    q.end("acme", 1, 1, 0.0)
    assert not q.admit("acme", 1, 0.0, NOON).refused


def test_everybody_else_shares_limits_but_not_an_account() -> None:
    q = Quotas({"*": Limits(requests_per_minute=1), "free": Limits()})
    assert not q.admit("a", 1, 0.0, NOON).refused
    assert not q.admit("b", 1, 0.0, NOON).refused
    assert q.admit("a", 1, 0.0, NOON).refused
    assert [q.admit("free", 1, 0.0, NOON).refused for _ in range(5)] == [""] * 5
    assert q.limits("a").requests_per_minute == 1


@claim("Quotas by requests, tokens and concurrency hold over all gateways", of="security")
@given(st.lists(st.tuples(st.floats(0, 30), st.integers(1, 50), st.floats(0, 1)), max_size=60))
def test_no_window_lets_in_more_than_the_burst_and_what_the_rate_refills(steps: list[tuple[float, int, float]]) -> None:
    q = quotas(tokens_per_minute=100)
    now = 0.0
    used = 0.0
    for pause, tokens, share in steps:
        now += pause
        verdict = q.admit("acme", tokens, now, NOON)
        if not verdict.refused:
            spent = int(tokens * share)
            q.end("acme", tokens, spent, now)
            used += spent
        else:
            assert verdict.retry_after is not None
            assert verdict.retry_after > 0
    assert used <= 100 + now * 100 / 60 + 1e-6


def test_how_limits_stand_can_be_asked_without_a_charge() -> None:
    q = Quotas(
        {
            "acme": Limits(requests_per_minute=6, tokens_per_minute=600),
            "*": Limits(tokens_per_day=100, concurrent_requests=2),
        }
    )
    q.admit("acme", 60, 0.0, NOON)
    q.admit("free", 30, 0.0, NOON)

    def reported(now: float, wall: float) -> dict[str, dict[str, tuple[int, int]]]:
        found = q.standings(["acme", "new"], now, wall)
        return {
            tenant: {name: (one.limit, one.remaining) for name, one in limits.items()} for tenant, limits in found.items()
        }

    before = {
        "acme": {"requests_per_minute": (6, 5), "tokens_per_minute": (600, 540)},
        "free": {"tokens_per_day": (100, 70), "concurrent_requests": (2, 1)},
        "new": {"tokens_per_day": (100, 100), "concurrent_requests": (2, 2)},
    }
    assert reported(0.0, NOON) == reported(0.0, NOON) == before
    q.end("free", 30, 10, 5.0)
    later = reported(5.0, NOON + DAY)
    assert later["acme"] == {"requests_per_minute": (6, 5), "tokens_per_minute": (600, 590)}
    assert later["free"] == {"tokens_per_day": (100, 100), "concurrent_requests": (2, 2)}, "another day"
    assert Quotas({}).standings(["acme"], 0.0, NOON) == {"acme": {}}
