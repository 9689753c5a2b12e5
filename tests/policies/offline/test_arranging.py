"""What takes long of a job is an errand, and everything goes on while it is done."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from blockwright.policies.offline.arranging import Arrangement
from blockwright.policies.offline.feed import OfflineFeed
from blockwright.policies.offline.order import Weigher
from blockwright.tests.claims import claim

from .jobs import drain, feed_of, group, mixed, numbers


@claim("Ordering a large batch does not hold the event loop", of="offline")
def test_a_large_job_is_ordered_and_cut_by_errands_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """No other call weighs requests, however many there are; until the errand is done what was cut before goes on."""
    monkeypatch.setattr("blockwright.policies.offline.feed.FEW", 10)
    feed = feed_of(mixed(short=40, long=20), sampled=[3, 50])
    weighed = 0

    def comp(self: Weigher, request: int, before: int = -1) -> float:
        nonlocal weighed
        weighed += 1
        return 1.0

    monkeypatch.setattr(Weigher, "comp", comp)
    feed.joined("w0", 5_000)
    assert feed.pull("w0", 4, 5_000) == [], "its part is to be cut"
    feed.adopt(_errand(feed)())
    first = feed.pull("w0", 2, 5_000)
    assert {*numbers(first)} == {3, 50}, "samples come first"
    cut, weighed = weighed, 0
    assert cut > 0
    feed.joined("w1", 5_000)
    errand = _errand(feed)
    assert feed.errand() is None, "one at a time"
    assert len(feed.pull("w0", 3, 5_000)) == 3, "what it had before"
    for one in first:
        feed.finished(one.request, 2)
    assert weighed == 0
    made = errand()
    weighed = 0
    feed.adopt(made)
    feed.check()
    assert feed.stale
    order = _errand(feed)
    feed.ended("w1")
    made = order()
    weighed = 0
    feed.adopt(made)
    feed.check()
    assert weighed == 0
    assert not feed.stale, "the order is new, its parts are for workers that are not here"
    feed.adopt(_errand(feed)())
    assert feed.errand() is None
    feed.check()
    assert len(drain(feed, "w0")) == 55


def test_what_started_while_it_was_cut_is_in_no_part_and_what_came_back_is_first(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("blockwright.policies.offline.feed.FEW", 0)
    feed = feed_of(group(1, 20))
    feed.joined("w0", 10_000)
    feed.settle()
    before = numbers(feed.pull("w0", 2, 1e9))
    feed.joined("w1", 10_000)
    errand = _errand(feed)
    during = numbers(feed.pull("w0", 3, 1e9))
    feed.given_back(before[0])
    feed.given_back(during[0])
    feed.adopt(errand())
    feed.check()
    after = numbers(feed.pull("w0", 2, 1e9))
    assert before[0] in after, "it ran when the parts were cut, and is first on its side"
    taken = after + numbers(feed.pull("w0", 50, 1e9)) + numbers(feed.pull("w1", 50, 1e9))
    assert sorted([*taken, before[1], *during[1:]]) == list(range(20))


def test_half_of_a_large_part_is_given_by_an_errand(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("blockwright.policies.offline.feed.FEW", 0)
    feed = feed_of(group(1, 40))
    for worker in ("w0", "w1"):
        feed.joined(worker, 100_000)
    feed.settle()
    own = len(feed.pull("w0", 100, 1e9))
    assert len(feed.pull("w1", 3, 1e9)) == 3
    assert feed.pull("w0", 5, 1e9) == []
    errand = _errand(feed)
    feed.pull("w1", 2, 1e9)
    feed.adopt(errand())
    feed.check()
    assert len(feed.pull("w0", 100, 1e9)) in range((35 - own) // 2 - 2, (37 - own) // 2 + 2)


def _errand(feed: OfflineFeed) -> Callable[[], Arrangement]:
    found = feed.errand()
    assert found is not None
    return found
