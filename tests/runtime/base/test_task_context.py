from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from contextvars import ContextVar, copy_context
from typing import Any

import pytest

from blockwright.runtime import Actor, Node, endpoint
from blockwright.runtime.base.task_context import first_step, rest
from blockwright.tests.waiting import PATIENCE

NAME: ContextVar[str] = ContextVar("name", default="outer")


async def apart(work: Coroutine[Any, Any, Any]) -> Any:
    """As a cell does it."""
    context = copy_context()
    over, value = first_step(work, context)
    return value if over else await rest(work, context, value)


async def test_a_context_of_its_own_in_the_same_task():
    async def inside() -> tuple[object, str]:
        NAME.set("inner")
        await asyncio.sleep(0)
        child = await asyncio.create_task(see())
        return asyncio.current_task(), child

    async def see() -> str:
        return NAME.get()

    assert await apart(inside()) == (asyncio.current_task(), "inner")
    assert NAME.get() == "outer"


async def test_errors_timeouts_and_cancellation_pass():
    async def fails() -> None:
        await asyncio.sleep(0)
        raise KeyError("x")

    async def waits() -> str:
        try:
            async with asyncio.timeout(0):
                await asyncio.Event().wait()
        except TimeoutError:
            return "late"
        return "never"

    async def stubborn() -> str:
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            await asyncio.sleep(0)
            return "went on"
        return "never"

    with pytest.raises(KeyError):
        await apart(fails())
    assert await apart(waits()) == "late"
    task = asyncio.create_task(apart(stubborn()))
    await asyncio.sleep(0)
    task.cancel()
    assert await task == "went on"
    task = asyncio.create_task(apart(asyncio.sleep(50)))
    await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


class Settings(Actor):
    def __init__(self) -> None:
        self.task: asyncio.Task[object] | None = None

    @endpoint
    async def name_it(self, name: str) -> str:
        before = NAME.get()
        NAME.set(name)
        return before

    @endpoint
    async def cancel_itself(self) -> None:
        task = asyncio.current_task()
        assert task is not None
        task.cancel()  # raised at the next pause, which this message does not have

    @endpoint
    async def pause(self) -> int:
        async with asyncio.timeout(PATIENCE):
            await asyncio.sleep(0)
        task = asyncio.current_task()
        return task.cancelling() if task is not None else -1


async def test_messages_share_a_task_and_nothing_else():
    NAME.set("spawned")
    node = Node("n", listen=False)
    await node.start()
    ref = await node.spawn(Settings(), name="s")
    NAME.set("caller")
    answers = await asyncio.gather(*[ref.name_it(f"m{n}") for n in range(3)])
    assert answers == ["spawned"] * 3
    mixed = await asyncio.gather(ref.cancel_itself(), ref.pause(), ref.cancel_itself(), ref.pause(), ref.pause())
    assert mixed == [None, 0, None, 0, 0]
    await node.stop()


def test_a_loop_that_closes_ends_what_an_actor_does():
    """``asyncio.run`` without ``node.stop``: the actor's task must not swallow the loop's cancellation and go on."""
    begun, ended = asyncio.Event(), []

    class Busy(Actor):
        @endpoint
        async def work(self, number: int) -> None:
            begun.set()
            try:
                await asyncio.Event().wait()
            finally:
                ended.append(number)

    async def main() -> None:
        node = Node("n", listen=False)
        await node.start()
        ref = await node.spawn(Busy(), name="busy")
        for number in range(3):
            ref.work.cast(number)
        await begun.wait()

    asyncio.run(asyncio.wait_for(main(), PATIENCE))
    assert ended == [0]
