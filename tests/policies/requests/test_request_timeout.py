"""Request timeouts: who has waited too long, for an answer or for any route, and who may wait for ever."""

from __future__ import annotations

from dataclasses import dataclass

import pytest

from blockwright.policies.model.chain import Block, Chain, Component, Hop, Kind, Route
from blockwright.policies.requests.load_failure import LoadFailure
from blockwright.policies.requests.queue import WaitingQueue
from blockwright.policies.requests.refusal import Refusal
from blockwright.policies.requests.request_timeout import RETRY_SECONDS, SOON, RequestTimeout
from blockwright.policies.requests.routes_changed import RoutesChanged
from blockwright.policies.requests.routing_table import RoutingTable


@dataclass
class Asked:
    arrival: float
    state: str = "waiting"
    offline: bool = False


@pytest.mark.parametrize(
    ("timeout", "request_", "left"),
    [(0.0, Asked(5.0), 0.0), (10.0, Asked(5.0), 8.0), (10.0, Asked(-90.0), SOON), (10.0, Asked(5.0, offline=True), 0.0)],
)
def test_what_is_left_is_never_nothing_but_where_there_is_no_limit(timeout: float, request_: Asked, left: float) -> None:
    """A worker takes 0 for no limit: what is over must be a little."""
    assert RequestTimeout(60.0, timeout).left(request_, 7.0) == left


def test_only_those_that_wait_for_a_worker_are_late_here() -> None:
    early = Asked(1.0)
    runs = Asked(2.0, "running")
    batch = Asked(3.0, offline=True)
    young = Asked(4.0)
    requests = [early, runs, batch, young]
    assert RequestTimeout(60.0, 10.0).late(requests, 13.9) == [early]
    assert RequestTimeout(60.0, 10.0).late(requests, 14.0) == [early, young]
    assert RequestTimeout(60.0, 0.0).late(requests, 1e9) == []
    assert "after 10 seconds (request_timeout)" in RequestTimeout(60.0, 10.0).expired().message


def test_whoever_finds_no_route_waits_from_when_the_last_one_went() -> None:
    queue, table = WaitingQueue(), RoutingTable(["m", "n"])
    target = Chain("m", (Block((Component(b"c" * 16, Kind.MLP, 1, 1, 1),)),), 100)
    table.join("w0", 0.0)
    table.update(RoutesChanged(1, [target], [Route("m@w0", 1, "m", (Hop("w0", 0, 1),))], []), 0.0)
    for request, application, since in (("a", "m", 0.0), ("b", "n", 0.0), ("c", "n", 8.0)):
        queue.add(request, application, (0, 0), since)

    def unserved(now: float) -> list[str]:
        found = []
        for request, refused in RequestTimeout(10.0, 0.0).unserved(queue, table, now):
            assert refused.why is Refusal.UNAVAILABLE
            assert refused.retry_after is not None
            found.append(request)
            queue.remove(request, "m" if request == "a" else "n")
        return found

    assert unserved(9.9) == []
    assert unserved(10.0) == ["b"], "m has a route, and c came later"
    table.update(RoutesChanged(2, [target], [], []), 12.0)
    assert unserved(21.9) == ["c"], "a could have been served until 12"
    assert unserved(22.0) == ["a"]


def demanded(*failed: LoadFailure, at: float) -> RoutingTable:
    table = RoutingTable(["m"])
    table.join("w0", 0.0)
    target = Chain("m", (Block((Component(b"c" * 16, Kind.MLP, 1, 1, 1),)),), 100)
    table.update(RoutesChanged(1, [target], [], [], on_demand=["m"], failed=failed), at)
    return table


def test_a_request_that_waits_for_what_cannot_be_loaded_gets_the_reason_at_once() -> None:
    queue = WaitingQueue()
    table = demanded(LoadFailure("m", 1, "it is damaged"), at=5.0)
    timeouts = RequestTimeout(60.0, 0.0)
    queue.add("before", "m", (0, 0), 4.0)
    queue.add("after", "m", (0, 1), 11.0)
    request, refused = next(timeouts.unserved(queue, table, 6.0))
    assert (request, refused.message) == ("before", "model 'm' cannot be loaded: it is damaged")
    assert refused.retry_after == RETRY_SECONDS
    queue.remove("before", "m")
    assert list(timeouts.unserved(queue, table, 12.0)) == [], "it is tried again for those that came later"
    target = table.chains["m"]
    table.update(RoutesChanged(2, [target], [], [], on_demand=["m"], failed=[LoadFailure("m", 1, "it is damaged")]), 13.0)
    assert list(timeouts.unserved(queue, table, 13.0)) == [], "the same is no news"
    table.update(RoutesChanged(3, [target], [], [], on_demand=["m"], failed=[LoadFailure("m", 2, "it is damaged")]), 14.0)
    assert next(timeouts.unserved(queue, table, 14.0))[0] == "after"


def test_a_request_just_after_a_failure_or_after_a_final_one_is_refused_at_once() -> None:
    timeouts, table = RequestTimeout(60.0, 0.0), demanded(LoadFailure("m", 1, "it is damaged"), at=5.0)
    refused = timeouts.failed("m", table, 5.0 + RETRY_SECONDS / 2)
    assert refused is not None
    assert "it is damaged" in refused.message
    assert timeouts.failed("m", table, 5.0 + RETRY_SECONDS) is None
    never = timeouts.failed("m", demanded(LoadFailure("m", 1, "too large", final=True), at=5.0), 1e6)
    assert never is not None
    assert (never.why, never.retry_after) == (Refusal.UNAVAILABLE, None)
    assert timeouts.failed("m", demanded(at=5.0), 5.0) is None


def test_where_models_in_use_left_no_room_that_is_what_is_said() -> None:
    queue = WaitingQueue()
    queue.add("r", "m", (0, 0), 0.0)
    (outcome,) = (refused for _, refused in [next(RequestTimeout(60.0, 0.0).unserved(queue, demanded(at=0.0), 60.0))])
    assert "no room for it beside models in use" in outcome.message
