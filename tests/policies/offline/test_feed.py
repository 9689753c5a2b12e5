"""One offline job on several workers: samples first, nobody runs twice, whoever comes, goes or gives back."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import replace
from itertools import pairwise

import pytest

from blockwright.policies.offline.arranging import Arrangement
from blockwright.policies.offline.fed_worker import FedWorker
from blockwright.policies.offline.feed import OfflineFeed, OfflineRequest
from blockwright.policies.offline.prefix_tree import packed
from blockwright.policies.offline.scanner import DualScanner
from blockwright.policies.plan.coefficients import Coefficients
from blockwright.tests.claims import claim

from .jobs import COSTS, drain, feed_of, group, mixed, numbers


def test_samples_run_first_and_the_others_fill_what_they_leave() -> None:
    requests = mixed()
    feed = feed_of(requests, sampled=[3, 14])
    feed.joined("w0", 10_000)
    first = feed.pull("w0", 4, 1e9)
    assert {*numbers(first[:2])} == {3, 14}
    assert len(first) == 4, "rows that the samples leave are not idle"
    assert feed.progress(1.0).sampling
    for one in first[:2]:
        assert not feed.stale
        feed.finished(one.request, 2)
    assert not feed.progress(1.0).sampling
    assert feed.stale
    feed.settle()
    assert not feed.stale
    feed.check()
    for one in first[2:]:
        feed.finished(one.request, 2)
    assert sorted(numbers(first) + drain(feed, "w0")) == list(range(len(requests)))
    assert feed.over


def test_what_samples_tell_changes_the_order() -> None:
    """Two groups look alike until one sample of each has run: the one with the long answers is the memory-heavy one."""
    requests = group(1, 10, limit=100) + group(2, 10, limit=100)
    feed = feed_of(requests, sampled=[0, 10])
    feed.joined("w0", 1_000)
    for one in feed.pull("w0", 2, 1e9):
        feed.finished(one.request, 90 if one.request < 10 else 1)
    feed.settle()
    placed = feed.pull("w0", 12, 1e9)
    assert {one.side for one in placed} == {"left", "right"}
    assert all((one.request >= 10) == (one.side == "left") for one in placed)


def test_neighbours_of_samples_follow_them() -> None:
    """They find what a sample has computed; others would have to compute as much again."""
    feed = feed_of(group(1, 20) + group(2, 20) + group(3, 20), sampled=[5, 25])
    feed.joined("w0", 10_000)
    taken = numbers(feed.pull("w0", 12, 1e9))
    assert {*taken[:2]} == {5, 25}
    assert {one // 20 for one in taken[2:]} == {0, 1}
    feed.check()
    assert sorted(taken + numbers(feed.pull("w0", 60, 1e9))) == list(range(60))


def test_both_sides_are_fed_at_once() -> None:
    feed = feed_of(mixed())
    feed.joined("w0", 500)
    sides = [one.side for one in feed.pull("w0", 8, 500)]
    assert {*sides} == {"left", "right"}


def test_requests_that_share_a_prefix_stay_together_on_a_side() -> None:
    requests = [one for pair in zip(group(1, 8), group(2, 8), group(3, 8), strict=True) for one in pair]
    feed = feed_of(requests)
    feed.joined("w0", 100_000)
    order = drain(feed, "w0")
    changes = sum(one % 3 != other % 3 for one, other in pairwise(order))
    assert changes == 2


def test_workers_get_parts_that_are_as_dense_as_the_whole() -> None:
    requests = mixed(short=40, long=20)
    feed = feed_of(requests)
    for worker in ("w0", "w1"):
        feed.joined(worker, 1_000_000)
    feed.check()
    parts = [numbers(feed.pull(worker, 100, 1e9)) for worker in ("w0", "w1")]
    long = [sum(request >= 40 for request in part) for part in parts]
    assert abs(long[0] - long[1]) <= 2
    assert sorted(parts[0] + parts[1]) == list(range(60))


def test_a_worker_with_nothing_left_takes_of_one_that_is_full() -> None:
    feed = feed_of(group(1, 20))
    feed.joined("w0", 100_000)
    feed.joined("w1", 100_000)
    first = len(feed.pull("w0", 100, 1e9))
    assert 8 <= first <= 12, "its own part alone: the other one has not been asked yet"
    assert len(feed.pull("w1", 3, 1e9)) == 3
    assert len(feed.pull("w0", 1, 1e9)) == 1
    feed.check()
    assert len(feed.pull("w1", 2, 1e9)) == 2, "half of it is left"
    assert len(feed.pull("w0", 100, 1e9)) == 20 - first - 6, "down to the last, as the other one is full"
    assert not feed.pull("w1", 100, 1e9)


def test_a_worker_that_ends_leaves_its_part_to_the_others() -> None:
    feed = feed_of(group(1, 20))
    feed.joined("w0", 100_000)
    feed.joined("w1", 100_000)
    ran = feed.pull("w1", 3, 1e9)
    feed.ended("w1")
    feed.check()
    assert feed.workers == frozenset({"w0"})
    assert len(feed.pull("w0", 100, 1e9)) == 17
    for one in ran:  # the gateway had them run elsewhere
        feed.finished(one.request, 3)
    assert feed.progress(1.0).running == 17


def test_nothing_is_lost_while_there_is_no_worker() -> None:
    feed = feed_of(group(1, 10), sampled=[4])
    feed.joined("w0", 100_000)
    ran = feed.pull("w0", 2, 1e9)
    feed.ended("w0")
    feed.given_back(ran[0].request)
    feed.check()
    assert feed.waiting == 9
    feed.joined("w1", 100_000)
    feed.check()
    assert len(feed.pull("w1", 100, 1e9)) == 9
    feed.given_back(ran[1].request)
    assert feed.progress(1.0).given_back == 2
    assert numbers(feed.pull("w1", 1, 1e9)) == [ran[1].request]


def test_what_is_given_back_is_the_first_on_its_side() -> None:
    feed = feed_of(mixed())
    feed.joined("w0", 500)
    placed = feed.pull("w0", 3, 500)
    feed.given_back(placed[1].request)
    feed.check()
    again = feed.pull("w0", 1, 500)
    assert (again[0].request, again[0].side) == (placed[1].request, placed[1].side)


def test_what_runs_when_an_order_is_adopted_may_be_given_back() -> None:
    feed = feed_of(group(1, 10), sampled=[0])
    feed.joined("w0", 100_000)
    placed = feed.pull("w0", 3, 1e9)
    feed.finished(0, 4)
    feed.settle()
    feed.given_back(placed[2].request)
    feed.joined("w1", 100_000)  # its part is cut anew, with what came back
    feed.check()
    taken = numbers(feed.pull("w0", 100, 1e9)) + numbers(feed.pull("w1", 100, 1e9))
    assert sorted([*taken, 0, placed[1].request]) == list(range(10))


def test_rows_and_positions_of_the_credit_are_kept_to() -> None:
    feed = feed_of([OfflineRequest(prompt=packed([n + 1] * 10), limit=20) for n in range(10)])
    feed.joined("w0", 1_000)
    placed = feed.pull("w0", 100, 60.0)
    assert len(placed) == 2, "20 positions each, 10 of its prompt and half of its answer; a third would not fit to its end"
    assert [one.positions for one in placed] == [20.0, 20.0]
    assert len(feed.pull("w0", 3, 1e9)) == 3
    assert not feed.pull("w0", 0, 1e9)


def test_an_idle_worker_gets_one_request_however_large_it_is() -> None:
    long = [OfflineRequest(prompt=packed([n, *range(2, 200)]), limit=20, choices=4) for n in (0, 1)]
    feed = feed_of(long)
    feed.joined("w0", 50)
    placed = feed.pull("w0", 1, 10.0)
    assert [one.sequences for one in placed] == [4]
    assert not feed.pull("w0", 9, 1e9), "there is no room beside it"
    feed.finished(placed[0].request, 20)
    assert len(feed.pull("w0", 1, 10.0)) == 1


def test_what_is_known_already_is_not_placed_and_teaches_lengths() -> None:
    requests = group(1, 6, limit=100)
    feed = feed_of(requests, known={0: 7, 3: 9})
    feed.joined("w0", 10_000)
    progress = feed.progress(0.0)
    assert (progress.done, progress.total, progress.done_tokens) == (2, 6, 0)
    assert progress.remaining_tokens == pytest.approx(4 * (25 + 8))
    assert sorted(drain(feed, "w0")) == [1, 2, 4, 5]


def test_progress_tells_what_is_left_and_how_long_it_takes() -> None:
    requests = group(1, 10, shared=20, own=5, limit=4)
    feed = feed_of(requests)
    feed.joined("w0", 10_000)
    begun = feed.progress(0.0)
    assert begun.remaining_seconds is None
    assert begun.sharing_best == pytest.approx(1 - (20 + 50) / 250)
    for _ in range(5):
        placed = feed.pull("w0", 1, 1e9)
        feed.finished(placed[0].request, 4, cached=20)
    half = feed.progress(10.0)
    assert half.remaining_tokens == pytest.approx(5 * 29)
    assert half.done_tokens == 5 * 29
    assert half.sharing == pytest.approx(20 / 25)
    assert half.remaining_seconds == pytest.approx(10.0, rel=0.3), "the first one computed the shared prefix"
    assert half.sides["w0"].left_running == 0
    drain(feed, "w0")
    assert feed.progress(20.0).remaining_seconds == 0.0


def test_costs_that_were_measured_make_the_order_stale_once() -> None:
    feed = feed_of(mixed())
    feed.joined("w0", 1_000)
    feed.settle()
    before = feed.progress(0.0).density
    found = Coefficients(token=2e-3, beyond=0.0, context=1e-5, prefill=2e-6)
    for lacking in (None, replace(found, context=0.0), replace(found, token=0.0)):
        feed.measured(lacking)
        assert not feed.stale, "a fit to few sweeps says nothing"
    feed.measured(found)
    assert feed.stale
    feed.settle()
    assert feed.progress(0.0).density > before
    feed.measured(replace(found, token=3e-3))
    assert not feed.stale


def test_a_request_that_failed_teaches_nothing() -> None:
    feed = feed_of(group(1, 4, limit=50), sampled=[2])
    feed.joined("w0", 10_000)
    assert numbers(feed.pull("w0", 1, 1e9)) == [2]
    feed.finished(2, 0)
    assert feed.stale, "it is not waited for"
    assert feed.progress(1.0).remaining_tokens == pytest.approx(3 * 75)


@claim("Every request of a batch ends once, whatever happens to workers and memory", of="offline")
@pytest.mark.parametrize("few", [0, 1000])
@pytest.mark.parametrize("seed", range(12))
def test_every_request_ends_once_whatever_happens(seed: int, few: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also where every cut is an errand, during which all else happens."""
    monkeypatch.setattr("blockwright.policies.offline.feed.FEW", few)
    draw = random.Random(seed)
    away: Callable[[], Arrangement] | None = None
    requests = [one for first in range(1, 6) for one in group(first, draw.randrange(1, 15), limit=draw.randrange(1, 60))]
    feed = OfflineFeed(requests, COSTS, draws=[draw.random() for _ in requests], share=draw.choice([0.0, 0.1, 1.0]))
    running: dict[int, str] = {}
    done: list[int] = []
    names = ["w0", "w1", "w2"]
    for _ in range(4000):
        event = draw.random()
        here = sorted(feed.workers)
        if event < 0.05 or not here:
            feed.joined(draw.choice(names), draw.randrange(50, 400))
        elif event < 0.08:
            feed.ended(draw.choice(here))
        elif event < 0.5:
            worker = draw.choice(here)
            for one in feed.pull(worker, draw.randrange(0, 5), draw.uniform(0, 300)):
                assert one.request not in running, "it runs twice"
                running[one.request] = worker
        elif running and event < 0.6:
            feed.given_back(running.popitem()[0])
        elif running:
            request = draw.choice(sorted(running))
            del running[request]
            feed.finished(request, draw.randrange(0, 60), cached=draw.randrange(0, 20))
            done.append(request)
        if away is None and draw.random() < 0.3:
            away = feed.errand()
        elif away is not None and draw.random() < 0.2:
            feed.adopt(away())
            away = None
        feed.check()
        if feed.over:
            break
    assert feed.over
    assert sorted(done) == list(range(len(requests)))


def test_long_answers_that_start_together_are_as_many_as_memory_holds_to_their_end() -> None:
    """By half of their answers ten of them would fit; nine would be stopped half-way."""
    feed = feed_of([OfflineRequest(prompt=packed([n + 1] * 100), limit=1900) for n in range(12)])
    feed.joined("w0", 10_000)
    held, placed = 0.0, []
    while one := feed.pull("w0", 1, 10_000 - held):
        placed += one
        held += 100
    assert len(placed) == 4, "of 2,000 tokens each, and 1 % is kept free"
    assert not feed.pull("w0", 1, 10_000 - held - 4 * 50, 50), "at the end of these it would have 1,950"
    assert len(feed.pull("w0", 1, 10_000 - held - 4 * 200, 200)) == 1, "now it would have 1,800"


def test_a_worker_that_began_anew_counts_its_sweeps_from_the_beginning() -> None:
    worker = FedWorker(DualScanner([], lambda request: 1.0, 100, 1.0))
    for outcome in (1_000, 1_200, 0, 300, 300):
        worker.ran(outcome)
    assert worker.sweeps == 1_500


def test_the_time_that_is_left_counts_what_runs_as_half_done() -> None:
    """All start together and take a second each: after a second and a half the rate is ten a second, not less."""
    feed = feed_of([OfflineRequest(prompt=packed([n + 1] * 10), limit=10) for n in range(100)])
    feed.joined("w0", 1_000_000)
    for one in feed.pull("w0", 10, 1e9):
        feed.finished(one.request, 10)
    assert feed.progress(1.0).remaining_seconds == pytest.approx(9.0, rel=0.01)
    placed = feed.pull("w0", 10, 1e9)
    assert feed.progress(1.5).remaining_seconds == pytest.approx(8.5, rel=0.01)
    feed.given_back(placed[0].request)
    assert feed.progress(1.0).remaining_seconds == pytest.approx((90 - 4.5) / 14.5, rel=0.01)


@pytest.mark.parametrize(
    ("requests", "said"),
    [
        ([], "no requests"),
        ([OfflineRequest(prompt=b"", limit=3)], "request 0 of an offline job has 0 bytes"),
        ([*group(1, 1), OfflineRequest(prompt=packed([1]), limit=0)], "request 1 .* a limit of 0"),
        ([OfflineRequest(prompt=packed([1]), limit=1, choices=0)], "0 choices"),
    ],
)
def test_what_is_no_job_is_refused(requests: list[OfflineRequest], said: str) -> None:
    with pytest.raises(ValueError, match=said):
        feed_of(requests)


def test_a_request_that_does_not_run_cannot_end() -> None:
    feed = feed_of(group(1, 2))
    with pytest.raises(ValueError, match="request 1 of an offline job does not run"):
        feed.finished(1, 3)
    with pytest.raises(ValueError, match="does not run"):
        feed.given_back(0)
