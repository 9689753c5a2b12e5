"""The waiting queue: the order of sorting, without sorting."""

from __future__ import annotations

import random

from blockwright.policies.requests.queue import WaitingQueue


def test_priority_then_arrival_within_and_over_applications() -> None:
    queue = WaitingQueue()
    for request, application, key in (("a", "m", (0, 0)), ("b", "n", (-1, 1)), ("c", "m", (0, 2)), ("d", "m", (-1, 3))):
        queue.add(request, application, key, 0.0)
        queue.check()
    assert list(queue.in_order(["m"])) == ["d", "a", "c"]
    assert list(queue.in_order(queue.applications())) == ["b", "d", "a", "c"]
    assert [queue.ahead(key) for key in ((-1, 1), (0, 2), (5, 9))] == [0, 3, 4]


def test_a_walk_goes_on_while_those_it_names_leave() -> None:
    queue = WaitingQueue()
    for i in range(5):
        queue.add(f"r{i}", "m", (0, i), 0.0)
    seen = []
    for request in queue.in_order(["m", "unknown"]):
        seen.append(request)
        queue.remove(request, "m")
    assert seen == [f"r{i}" for i in range(5)]
    assert (len(queue), queue.applications()) == (0, [])
    queue.remove("r0", "m")
    assert queue.longest_waiting("m") is None


def test_who_waits_longest_is_not_who_came_first() -> None:
    """A request whose attempt was lost keeps its place in the order and waits anew."""
    queue = WaitingQueue()
    queue.add("late", "m", (0, 9), 1.0)
    queue.add("early", "m", (0, 0), 2.0)
    assert queue.longest_waiting("m") == ("late", 1.0)
    assert list(queue.in_order(["m"])) == ["early", "late"]


def test_it_equals_sorting_over_random_changes() -> None:
    draw = random.Random(3)
    queue, known = WaitingQueue(), dict[str, tuple[str, tuple[int, int]]]()
    for i in range(400):
        if known and draw.random() < 0.4:
            request = draw.choice(list(known))
            queue.remove(request, known.pop(request)[0])
        else:
            known[f"r{i}"] = draw.choice("mno"), (draw.randrange(-2, 3), i)
            queue.add(f"r{i}", *known[f"r{i}"], float(i))
        queue.check()
        expected = sorted(known, key=lambda request: known[request][1])
        assert list(queue.in_order(queue.applications())) == expected
        assert [queue.ahead(known[request][1]) for request in expected] == list(range(len(queue)))
