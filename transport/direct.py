"""Control messages between processes of one machine: unix stream sockets, read and written by the event loop itself.

libzmq moves each message through a thread of its own at both ends, so a call and its answer wake four threads that these
sockets do without; waking them costs more than all the rest of a short call (docs/decisions/0006). Links and heartbeats
stay on ZeroMQ. Each direction has a connection: the connecting end greets, waits for the welcome, and from then on only
sends. Access is governed by the socket directory alone, so a cluster with keys uses ZeroMQ throughout. Never reconnects:
an endpoint belongs to one incarnation. ``DirectOutbound`` owns a connection to a peer and its bounded queue,
``DirectInbound`` the listening socket and the connections of others.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import socket
from collections import deque
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Protocol

from blockwright.transport import greeting
from blockwright.transport.address import PeerId
from blockwright.transport.errors import AddressError, Refused
from blockwright.transport.greeting import Greeting
from blockwright.transport.outbound import COPY_LIMIT, check_room
from blockwright.transport.records import RecordReader, pack_length, pack_lengths
from blockwright.transport.wire import Buffer, WireError

CHUNK = 64 << 10  # bytes read at a time, and more where a message is known to be longer:
LONG_CHUNK = 256 << 10
PATIENCE = 60.0  # seconds for a greeting; who waits for its answer is told by others when the node there hangs
RETRY = 0.02  # seconds until another attempt where the system has no room for a connection
FLUSH = 4096  # bytes of a loop tick's small messages that leave before it ends, so that the other end works meanwhile
REST = 1.0  # seconds without accepting when no descriptors are left
BACKLOG = 1024
SEND_BUFFER = 1 << 20  # bytes asked of the system, which may give less
PIECES = 64  # handed to the system at a time


class DirectOutbound:
    """A connection to ``path`` that only sends. The same methods and the same ``on_lost`` as ``Outbound``."""

    def __init__(self, path: str, hello: Greeting, on_lost: Callable[[str], None]) -> None:
        self._loop, self._path, self._hello, self._on_lost = asyncio.get_running_loop(), path, hello, on_lost
        self._batch: list[bytes] = []  # small messages of this loop tick, lengths and bodies
        self._batch_bytes = 0
        self._in_tick, self._alone = 0, True  # small messages of this tick; whether the last one had a single one
        self._waiting: deque[Buffer] = deque()  # not empty only until welcomed and while the system takes no more
        self._waiting_bytes = 0
        self._welcomed = self._closed = self._watching = False
        self._reader = RecordReader()
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self._socket.setblocking(False)
        self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, SEND_BUFFER)
        self._connect()

    def send_small(self, body: bytes) -> None:
        """Send ``body`` at the end of this loop tick, with its others: each time the other end is woken costs both. Where
        messages come one in a tick, as of a caller that waits for each answer, at once."""
        if self._waiting or self._closed:
            self._check_room(len(body))
        self._batch.append(pack_length(len(body)))
        self._batch.append(body)
        self._batch_bytes += len(body)
        if first := self._in_tick == 0:
            self._loop.call_soon(self._flush_at_tick)
        self._in_tick += 1
        if (first and self._alone) or self._batch_bytes >= FLUSH:
            self._flush()

    def send_frames(self, frames: Sequence[Buffer]) -> None:
        """Send one message of several frames, after all that was sent before."""
        self._check_room(sum(map(len, frames)))
        self._batch.append(pack_lengths(frames))
        for frame in frames:
            if len(frame) < COPY_LIMIT:
                self._batch.append(bytes(frame))
            else:
                self._seal()
                self._queue(frame)
        self._flush()

    def close(self) -> None:
        """Drop what is queued. Idempotent."""
        if self._closed:
            return
        self._closed = True
        self._watch(False)
        self._loop.remove_reader(self._socket.fileno())
        self._socket.close()
        self._waiting.clear()
        self._batch.clear()

    # ---- out

    def _check_room(self, size: int) -> None:
        check_room(self._closed, len(self._waiting) + len(self._batch) // 2, self._waiting_bytes, size)

    def _flush_at_tick(self) -> None:
        self._alone, self._in_tick = self._in_tick == 1, 0
        self._flush()

    def _flush(self) -> None:
        if not self._closed:
            self._seal()
            if self._welcomed and not self._watching:
                self._write()

    def _seal(self) -> None:
        if self._batch:
            self._queue(b"".join(self._batch))
            self._batch, self._batch_bytes = [], 0

    def _queue(self, piece: Buffer) -> None:
        self._waiting.append(piece)
        self._waiting_bytes += len(piece)

    def _write(self) -> None:
        """Hand to the system what it takes; it says when it takes more."""
        waiting = self._waiting
        try:
            while waiting:
                if len(waiting) == 1:
                    sent = self._socket.send(waiting[0])
                else:
                    sent = self._socket.sendmsg(list(itertools.islice(waiting, PIECES)))
                self._waiting_bytes -= sent
                while waiting and sent >= len(waiting[0]):
                    sent -= len(waiting.popleft())
                if sent:
                    waiting[0] = memoryview(waiting[0])[sent:]
        except BlockingIOError:
            self._watch(True)
        except OSError:
            self._loop.call_soon(self._end, "disconnected")  # the sender is not told from within its call
        else:
            self._watch(False)

    def _watch(self, wanted: bool) -> None:
        if wanted != self._watching:
            self._watching = wanted
            if wanted:
                self._loop.add_writer(self._socket.fileno(), self._write)
            else:
                self._loop.remove_writer(self._socket.fileno())

    # ---- connecting, and what comes back

    def _connect(self) -> None:
        if self._closed:
            return
        try:
            self._socket.connect(self._path)
            hello = self._hello.pack()
            self._socket.send(pack_length(len(hello)) + hello)
        except BlockingIOError:  # more connections wait to be accepted there than it allows
            self._loop.call_later(RETRY, self._connect)
        except OSError as error:
            self._loop.call_soon(self._end, f"disconnected: {error}")
        else:
            self._loop.add_reader(self._socket.fileno(), self._on_readable)

    def _on_readable(self) -> None:
        """The answer to the greeting; after it nothing but the end."""
        try:
            if not (chunk := self._socket.recv(CHUNK)):
                raise ConnectionResetError
            for answer in self._reader.feed(chunk):
                if self._welcomed or isinstance(answer, list):
                    raise WireError("a second answer to a greeting")
                if greeting.parse_answer(bytes(answer)) != (self._hello.to, self._hello.sender):
                    raise Refused("another node answered")
                self._welcomed = True
        except BlockingIOError:
            return
        except OSError:
            self._end("disconnected")
        except (Refused, WireError, AddressError) as error:
            self._end(f"refused: {error}")
        else:
            self._flush()

    def _end(self, cause: str) -> None:
        if not self._closed:
            self.close()
            self._on_lost(cause)


class Doorman(Protocol):
    """Who decides about connections and takes their messages: ``SocketTransport``."""

    def admit(self, connection: bytes, said: bytes) -> tuple[PeerId | None, bytes]:
        """Whose connection it is by its greeting, None if nobody's, and the answer. Raises WireError."""

    def take(self, peer: PeerId, mark: memoryview, rest: list[memoryview]) -> None:
        """A message with its buffers. Raises WireError."""

    def take_small(self, peer: PeerId, body: memoryview) -> None:
        """A message without buffers."""

    def complain(self, error: Exception) -> None:
        """What a message gave rise to: a WireError or AddressError of its sender, or a fault above."""


class DirectInbound:
    """Listens at ``path`` from when it is made; accepts and reads from ``start`` on. Raises OSError."""

    def __init__(self, path: str, doorman: Doorman) -> None:
        self._path, self._doorman = path, doorman
        self._numbers = 0
        self._loop: asyncio.AbstractEventLoop | None = None  # once it is started
        self._connections: set[_Connection] = set()
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            self._socket.setblocking(False)
            Path(path).unlink(missing_ok=True)  # of an earlier program; incarnations never share a path
            self._socket.bind(path)
            self._socket.listen(BACKLOG)
        except OSError:
            self._socket.close()
            raise

    def start(self) -> None:
        """Accept, or accept again; nothing where it is closed."""
        self._loop = asyncio.get_running_loop()
        if self._socket.fileno() >= 0:
            self._loop.add_reader(self._socket.fileno(), self._accept)

    def close(self) -> None:
        if self._loop is not None:
            self._loop.remove_reader(self._socket.fileno())
        self._socket.close()
        for connection in list(self._connections):
            connection.close()
        Path(self._path).unlink(missing_ok=True)

    def _accept(self) -> None:
        try:
            accepted, _ = self._socket.accept()
        except (BlockingIOError, ConnectionAbortedError):
            return
        except OSError as error:  # no descriptors left: who knocks waits, and the loop does not spin
            self._doorman.complain(error)
            loop = asyncio.get_running_loop()
            loop.remove_reader(self._socket.fileno())
            loop.call_later(REST, self.start)
            return
        self._numbers += 1
        name = b"direct-%d" % self._numbers
        self._connections.add(_Connection(name, accepted, self._doorman, self._connections.discard))


class _Connection:
    """One that was accepted: greeted within ``PATIENCE`` or closed; read until it ends or means nothing."""

    def __init__(
        self, name: bytes, accepted: socket.socket, doorman: Doorman, on_closed: Callable[[_Connection], None]
    ) -> None:
        self._name, self._socket, self._doorman, self._on_closed = name, accepted, doorman, on_closed
        self._loop = asyncio.get_running_loop()
        self._reader = RecordReader()
        self._peer: PeerId | None = None
        self._closed = False
        accepted.setblocking(False)
        self._deadline = self._loop.call_later(PATIENCE, self.close)
        self._loop.add_reader(accepted.fileno(), self._on_readable)

    def close(self) -> None:
        if not self._closed:
            self._closed = True
            self._deadline.cancel()
            self._loop.remove_reader(self._socket.fileno())
            self._socket.close()
            self._on_closed(self)

    def _on_readable(self) -> None:
        try:
            chunk = self._socket.recv(CHUNK if not self._reader.missing else LONG_CHUNK)
        except BlockingIOError:
            return
        except OSError:
            chunk = b""
        if not chunk:
            self.close()
            return
        try:
            for message in self._reader.feed(chunk):
                self._on_message(message)
                if self._closed:
                    return
        except (WireError, AddressError) as error:  # where the next message would begin is not known any more
            self._doorman.complain(error)
            self.close()

    def _on_message(self, message: memoryview | list[memoryview]) -> None:
        peer = self._peer
        if peer is None:
            self._on_greeting(message)
            return
        try:
            if isinstance(message, list):
                self._doorman.take(peer, message[0], message[1:])
            else:
                self._doorman.take_small(peer, message)
        except Exception as error:  # a fault above, or a message of no meaning, must not lose the rest
            self._doorman.complain(error)

    def _on_greeting(self, said: memoryview | list[memoryview]) -> None:
        assert isinstance(said, memoryview), "the reader lets no other in"
        self._peer, answer = self._doorman.admit(self._name, bytes(said))
        with contextlib.suppress(OSError):  # it is gone already: the next read says so
            self._socket.send(pack_length(len(answer)) + answer)
        if self._peer is None:
            self.close()
            return
        self._deadline.cancel()
        self._reader.let_in()
