from __future__ import annotations

import asyncio
import random

import pytest

from blockwright.runtime import DeadlineExceeded, ManualClock
from blockwright.runtime.actor.deadlines import Deadlines
from blockwright.runtime.base.address import Address

TARGET = Address("a", "x")


async def test_each_falls_due_at_its_time_behind_one_timer():
    clock = ManualClock(0.0)
    deadlines = Deadlines(clock)
    futures = {when: asyncio.get_running_loop().create_future() for when in (5.0, 1.0, 3.0, 2.0)}
    for when, future in futures.items():
        deadlines.add(when, future, TARGET, "f", when)
    futures[2.0].set_result(None)
    deadlines.settled()
    for now, over in ((0.9, set()), (1.0, {1.0}), (2.9, {1.0}), (3.0, {1.0, 3.0}), (9.0, {1.0, 3.0, 5.0})):
        clock.advance(now - clock.now())
        assert {when for when, future in futures.items() if future.done() and when != 2.0} == over
    with pytest.raises(DeadlineExceeded, match=r"a/x\.f did not answer within 5 s"):
        await futures[5.0]
    for when in (1.0, 3.0):
        assert isinstance(futures[when].exception(), DeadlineExceeded)


async def test_what_is_over_does_not_pile_up():
    clock = ManualClock(0.0)
    deadlines = Deadlines(clock)
    open_one = asyncio.get_running_loop().create_future()
    deadlines.add(50.0, open_one, TARGET, "f", 50.0)
    for _ in range(5000):
        future = asyncio.get_running_loop().create_future()
        deadlines.add(30.0, future, TARGET, "f", 30.0)
        future.set_result(None)
        deadlines.settled()
    assert len(deadlines) < 1100
    assert sum(timer.callback is not None for _, _, timer in clock._due) == 1
    clock.advance(60.0)
    assert isinstance(open_one.exception(), DeadlineExceeded)
    assert len(deadlines) == 0


@pytest.mark.parametrize("seed", range(20))
async def test_any_mixture_of_times_falls_due_each_at_its_own(seed):
    draw, clock = random.Random(seed), ManualClock(0.0)
    deadlines, loop = Deadlines(clock), asyncio.get_running_loop()
    waiting: list[tuple[float, asyncio.Future[None]]] = []
    for _ in range(1500):
        future, when = loop.create_future(), clock.now() + draw.choice((30.0, 30.0, 30.0, draw.uniform(0.01, 60.0)))
        deadlines.add(when, future, TARGET, "f", when)
        if draw.random() < 0.7:
            future.set_result(None)
            deadlines.settled()
        else:
            waiting.append((when, future))
        clock.advance(draw.uniform(0.0, 0.1))
        assert all(future.done() == (when <= clock.now()) for when, future in waiting[-50:])
    clock.advance(60.0)
    assert all(isinstance(future.exception(), DeadlineExceeded) for _, future in waiting)
    assert len(deadlines) == 0
