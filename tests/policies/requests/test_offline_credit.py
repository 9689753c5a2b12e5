"""What is left of what workers take of offline requests, and where the next one goes."""

from __future__ import annotations

from blockwright.policies.model.chain import Route
from blockwright.policies.requests.offline_credit import OfflineShare, for_new, home_of, left, more
from blockwright.tests.policies.requests.book.gateway_bench import route


def test_requests_on_their_way_are_subtracted_and_may_be_more_than_was_reported() -> None:
    assert left(OfflineShare(3, 100), [10, 20]) == (1, 70)
    assert left(OfflineShare(1, 5), [10, 20]) == (-1, -25)


def test_what_waits_goes_before_what_is_new_and_each_row_needs_a_position() -> None:
    assert for_new(OfflineShare(5, 100), [30]) == (4, 70)
    assert for_new(OfflineShare(5, 3), []) == (3, 3)
    assert for_new(OfflineShare(1, 10), [4, 4]) == (0, 2)
    assert for_new(OfflineShare(2, 5), [9]) == (0, 0)


def test_a_request_goes_to_the_worker_it_is_meant_for_while_that_is_there() -> None:
    routes = [route("w0"), route("w1"), route("w2")]
    shares = {"w0": OfflineShare(1, 20), "w1": OfflineShare(2, 90), "w2": OfflineShare(0, 500)}

    def home(name: str, need: int, among: list[Route]) -> str | None:
        found = home_of(among, name, need, shares.__getitem__)
        return None if found is None else found.home

    assert home("w0", 20, routes) == "w0"
    assert home("w0", 21, routes) is None, "it waits for its own"
    assert home("w2", 1, routes) is None
    assert home("gone", 50, routes) == "w1", "that which takes most and has a row"
    assert home("gone", 91, routes) is None
    assert home("w0", 1, []) is None


def test_more_of_either_is_more() -> None:
    before = OfflineShare(2, 10)
    assert more(OfflineShare(3, 5), before)
    assert more(OfflineShare(0, 11), before)
    assert not more(before, before)
