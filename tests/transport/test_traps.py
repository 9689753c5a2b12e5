"""What libzmq and event loops do to those who do not know it: each of these once cost some project a day."""

from __future__ import annotations

import asyncio
import contextlib
import os
import random

import pytest

from blockwright.transport import sockets
from blockwright.transport.address import PeerId
from blockwright.transport.curve import NodeKeys
from blockwright.transport.errors import QueueFull
from blockwright.transport.sockets import SocketTransport

KEYS = NodeKeys.generate()
WAYS = {"ipc": None, "tcp": ("tcp://127.0.0.1:0",), "tcp with keys": ("tcp://127.0.0.1:0", KEYS)}


@pytest.fixture(params=WAYS)
def way(request, tmp_path):
    tmp_path.chmod(0o700)
    return WAYS[request.param] or (tmp_path,)


def peer(number: int) -> PeerId:
    return PeerId(f"n{number}", 1)


def test_every_message_of_a_crowd_arrives_in_order(run, way, recorder, monkeypatch):
    """The descriptors are edge-triggered (pyzmq#1021, #1075, #1203): one re-check too few and messages lie for ever."""
    monkeypatch.setattr(sockets, "DRAIN", 3)
    crowd, rounds = 4, 60

    async def main():
        chance = random.Random(7)
        made = [(SocketTransport(peer(i), *way), recorder()) for i in range(crowd)]
        sent = {(i, j): 0 for i in range(crowd) for j in range(crowd) if i != j}
        for transport, at in made:
            transport.start(at)
        for i, j in sent:
            made[i][0].connect(peer(j), made[j][0].endpoint)
        for _ in range(rounds):
            for i, j in sent:
                for _ in range(chance.choice((0, 0, 1, 5))):
                    buffers = [bytes(chance.choice((10, 80_000)))] if chance.random() < 0.2 else []
                    made[i][0].send(peer(j), b"%d" % sent[i, j], buffers)
                    made[i][0].send_pulse(peer(j), b"p")
                    sent[i, j] += 1
            if chance.random() < 0.5:
                await asyncio.sleep(0)
        for j, (_, at) in enumerate(made):
            total = 2 * sum(count for (_, to), count in sent.items() if to == j)
            await at.until(lambda at=at, total=total: len(at.messages) == total)
            for i in range(crowd):
                numbers = [int(body) for sender, body, _ in at.messages if sender == peer(i) and body != b"p"]
                assert numbers == list(range(sent.get((i, j), 0)))
            assert (at.lost, at.garbage) == ([], [])
        for transport, _ in made:
            transport.close()

    run(main())


def test_closing_does_not_wait_for_who_does_not_read(run, way, recorder):
    """``Context.term`` hangs on what lingers (pyzmq#1003, #1167)."""

    async def main():
        a, b = SocketTransport(peer(0), *way), SocketTransport(peer(1), *way)
        a.start(recorder())
        b.start(at_b := recorder())
        a.connect(peer(1), b.endpoint)
        a.send(peer(1), b"welcomed")
        await at_b.until(lambda: at_b.messages != [])
        b._loop.remove_reader(b._router.fileno())  # b reads no more
        with contextlib.suppress(QueueFull):
            for _ in range(500):
                a.send(peer(1), b"x" * 70_000)
                await asyncio.sleep(0)
        a.close()
        b.close()
        a.close()

    run(main())


def test_nothing_is_left_and_nothing_runs_after_close(run, way, recorder):
    """Readers that stay behind a closed socket fire on whoever gets its descriptor next (uvloop#61, #100)."""

    async def main():
        faults = []
        asyncio.get_running_loop().set_exception_handler(lambda loop, context: faults.append(context))
        open_before = None
        for life in range(1, 9):
            a, b = SocketTransport(peer(0), *way), SocketTransport(PeerId("n1", life), *way)
            at_a, at_b = recorder(), recorder()
            a.start(at_a)
            b.start(at_b)
            a.connect(b.peer, b.endpoint)
            b.connect(a.peer, a.endpoint)
            for _ in range(20):
                a.send(b.peer, b"x")
                a.send_pulse(b.peer, b"x")
            if life % 2:
                await at_b.until(lambda at_b=at_b: len(at_b.messages) == 40)
                b.send(a.peer, b"last words")
            a.close()
            b.close()
            heard = len(at_a.messages), len(at_b.messages)
            for _ in range(10):
                await asyncio.sleep(0.001)
            assert (len(at_a.messages), len(at_b.messages)) == heard
            assert (at_a.lost, at_b.lost) == ([], [])
            descriptors = len(os.listdir("/proc/self/fd"))
            open_before = open_before or descriptors
            assert descriptors <= open_before
        assert faults == []

    run(main())


def test_a_directory_that_nobody_named_goes_with_the_transport(run, recorder):
    async def main():
        transport = SocketTransport(peer(0))
        directory = os.path.dirname(transport.endpoint.removeprefix("ipc://"))
        transport.start(recorder())
        assert sorted(os.listdir(directory)) == ["n0-1.sock"]
        transport.close()
        assert not os.path.exists(directory)  # noqa: ASYNC240

    run(main())
