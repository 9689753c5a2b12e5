"""Idle pages in two kinds: whatever comes and goes, those that go early stand before the others, each kind by age."""

from __future__ import annotations

import random

from blockwright.policies.memory.idle_pages import IdlePages


def test_order_is_that_of_two_lists() -> None:
    for seed in range(50):
        chance, idle = random.Random(seed), IdlePages()
        idle.add_layout("a")
        early: list[int] = []
        late: list[int] = []
        for _ in range(120):
            there = [*early, *late]
            handle = chance.randrange(40)
            if handle in there:
                kind = early if handle in early else late
                if chance.random() < 0.2 and (piece := 40 + chance.randrange(40)) not in there:
                    idle.insert(piece, after=handle)  # the other one is cut
                    kind.insert(kind.index(handle) + 1, piece)
                else:
                    idle.remove(handle, "a", 2, early=kind is early)
                    kind.remove(handle)
            else:
                first = chance.random() < 0.5
                idle.add(handle, "a", 2, early=first)
                (early if first else late).append(handle)
            idle.check()
            assert [*idle] == [*early, *late]
            assert idle.early() == early
            if chance.random() < 0.1:
                idle = idle.fork()
