"""The dual scanner: its partition, both ends of the list, and what it counts over any sequence of events."""

from __future__ import annotations

import itertools
import math
import random
from array import array
from collections.abc import Callable, Sequence

import pytest

from blockwright.policies.offline.order import Unit
from blockwright.policies.offline.scanner import DualScanner, left_share
from blockwright.tests.claims import claim


def unit(requests: Sequence[int], rho: float) -> Unit:
    return Unit(array("i", requests), rho * len(requests), float(len(requests)), 0, 0.0)


def scanner(
    units: Sequence[Unit],
    memory: float = 100.0,
    target: float = 1.0,
    need: Callable[[int], float] = lambda request: 10.0,
    share: float | None = None,
) -> DualScanner:
    return DualScanner(units, need, memory, target, share=share)


def drained(found: DualScanner) -> list[tuple[int, str]]:
    """All that fits now."""
    admitted = []
    while (admission := found.admit()) is not None:
        admitted.append((admission.request, admission.side))
        found.check()
    return admitted


def test_the_papers_example_of_a_partition() -> None:
    share = left_share(3.73, 0.096, 1.27)
    assert 60 * share == pytest.approx(19.4, abs=0.05)
    assert 60 * (1 - share) == pytest.approx(40.6, abs=0.05)
    assert share * 3.73 + (1 - share) * 0.096 == pytest.approx(1.27)


@pytest.mark.parametrize(
    ("left", "right", "target", "share"),
    [(2.0, 2.0, 1.0, 0.5), (2.0, 2.0 - 1e-9, 5.0, 0.5), (5.0, 2.0, 1.0, 0.0), (0.5, 0.2, 1.0, 1.0), (1e9, 0.1, 1.0, 9e-10)],
)
def test_partitions_at_the_edges(left: float, right: float, target: float, share: float) -> None:
    assert left_share(left, right, target) == pytest.approx(share, abs=1e-12)


@claim("A batch is read from its compute-bound and its memory-bound end at once, within the memory", of="offline")
def test_both_ends_are_read_towards_each_other_within_their_memory() -> None:
    found = scanner([unit(range(10), 4.0), unit(range(10, 20), 0.25)])
    use = found.use()
    assert (use.left_most, use.right_most) == (pytest.approx(20.0), pytest.approx(80.0))
    admitted = drained(found)
    assert [request for request, side in admitted if side == "left"] == [0, 1]
    assert [request for request, side in admitted if side == "right"] == [19, 18, 17, 16, 15, 14, 13, 12]
    assert admitted[1][1] != admitted[0][1], "the side with less of its memory in use is asked first"
    found.finished(0)
    assert drained(found) == [(2, "left")]
    found.finished(19)
    assert drained(found) == [(11, "right")]


def test_a_pointer_that_moves_on_divides_anew_and_what_is_beyond_drains() -> None:
    found = scanner([unit(range(2), 1.5), unit(range(2, 30), 9.5), unit(range(30, 60), 0.5)])
    assert found.use().left_most == pytest.approx(50.0)
    admitted = drained(found)
    assert found.use().left_most == pytest.approx(100 * 0.5 / 9.0)
    assert sum(side == "left" for _, side in admitted) == 2
    assert found.over("left") > 0
    found.finished(0)
    assert {side for _, side in drained(found)} <= {"right"}, "the left side holds more than its part still"
    found.finished(1)
    assert drained(found)[0] == (2, "left"), "a side keeps at least one request"


def test_where_the_pointers_meet_one_reads_on_with_all_memory() -> None:
    found = scanner([unit(range(30), 3.0)])
    assert found.met
    assert drained(found) == [(request, "left") for request in range(10)]
    two = scanner([unit(range(5), 4.0), unit(range(5, 40), 0.5)])
    for request, _ in drained(two):
        two.finished(request)
    while not two.met:
        for request, _ in drained(two):
            two.finished(request)
    assert two.use().left_most == two.use().right_most == 100.0
    left = two.pending()
    assert left == sorted(left)
    assert [request for request, _ in drained(two)] == left[:10]


def test_memory_of_both_together_is_never_exceeded_and_a_lonely_side_is_waited_for() -> None:
    needs = [30.0] * 10 + [80.0] * 10
    found = scanner([unit(range(10), 0.9), unit(range(10, 20), 0.8)], need=needs.__getitem__)
    assert found.use().left_most == 100.0, "both are below what is aimed at"
    assert drained(found) == [(19, "right")], "the left side's first request is waited for"
    found.finished(19)
    assert drained(found) == [(0, "left")], "and now the right side's"
    assert list(found.newest("left")) == [0]
    assert (found.running("left"), found.running("right"), found.side(0), found.side(9)) == (1, 0, "left", None)


def test_an_empty_memory_always_gets_one() -> None:
    found = scanner([unit(range(3), 1.0)], need=lambda request: 1000.0)
    assert drained(found) == [(0, "left")]
    found.finished(0)
    assert found.admit(limit=1.0) is not None


def test_no_more_than_the_caller_has_room_for() -> None:
    found = scanner([unit(range(10), 4.0), unit(range(10, 20), 0.25)])
    assert found.admit() is not None
    assert found.peek() is not None
    assert found.admit(limit=9.0) is None
    assert found.admit(limit=10.0) is not None


def test_a_request_that_cannot_start_now_is_not_admitted() -> None:
    closed: set[int] = set()
    found = scanner([unit(range(10), 1.0)], need=lambda request: math.inf if closed else 10.0)
    assert found.admit() is not None
    closed.add(1)
    assert found.admit() is None
    closed.clear()
    assert found.admit() is not None


def test_what_is_given_back_comes_first_on_its_side() -> None:
    found = scanner([unit(range(10), 4.0), unit(range(10, 20), 0.25)])
    drained(found)
    found.retracted(1)
    found.retracted(15)
    found.retracted(17)
    assert found.retractions == 3
    assert found.pending()[0] == 1
    assert found.pending()[-2:] == [15, 17]
    assert {*drained(found)} == {(1, "left"), (17, "right"), (15, "right")}


def test_another_order_leaves_what_runs() -> None:
    found = scanner([unit(range(20), 4.0), unit(range(20, 40), 0.25)])
    running = [request for request, _ in drained(found)]
    rest = found.pending()
    assert sorted(running + rest) == list(range(40))
    found.replace([unit(rest[::2], 3.0), unit([], 1.0), unit(rest[1::2], 0.5)])
    found.check()
    assert found.pending() == rest[::2] + rest[1::2]
    assert drained(found) == []
    for request in running:
        found.finished(request)
    assert drained(found)[0][0] in (rest[0], rest[-1])
    found.replace([])
    assert (found.waiting, found.admit(), found.peek()) == (0, None, None)


def test_memory_that_shrinks_and_a_given_share() -> None:
    found = scanner([unit(range(20), 4.0), unit(range(20, 40), 0.25)], share=0.5)
    assert found.use().left_most == 50.0
    found.resize(60.0)
    assert len(drained(found)) == 6
    found.replace([unit(found.pending(), 1.0), unit([99], 0.1)], target=0.55)
    assert found.use().left_most == pytest.approx(30.0)


@pytest.mark.parametrize(
    ("memory", "target", "share"), [(0.0, 1.0, None), (1.0, -1.0, None), (1.0, math.nan, None), (1, 1, 1.5)]
)
def test_what_cannot_be_is_refused(memory: float, target: float, share: float | None) -> None:
    with pytest.raises(ValueError, match="of an offline batch's"):
        scanner([unit([0], 1.0)], memory, target, share=share)
    with pytest.raises(KeyError, match="request 7 of an offline batch is not running"):
        scanner([unit([0], 1.0)]).finished(7)


@claim("Every request of a batch ends once, whatever happens to workers and memory", of="offline")
@pytest.mark.parametrize("seed", range(60))
def test_every_request_runs_to_its_end_whatever_happens(seed: int) -> None:
    chance = random.Random(seed)
    needs = [chance.choice([1.0, 5.0, 20.0, 120.0]) for _ in range(200)]
    cuts = sorted(chance.sample(range(1, 200), chance.randint(0, 12)))
    pieces = itertools.pairwise([0, *cuts, 200])
    units = [unit(range(one, other), 8.0 * 0.7**at) for at, (one, other) in enumerate(pieces)]
    found = scanner(units, target=chance.choice([0.1, 1.0, 6.0]), need=needs.__getitem__)
    running: list[int] = []
    done: list[int] = []
    for _ in range(5000):
        action = chance.random()
        if action < 0.5:
            if (admission := found.admit(chance.choice([math.inf, 30.0]))) is not None:
                running.append(admission.request)
                use = found.use()
                assert use.left + use.right <= 100.0 or len(running) == 1
        elif action < 0.85 and running:
            done.append(running.pop(chance.randrange(len(running))))
            found.finished(done[-1])
        elif action < 0.9 and running:
            found.retracted(running.pop(chance.randrange(len(running))))
        elif action < 0.91:
            pending = found.pending()
            chance.shuffle(pending)
            half = len(pending) // 2
            found.replace([unit(pending[:half], 2.0), unit(pending[half:], 0.5)])
        found.check()
        if not running and not found.waiting:
            break
    assert sorted(done) == list(range(200))
    assert found.finishes == 200
    assert found.admitted == 200 + found.retractions
