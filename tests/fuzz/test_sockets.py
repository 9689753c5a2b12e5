"""Rubbish on a node's real sockets: before and after a greeting, under forged names, and as bytes that are not ZeroMQ."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import socket
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest
import zmq
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from blockwright.runtime import Node
from blockwright.tests.fuzz import rubbish
from blockwright.tests.fuzz.target import Server
from blockwright.tests.memory import begin_peak, peak
from blockwright.tests.waiting import PATIENCE, until_now
from blockwright.transport import wire
from blockwright.transport.address import PeerId, direct_path
from blockwright.transport.greeting import GREETING, Greeting, Lane
from blockwright.transport.records import pack_length, pack_lengths
from blockwright.transport.wire import pack_batch

GROWTH = 256 << 20  # bytes of resident memory


class Rig:
    """A node that listens, a peer that behaves, and sockets of those that do not."""

    def __init__(self, directory: Path) -> None:
        self.runner = asyncio.Runner()
        self.errors: list[object] = []
        self._directory, self._names, self._served = directory, 0, 0
        self.runner.run(self._start())
        self.context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()

    async def _start(self) -> None:
        asyncio.get_running_loop().set_exception_handler(lambda loop, context: self.errors.append(context))
        self.node, self.friend = Node("a", directory=self._directory), Node("b", directory=self._directory)
        await self.node.start()
        await self.friend.start()
        await self.node.spawn(Server(), name="server")
        self.friend.join(self.node.id, self.node.endpoint)
        await self._serve()

    async def _serve(self) -> None:
        """The friend is answered, and nothing was raised."""
        self._served += 1
        assert await self.friend.ref("a/server").echo(self._served, timeout=PATIENCE) == self._served
        assert self.errors == []
        assert not self.node.closed.is_set()

    def serve(self) -> None:
        self.runner.run(self._serve())

    def send(self, messages: Sequence[Sequence[bytes]], greet: bytes | None = None) -> None:
        """From a connection of its own; then see that the friend is served."""
        self.runner.run(self._send([*([[greet]] if greet is not None else []), *messages]))

    async def _send(self, messages: Sequence[Sequence[bytes]]) -> None:
        with self.context.socket(zmq.DEALER) as dealer:
            dealer.linger = 1000  # milliseconds; a node that cuts it off leaves the rest
            dealer.connect(self.node.endpoint)
            for frames in messages:
                while not dealer.poll(0, zmq.POLLOUT):  # noqa: ASYNC110
                    await asyncio.sleep(0.001)
                dealer.send_multipart(list(frames) or [b""])
        await self._serve()

    def greeting(self) -> bytes:
        """Of a node that was never there before."""
        self._names += 1
        return Greeting(PeerId(f"x{self._names}", 1), self.node.id, Lane.CONTROL).pack()

    def close(self) -> None:
        async def stop() -> None:
            await self.friend.stop()
            await self.node.stop()

        self.runner.run(stop())
        self.runner.close()
        self.context.destroy(linger=0)


@pytest.fixture(scope="module")
def rig(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Rig]:
    logger = logging.getLogger("blockwright")
    level = logger.level
    logger.setLevel(logging.CRITICAL + 1)
    directory = tmp_path_factory.mktemp("s")
    directory.chmod(0o700)
    made = Rig(directory)
    yield made
    made.close()
    logger.setLevel(level)


bounded = settings(
    max_examples=120,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
MARKS = st.sampled_from([wire.SINGLE_MARK, wire.LINK_MARK, wire.SHARED_MARK, b"\x00", b"", b"\x03blockwright"])
batches = st.lists(rubbish.bodies, min_size=1, max_size=4).map(pack_batch)
marked = st.builds(lambda mark, body, rest: [mark, body, *rest], MARKS, rubbish.bodies, rubbish.frames)
messages = st.lists(marked | batches.map(lambda frame: [frame]) | rubbish.frames, min_size=1, max_size=4)


@bounded
@given(messages=messages)
def test_after_a_greeting(rig: Rig, messages: list[list[bytes]]) -> None:
    rig.send(messages, greet=rig.greeting())


@bounded
@given(
    messages=messages,
    words=st.text(max_size=30) | st.sampled_from(["blockwright 1 control", "blockwright 99", "blockwright 1 join"]),
)
def test_instead_of_a_greeting(rig: Rig, messages: list[list[bytes]], words: str) -> None:
    rig.send(messages, greet=GREETING + words.encode())
    rig.send(messages)


@pytest.mark.parametrize("name", rubbish.bombs())
def test_bombs(rig: Rig, name: str) -> None:
    before = begin_peak()
    body = rubbish.bombs()[name]
    rig.send([[wire.SINGLE_MARK, body], [wire.LINK_MARK, body[:1000]], [b"\x01" + body[:1000]]], greet=rig.greeting())
    assert peak() - before < GROWTH


def test_lengths_in_a_batch_that_lie(rig: Rig) -> None:
    lies = [b"\x01" + length + b"abc" for length in (b"\xff\xff\xff\xff", b"\x04\x00\x00\x00", b"\x00", b"")]
    rig.send([[lie] for lie in lies], greet=rig.greeting())


def test_names_of_others_cannot_be_taken(rig: Rig) -> None:
    """Of the friend, of the node itself, and of an older life."""
    call = [pack_batch([rubbish.packed(message) for message in rubbish.VALID])]
    for claimed in (rig.friend.id, rig.node.id, PeerId("b", 7)):
        rig.send([call], greet=Greeting(claimed, rig.node.id, Lane.CONTROL).pack())
    assert "b" in rig.node.peers()


def test_a_flood(rig: Rig) -> None:
    before = begin_peak()
    empty = b"\xdc\xff\xff" + b"\x90" * 0xFFFF
    known = rig.node.dropped["garbage"]

    def seen() -> bool:
        """Perhaps after some floods: what a slow machine has not sent when its sender leaves is lost."""
        rig.send([[wire.SINGLE_MARK, empty]] * 300 + [[b"\x07"]] * 3000, greet=rig.greeting())
        rig.serve()
        return rig.node.dropped["garbage"] > known + 1000

    until_now(seen, "the flood is noticed")
    assert peak() - before < GROWTH


@bounded
@given(
    data=st.binary(max_size=300) | st.binary(max_size=60).map(lambda rest: b"\xff" + bytes(8) + b"\x7f\x03\x00NULL" + rest)
)
def test_bytes_that_are_not_zeromq(rig: Rig, data: bytes) -> None:
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as raw:
        raw.connect(rig.node.endpoint.removeprefix("ipc://"))
        raw.sendall(data)
    rig.serve()


def on_the_direct_socket(rig: Rig, data: bytes, cut: int) -> None:
    """In two pieces; the node may close the connection after the first."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as raw:
        raw.connect(direct_path(rig.node.endpoint))
        raw.setblocking(False)
        for piece in (data[:cut], data[cut:]):
            with contextlib.suppress(BrokenPipeError, ConnectionResetError):
                rig.runner.run(asyncio.wait_for(rig.runner.get_loop().sock_sendall(raw, piece), PATIENCE))
            rig.serve()


def as_records(messages: list[list[bytes]]) -> bytes:
    """As ``direct.py`` would send them, also what it would never send."""
    parts = [pack_lengths(frames) + b"".join(frames) if len(frames) > 1 else record(*frames) for frames in messages]
    return b"".join(parts)


def record(body: bytes = b"") -> bytes:
    return pack_length(len(body)) + body


@bounded
@given(messages=messages, cut=st.integers(0, 400), rest=st.binary(max_size=40))
def test_records_after_a_greeting(rig: Rig, messages: list[list[bytes]], cut: int, rest: bytes) -> None:
    on_the_direct_socket(rig, record(rig.greeting()) + as_records(messages) + rest, cut)


@bounded
@given(data=st.binary(max_size=300) | messages.map(as_records) | st.binary(max_size=60).map(record), cut=st.integers(0, 50))
def test_bytes_that_are_no_records(rig: Rig, data: bytes, cut: int) -> None:
    on_the_direct_socket(rig, data, cut)


@pytest.mark.parametrize("length", [(1 << 31) - 1, 1 << 31, (1 << 31) + 1, (1 << 31) + 1024, (1 << 32) - 1, 9 << 20])
def test_lengths_that_lie(rig: Rig, length: int) -> None:
    before = begin_peak()
    for hello in (b"", record(rig.greeting())):
        on_the_direct_socket(rig, hello + pack_length(length) + b"\xff" * 5000, len(hello))
    assert peak() - before < GROWTH


@pytest.mark.parametrize("name", rubbish.bombs())
def test_bombs_as_records(rig: Rig, name: str) -> None:
    before = begin_peak()
    body = rubbish.bombs()[name]
    on_the_direct_socket(rig, record(rig.greeting()) + record(body) + as_records([[wire.SINGLE_MARK, body, b"x"]]), 4000)
    assert peak() - before < GROWTH
