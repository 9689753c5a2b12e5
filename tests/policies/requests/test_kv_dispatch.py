"""KV and the choice of a route: who counts as owner, from where KV is copied, and what part of it arrives in time."""

from __future__ import annotations

import pytest

from blockwright.policies.model.chain import Hop, Route
from blockwright.policies.requests.dispatch import choose
from blockwright.policies.requests.kv_dispatch import MODES, copied_from, copied_part, weighed
from blockwright.policies.requests.standing import RouteView

HERE, THERE, BOTH = (Route(f"m@{'+'.join(on)}", 1, "m", tuple(Hop(w, n, n + 1) for n, w in enumerate(on)))
                     for on in (("w0",), ("w1",), ("w0", "w1")))  # fmt: skip
OTHER = Route("n@w1", 1, "n", (Hop("w1", 0, 1),))


@pytest.mark.parametrize(("mode", "taken"), [("owner", THERE), ("recompute", HERE), ("least-busy", HERE)])
def test_only_the_owner_mode_goes_by_kv(mode: str, taken: Route) -> None:
    cached = {THERE.id: 80}
    view = RouteView(known=100, left=20, cached=weighed(mode, cached))
    assert choose([HERE, THERE], {"w0": 0, "w1": 50}, view=view) is taken


def test_kv_that_can_be_copied_in_time_counts_as_held() -> None:
    """With a fast link the queue decides, with a slow one the owner goes first."""
    cached = {THERE.id: 80}
    for copy, taken in ((1e-6, HERE), (1e-3, THERE), (0.0, THERE)):
        known = weighed("owner", cached | {HERE.id: 0}, copied_part(1e-5, copy))
        view = RouteView(known=100, left=20, cached=known)
        assert choose([HERE, THERE], {"w0": 0, "w1": 50}, view=view) is taken


def test_the_copied_part_is_that_of_two_ends_that_meet() -> None:
    compute, copy = 3e-5, 1e-5
    part, tokens = copied_part(compute, copy), 4000
    assert part * tokens * copy == pytest.approx((1 - part) * tokens * compute), "both ends take equally long"
    assert copied_part(compute, 0.0) == copied_part(0.0, copy) == 0.0


def test_kv_comes_from_the_worker_that_has_most_of_it() -> None:
    routes = [HERE, THERE, BOTH, OTHER]
    cached = {HERE.id: 16, THERE.id: 64, BOTH.id: 32, OTHER.id: 96}
    for mode in MODES:
        assert copied_from(mode, HERE, routes, cached) is (None if mode in ("off", "recompute") else THERE)
        assert copied_from(mode, THERE, routes, cached) is None, "nobody of its chain has more"
    assert copied_from("owner", HERE, [HERE, OTHER], cached) is None
    assert copied_from("owner", HERE, routes, {}) is None
