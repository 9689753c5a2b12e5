from __future__ import annotations

import logging

import pytest

from blockwright.runtime import Actor, ManualClock, endpoint
from blockwright.runtime.base.log_rate_limit import MOST, Repeats
from blockwright.tests.runtime.conftest import Sides


@pytest.fixture
def rig(caplog):
    caplog.set_level(logging.INFO)
    caplog.handler.addFilter(logging.Filter("blockwright"))  # not what asyncio says of a task that another test dropped
    clock = ManualClock()
    return clock, Repeats(clock, logging.getLogger("blockwright.test")), caplog


def test_at_once_then_a_count_each_second(rig) -> None:
    clock, repeats, caplog = rig
    for number in range(5):
        repeats.say(logging.WARNING, "a", f"a {number}")
    repeats.say(logging.ERROR, "b", "b 0")
    assert caplog.messages == ["a 0", "b 0"]
    clock.advance(0.9)
    repeats.say(logging.WARNING, "a", "a 5")
    assert len(caplog.messages) == 2
    clock.advance(0.1)
    assert caplog.messages[2:] == ["5 more like it, the last: a 5"]
    repeats.say(logging.WARNING, "a", "a 6")
    clock.advance(0.5)
    repeats.say(logging.ERROR, "b", "b 1")  # long ago: at once
    assert caplog.messages[3:] == ["b 1"]
    clock.advance(0.5)
    assert caplog.messages[4:] == ["1 more like it, the last: a 6"]
    clock.advance(10)
    assert len(caplog.messages) == 5
    assert clock._due == []  # nothing to come back for


def test_many_keys_are_reported_together_and_the_rest_at_the_end(rig) -> None:
    clock, repeats, caplog = rig
    for number in range(3 * MOST):
        repeats.say(logging.WARNING, number, f"of {number}")
    assert len(caplog.messages) == MOST + 1
    repeats.close()
    assert caplog.messages[MOST + 1 :] == [f"{2 * MOST - 1} more like it, the last: of {3 * MOST - 1}"]
    clock.advance(10)
    assert len(caplog.messages) == MOST + 2


def test_what_nobody_reads_is_not_kept(rig) -> None:
    clock, repeats, caplog = rig
    repeats.say(logging.DEBUG, "a", "a")
    assert caplog.messages == []
    assert clock._due == []


class Deaf(Actor):
    @endpoint
    async def hear(self, n: int) -> None:
        raise ValueError(f"not {n}")


async def test_a_flood_of_casts_that_fail_is_few_lines(sides: Sides, caplog) -> None:
    ref = await sides.spawn(Deaf())
    other = sides.caller.ref(f"{sides.callee.name}/nobody")
    gone = sides.caller.ref("mars/nobody")
    for number in range(50):
        ref.hear.cast(number)
        other.hear.cast(number)
        gone.hear.cast(number)
    await sides.turns(300)
    assert len(caplog.messages) == 3
    sides.clock.advance(1.0)
    assert sorted(caplog.messages[3:])[0].startswith("49 more like it, the last: a cast")
    assert len(caplog.messages) == 6
    counts = {**sides.callee.dead_letters, **sides.caller.dead_letters}
    assert counts == {"RemoteError": 50, "NoSuchActor": 50, "NodeDown": 50}
