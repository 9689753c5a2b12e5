"""What dispatchers know: looks that are old, requests in flight, estimates and forecasts that are wrong."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import pytest

from blockwright.simulator.workload import WorkloadRequest

from .clusters import described, run

POLICIES = ["llumnix-minus-code", "least-work", "predicted-latency"]


def dispatched(count: int, *, limits: dict[str, Any] | None = None, **dispatch: Any) -> list[dict[str, Any]]:
    """The log of equal requests that come one after the other, before any has got far."""
    scenario = described(dispatch=dispatch, limits=limits or {}, instances={"prefix_cache": False})
    arrivals = [WorkloadRequest(n, n * 1e-4, "m0", 8, 20, expected=20) for n in range(count)]
    return [entry for entry in run(scenario, arrivals=arrivals)[1] if entry["what"] == "dispatched"]


def loads(entries: list[dict[str, Any]]) -> list[Any]:
    return [
        [tuple(round(part, 9) for part in load) if isinstance(load, tuple) else load for load in e["loads"]] for e in entries
    ]


@pytest.mark.parametrize("policy", POLICIES)
def test_a_look_is_used_again_until_it_is_too_old(policy: str) -> None:
    old = loads(dispatched(6, policy=policy, staleness=5e-4, in_flight="none"))
    assert [old[0]] * 5 == old[:5] != old[1:]
    fresh = loads(dispatched(6, policy=policy, in_flight="none"))
    assert all(a != b for a, b in pairwise(fresh)), "without staleness every request looks"


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("blind", [{"staleness": 9.0}, {"limits": {"latency": 0.5}}], ids=["stale", "far"])
def test_who_is_in_flight_is_reckoned_with(policy: str, blind: dict[str, Any]) -> None:
    """Without it all of a burst look the same; with it the burst is spread."""
    assert len({str(entry) for entry in loads(dispatched(8, policy=policy, in_flight="none", **blind))}) == 1
    seen = [entry["instance"] for entry in dispatched(8, policy=policy, **blind)]
    assert [sorted(seen[n : n + 2]) for n in range(0, 8, 2)] == [["i-0", "i-1"]] * 4


def test_dispatchers_that_know_only_what_they_sent() -> None:
    """A burst of which all know is spread; that of each dispatcher is spread for itself."""
    all_know, own = (
        dispatched(30, policy="llumnix-minus-code", dispatchers=4, staleness=9.0, in_flight=known)
        for known in ("shared", "own")
    )
    assert [entry["instance"] for entry in all_know].count("i-0") == 15
    assert max(abs(a[0] - b[0]) for a, b in loads(own)) == max(abs(a[0] - b[0]) for a, b in loads(all_know)) == 2
    assert loads(own) != loads(all_know)


def test_each_dispatcher_counts_for_itself() -> None:
    alone = loads(dispatched(12, policy="min-qpm"))
    assert alone[-1] in ([(5,), (6,)], [(6,), (5,)])
    several = loads(dispatched(12, policy="min-qpm", dispatchers=3))
    assert max(count for entry in several for (count,) in entry) < 5
    turns = [entry["instance"] for entry in dispatched(12, policy="round-robin", dispatchers=3)]
    assert turns != [f"i-{n % 2}" for n in range(12)]


def test_an_answer_that_outran_its_estimate_is_expected_to_end_later_by_the_correction() -> None:
    scenario = [
        described(dispatch={"policy": "predicted-latency", "correction": more}, instances={"count": 1, "max_rows": 1})
        for more in (1, 11)
    ]
    arrivals = [
        WorkloadRequest(0, 0.0, "m0", 8, 60, allowed=100, expected=5),
        WorkloadRequest(1, 0.3, "m0", 8, 5, allowed=100, expected=5),
    ]
    soon, late = (run(one, arrivals=arrivals)[1] for one in scenario)
    ((sooner,),), ((later,),) = (
        loads([e for e in log if e["what"] == "dispatched" and e["request"]]) for log in (soon, late)
    )
    assert later[0] - sooner[0] == pytest.approx(10 * 0.0101, rel=0.01)


def test_forecasts_are_wrong_by_a_factor() -> None:
    exact = loads(dispatched(1, policy="predicted-latency"))[0]
    wrong = loads(dispatched(1, policy="predicted-latency", forecast_error=0.5))[0]
    factors = [other[0] / one[0] for one, other in zip(exact, wrong, strict=True)]
    assert factors[0] != factors[1]
    assert all(0.1 <= factor <= 5.0 for factor in factors)


def test_where_lengths_are_estimated_badly_what_can_be_counted_decides() -> None:
    """As soon as the answers that have ended say how wrong estimates are."""
    scenario = described(dispatch={"policy": "ours"}, instances={"prefix_cache": False})
    for expected, trusted in ((20, True), (14, True), (4, False), (90, False)):
        arrivals = [WorkloadRequest(n, n * 0.5, "m0", 8, 20, allowed=100, expected=expected) for n in range(60)]
        seen = [entry["loads"] for entry in run(scenario, arrivals=arrivals)[1] if entry["what"] == "dispatched"]
        assert {len(load) for load in seen[0]} == {3}, "no answer has ended: the forecasts decide"
        assert {len(load) for load in seen[-1]} == {3 if trusted else 1}
