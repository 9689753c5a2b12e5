"""Whose KV comes back from host memory: the oldest first, once all of it fits."""

from __future__ import annotations

from overload_swapping import SwappedSequence, SwapQueue


def names(found: list[SwappedSequence]) -> list[str]:
    return [one.request for one in found]


def test_the_oldest_comes_back_first_and_nobody_overtakes() -> None:
    queue = SwapQueue(1000)
    for name, arrival, pages in (("young", 3.0, 5), ("old", 1.0, 90), ("middle", 2.0, 20)):
        queue.leave(SwappedSequence(name, arrival, pages))
    assert names(queue.next(1000, 1)) == [], "nothing has arrived in host memory"
    queue.arrived("young")
    queue.arrived("middle")
    assert names(queue.next(1000, 1)) == [], "the oldest is still on its way"
    queue.arrived("old")
    assert names(queue.next(100, 1)) == [], "a hundredth stays free for those who run"
    assert names(queue.next(101, 1)) == ["old"]
    assert names(queue.next(101, 1)) == ["middle", "young"]
    assert (queue.left, queue.pages) == (3, 115)
    for name in ("old", "middle", "young"):
        queue.returned(name)
    assert (queue.left, queue.pages) == (0, 0)


def test_where_nobody_runs_all_memory_is_used() -> None:
    queue = SwapQueue(1000)
    queue.leave(SwappedSequence("alone", 0.0, 995))
    queue.arrived("alone")
    assert names(queue.next(1000, 1)) == []
    assert names(queue.next(1000, 0)) == ["alone"]
