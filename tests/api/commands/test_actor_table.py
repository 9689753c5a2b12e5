"""``/admin/actors`` and ``blockwright ps --actors`` on a node in a known state."""

from __future__ import annotations

import asyncio
import dataclasses
import io
from typing import Any

from rich.console import Console

from blockwright.api.commands.actor_table import actors_tables, actors_view
from blockwright.runtime import Actor, Backoff, Child, Crash, ManualClock, Node, Supervisor, endpoint
from blockwright.tests.claims import claim


class Fragile(Actor):
    @endpoint
    async def die(self) -> None:
        raise Crash("as told")


class Slow(Actor):
    def __init__(self) -> None:
        self.gate = asyncio.Event()

    @endpoint
    async def work(self) -> None:
        await self.gate.wait()


async def test_what_a_node_does_is_seen(serve: Any, say: Any) -> None:
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
    assert [row["name"] for row in view["actors"]] == ["idle", "slow", "$node"]
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
    console.print(actors_tables(view).fitted(console))
    (line,) = [line.split() for line in console.export_text().splitlines() if line.startswith("w0/slow")]
    assert line == ["w0/slow#1", "Slow", "work", "1500", "ms", "2", "0", "1500", "ms", "0", "1", "0", "0"]
    slow.gate.set()
    await asyncio.gather(*calls)
    await node.stop()


@claim("`ps --actors` shows actors below their supervisors, with or without a server", of="actor-runtime")
async def test_actors_are_shown_below_their_supervisors() -> None:
    clock = ManualClock()
    node = Node("head", listen=False, clock=clock)
    await node.start()
    inner = Child(name="inner", actor=Supervisor, args=([Child(name="x", actor=Slow), Child(name="y", actor=Fragile)],))
    inner = dataclasses.replace(inner, kwargs={"backoff": Backoff(initial=2.0, most=2.0, jitter=0.0)})
    await node.spawn(Slow(), name="alone")
    await node.spawn(Supervisor([inner, Child(name="z", actor=Slow)]), name="root")
    node.ref("head/y").die.cast()
    for _ in range(50):
        await asyncio.sleep(0)
    elsewhere = {"name": "w0", "incarnation": 1, "lag": 0.0, "peers": [], "dead_letters": {}, "dropped": {}}
    here = dataclasses.asdict(node.inspect())
    worker = {**here["actors"][-1], "name": "worker", "supervisor": "head/z"}
    body = {"nodes": [{**elsewhere, "actors": [worker]}, here]}
    view = actors_view(body)
    tree = [(row["depth"], row["node"], row["name"], row["supervisor"]) for row in view["actors"]]
    assert tree == [
        (0, "head", "root", ""),
        (1, "head", "inner", "head/root"),
        (2, "head", "x", "head/inner"),
        (1, "head", "z", "head/root"),
        (2, "w0", "worker", "head/z"),
        (0, "head", "alone", ""),
        (0, "head", "$node", ""),
    ]
    console = Console(width=200, file=io.StringIO(), record=True)
    console.print(actors_tables(view).fitted(console))
    lines = {line.split()[0]: line for line in console.export_text().splitlines() if "/" in line}
    assert lines["head/inner#1"].startswith("  head/inner#1 ")
    assert " Supervisor " in lines["head/inner#1"]
    assert " y down: crashed: as told " in lines["head/inner#1"]
    assert lines["w0/worker#1"].startswith("    w0/worker#1 ")
    assert " idle " in lines["w0/worker#1"]
    for _ in range(50):
        clock.advance(0.1)
        await asyncio.sleep(0)
    (again,) = [row for row in actors_view({"nodes": [dataclasses.asdict(node.inspect())]})["actors"] if row["name"] == "y"]
    assert (again["life"], again["restarts"]) == (2, 1)
    await node.stop()


def test_the_order_is_the_same_whoever_is_asked_and_whatever_was_restarted() -> None:
    """A node names its actors in the order in which they started, and itself first: on a terminal that refreshes, rows would
    jump."""
    lane = {"depth": 0, "oldest": 0.0}

    def actor(name: str, kind: str, supervisor: str = "") -> dict[str, Any]:
        return {"name": name, "kind": kind, "life": 1, "supervisor": supervisor, "normal": lane, "urgent": lane}

    def node(name: str, *actors: dict[str, Any]) -> dict[str, Any]:
        return {"name": name, "incarnation": 1, "lag": 0.0, "peers": [], "dead_letters": {}, "dropped": {}, "actors": actors}

    def shown(*restarts: str) -> tuple[list[str], list[str]]:
        names = [*(name for name in ("w0", "w1", "w2", "w10") if name not in restarts), *restarts]
        processes = [actor(name, "Process", "head/workers") for name in names]
        head = node("head", actor("workers", "Supervisor"), *processes, actor("$node", "NodeService"))
        nodes = [node(name, actor("root", "Supervisor", f"head/{name}")) for name in names]
        view = actors_view({"nodes": [nodes[-1], head, *nodes[:-1]]})
        return [one["name"] for one in view["nodes"]], [f"{row['node']}/{row['name']}" for row in view["actors"]]

    pairs = [address for name in ("w0", "w1", "w2", "w10") for address in (f"head/{name}", f"{name}/root")]
    assert shown() == (["head", "w0", "w1", "w2", "w10"], ["head/workers", *pairs, "head/$node"])
    assert shown("w1", "w0") == shown()
