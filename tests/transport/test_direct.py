"""Direct connections by themselves; what they share with ZeroMQ's is tested in test_sockets.py and test_traps.py."""

import asyncio
import contextlib
import errno
import fcntl
import socket
import sys
import termios

import pytest

from blockwright.tests.waiting import PATIENCE
from blockwright.transport import direct, greeting, outbound, wire
from blockwright.transport.address import PeerId
from blockwright.transport.direct import DirectInbound, DirectOutbound
from blockwright.transport.errors import PeerGone, QueueFull
from blockwright.transport.greeting import Greeting, Lane
from blockwright.transport.records import pack_length, pack_lengths
from blockwright.transport.wire import WireError

A, B = PeerId("a", 1), PeerId("b", 3)
HELLO = Greeting(A, B, Lane.CONTROL)


class Door:
    """A doorman that writes down who comes and what they bring."""

    def __init__(self):
        self.taken, self.faults, self.names, self.changed = [], [], [], asyncio.Event()

    def admit(self, connection, said):
        self.names.append(connection)
        greeted = greeting.parse(said)
        if greeted == HELLO:
            return A, greeting.pack_welcome(B, A)
        return None, greeting.pack_refusal("not you")

    def take(self, peer, mark, rest):
        self.note((peer, bytes(mark), [bytes(frame) for frame in rest]))

    def take_small(self, peer, body):
        self.note((peer, bytes(body)))

    def complain(self, error):
        self.faults.append(error)
        self.changed.set()

    def note(self, what):
        self.taken.append(what)
        self.changed.set()
        if what[1] == b"raise":
            raise ZeroDivisionError

    async def until(self, condition):
        async with asyncio.timeout(PATIENCE):
            while not condition():
                self.changed.clear()
                await self.changed.wait()


@pytest.fixture
def path(tmp_path):
    return str(tmp_path / "b.direct.sock")


@pytest.fixture
async def door(path):
    door = Door()
    inbound = door.inbound = DirectInbound(path, door)
    inbound.start()
    yield door
    inbound.close()


@pytest.fixture
def connect(path):
    made = []

    def connected(hello=HELLO):
        made.append(DirectOutbound(path, hello, lambda cause: made[-1].causes.put_nowait(cause)))
        made[-1].causes = asyncio.Queue()
        return made[-1]

    yield connected
    for each in made:
        each.close()


def record(body):
    return pack_length(len(body)) + body


async def read_record(reader):
    async with asyncio.timeout(PATIENCE):
        return await reader.readexactly(int.from_bytes(await reader.readexactly(4), "little"))


def arrived(writer):
    """Bytes that the system holds for this end."""
    number = writer.get_extra_info("socket").fileno()
    return int.from_bytes(fcntl.ioctl(number, termios.FIONREAD, bytes(4)), sys.byteorder)


async def cause(outbound):
    async with asyncio.timeout(PATIENCE):
        return await outbound.causes.get()


@pytest.fixture
async def bare(path):
    """A listening end that the test plays by hand: its next connection."""
    arrived = asyncio.Queue()
    server = await asyncio.start_unix_server(lambda *ends: arrived.put_nowait(ends), path)
    ends = []

    async def accept():
        async with asyncio.timeout(PATIENCE):
            ends.append(await arrived.get())
        return ends[-1]

    yield accept
    for _, writer in ends:
        writer.close()
        await writer.wait_closed()
    server.close()


async def test_small_messages_of_a_tick_leave_together_after_the_welcome(connect, bare):
    a = connect()
    for number in range(50):
        a.send_small(b"%d" % number)
    reader, writer = await bare()
    assert await read_record(reader) == HELLO.pack()
    assert not reader._buffer, "nothing is said before the welcome"
    writer.write(record(greeting.pack_welcome(B, A)))
    wanted = b"".join(record(b"%d" % number) for number in range(50))
    async with asyncio.timeout(PATIENCE):
        assert await reader.read(1 << 16) == wanted
        for number in range(50):
            a.send_small(b"%d" % number)
        assert not arrived(writer), "a message that leaves alone wakes the other end for itself"
        assert await reader.read(1 << 16) == wanted
    a.send_small(b"x" * direct.FLUSH)
    assert arrived(writer), "so much does not wait"


async def test_messages_that_come_one_in_a_tick_leave_at_once(connect, bare):
    a = connect()
    reader, writer = await bare()
    await read_record(reader)
    writer.write(record(greeting.pack_welcome(B, A)))
    a.send_small(b"first")
    assert await read_record(reader) == b"first"
    a.send_small(b"alone")
    assert arrived(writer), "nobody is to wait for the end of the tick"
    a.send_small(b"not alone")
    assert [await read_record(reader), await read_record(reader)] == [b"alone", b"not alone"]
    a.send_small(b"after two in one tick")
    assert not arrived(writer), "they come together, so they leave together"
    assert await read_record(reader) == b"after two in one tick"
    await asyncio.sleep(0)
    a.send_small(b"alone again")
    assert arrived(writer)


async def test_order_of_small_and_large(door, connect):
    a, wanted = connect(), []
    for number in range(40):
        a.send_small(b"%d" % number)
        wanted.append((A, b"%d" % number))
        if number % 7 == 0:
            frames = [wire.SINGLE_MARK, b"%d" % number, b"x" * (300_000 if number else 5), b"", b"y" * 70_000]
            a.send_frames(frames)
            wanted.append((A, frames[0], frames[1:]))
    await door.until(lambda: len(door.taken) == len(wanted))
    assert door.taken == wanted


async def test_a_full_queue_says_so_and_what_was_taken_arrives(connect, bare, monkeypatch):
    monkeypatch.setattr(outbound, "QUEUE_BYTES", 4 << 20)
    a = connect()
    reader, writer = await bare()
    writer.write(record(greeting.pack_welcome(B, A)))
    await read_record(reader)
    taken = 0
    with contextlib.suppress(QueueFull):
        while taken < 1000:
            a.send_frames([wire.SINGLE_MARK, b"%06d" % taken, b"x" * 100_000])
            taken += 1
            await asyncio.sleep(0)
    assert 40 < taken < 1000
    one = pack_lengths([b"m", b"123456", b"x" * 100_000])
    for number in range(taken):
        async with asyncio.timeout(PATIENCE):
            whole = await reader.readexactly(len(one) + 1 + 6 + 100_000)
        assert whole[len(one) + 1 :][:6] == b"%06d" % number
    a.send_small(b"room again")
    assert await read_record(reader) == b"room again"


async def test_a_listener_that_is_not_there(connect, path):
    assert "disconnected: [Errno 2]" in await cause(connect())
    with socket.socket(socket.AF_UNIX) as left_behind:
        left_behind.bind(path)
    assert "disconnected: [Errno 111]" in await cause(connect())


async def test_connections_that_must_wait_to_be_accepted(connect, path, monkeypatch):
    monkeypatch.setattr(direct, "BACKLOG", 0)
    door = Door()
    inbound = DirectInbound(path, door)
    several = [connect() for _ in range(4)]
    inbound.start()
    for number, each in enumerate(several):
        each.send_small(b"%d" % number)
    await door.until(lambda: len(door.taken) == 4)
    inbound.close()


async def test_a_welcome_may_take_as_long_as_the_loop_over_there_is_busy(connect, bare, monkeypatch):
    """That it hangs is for heartbeats to say: a node that imports for a minute is not lost."""
    monkeypatch.setattr(direct, "PATIENCE", 0.0)
    a = connect()
    a.send_small(b"patience")
    reader, writer = await bare()
    await read_record(reader)
    for _ in range(5):
        await asyncio.sleep(0)
    writer.write(record(greeting.pack_welcome(B, A)))
    assert await read_record(reader) == b"patience"


@pytest.mark.parametrize(
    ("answer", "why"),
    [
        (record(greeting.pack_refusal("not you")), "refused: not you"),
        (record(greeting.pack_welcome(PeerId("c", 1), A)), "refused: another node answered"),
        (record(b"garbage"), "refused: a greeting was answered with"),
        (record(greeting.pack_welcome(B, A)) * 2, "refused: a second answer"),
        (pack_length(100_000), "refused: a frame of 100000 bytes exceeds"),
        (b"", "disconnected"),
    ],
)
async def test_answers_that_end_the_connection(connect, bare, answer, why):
    a = connect()
    _, writer = await bare()
    writer.write(answer)
    if not answer:
        writer.close()
    assert (await cause(a)).startswith(why)
    with pytest.raises(PeerGone):
        a.send_small(b"more")


async def test_a_peer_that_dies_while_much_waits_is_lost_once(connect, bare):
    a = connect()
    reader, writer = await bare()
    writer.write(record(greeting.pack_welcome(B, A)))
    await read_record(reader)
    a.send_frames([wire.SINGLE_MARK, b"x", b"y" * (8 << 20)])
    await asyncio.sleep(0)
    writer.transport.abort()
    assert (await cause(a)).startswith("disconnected")
    for _ in range(10):
        await asyncio.sleep(0)
    assert a.causes.empty()


async def test_a_silent_connection_is_closed(door, path, monkeypatch):
    monkeypatch.setattr(direct, "PATIENCE", 0.0)
    reader, writer = await asyncio.open_unix_connection(path)
    async with asyncio.timeout(PATIENCE):
        assert await reader.read() == b""
    writer.close()


async def test_who_is_refused_hears_why_and_the_connection_is_closed(door, path, connect):
    reader, writer = await asyncio.open_unix_connection(path)
    writer.write(record(Greeting(PeerId("c", 1), B, Lane.CONTROL).pack()) + record(b"and more"))
    assert await read_record(reader) == greeting.pack_refusal("not you")
    async with asyncio.timeout(PATIENCE):
        assert await reader.read() == b""
    writer.close()
    assert door.taken == []


async def test_what_means_nothing_ends_its_connection_alone(door, path, connect):
    good = connect()
    reader, writer = await asyncio.open_unix_connection(path)
    writer.write(record(HELLO.pack()) + record(b"fine") + pack_length(wire.MAX_BODY + 1) + record(b"never"))
    await door.until(lambda: door.faults != [])
    assert isinstance(door.faults[0], WireError)
    await read_record(reader)
    async with asyncio.timeout(PATIENCE):
        assert await reader.read() == b""
    writer.close()
    good.send_small(b"served")
    await door.until(lambda: (A, b"served") in door.taken)
    assert door.taken == [(A, b"fine"), (A, b"served")]
    assert len(set(door.names)) == 2, "every connection has a name of its own"


async def test_a_fault_above_does_not_lose_what_comes_after(door, connect):
    a = connect()
    for body in (b"1", b"raise", b"2"):
        a.send_small(body)
    await door.until(lambda: len(door.taken) == 3)
    assert [type(fault) for fault in door.faults] == [ZeroDivisionError]


async def test_without_descriptors_nobody_is_accepted_and_the_loop_does_not_spin(door, connect, monkeypatch):
    """Accepting goes on when there are some again."""
    inbound, listening = door.inbound, door.inbound._socket

    class Exhausted:
        attempts = 0

        def accept(self):
            self.attempts += 1
            raise OSError(errno.EMFILE, "too many open files")

        def fileno(self):
            return listening.fileno()

        def close(self):
            listening.close()

    inbound._socket = exhausted = Exhausted()
    monkeypatch.setattr(direct, "REST", 0.0)
    a = connect()
    a.send_small(b"patience")
    await door.until(lambda: door.faults != [])
    attempts = exhausted.attempts
    assert 1 <= attempts == len(door.faults)
    inbound._socket = listening
    await door.until(lambda: door.taken == [(A, b"patience")])


async def test_closing_twice_and_after_the_end(door, connect, path):
    a = connect()
    a.send_small(b"x")
    await door.until(lambda: door.taken != [])
    a.close()
    a.close()
    with pytest.raises(PeerGone):
        a.send_frames([wire.SINGLE_MARK, b"x"])
