"""Work whose CANCEL was lost ends all the same."""

from __future__ import annotations

import asyncio

import pytest

from blockwright.runtime import Actor, DeadlineExceeded, endpoint


class Sleeper(Actor):
    def __init__(self) -> None:
        self.cancelled = 0

    @endpoint(concurrent=True)
    async def sleep(self) -> None:
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            self.cancelled += 1
            raise


@pytest.mark.parametrize("sides", ["remote"], indirect=True)
async def test_a_call_ends_soon_after_its_deadline_though_no_cancel_comes(sides):
    sleeper = Sleeper()
    ref = await sides.spawn(sleeper)
    calls = [asyncio.create_task(ref.sleep(timeout=seconds)) for seconds in (1.0, 30.0)]
    await sides.turns()
    sides.network.carry = lambda *message: None  # nothing gets across any more
    for _ in range(4):
        assert sleeper.cancelled == 0
        sides.clock.advance(0.3)
        await sides.turns()
    sides.clock.advance(0.5)
    await sides.turns()
    assert sleeper.cancelled == 1
    assert len(sides.callee.table.current["a"].inbound) == 1
    with pytest.raises(DeadlineExceeded):
        await calls[0]
    calls[1].cancel()
