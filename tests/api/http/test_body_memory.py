"""Large bodies share a bounded memory: more of them wait, nobody takes more than half, and all of it comes back."""

from __future__ import annotations

import asyncio

import pytest

from blockwright.api.errors import ApiError
from blockwright.api.http.body_memory import SMALL, BodyMemory

UNIT = 2 * SMALL


async def hold(memory: BodyMemory, caller: str, size: int, until: asyncio.Event, order: list[str]) -> None:
    async with memory.share(caller, size, 60.0):
        order.append(caller)
        await until.wait()


async def test_what_does_not_fit_waits_and_half_is_the_most_of_one_caller() -> None:
    memory = BodyMemory(4 * UNIT)
    done = asyncio.Event()
    order = list[str]()
    async with asyncio.TaskGroup() as group:
        for caller in ("a", "a", "a", "b", "b", "c"):
            group.create_task(hold(memory, caller, UNIT, done, order))
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        assert (sorted(order), memory.held) == (["a", "a", "b", "b"], 4 * UNIT)
        async with memory.share("d", SMALL, 0.0):
            pass  # a small one never waits
        done.set()
    assert (sorted(order), memory.held) == (["a", "a", "a", "b", "b", "c"], 0)


async def test_one_that_waits_too_long_is_refused_and_one_that_leaves_holds_nothing() -> None:
    memory = BodyMemory(4 * UNIT)
    async with memory.share("a", 99 * UNIT, 1.0):  # as much as there is for one
        assert memory.held == 2 * UNIT
        with pytest.raises(ApiError, match=f"fill the {4 * UNIT} bytes") as caught:
            async with memory.share("a", UNIT, 0.0):
                pass
        assert (caught.value.status, caught.value.retry_after) == (503, 1.0)
        waiting = asyncio.ensure_future(hold(memory, "a", UNIT, asyncio.Event(), []))
        await asyncio.sleep(0)
        waiting.cancel()
        await asyncio.wait([waiting])
    assert memory.held == 0
