"""A link over a real gloo group of two processes, and the lane's own rules on a group of queues."""

from __future__ import annotations

import asyncio
import os
import queue
import signal
import sys

import pytest

from blockwright.runtime import Node
from blockwright.tests.transport import gloo_child
from blockwright.tests.waiting import PATIENCE, until
from blockwright.transport.address import PeerId
from blockwright.transport.errors import PeerGone, QueueFull
from blockwright.transport.gloo import WAITING, GlooLane
from blockwright.transport.wire import Traffic

MIB = 1 << 20


@pytest.mark.system
async def test_a_link_over_gloo_between_processes(tmp_path):
    tmp_path.chmod(0o700)
    store = str(tmp_path / "store")
    command = (sys.executable, gloo_child.__file__, str(tmp_path), store)
    child = await asyncio.create_subprocess_exec(*command, env={**os.environ, "OMP_NUM_THREADS": "1"})
    try:
        lane = await asyncio.to_thread(gloo_child.gloo_lane, store, 0)
        node = Node("a", directory=tmp_path)
        await node.start()
        await until(lambda: (tmp_path / "ready").exists())
        node.greet(PeerId("b", 1), f"ipc://{tmp_path}/b-1.sock")
        node.tensor_links.use_lane(PeerId("b", 1), lane)
        got: list[tuple[Traffic, bytes, list[bytes]]] = []
        for kind in Traffic:
            node.on_link(kind, lambda s, h, b, kind=kind: got.append((kind, h, [bytes(x) for x in b])))
        link, data = node.link("b"), os.urandom(20 * MIB)
        transfers = [link.send(kind, b"%d" % kind, [data[kind:], b"", b"x"]) for kind in Traffic]
        async with asyncio.timeout(PATIENCE):
            for transfer in transfers:
                await transfer
        await until(lambda: len(got) == 3)
        assert sorted(got) == [(kind, b"%d" % kind, [data[kind:], b"", b"x"]) for kind in Traffic]
        assert link.kind == "gloo"
        with pytest.raises(ValueError, match="exists already"):
            node.tensor_links.use_lane(PeerId("b", 1), lane)
        child.send_signal(signal.SIGKILL)
        last = link.send(Traffic.KV, b"", [data])
        with pytest.raises(PeerGone, match="b#1 is down"):
            await asyncio.wait_for(asyncio.ensure_future(_done(last)), PATIENCE)
        await node.stop()
    finally:
        if child.returncode is None:
            child.kill()
        await child.wait()


async def _done(transfer):
    await transfer


class Done:
    def wait(self):
        return True


class Pipe:
    """One end of a group of two whose operations are those of queues."""

    def __init__(self, out, into):
        self.out, self.into = out, into

    def send(self, tensors, rank, tag):
        self.out.put(bytes(tensors[0]))
        return Done()

    def recv(self, tensors, rank, tag):
        data = self.into.get(timeout=PATIENCE)
        if isinstance(data, Exception):
            raise data
        tensors[0][:] = data
        return Done()


@pytest.fixture
def ends():
    there, back = queue.Queue(), queue.Queue()
    return GlooLane(Pipe(there, back), 1, memoryview), GlooLane(Pipe(back, there), 0, memoryview), there


async def test_frames_come_in_order_and_both_ends_close(ends):
    a, b, _ = ends
    got, broken = [], []
    a.start(got.append, lambda: broken.append("a"))
    b.start(lambda frames: got.append([bytes(f) for f in frames]), lambda: broken.append("b"))
    for number in range(50):
        a.send_link(PeerId("b", 1), [b"%d" % number, b"", b"x" * number])
    await until(lambda: len(got) == 50)
    assert got == [[b"%d" % n, b"", b"x" * n] for n in range(50)]
    a.close()
    b.close()
    with pytest.raises(PeerGone, match="closed"):
        a.send_link(PeerId("b", 1), [b""])
    assert broken == []


async def test_a_group_that_fails_ends_the_lane(ends):
    a, b, there = ends
    broken = []
    b.start(lambda frames: None, lambda: broken.append("b"))
    there.put(RuntimeError("Connection closed by peer"))
    await until(lambda: broken == ["b"])
    with pytest.raises(PeerGone, match="Connection closed by peer"):
        b.send_link(PeerId("a", 1), [b""])
    b._out.put(None)
    assert a.broken == ""


@pytest.mark.parametrize("prefix", [(10, 0), (7, 1), (2**40, 1), (16, 2**20)])
async def test_lengths_from_the_group_are_checked(ends, prefix):
    _, b, there = ends
    broken = []
    b.start(lambda frames: None, lambda: broken.append("b"))
    there.put(prefix[0].to_bytes(8, "little") + prefix[1].to_bytes(8, "little"))
    await until(lambda: broken == ["b"])
    assert "WireError" in b.broken
    b._out.put(None)


async def test_a_group_that_does_not_send_gives_queue_full(ends):
    a, _, _ = ends
    for _ in range(WAITING):
        a.send_link(PeerId("b", 1), [b""])
    with pytest.raises(QueueFull):
        a.send_link(PeerId("b", 1), [b""])
