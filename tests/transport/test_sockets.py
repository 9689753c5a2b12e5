import asyncio
import contextlib
import os
import stat

import pytest
import zmq

from blockwright.tests.claims import claim
from blockwright.tests.waiting import until
from blockwright.transport import handshake as greeting
from blockwright.transport import outbound, wire
from blockwright.transport.address import PeerId, split_key
from blockwright.transport.curve import NodeKeys
from blockwright.transport.errors import (
    AddressError,
    ExpectedRefusal,
    HandshakeRefused,
    MessageTooLarge,
    PeerGone,
    QueueFull,
)
from blockwright.transport.handshake import Greeting, Lane, ReturnRequest
from blockwright.transport.sockets import DRAIN, SocketTransport

A, B = PeerId("a", 1), PeerId("b", 3)


KEYS = NodeKeys.generate()


@pytest.fixture
def directory(tmp_path):
    tmp_path.chmod(0o700)
    return tmp_path


@pytest.fixture(params=["ipc", "ipc with keys", "tcp", "tcp with keys"])
def way(request, directory):
    """What comes after the peer to make a transport."""
    ways = {
        "ipc": (directory,),
        "ipc with keys": (directory, KEYS),
        "tcp": ("tcp://127.0.0.1:0",),
        "tcp with keys": ("tcp://127.0.0.1:0", KEYS),
    }
    return ways[request.param]


class Pair:
    """Two started transports, ``a`` connected to ``b``."""

    def __init__(self, way, recorder):
        way = way if isinstance(way, tuple) else (way,)
        self.a, self.b = SocketTransport(A, *way), SocketTransport(B, *way)
        self.at_a, self.at_b = recorder(), recorder()

    async def __aenter__(self):
        self.a.start(self.at_a)
        self.b.start(self.at_b)
        self.a.connect(B, self.b.endpoint)
        return self

    async def __aexit__(self, *exc):
        self.a.close()
        self.b.close()


def test_messages_arrive_in_order_small_and_large_mixed(run, way, recorder):
    async def main():
        async with Pair(way, recorder) as pair:
            sent = []
            for i in range(3 * DRAIN):
                body = b"%d " % i + b"x" * ((70_000, 10, 3_000)[i % 3] if i % 50 < 3 else 5)
                buffers = [b"y" * 100_000, b""] if i % 97 == 0 else []
                pair.a.send(B, body, buffers)
                sent.append((A, body, buffers))
                if i % 10 == 0:
                    await asyncio.sleep(0)
            await pair.at_b.until(lambda: len(pair.at_b.messages) == len(sent))
            assert pair.at_b.messages == sent

    run(main())


def test_small_messages_of_a_tick_share_a_frame(run):
    async def main():
        context = zmq.Context()
        router = context.socket(zmq.ROUTER)
        port = router.bind_to_random_port("tcp://127.0.0.1")
        a = SocketTransport(A, "tcp://127.0.0.1:0")
        a.start(None)
        a.connect(B, f"tcp://127.0.0.1:{port}")
        for i in range(50):
            a.send(B, b"%d" % i)
        await asyncio.sleep(0)
        frame = greeting.GREETING
        while frame[:1] == greeting.GREETING:
            await asyncio.to_thread(router.poll)
            identity, frame = router.recv_multipart()
            router.send_multipart([identity, greeting.pack_welcome(B, A)])
        assert [bytes(b) for b, _ in wire.unpack_batch(frame)] == [b"%d" % i for i in range(50)]
        a.close()
        context.destroy(linger=0)

    run(main())


def test_after_a_rest_heartbeats_and_links_go_on_and_nothing_counts_as_lost(run, way, recorder):
    async def main():
        async with Pair(way, recorder) as pair:
            for turn in range(3):
                pair.a.send_pulse(B, b"beat %d" % turn)
                pair.a.send_link(B, [b"piece %d" % turn])
                pair.a.send(B, b"word %d" % turn)
                await pair.at_b.until(lambda turn=turn: len(pair.at_b.messages) == 2 * turn + 2)
                await pair.at_b.until(lambda turn=turn: len(pair.at_b.links) == turn + 1)
                pair.a.rest(B)
            assert sorted(bytes(body) for _, body, _ in pair.at_b.messages)[:2] == [b"beat 0", b"beat 1"]
            assert (pair.at_a.lost, pair.at_b.lost) == ([], [])

    run(main())


def test_nothing_hangs_under_two_way_traffic(run, way, recorder):
    """The descriptor is edge-triggered: a missed re-check would leave messages lying for ever."""

    async def main():
        async with Pair(way, recorder) as pair:
            pair.b.connect(A, pair.a.endpoint)
            for i in range(300):
                for _ in range(i % 7):
                    pair.a.send(B, b"ping")
                    pair.b.send(A, b"pong")
                await asyncio.sleep(0)
            total = sum(i % 7 for i in range(300))
            await pair.at_b.until(lambda: len(pair.at_b.messages) == total)
            await pair.at_a.until(lambda: len(pair.at_a.messages) == total)

    run(main())


def test_a_slow_reader_gives_queue_full_and_loses_nothing(run, way, recorder, monkeypatch):
    monkeypatch.setattr(outbound, "QUEUE_MESSAGES", 40)

    async def main():
        a, b = SocketTransport(A, *way), SocketTransport(B, *way)  # b is bound and does not read yet
        at_a, at_b = recorder(), recorder()
        a.start(at_a)
        a.connect(B, b.endpoint)
        accepted = 0
        payload = b"x" * 70_000
        with contextlib.suppress(QueueFull):
            while accepted < 10_000:
                a.send(B, b"%d " % accepted + payload)
                accepted += 1
                await asyncio.sleep(0)
        assert 40 <= accepted < 10_000
        b.start(at_b)
        await at_b.until(lambda: len(at_b.messages) == accepted)
        assert [int(body.split()[0]) for _, body, _ in at_b.messages] == list(range(accepted))
        a.send(B, b"again")
        await at_b.until(lambda: at_b.messages[-1][1] == b"again")
        a.close()
        b.close()

    run(main())


def test_link_traffic_passes_control_messages_by(run, way, recorder):
    async def main():
        async with Pair(way, recorder) as pair:
            view = memoryview(bytearray(range(256)) * 1024)
            pair.a.send_link(B, [b"h1", view, b"small"])
            pair.a.send_link(B, [b"h2"])
            pair.a.send(B, b"control")
            await pair.at_b.until(lambda: len(pair.at_b.links) == 2 and pair.at_b.messages != [])
            assert pair.at_b.links == [
                (A, [b"h1", bytes(view), b"small"]),
                (A, [b"h2"]),
            ]

    run(main())


def test_a_closed_peer_is_lost_once_and_gone(run, way, recorder):
    async def main():
        async with Pair(way, recorder) as pair:
            pair.a.send(B, b"x")
            pair.a.send_link(B, [b"h"])
            await pair.at_b.until(lambda: pair.at_b.messages != [] and pair.at_b.links != [])
            pair.b.close()
            await pair.at_a.until(lambda: pair.at_a.lost != [])
            for _ in range(5):
                await asyncio.sleep(0)
            assert pair.at_a.lost == [B]
            with pytest.raises(PeerGone):
                pair.a.send(B, b"x")
            with pytest.raises(PeerGone):
                pair.a.send_link(B, [b"h"])

    run(main())


def test_a_link_that_breaks_is_made_again_while_the_peer_is_connected(run, directory, recorder):
    async def main():
        async with Pair(directory, recorder) as pair:
            for number in (1, 2, 3):
                pair.a.send_link(B, [b"%d" % number])
                await pair.at_b.until(lambda number=number: len(pair.at_b.links) == number)
                if number < 3:
                    pair.a._lanes[Lane.LINK][B]._end("disconnected")
                    assert pair.at_a.broken == [B] * number
            assert pair.at_a.lost == []
            pair.a.disconnect(B)
            with pytest.raises(PeerGone):
                pair.a.send_link(B, [b"4"])

    run(main())


def test_a_peer_that_is_not_there_is_lost(run, directory, recorder):
    async def main():
        async with Pair(directory, recorder) as pair:
            nobody = PeerId("c", 1)
            pair.a.connect(nobody, f"ipc://{directory}/c-1.sock")
            await pair.at_a.until(lambda: pair.at_a.lost == [nobody])

    run(main())


def test_no_loss_is_reported_after_disconnect(run, way, recorder):
    async def main():
        async with Pair(way, recorder) as pair:
            pair.a.send(B, b"x")
            await pair.at_b.until(lambda: pair.at_b.messages != [])
            pair.a.disconnect(B)
            pair.b.close()
            for _ in range(10):
                await asyncio.sleep(0)
            assert pair.at_a.lost == []

    run(main())


@claim("Garbage on a node's socket is refused and other peers go on", of="actor-runtime")
def test_garbage_on_the_router_is_dropped_and_others_go_on(run, way, recorder):
    async def main():
        async with Pair(way, recorder) as pair:
            context = zmq.Context()
            sent, dealers = 0, []
            for hello in (b"nonsense", Greeting(PeerId("x", 1), B, Lane.CONTROL).pack(), b"\x03\xff\xfe", None):
                dealer = context.socket(zmq.DEALER)
                dealers.append(dealer)
                if pair.b._keys is not None:
                    KEYS.protect(dealer, server=KEYS.name)
                dealer.connect(split_key(pair.b.endpoint)[0])
                if hello is not None:
                    dealer.send(hello)
                    sent += b"x#1" not in hello
                for parts in (
                    [b""],
                    [b"", b"\x02", b"x"],
                    [b"\x00"],
                    [b"\x01\xff\xff\xff\xff"],
                    [b"\x02"],
                    [b"\x99", b"x"],
                    [b"\x01", b"x"],
                ):
                    dealer.send_multipart(parts)
                    sent += 1
                dealer.send_multipart([b"\x02"] * (wire.MAX_FRAMES + 1))
                sent += 1
            await pair.at_b.until(lambda: len(pair.at_b.garbage) == sent)
            pair.a.send(B, b"fine")
            await pair.at_b.until(lambda: pair.at_b.messages == [(A, b"fine", [])])
            for dealer in dealers:
                dealer.close(linger=0)
            context.destroy(linger=0)

    run(main())


def test_sockets_are_private_and_leave_no_file(run, directory, recorder):
    async def main():
        async with Pair(directory / "sub", recorder) as pair:
            assert stat.S_IMODE((directory / "sub").stat().st_mode) == 0o700
            assert sorted(os.listdir(directory / "sub")) == ["a-1.sock", "b-3.sock"]
            with pytest.raises(AddressError):
                pair.a.connect(PeerId("c", 1), "tcp://127.0.0.1:1")
            with pytest.raises(MessageTooLarge):
                pair.a.send(B, b"x" * (wire.MAX_BODY + 1))
        assert os.listdir(directory / "sub") == []

    run(main())


def test_a_receiver_that_raises_does_not_leave_messages_lying(run, directory, recorder):
    async def main():
        faults = []
        asyncio.get_running_loop().set_exception_handler(lambda loop, context: faults.append(context["exception"]))
        async with Pair(directory, recorder) as pair:
            pair.at_b.on_link = lambda *_: 1 / 0
            for _ in range(5):
                pair.a.send_link(B, [b""])
            pair.a.send(B, b"after")
            await pair.at_b.until(lambda: pair.at_b.messages != [])
            await until(lambda: len(faults) == 5)
            assert [type(f) for f in faults] == [ZeroDivisionError] * 5

    run(main())


@pytest.mark.parametrize(("refusal", "level"), [(ExpectedRefusal, "DEBUG"), (HandshakeRefused, "WARNING")])
def test_a_refusal_is_a_warning_unless_a_head_has_asked_itself(run, directory, recorder, caplog, refusal, level):
    def refuse(said, key):
        raise refusal(f"{said.sender} asks")

    async def main():
        async with Pair(directory, recorder) as pair:
            pair.at_b.on_return = refuse
            with pytest.raises(HandshakeRefused, match="b#3 asks"):
                await pair.a.ask(pair.b.endpoint, ReturnRequest(B, 3, 1, "-"))

    with caplog.at_level("DEBUG"):
        run(main())
    said = [record.levelname for record in caplog.records if "refused a connection: b#3 asks" in record.getMessage()]
    assert said == [level]
