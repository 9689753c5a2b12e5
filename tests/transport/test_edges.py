"""The descriptor of a ZeroMQ socket is edge-triggered: what is left lying at the end of a drain is a silent hang."""

import asyncio
import contextlib
import itertools
import threading

import pytest
import zmq

from blockwright.tests.transport.conftest import Recorder
from blockwright.tests.waiting import PATIENCE
from blockwright.transport import handshake as greeting
from blockwright.transport import outbound, sockets, wire
from blockwright.transport.address import PeerId
from blockwright.transport.errors import QueueFull
from blockwright.transport.handshake import Greeting, Lane
from blockwright.transport.sockets import DRAIN, SocketTransport

A, B = PeerId("a", 1), PeerId("b", 3)
BURSTS = 1500


class Counter(Recorder):
    """Tells a thread when so many messages have come."""

    def __init__(self):
        super().__init__()
        self.count = 0
        self.wanted = 0
        self.enough = threading.Semaphore(0)

    def on_message(self, peer, body, buffers):
        self.count += 1
        if self.count == self.wanted:
            self.enough.release()

    on_link = on_message


def bursts(endpoint, counter):
    """Send a few messages at moments that fall all over a drain, wait until they are through, and again; how many went."""
    parts = [[wire.ALONE_MARK + b"x"], [wire.pack_batch([1] * 5, [b"x"] * 5)], [wire.SINGLE_MARK, b"x", b"y"]]
    with zmq.Context() as context, context.socket(zmq.DEALER) as dealer:
        dealer.linger = 0
        dealer.connect(endpoint)
        dealer.send(Greeting(A, B, Lane.CONTROL).pack())
        dealer.recv()
        sent = 0
        for burst in range(BURSTS):
            kinds = [(burst + at) % 7 % 3 for at in range(1 + burst % 4)]
            counter.wanted += sum(5 if kind == 1 else 1 for kind in kinds)
            for kind in kinds:
                for _ in range(burst % 37 * 40):  # up to some 50 us, so that the next one comes at any moment of the drain
                    pass
                dealer.send_multipart(parts[kind])
            if not counter.enough.acquire(timeout=PATIENCE):
                return sent
            sent += 1
        return sent


@pytest.mark.parametrize("limit", [1, 3, DRAIN])
def test_no_message_is_left_lying(run, tmp_path, monkeypatch, limit):
    tmp_path.chmod(0o700)
    monkeypatch.setattr(sockets, "DRAIN", limit)

    async def main():
        transport, counter = SocketTransport(B, tmp_path), Counter()
        transport.start(counter)
        assert await asyncio.to_thread(bursts, transport.endpoint, counter) == BURSTS
        transport.close()

    run(main())


def test_no_room_is_left_unused(run, tmp_path, recorder, monkeypatch):
    """libzmq takes two messages at a time here: every third has to wait, and goes when there is room again."""
    tmp_path.chmod(0o700)
    monkeypatch.setattr(outbound, "HIGH_WATER", 1)
    monkeypatch.setattr(sockets, "HIGH_WATER", 1)

    async def main():
        a = SocketTransport(A, tmp_path)
        b = SocketTransport(B, tmp_path)
        at_a = recorder()
        at_b = recorder()
        a.start(at_a)
        b.start(at_b)
        a.connect(B, b.endpoint)
        b.connect(A, a.endpoint)
        sent = {A: 0, B: 0}
        for turn in range(600):
            for source, to in ((a, B), (b, A)):
                for _ in range(turn % 4):
                    with contextlib.suppress(QueueFull):
                        source.send(to, b"%d" % sent[to], [bytes(wire.BATCH_LIMIT)] if turn % 3 else [])
                        sent[to] += 1
            await asyncio.sleep(0)
        for at, to in ((at_b, B), (at_a, A)):
            await at.until(lambda at=at, to=to: len(at.messages) == sent[to])
            assert [int(body) for _, body, _ in at.messages] == list(range(sent[to]))
        a.close()
        b.close()

    run(main())


def test_a_long_batch_leaves_turns_to_others(run, tmp_path, recorder):
    tmp_path.chmod(0o700)

    async def main():
        a = SocketTransport(A, tmp_path)
        b = SocketTransport(B, tmp_path)
        at_b = recorder()
        a.start(recorder())
        b.start(at_b)
        a.connect(B, b.endpoint)
        for number in range(10 * DRAIN):
            a.send(B, b"%d" % number)
        seen = [0]
        while seen[-1] < 10 * DRAIN:
            await asyncio.sleep(0)
            if len(at_b.messages) > seen[-1]:
                seen.append(len(at_b.messages))
        # a turn of the loop may have two drains: of the descriptor, and for the rest
        assert max(after - before for before, after in itertools.pairwise(seen)) <= 2 * DRAIN
        assert [int(body) for _, body, _ in at_b.messages] == list(range(10 * DRAIN))
        a.close()
        b.close()

    run(main())


def received(router):
    """ZeroMQ messages without their ids, after the greetings were answered."""
    while True:
        identity, *frames = router.recv_multipart()
        if frames[0][:1] != greeting.GREETING:
            return frames
        router.send_multipart([identity, greeting.pack_welcome(B, A)])


def test_all_small_messages_of_a_tick_leave_as_one(run, recorder):
    async def main():
        context = zmq.Context()
        router = context.socket(zmq.ROUTER)
        router.rcvtimeo = int(1000 * PATIENCE)
        port = router.bind_to_random_port("tcp://127.0.0.1")
        a = SocketTransport(A, "tcp://127.0.0.1:0")
        a.start(recorder())
        a.connect(B, f"tcp://127.0.0.1:{port}")
        small = [(b"%d" % at, [bytes(1000)] * (at % 3)) for at in range(3000)]  # 3 MB
        for body, buffers in small:
            a.send(B, body, buffers)
        a.send(B, b"with a large one", [bytes(wire.BATCH_LIMIT)])
        a.send(B, b"after it")
        batch = (await asyncio.to_thread(received, router))[0]
        assert [(bytes(body), [*map(bytes, buffers)]) for body, buffers in wire.unpack_batch(batch)] == small
        large = await asyncio.to_thread(received, router)
        assert large == [wire.SINGLE_MARK, b"with a large one", bytes(wire.BATCH_LIMIT)]
        assert await asyncio.to_thread(received, router) == [wire.ALONE_MARK + b"after it"]
        a.close()
        context.destroy(linger=0)

    run(main())
