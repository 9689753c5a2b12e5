"""Stale sequences: the shortest stall first, within the pages that peers have free."""

from __future__ import annotations

import random

from blockwright.policies.overload.exchange_order import AT_ONCE, SMALL, ExchangeOrder, StaleSequence
from blockwright.tests.claims import claim


def stale(name: str, size: int, link: tuple[str, str] = ("a", "b"), pages: int | None = None) -> StaleSequence:
    """``size``: pages, which are large."""
    return StaleSequence(name, {link: size * SMALL}, {link[1]: size if pages is None else pages})


@claim("Running sequences pause while their KV is exchanged, the shortest stall first", of="parameter-dropping")
def test_the_shortest_stall_first_by_bytes_and_bandwidth() -> None:
    order = ExchangeOrder(lambda sender, receiver: 10.0 if sender == "c" else 1.0, at_once=2)
    for one in (stale("long", 9), stale("short", 3), stale("fast link", 20, ("c", "b")), stale("none", 0)):
        order.add(one)
    assert [one.request for one in order.next({"b": 100})] == ["none", "fast link"]
    assert order.next({"b": 100}) == [], "no more than two at a time"
    order.done("none")
    order.done("fast link")
    assert [one.request for one in order.next({"b": 100})] == ["short", "long"]
    assert order.left == 2


def test_rounds_are_bounded_by_free_pages_and_everybody_moves() -> None:
    source = random.Random(3)
    for _ in range(100):
        order, free = ExchangeOrder(lambda sender, receiver: 1.0), {"a": 50, "b": source.randint(20, 60)}
        sequences = [stale(f"r{n}", source.randint(1, 20), source.choice([("a", "b"), ("b", "a")])) for n in range(30)]
        for one in sequences:
            order.add(one)
        moved, moving = list[str](), list[StaleSequence]()
        while order.left:
            began = order.next(free)
            for one in began:
                for worker, count in one.pages.items():
                    free[worker] -= count
            assert min(free.values()) >= 0
            moving += began
            assert 0 < len(moving) <= AT_ONCE
            gone = moving.pop(0)
            moved.append(gone.request)
            order.done(gone.request)
            for worker, count in gone.pages.items():
                free[worker] += count
        assert sorted(moved) == sorted(one.request for one in sequences)


def test_small_ones_move_together() -> None:
    """An exchange takes some sweeps however little it moves: those beyond eight go along while all together are small."""
    order = ExchangeOrder(lambda sender, receiver: 1.0)
    each = SMALL // 10
    for n in range(20):
        order.add(StaleSequence(f"r{n:02}", {("a", "b"): each}, {"b": 1}))
    order.add(StaleSequence("no bytes at all", {}, {"b": 1}))
    began = order.next({"b": 100})
    assert [one.request for one in began] == ["no bytes at all", *(f"r{n:02}" for n in range(10))]
    order.done("r00")
    assert [one.request for one in order.next({"b": 100})] == ["r10"]
    assert sum(one.nbytes for one in order.moving.values()) <= SMALL


def test_what_fits_nowhere_and_what_a_dead_member_had_is_computed_again() -> None:
    order = ExchangeOrder(lambda sender, receiver: 1.0)
    order.add(stale("small", 2))
    order.add(stale("large", 90))
    assert [one.request for one in order.next({"b": 10})] == ["small"]
    assert order.stuck() is None, "what moves may make room"
    order.done("small")
    assert order.next({"b": 10}) == []
    assert (found := order.stuck()) is not None
    assert (found.request, order.left) == ("large", 0)
    for one in (stale("x", 1), stale("y", 1, ("b", "c")), stale("z", 1, ("c", "d"))):
        order.add(one)
    order.next({"b": 9, "c": 0, "d": 0})
    assert [one.request for one in order.lost("b")] == ["x", "y"]
    assert order.left == 1
