"""What is no Exception ends the actor that raised it, with an answer and a cause, and nothing else."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import AsyncIterator

import pytest

from blockwright.runtime import Actor, ActorDied, Down, LocalCluster, Node, RemoteError, endpoint, run
from blockwright.tests.runtime.conftest import Sides
from blockwright.tests.waiting import PATIENCE

KINDS = {"exit": SystemExit, "close": GeneratorExit, "interrupt": KeyboardInterrupt}


class Reckless(Actor):
    def __init__(self, start: str = "", stop: str = "") -> None:
        self.start, self.stop = start, stop

    async def on_start(self) -> None:
        if self.start:
            raise KINDS[self.start](3)

    async def on_stop(self) -> None:
        if self.stop:
            raise KINDS[self.stop](3)

    @endpoint
    async def call(self, kind: str) -> None:
        raise KINDS[kind](3)

    @endpoint
    async def late(self, kind: str) -> None:
        await asyncio.sleep(0)
        raise KINDS[kind](3)

    @endpoint(concurrent=True)
    async def beside(self, kind: str) -> None:
        raise KINDS[kind](3)

    @endpoint
    async def items(self, kind: str) -> AsyncIterator[int]:
        yield 1
        raise KINDS[kind](3)

    @endpoint
    async def lose(self) -> None:
        task = asyncio.create_task(asyncio.sleep(3600))
        task.cancel()
        await task

    @endpoint
    async def lose_item(self) -> AsyncIterator[int]:
        yield 1
        raise asyncio.CancelledError("mine")

    @endpoint
    async def alive(self) -> bool:
        return True


@pytest.fixture
def uninterrupted():
    """As in the processes of a cluster: interrupts are the head's to answer."""
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    yield
    signal.signal(signal.SIGINT, before)


async def _read(items: AsyncIterator[int]) -> None:
    assert [item async for item in items] == [1]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("way", ["call", "late", "beside", "items"])
async def test_the_caller_is_notified_and_the_actor_ends_with_the_cause(
    sides: Sides, uninterrupted, way: str, kind: str
) -> None:
    ref = await sides.spawn(Reckless())
    downs: list[Down] = []
    sides.callee.monitor(sides.callee.ref(f"{sides.callee.name}/actor"), downs.append)
    with pytest.raises(RemoteError) as caught:
        await (_read(ref.items(kind)) if way == "items" else getattr(ref, way)(kind))
    assert (caught.value.kind, caught.value.text) == (KINDS[kind].__name__, "3")
    await sides.turns()
    assert [down.cause for down in downs] == [f"crashed: {KINDS[kind].__name__}: 3"]
    assert "actor" not in sides.callee.actors.current
    assert await (await sides.spawn(Reckless())).alive()  # the node lives


async def test_a_cancellation_of_its_own_is_an_error_of_the_endpoint(sides: Sides) -> None:
    ref = await sides.spawn(Reckless())
    with pytest.raises(RemoteError, match="CancelledError"):
        await ref.lose()
    with pytest.raises(RemoteError, match="CancelledError: mine"):
        await _read(ref.lose_item())
    assert await ref.alive()


@pytest.mark.parametrize("kind", KINDS)
async def test_starting_and_stopping(node: Node, uninterrupted, kind: str) -> None:
    with pytest.raises(RemoteError, match=f"{KINDS[kind].__name__}: 3"):
        await node.spawn(Reckless(start=kind), name="never")
    ref = await node.spawn(Reckless(stop=kind), name="once")
    with pytest.raises(RemoteError, match=f"{KINDS[kind].__name__}: 3"):
        await node.stop_actor(ref)
    with pytest.raises(ActorDied, match="stopped"):
        await ref.alive()


class Unborn(Actor):
    def __init__(self) -> None:
        raise SystemExit("not me")


async def test_a_class_that_exits_leaves_the_node_that_was_to_start_it() -> None:
    async with LocalCluster(1, silence=PATIENCE) as cluster:
        for _ in range(2):
            with pytest.raises(RemoteError, match="not me"):
                await cluster.node.spawn(Unborn, name="unborn", on="w0")
        with pytest.raises(RemoteError, match="SystemExit"):
            await (await cluster.node.spawn(Reckless, name="a", on="w0")).call("exit")
        with pytest.raises(RemoteError, match="KeyboardInterrupt"):
            await (await cluster.node.spawn(Reckless, name="b", on="w0")).call("interrupt")
        assert cluster.node.current_incarnation("w0") == 1


def test_an_interrupt_ends_the_program_and_the_caller_is_notified() -> None:
    seen: list[BaseException] = []

    async def main() -> None:
        node = Node("alone", listen=False)
        await node.start()
        ref = await node.spawn(Reckless(), name="a")
        try:
            await ref.call("interrupt")
        except RemoteError as error:
            seen.append(error)

    with pytest.raises(KeyboardInterrupt):
        run(main())
    assert [str(error) for error in seen] == ["KeyboardInterrupt: 3"]
