"""Tenants take turns at having grammars compiled, and slow grammars wait behind the ones that were not tried yet."""

from __future__ import annotations

import random

import pytest

from blockwright.policies.sweep.compile_queue import ALL, FIRST_TRY, LATER_TRY, LATER_TRY_EVERY, OWN, CompileQueue
from blockwright.tests.claims import claim


def taken(queue: CompileQueue) -> int:
    found = queue.take()
    assert found is not None
    return found[0]


@claim("Whatever a tenant sends to be compiled, another tenant's new grammar waits for one of its", of="structured-output")
def test_a_newcomer_is_next() -> None:
    queue = CompileQueue({}, 1000, 1000)
    for number in range(50):
        queue.add(number, "hostile")
    for _ in range(10):
        assert queue.take() is not None
        queue.charge("hostile", FIRST_TRY, 0.05)
    for number in (100, 101):
        queue.add(number, "other")
    order = []
    for _ in range(6):
        number, tenant, attempt = queue.take() or (-1, "", FIRST_TRY)
        queue.charge(tenant, attempt, 0.05 if tenant == "hostile" else 0.01)
        order.append(number)
    assert order.index(100) <= 1
    assert order.index(101) <= 3


def test_a_heavier_tenant_has_more_turns() -> None:
    queue = CompileQueue({"big": 3}, 1000, 1000)
    for number in range(40):
        queue.add(number, "big" if number % 2 else "small")
    counts = {"big": 0, "small": 0}
    for _ in range(16):
        _, tenant, attempt = queue.take() or (-1, "", FIRST_TRY)
        counts[tenant] += 1
        queue.charge(tenant, attempt, 0.01)
    assert counts == {"big": 12, "small": 4}


def test_second_tries_come_behind_first_ones_but_come() -> None:
    queue = CompileQueue({}, 1000, 1000)
    queue.add(0, "a", LATER_TRY)
    for number in range(1, 3 * LATER_TRY_EVERY):
        queue.add(number, "a")
    order = [taken(queue) for _ in range(3 * LATER_TRY_EVERY)]
    assert order.index(0) == LATER_TRY_EVERY - 1
    assert [number for number in order if number] == [*range(1, 3 * LATER_TRY_EVERY)]
    queue.add(7, "a", LATER_TRY)
    assert queue.take() == (7, "a", LATER_TRY)
    assert queue.take() is None


def test_the_queue_has_an_end() -> None:
    queue = CompileQueue({}, 5, 3)
    for number in range(3):
        assert queue.full("a") == ""
        queue.add(number, "a")
    assert (queue.full("a"), queue.full("b")) == (OWN, "")
    queue.add(3, "b")
    queue.add(4, "b")
    assert (queue.full("b"), queue.full("c")) == (ALL, ALL)
    queue.remove(4)
    queue.remove(99)
    assert (queue.full("b"), queue.waiting, queue.waiting_of("b")) == ("", 4, 1)


@pytest.mark.parametrize("seed", range(5))
def test_every_grammar_is_taken_once(seed: int) -> None:
    chance = random.Random(seed)
    queue = CompileQueue({}, 1000, 1000)
    waiting: set[int] = set()
    for number in range(300):
        if chance.random() < 0.6:
            queue.add(number, chance.choice("abc"), chance.choice([FIRST_TRY, LATER_TRY]))
            waiting.add(number)
        if chance.random() < 0.1 and waiting:
            gone = chance.choice(sorted(waiting))
            queue.remove(gone)
            waiting.remove(gone)
        if chance.random() < 0.4 and (found := queue.take()) is not None:
            waiting.remove(found[0])
            queue.charge(found[1], found[2], chance.random())
        assert queue.waiting == len(waiting)
    while (found := queue.take()) is not None:
        waiting.remove(found[0])
        queue.charge(found[1], found[2], chance.random())
    assert not waiting
