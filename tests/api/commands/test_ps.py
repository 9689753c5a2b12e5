"""``blockwright ps --actors``: the actors of a node as a tree, and those of a cluster that has no server."""

from __future__ import annotations

import asyncio
import dataclasses
import io
import json
import sys
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from blockwright.api.commands.cli import main
from blockwright.api.commands.observe import actors_view
from blockwright.api.commands.tables import actors_tables
from blockwright.runtime import Actor, Backoff, Child, Crash, Down, LocalCluster, ManualClock, Node, Supervisor, endpoint
from blockwright.tests.claims import claim
from blockwright.tests.parts import some
from blockwright.tests.waiting import PATIENCE, until


class Busy(Actor):
    @endpoint
    async def work(self, n: int) -> int:
        return n


async def _ps(*arguments: str) -> tuple[int | None, str, str]:
    command = (sys.executable, "-m", "blockwright", "ps", *arguments)
    pipe = asyncio.subprocess.PIPE
    process = await asyncio.create_subprocess_exec(*command, stdout=pipe, stderr=pipe)
    out, err = await process.communicate()
    return process.returncode, out.decode(), err.decode()


@claim("`ps --actors` shows actors below their supervisors, with or without a server", of="actor-runtime")
@pytest.mark.system
@pytest.mark.parametrize("listen", some(("", "tcp://127.0.0.1:0"), "tcp://127.0.0.1:0"), ids=["ipc", "tcp"])
async def test_a_cluster_without_a_server(listen: str) -> None:
    async with LocalCluster(2, listen=listen, silence=PATIENCE) as cluster:
        downs: list[Down] = []
        cluster.hub.on_down(downs.append)
        ref = await cluster.node.spawn(Busy, name="busy", on="w1")
        for n in range(3):
            await ref.work(n)
        where = cluster.invitation.split()[2:]
        code, out, err = await _ps("--actors", *where, "--json")
        assert (code, err) == (0, "")
        seen = json.loads(out)
        assert [node["name"] for node in seen["nodes"]] == ["head", "w0", "w1"]
        assert [node["peers"] for node in seen["nodes"]] == [2, 2, 2]
        (busy,) = [actor for actor in seen["actors"] if actor["name"] == "busy"]
        assert (busy["node"], busy["kind"], busy["handled"]) == ("w1", "Busy", 3)
        await until(lambda: downs != [])
        assert [(down.node.startswith("ps-"), down.cause) for down in downs] == [(True, "left")]
        code, out, err = await _ps("--actors", *cluster.invitation.split()[2:])
        assert (code, err) == (0, "")
        assert any(line.startswith("w1/busy#1") for line in out.splitlines())


def test_where_there_is_no_cluster(tmp_path: Path, capsys) -> None:
    assert main(["ps", "--actors", "--join", f"ipc://{tmp_path}/head-1.sock"]) == 1
    assert "cannot be joined" in capsys.readouterr().err
    assert main(["ps", "--actors", "--join", "http://x"]) == 2
    assert "neither tcp://HOST:PORT nor ipc:///PATH" in capsys.readouterr().err
    assert main(["ps", "--join", f"ipc://{tmp_path}/head-1.sock"]) == 2
    assert "add --actors" in capsys.readouterr().err
    assert main(["ps", "--actors", "--join", f"@{tmp_path}/none"]) == 2
    assert "cannot be read" in capsys.readouterr().err


class Fragile(Actor):
    @endpoint
    async def die(self) -> None:
        raise Crash("on request")


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
    inner = dataclasses.replace(inner, kwargs={"backoff": Backoff(initial=2.0, maximum=2.0, jitter=0.0)})
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
    assert " y down: crashed: on request " in lines["head/inner#1"]
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
