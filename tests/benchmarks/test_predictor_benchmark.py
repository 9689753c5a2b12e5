"""The predictor benchmark measures what it says: a replica that is what the worker is, and answers with forecasts."""

from __future__ import annotations

import predictor


async def test_feeds_and_answers_are_timed() -> None:
    assert all(value > 0 for value in (await predictor.fed(20)).values())
    assert all(value > 0 for value in (await predictor.asked(4, 2, 1)).values())
