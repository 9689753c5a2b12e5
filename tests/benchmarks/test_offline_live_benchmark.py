"""An offline batch on a real cluster: the same requests for all orders, and each order answers all of them once."""

from __future__ import annotations

import random
from collections.abc import Sequence
from pathlib import Path

import offline_live as live
import pytest
import scheduling_runs as runs
from harness import OURS, Report
from offline_live import DEPTH_FIRST, LIMIT, RANDOM, ROOM, Asked, Plan
from offline_orders import FixedFeed

from blockwright.policies.offline.feed import OfflineFeed


@pytest.fixture(autouse=True)
def sample(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(runs, "lengths", lambda: runs.SAMPLE)


def test_requests_are_mixed_alike_each_time_and_fit() -> None:
    asked = live.requests(200)
    assert asked == live.requests(200)
    assert len(asked) == 200
    assert all(1 <= one.output <= LIMIT and len(one.prompt) + LIMIT <= live.SETTINGS["max_model_len"] for one in asked)
    assert sum(one.output == 2 for one in asked) >= 80, "questions"


def drained(feed: OfflineFeed | FixedFeed, asked: Sequence[Asked]) -> list[int]:
    """The order in which two workers start requests of which each ends before the next."""
    for worker in ("w0", "w1"):
        feed.joined(worker, ROOM)
    order, draw = list[int](), random.Random(2)
    while not feed.over:
        for placed in feed.pull(draw.choice(["w0", "w1"]), 1, ROOM):
            order.append(placed.request)
            feed.finished(placed.request, asked[placed.request].output)
        if feed.stale:
            assert isinstance(feed, OfflineFeed)
            feed.settle()
    return order


@pytest.mark.parametrize("order", [OURS, DEPTH_FIRST, RANDOM])
def test_every_order_starts_each_request_once(order: str) -> None:
    asked = live.requests(120)
    assert sorted(drained(live.feed_of(asked, order), asked)) == list(range(120))


def test_what_is_compared_is_the_order_alone() -> None:
    asked = live.requests(120)
    feeds = {order: drained(live.feed_of(asked, order), asked) for order in (DEPTH_FIRST, RANDOM)}
    shared = {order: sum(_common(asked[a], asked[b]) for a, b in zip(found, found[2:], strict=False))
              for order, found in feeds.items()}  # fmt: skip
    assert shared[DEPTH_FIRST] > 2 * shared[RANDOM]


def _common(one: Asked, other: Asked) -> int:
    return next((n for n, (a, b) in enumerate(zip(one.prompt, other.prompt, strict=False)) if a != b), 0)


@pytest.mark.nightly  # a whole cluster; its parts are tested above
@pytest.mark.system
def test_orders_are_measured_on_a_cluster(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(live, "SIZE", "tiny")
    monkeypatch.setattr(live, "KV", 2 * 64 * 4 * 2)
    report, plan = Report("offline_live", {}), Plan(count=24, rounds=1)
    live.measure(report, plan, tmp_path)
    for order in (OURS, DEPTH_FIRST, RANDOM):
        assert report.median(plan.case, "equal", order) == 1.0
        assert report.median(plan.case, "load_cv", order)
    assert 0 < (report.median(plan.case, "sharing", OURS) or 0) < 1
    assert report.absent == [(plan.case, "vllm", "not installed")]
