"""What ``inspect`` shows of a node in a known state, here and from another node, and that each number moves."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

from blockwright.runtime import Actor, NodeView, endpoint
from blockwright.runtime.base.node_view import LaneView, measures


class Busy(Actor):
    def __init__(self) -> None:
        self.gate = asyncio.Event()

    @endpoint
    async def hold(self) -> None:
        await self.gate.wait()

    @endpoint(urgent=True)
    async def rush(self) -> None: ...

    @endpoint
    async def fail(self) -> None:
        raise ValueError("x")

    @endpoint
    async def count(self) -> AsyncIterator[int]:
        for number in range(10**6):
            yield number


async def test_an_actor_at_work(sides):
    ref = await sides.spawn(busy := Busy())
    stream = ref.count()
    await anext(stream)
    ref.fail.cast()
    await sides.turns()
    calls = [asyncio.create_task(ref.hold()) for _ in range(3)]
    await sides.turns()
    sides.clock.advance(2.0)
    calls.append(asyncio.create_task(ref.rush()))
    await sides.turns()
    sides.clock.advance(1.0)
    view = sides.callee.inspect()
    (actor,) = [a for a in view.actors if a.name == "actor"]
    assert (actor.kind, actor.life, actor.restarts, actor.ending) == ("Busy", 1, 0, "")
    assert (actor.normal, actor.urgent) == (LaneView(2, 3.0), LaneView(1, 1.0))
    assert (actor.current, actor.current_age) == ("hold", 3.0)
    assert (actor.beside, actor.streams, actor.handled, actor.failed) == (1, 1, 3, 1)
    assert view.dead_letters == {"RemoteError": 1}
    if sides.network is not None:
        (peer,) = view.peers
        assert (peer.name, peer.serving, peer.lost) == ("a", 5, False)
        (other,) = sides.caller.inspect().peers
        assert (other.calls, other.reading) == (4, 1)
        afar = await sides.caller.inspect_peer("b")
        assert type(afar) is NodeView
        assert [a for a in afar.actors if a.name == "actor"] == [actor]
    busy.gate.set()
    await asyncio.gather(*calls)
    await stream.aclose()


async def test_every_measure_moves(sides):
    ref = await sides.spawn(busy := Busy())
    idle = {m.name: sum(value for _, _, value in m.samples) for m in sides.callee.metrics()}
    stream = ref.count()
    await anext(stream)
    ref.fail.cast()
    sides.caller.ref(f"{sides.callee.name}/actor").nothing.cast()
    calls = [asyncio.create_task(ref.hold()) for _ in range(2)]
    await sides.turns()
    sides.clock.advance(0.4)
    sides.callee.dropped["garbage"] += 1
    sides.callee.parts.heartbeats.lag = 0.5
    sides.callee.actors.instances["actor"].restarts = 1
    moved = {m.name: sum(value for _, _, value in m.samples) for m in sides.callee.metrics()}
    same = {name for name, value in moved.items() if value == idle[name]}
    assert {n.removeprefix("blockwright_runtime_") for n in same} <= {"open_calls", "peer_silent_seconds"}
    assert all(m.kind in ("gauge", "counter") and m.text.endswith(".") for m in measures(sides.callee.inspect()))
    busy.gate.set()
    await asyncio.gather(*calls)
    await stream.aclose()
