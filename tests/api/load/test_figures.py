"""From outcomes to figures."""

from __future__ import annotations

import pytest

from blockwright.api.load.figures import Outcome, level, percentile, spread


def outcome(sent: float, stamps: list[float], tokens: int, error: str = "") -> Outcome:
    return Outcome(sent, stamps[-1] if stamps else sent + 1, stamps, 10, tokens, error)


def test_the_figures_of_a_level() -> None:
    # 5 tokens in 3 events; 1 token; a failure
    outcomes = [outcome(10.0, [11.0, 11.5, 13.0], 5), outcome(10.0, [10.5], 1), outcome(12.0, [], 0, "no")]
    made = level(outcomes, 4, "poisson", 2.0)
    assert (made["requests"], made["failed"], made["errors"]) == (2, 1, {"no": 1})
    assert (made["seconds"], made["prompt_tokens"], made["output_tokens"]) == (3.0, 20, 6)
    assert (made["requests_per_s"], made["prompt_tokens_per_s"], made["output_tokens_per_s"]) == (0.667, 6.667, 2.0)
    assert (made["ttft"]["p50"], made["ttft"]["max"]) == (0.75, 1.0)
    assert (made["itl"]["mean"], made["itl"]["p99"]) == (1.0, 1.49)
    assert made["tpot"] == dict.fromkeys(("mean", "p50", "p90", "p95", "p99", "max"), 0.5)
    assert made["e2e"]["p50"] == 1.75


def test_percentiles_are_linear_between_the_nearest() -> None:
    values = [float(value) for value in range(1, 102)]
    assert [percentile(values, share) for share in (0, 50, 95, 100)] == [1.0, 51.0, 96.0, 101.0]
    assert percentile([1.0, 2.0], 75) == 1.75
    assert spread([]) is None


@pytest.mark.parametrize("outcomes", [[], [outcome(1.0, [], 0, "gone")]])
def test_a_level_of_which_nothing_came(outcomes: list[Outcome]) -> None:
    made = level(outcomes, None, "at once", None)
    assert (made["requests"], made["output_tokens_per_s"], made["ttft"], made["e2e"]) == (0, 0.0, None, None)
