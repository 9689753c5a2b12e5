"""``/admin/actors`` and ``blockwright ps --actors`` on a node in a known state."""

from __future__ import annotations

import asyncio
import dataclasses
import io
from typing import Any

from rich.console import Console

from blockwright.api.commands.actor_table import actors_tables, actors_view
from blockwright.runtime import Actor, ManualClock, Node, endpoint


class Slow(Actor):
    def __init__(self) -> None:
        self.gate = asyncio.Event()

    @endpoint
    async def work(self) -> None:
        await self.gate.wait()


async def test_the_busiest_actor_comes_first(serve: Any, say: Any) -> None:
    clock = ManualClock()
    node = Node("w0", listen=False, clock=clock)
    await node.start()
    await node.spawn(Slow(), name="idle")
    ref = await node.spawn(slow := Slow(), name="slow")
    calls = [asyncio.create_task(ref.work()) for _ in range(3)]
    for _ in range(5):
        await asyncio.sleep(0)
    clock.advance(1.5)
    client, port = await serve(say("x"))
    port.nodes = [dataclasses.asdict(node.inspect())]
    view = actors_view(await (await client.get("/admin/actors")).json())
    assert [row["name"] for row in view["actors"]][:2] == ["slow", "$node"]
    assert view["nodes"][0] == {
        "name": "w0",
        "incarnation": 1,
        "lag": 0.0,
        "actors": 3,
        "peers": 0,
        "dead_letters": 0,
        "dropped": 0,
    }
    console = Console(width=200, file=io.StringIO(), record=True)
    console.print(actors_tables(view))
    (line,) = [line.split() for line in console.export_text().splitlines() if line.startswith("w0/slow")]
    assert line == ["w0/slow#1", "Slow", "work", "1500", "ms", "2", "0", "1500", "ms", "0", "1", "0", "0"]
    slow.gate.set()
    await asyncio.gather(*calls)
    await node.stop()
