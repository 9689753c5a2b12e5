"""Conversations that are away from a simulated cluster: copies ahead and moves of cold KV help, and change nothing else."""

from __future__ import annotations

from random import Random
from typing import Any

import pytest

from blockwright.simulator.description import DescriptionError
from blockwright.simulator.workload import WorkloadRequest
from blockwright.tests.claims import claim

from .clusters import described, run
from .test_kv import replace_times

INSTANCES = {"chunk_size": 64, "sweep_tokens": 64, "prefix_cache": True, "max_rows": 8}


def conversations(count: int, pause: float, gap: float, common: int = 0, seed: int = 1) -> list[WorkloadRequest]:
    """Conversations of four requests after pauses; ``common``: tokens with which all of them begin."""
    random, made = Random(seed), list[tuple[float, tuple[int, ...]]]()
    begins = 0.0
    for number in range(count):
        begins += random.expovariate(1 / gap)
        at, tokens = begins, [7] * common + [number + 10] * random.randint(50 if common else 200, 300 if common else 900)
        for turn in range(4):
            made.append((at, tuple(tokens)))
            tokens = tokens + [100_000 + 10 * number + turn] * random.randint(8, 24)
            at += random.expovariate(1 / pause)
    return [WorkloadRequest(n, at, "m0", len(one), 40, tokens=one) for n, (at, one) in enumerate(sorted(made))]


def scenario(bandwidth: float, entries: Any, **dispatch: Any) -> Any:
    models = [{"name": "m0", "kv_bytes": 8, "context": 2000}]
    links = {"latency": 1e-3, "bandwidth": bandwidth}
    dispatch = {"kv_dispatch": "owner", **dispatch}
    return described(dispatch=dispatch, entries=entries, instances=INSTANCES, links=links, models=models)


def first_tokens(simulation: Any) -> float:
    """Return the mean time to the first token."""
    assert all(not one.failed for one in simulation.requests)
    return sum(one.first - one.demand.at for one in simulation.requests) / len(simulation.requests)


def cached(simulation: Any) -> int:
    return sum(one.state.counters.get("cached_tokens", 0) for one in simulation.instances)


@claim("Copies of KV ahead of a request's return cut the time to its first token where its owner is busy", of="adaptive")
def test_copies_ahead_relieve_the_owner_of_what_all_share() -> None:
    """All conversations begin alike, so one instance owns them all. The link is slow: KV cannot be copied in time."""
    arrivals = conversations(50, 4.0, 0.3, common=600)
    three = {name: {"blocks": 9000} for name in "abc"}
    without, _ = run(scenario(4000.0, three), arrivals=arrivals)
    ahead, _ = run(scenario(4000.0, three, proactive_copies=True), arrivals=arrivals)
    assert ahead.absences is not None
    assert without.absences is None
    assert ahead.absences.copies > 5
    assert first_tokens(ahead) < 0.5 * first_tokens(without)


@claim("Cold KV that moves to a cache with room is found again", of="adaptive")
def test_cold_kv_goes_to_a_cache_with_room() -> None:
    arrivals = conversations(40, 10.0, 0.4)
    uneven = {"a": {"blocks": 900}, "b": {"blocks": 20_000}}
    least, waste = (run(scenario(20_000.0, uneven, cold_kv=cold), arrivals=arrivals)[0] for cold in ("lru", "least-waste"))
    assert waste.absences is not None
    assert waste.absences.copies > 2
    assert waste.absences.dropped > 2
    assert cached(waste) > cached(least)
    assert first_tokens(waste) < first_tokens(least)


@pytest.mark.parametrize("rules", [{"proactive_copies": True}, {"cold_kv": "least-waste"}])
def test_jumping_equals_stepping_and_equal_runs_are_equal(rules: Any) -> None:
    arrivals = conversations(12, 4.0, 0.3, common=200)
    made = scenario(8000.0, {"a": {"blocks": 600}, "b": {"blocks": 3000}}, **rules)
    (jumping, one), (stepping, other) = (run(made, arrivals=arrivals, jumps=jumps) for jumps in (True, False))
    assert [replace_times(entry) for entry in one] == [replace_times(entry) for entry in other]
    again, _ = run(made, arrivals=arrivals)
    assert again.digest() == jumping.digest()
    assert jumping.absences is not None
    assert stepping.absences is not None
    assert (jumping.absences.copies, jumping.absences.dropped) == (stepping.absences.copies, stepping.absences.dropped)


@pytest.mark.parametrize(
    ("dispatch", "says"),
    [
        ({"kv_dispatch": "recompute", "proactive_copies": True}, r"proactive_copies needs kv_dispatch = 'owner' or"),
        ({"kv_dispatch": "off", "cold_kv": "least-waste"}, r"cold_kv needs kv_dispatch = 'owner' or"),
        ({"cold_kv": "fifo"}, r"cold_kv is 'fifo'; give one of: lru, least-waste"),
    ],
)
def test_what_copies_nothing_is_refused(dispatch: Any, says: str) -> None:
    with pytest.raises(DescriptionError, match=says):
        scenario(8000.0, {"a": {}, "b": {}}, **dispatch)
