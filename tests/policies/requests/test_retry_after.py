"""The forecast for those who are refused."""

from __future__ import annotations

import pytest

from blockwright.policies.requests.retry_after import LONGEST, SHORTEST, CompletionRate
from blockwright.tests.claims import claim


def test_nothing_known_is_the_shortest_wait() -> None:
    assert CompletionRate().forecast(100, 5.0) == SHORTEST


@claim("A full server answers 503 with a forecast of when to try again", of="http-api")
def test_a_steady_pace_says_when_the_turn_comes() -> None:
    pace = CompletionRate()
    for i in range(64):
        pace.ended(i * 0.5)
    assert pace.forecast(20, 32.0) == pytest.approx(10.0)


def test_the_forecast_grows_while_nothing_ends_and_stays_in_bounds() -> None:
    pace = CompletionRate()
    for i in range(10):
        pace.ended(i * 0.1)
    assert pace.forecast(50, 1.0) < pace.forecast(50, 10.0)
    assert pace.forecast(10**6, 10.0) == LONGEST
    assert pace.forecast(0, 10.0) == SHORTEST
