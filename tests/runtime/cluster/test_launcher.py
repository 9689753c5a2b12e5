"""The seam holds: a launcher that nobody thought of needs spawn, kill and list, and the body of a node as it is.

This one starts a Python for each node and hands the spec over on its standard input. An engine such as Ray would do the same
from an actor on each machine (``launcher.py``).
"""

from __future__ import annotations

import asyncio
import dataclasses
import sys
from pathlib import Path

import pytest

from blockwright.runtime import Down, LocalCluster, ManualClock, Node
from blockwright.runtime.base.codec import pack
from blockwright.runtime.cluster.launcher import Launcher, NodeSpec, OnExit
from blockwright.runtime.cluster.node_process import encode_config, run_node
from blockwright.tests.waiting import until
from blockwright.transport.address import PeerId, private_directory, remove_directory
from blockwright.transport.curve import NodeKeys
from blockwright.transport.interface import Transport
from blockwright.transport.loopback import Network
from blockwright.transport.sockets import SocketTransport

BODY = """
import asyncio, sys
from blockwright.runtime.base.codec import unpack
from blockwright.runtime.cluster.node_process import encode_config, run_node
from blockwright.runtime.cluster.launcher import NodeSpec
data = sys.stdin.buffer
asyncio.run(run_node(NodeSpec(**unpack(data.read(int(data.readline()))))))
"""


class SubprocessLauncher(Launcher):
    """A whole interpreter for each node, slow to start and simple."""

    directory = ""

    def __init__(self, directory: Path) -> None:
        self.directory = str(private_directory(directory))
        self._processes: dict[PeerId, asyncio.subprocess.Process] = {}
        self._watches: list[asyncio.Task[None]] = []

    async def start(self, on_exit: OnExit) -> None:
        self._on_exit = on_exit

    def head_transport(self, head: PeerId, listen: str, keys: NodeKeys | None) -> Transport:
        return SocketTransport(head, listen or Path(self.directory), keys)

    async def spawn(self, spec: NodeSpec) -> int:
        process = await asyncio.create_subprocess_exec(sys.executable, "-c", BODY, stdin=asyncio.subprocess.PIPE)
        self._processes[spec.id] = process
        body = pack(dataclasses.asdict(spec))
        process.stdin.write(b"%d\n" % len(body) + body)
        self._watches.append(asyncio.create_task(self._watch(spec.id, process)))
        return process.pid

    def kill(self, node: PeerId) -> None:
        if node in self._processes:
            self._processes[node].kill()

    def list(self) -> dict[PeerId, int]:
        return {node: process.pid for node, process in self._processes.items()}

    async def stop(self) -> None:
        for node in self.list():
            self.kill(node)
        await asyncio.gather(*self._watches)
        remove_directory(Path(self.directory))

    async def _watch(self, node: PeerId, process: asyncio.subprocess.Process) -> None:
        status = await process.wait()
        process.stdin.close()
        del self._processes[node]
        self._on_exit(node, status)


@pytest.mark.system
async def test_a_third_launcher(tmp_path):
    from cluster_entries import Counter, CounterConfig

    launcher: Launcher = SubprocessLauncher(tmp_path / "sockets")
    downs: list[Down] = []
    path = ":".join([str(Path(__file__).parents[1]), *sys.path])
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", path)
        async with LocalCluster(2, launcher=launcher, listen="tcp://127.0.0.1:0", silence=30.0) as cluster:
            cluster.hub.on_down(downs.append)
            ref = await cluster.node.spawn(Counter, name="counter", on="w1", args=(CounterConfig(3),))
            assert await ref.add(1) == 4
            await cluster.kill("w1")
            assert downs == [Down("w1", 1, "killed")]
            assert [node.name for node in launcher.list()] == ["w0"]
            assert await cluster.restart("w1") == 2
            assert f"@{tmp_path / 'sockets' / 'invitation.keys'}" in cluster.invitation
    assert launcher.list() == {}
    assert not (tmp_path / "sockets").exists()


async def test_a_node_that_waits_for_the_head_as_it_starts_ends_with_it_and_without_an_error(caplog):
    from cluster_entries import Counter, CounterConfig

    network, clock = Network(), ManualClock()
    transport = network.transport(PeerId("head", 1))
    head = Node("head", transport=transport, clock=clock)
    await head.start()
    await head.spawn(Counter(CounterConfig()), name="counter")
    spec = NodeSpec(
        name="w0",
        incarnation=1,
        entry="cluster_entries:wait_for_head",
        config=encode_config(CounterConfig()),
        head="head#1",
        head_endpoint=head.endpoint,
        directory="",
        heartbeat=0.5,
    )
    life = asyncio.create_task(run_node(spec, transport=network.transport(PeerId("w0", 1)), clock=clock))
    await until(lambda: "w0" in head.table.current)
    with caplog.at_level("INFO"):
        network.cut(transport.place)
        await life
    assert "node w0#1 ends as it starts: the head head#1 is down" in caplog.text
