"""KV in the choice of an instance: owners are found, copies arrive and are used, and what cannot be simulated is refused."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from blockwright.simulator.description import DescriptionError
from blockwright.simulator.workload import WorkloadRequest

from .clusters import described, run

LINKS = {"latency": 1e-4, "bandwidth": 1e6}


def conversations(count: int = 30, turns: int = 4) -> list[WorkloadRequest]:
    """Conversations of which each turn comes with the whole history."""
    made = []
    for number in range(count):
        tokens = [number + 1] * 48
        for turn in range(turns):
            made.append((0.008 * number + 0.31 * turn, tuple(tokens)))
            tokens = tokens + [1000 + 10 * number + turn] * 12
    chosen = enumerate(sorted(made))
    return [WorkloadRequest(n, at, "m0", len(one), 6, tokens=one) for n, (at, one) in chosen]


def scenario(mode: str, **more: Any) -> Any:
    instances = {"blocks": 400, "count": 3, "chunk_size": 16, "prefix_cache": True}
    return described(**{"dispatch": {"kv_dispatch": mode}, "instances": instances, "links": LINKS, **more})


def cached(simulation: Any) -> int:
    return sum(instance.state.counters.get("cached_tokens", 0) for instance in simulation.instances)


def test_owners_compute_least_and_copies_help_who_is_least_busy() -> None:
    found, moved = {}, {}
    for mode in ("owner", "recompute", "least-busy"):
        simulation, _ = run(scenario(mode), arrivals=conversations())
        assert all(not one.failed for one in simulation.requests)
        found[mode] = cached(simulation)
        assert simulation.kv_copies is not None
        moved[mode] = simulation.kv_copies.moved
        taken = sum(instance.state.counters.get("imported_pages", 0) for instance in simulation.instances)
        assert (taken > 0) == (moved[mode] > 0), "what was copied was taken in"
    assert found["recompute"] < found["least-busy"] < found["owner"], found
    assert moved["recompute"] == 0 < moved["least-busy"]
    assert moved["owner"] < moved["least-busy"]


@pytest.mark.parametrize("mode", ["owner", "least-busy"])
def test_jumping_equals_stepping_while_pages_are_copied(mode: str) -> None:
    arrivals = conversations(45)
    (jumping, one), (stepping, other) = (run(scenario(mode), arrivals=arrivals, jumps=jumps) for jumps in (True, False))
    assert [replace_times(entry) for entry in one] == [replace_times(entry) for entry in other]
    assert jumping.kv_copies is not None
    assert stepping.kv_copies is not None
    assert jumping.kv_copies.moved == stepping.kv_copies.moved > 0


def replace_times(entry: dict[str, Any]) -> dict[str, Any]:
    """Times of a stretch are sums in another order than times of single sweeps."""
    return {**entry, "at": round(entry["at"], 6)}


def test_a_slow_link_leaves_requests_with_their_owner() -> None:
    slow, _ = run(scenario("owner", links={"bandwidth": 1e3}), arrivals=conversations())
    fast, _ = run(scenario("owner"), arrivals=conversations())
    assert slow.kv_copies is not None
    assert fast.kv_copies is not None
    assert slow.kv_copies.moved <= fast.kv_copies.moved
    homes: dict[int, set[str]] = {}
    for request in slow.requests:
        homes.setdefault(request.demand.tokens[0], set()).add(request.instance)
    assert sum(len(one) == 1 for one in homes.values()) >= len(homes) * 0.9


def test_equal_runs_have_equal_digests() -> None:
    first, again = (run(scenario("owner"), arrivals=conversations())[0] for _ in range(2))
    assert first.digest() == again.digest()
    assert run(scenario("off"), arrivals=conversations())[0].kv_copies is None


@pytest.mark.parametrize(
    ("more", "says"),
    [
        (
            {"dispatch": {"kv_dispatch": "nearest"}},
            r"is 'nearest'; give one of: off, owner, recompute, least-busy",
        ),
        (
            {"dispatch": {"kv_dispatch": "owner", "policy": "random"}},
            r"is 'owner'; it needs policy = 'least-work'",
        ),
        ({"models": 2}, r"dispatch.kv_dispatch is 'owner'; with several models or instances that change leave it out"),
        ({"links": {}}, r"links.bandwidth is missing; KV that another instance has is copied over links"),
        ({"instances": {"prefix_cache": False}}, r"instances need one stage and a prefix cache"),
    ],
)
def test_what_cannot_be_simulated_is_refused(more: dict[str, Any], says: str) -> None:
    with pytest.raises(DescriptionError, match=says):
        scenario("owner", **more)
    copies_nothing = scenario("recompute", links={}).dispatch
    assert replace(copies_nothing, kv_dispatch="off") == described().dispatch
