"""Figures of dispatch as Prometheus text, and as the page asks for them."""

from __future__ import annotations

from typing import Any

from blockwright.actors.gateway.port import DispatchFigures, ForecastPoint
from blockwright.api.http.metrics import Metrics
from blockwright.tests.api.http.test_metrics import samples


def figures() -> DispatchFigures:
    found = DispatchFigures(fallbacks={"no_answer": 2}, unanswered={"late": 3})
    found.asked.observe(0.004)
    found.rank.observe(2)
    found.first_token_error.observe(0.2)
    found.latency_error.observe(0.04)
    found.points.append(ForecastPoint("r", 0.2, 0.25, 1.0, 0.9))
    return found


def test_the_distribution_of_errors_and_ranks_and_why_it_fell_back() -> None:
    one = figures()
    metrics = Metrics(dict, dispatching=lambda: one)
    seen = samples(metrics.render({}, [metrics.measures()]).decode())
    assert seen["blockwright:dispatch_fallback_total", "no_answer"] == 4, "of two processes"
    assert seen["blockwright:dispatch_unanswered_total", "late"] == 6
    assert (seen["blockwright:dispatch_seconds_count", ""], seen["blockwright:dispatch_seconds_sum", ""]) == (2, 0.008)
    assert [seen["blockwright:dispatch_rank_bucket", bound] for bound in ("1.0", "2.0")] == [0, 2]
    assert [seen["blockwright:forecast_ttft_error_bucket", bound] for bound in ("0.15", "0.2")] == [0, 2]
    assert [seen["blockwright:forecast_latency_error_bucket", bound] for bound in ("0.025", "0.05")] == [0, 2]


async def test_the_last_forecasts_and_what_came(serve: Any) -> None:
    client, port = await serve(settings={"api_keys": {"alpha-key": "ann"}, "admin_keys": {"omega-key": "ops"}})
    port.figures = figures()
    assert (await client.get("/admin/forecasts", headers={"Authorization": "Bearer alpha-key"})).status == 403
    answer = await (await client.get("/admin/forecasts", headers={"Authorization": "Bearer omega-key"})).json()
    assert answer == {
        "data": [
            {
                "request": "r",
                "predicted_first_token": 0.2,
                "first_token": 0.25,
                "predicted_last_token": 1.0,
                "last_token": 0.9,
            }
        ]
    }
