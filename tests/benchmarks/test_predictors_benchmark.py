"""The benchmark of predictors measures what it says: a replica that is what the worker is, and answers with forecasts."""

from __future__ import annotations

import predictors


async def test_feeds_and_answers_are_timed() -> None:
    assert all(value > 0 for value in (await predictors.fed(20)).values())
    assert all(value > 0 for value in (await predictors.asked(4, 2, 1)).values())
