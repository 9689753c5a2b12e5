"""The time that calls are given, on its way to another node."""

from __future__ import annotations

import pytest

from blockwright.runtime import Actor, endpoint
from blockwright.runtime.base.clock import LONGEST


class Echo(Actor):
    @endpoint
    async def echo(self, number: int) -> int:
        return number


@pytest.mark.parametrize("sides", ["remote"], indirect=True)
async def test_the_longest_time_is_never_too_long_at_any_instant(sides):
    """``now + LONGEST - now`` rounds to more than LONGEST a quarter of the time on a machine that is up for a day; the
    callee refused that as expired."""
    ref = await sides.spawn(Echo())
    above = 0
    sides.clock.jump(70000.0)
    for number in range(100):
        sides.clock.advance(1.0 + number / 7)
        above += sides.clock.now() + LONGEST - sides.clock.now() > LONGEST
        assert await ref.echo(number, timeout=LONGEST) == number
    assert above > 0
