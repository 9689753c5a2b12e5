"""A lane over ``torch.distributed``: frames of a link through a process group that the application has made.

Owns two threads, since a group's operations block, and the layout of a message in tensors: 16 bytes that give its length and
the number of its frames, then the length of each and the frames. Imports no torch: the group (``ProcessGroupGloo`` or one
that acts like it) and the function that makes a tensor over a buffer come from the caller. A group cannot connect again, so
when it fails the lane is over; the cluster declares the peer down by its own means.
"""

from __future__ import annotations

import asyncio
import atexit
import contextlib
import itertools
import queue
import struct
import threading
from collections.abc import Callable, Sequence
from typing import Any, Protocol

from blockwright.transport.address import PeerId
from blockwright.transport.errors import PeerGone, QueueFull
from blockwright.transport.link_wire import MAX_MESSAGE
from blockwright.transport.wire import MAX_BODY, MAX_FRAMES, Buffer, WireError

WAITING = 1024  # messages for the sending thread
EXIT_PATIENCE = 2.0  # seconds for each thread to end when the process exits
_PREFIX = struct.Struct("<QQ")
_LONGEST = MAX_MESSAGE + MAX_BODY + (1 << 20)  # bytes of one message


class Work(Protocol):
    def wait(self) -> Any: ...


class Group(Protocol):
    """What is used of ``torch.distributed.ProcessGroup``."""

    def send(self, tensors: list[Any], rank: int, tag: int, /) -> Work: ...

    def recv(self, tensors: list[Any], rank: int, tag: int, /) -> Work: ...


class GlooLane:
    """See the module. ``rank``: of the peer in the group. ``tensor``: a uint8 tensor that shares a bytearray's memory, such
    as ``lambda buffer: torch.frombuffer(buffer, dtype=torch.uint8)``. Both ends give theirs to ``LinkTable.use_lane`` before
    their first link. The group's timeout must be longer than any silence on the link."""

    link_kind = "gloo"

    def __init__(self, group: Group, rank: int, tensor: Callable[[bytearray], Any], *, tag: int = 0) -> None:
        self._group, self._rank, self._tensor, self._tag = group, rank, tensor, tag
        self._out: queue.Queue[list[Buffer] | None] = queue.Queue(WAITING)
        self._closed = False
        self._threads: list[threading.Thread] = []
        self.broken = ""  # why it is over

    def start(self, on_frames: Callable[[list[memoryview]], None], on_broken: Callable[[], None]) -> None:
        """Both are called on the running loop."""
        self._loop = asyncio.get_running_loop()
        self._on_frames, self._on_broken = on_frames, on_broken
        for work in (self._send_all, self._receive_all):
            thread = threading.Thread(target=self._guarded, args=(work,), name="gloo-lane", daemon=True)
            thread.start()
            self._threads.append(thread)
        atexit.register(self._at_exit)

    def send_link(self, peer: PeerId, frames: Sequence[Buffer]) -> None:
        if self._closed or self.broken:
            raise PeerGone(f"the process group to {peer} is over: {self.broken or 'closed'}")
        try:
            self._out.put_nowait(list(frames))
        except queue.Full as error:
            raise QueueFull(f"{WAITING} messages wait for the process group to {peer}; send less or slower") from error

    def close(self) -> None:
        """What is queued is sent, then the peer is told that nothing follows. Idempotent."""
        if not self._closed:
            self._closed = True
            with contextlib.suppress(queue.Full):
                self._out.put_nowait(None)

    def _at_exit(self) -> None:
        """A thread that is inside the group when the interpreter ends would abort the process."""
        self.close()
        for thread in self._threads:
            thread.join(EXIT_PATIENCE)

    def _guarded(self, work: Callable[[], None]) -> None:
        try:
            work()
        except Exception as error:  # the group's own errors are RuntimeError and more; all mean that it is over
            self.broken = self.broken or f"{type(error).__name__}: {error}"
            if not self._closed:
                self._call(self._on_broken)

    def _call(self, callback: Callable[..., None], *arguments: object) -> None:
        with contextlib.suppress(RuntimeError):  # the loop is closed
            self._loop.call_soon_threadsafe(callback, *arguments)

    def _send_all(self) -> None:
        while True:
            frames = self._out.get()
            if frames is None:
                self._post(bytearray(_PREFIX.pack(0, 0)))
                return
            lengths = [len(frame) for frame in frames]
            body = bytearray(8 * len(frames) + sum(lengths))
            struct.pack_into(f"<{len(frames)}Q", body, 0, *lengths)
            view = memoryview(body)
            for frame, end in zip(frames, itertools.accumulate(lengths, initial=8 * len(frames)), strict=False):
                view[end : end + len(frame)] = frame
            self._post(bytearray(_PREFIX.pack(len(body), len(frames))))
            self._post(body)

    def _post(self, data: bytearray) -> None:
        self._group.send([self._tensor(data)], self._rank, self._tag).wait()

    def _take(self, size: int) -> bytearray:
        data = bytearray(size)
        self._group.recv([self._tensor(data)], self._rank, self._tag).wait()
        return data

    def _receive_all(self) -> None:
        while True:
            size, count = _PREFIX.unpack(self._take(_PREFIX.size))
            if not size:
                self.close()  # nothing follows; say the same, so that the peer's thread ends as well
                return
            if not 0 < count <= MAX_FRAMES or not 8 * count <= size <= _LONGEST:
                raise WireError(f"a message of {size} bytes in {count} frames")
            body = memoryview(self._take(size))
            lengths = struct.unpack_from(f"<{count}Q", body)
            if 8 * count + sum(lengths) != size:
                raise WireError(f"frames of {sum(lengths)} bytes in a message of {size}")
            ends = list(itertools.accumulate(lengths, initial=8 * count))
            self._call(self._on_frames, [body[a:b] for a, b in itertools.pairwise(ends)])
