"""Deferred streams: queued work runs as late as events allow, in a seeded order of the streams.

For tests of the CUDA back end without a card. A wait that is missing, a host buffer that is reused too early or a result
that is read too early gives wrong numbers, whatever the speed of the machine. As on a card, an error of queued work ends
everything. Any thread may queue and wait; work runs in the thread that waits, one at a time.
"""

from __future__ import annotations

import random
import threading
import time
from collections import deque
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext

import torch

from ..errors import BackendError
from .host_memory import watched
from .streams import DeviceEvent, DeviceStream, Ranges

EAGER = 0.3  # share of the turns in which a stream runs that nothing waits for, too
POISON = 0xA5  # every byte of a host buffer that is taken again: finite, and unlike what anyone writes
NODE = 256  # bytes that an operation of a recorded graph stands for


class DeferredStream:
    """A queue of work that runs when something waits for it."""

    def __init__(self, streams: DeferredStreams) -> None:
        self._streams = streams
        self.queue: deque[Callable[[], object] | tuple[DeferredStream, int]] = deque()  # work, or a place to wait for
        self.launched = 0
        self.done = 0
        self.recording: list[Callable[[], object]] | None = None  # work that is recorded instead of queued

    def launch(self, work: Callable[[], object]) -> None:
        self._streams.check()
        with self._streams.turn:
            if self.recording is not None:
                self.recording.append(work)
                return
            self.queue.append(work)
            self.launched += 1
            if self._streams.eager:
                self._streams.run_until(self, self.launched)

    def wait(self, event: DeviceEvent) -> None:
        assert isinstance(event, DeferredEvent), "an event of other streams"
        with self._streams.turn:
            if event.place is not None:
                self.queue.append(event.place)
                self.launched += 1


class DeferredEvent:
    """A place in a deferred stream."""

    def __init__(self, streams: DeferredStreams, timed: bool = False) -> None:
        self._streams, self._timed = streams, timed
        self.place: tuple[DeferredStream, int] | None = None
        self.passed = 0.0  # time of the process

    def record(self, stream: DeviceStream) -> None:
        assert isinstance(stream, DeferredStream), "a stream of other streams"
        if self._timed:
            stream.launch(self._pass)
        self.place = stream, stream.launched

    def wait(self) -> None:
        if self.place is not None:
            self._streams.run_until(*self.place)

    def done(self) -> bool:
        return self.place is None or self.place[0].done >= self.place[1]

    def seconds_since(self, earlier: DeferredEvent) -> float:
        return self.passed - earlier.passed

    def _pass(self) -> None:
        self.passed = time.perf_counter()


class DeferredGraph:
    """Recorded work. Each time that it runs, what it touches is compared with the memory that it may name."""

    def __init__(self, works: list[Callable[[], object]], static: Ranges) -> None:
        self._works, self._static = works, static
        self._closed = False
        self.nbytes = NODE * len(works)

    def replay(self, stream: DeviceStream) -> None:
        for work in self._works:
            stream.launch(lambda work=work: self._run(work))  # type: ignore[misc]

    def close(self) -> None:
        self._closed = True

    def _run(self, work: Callable[[], object]) -> None:
        if self._closed:
            raise BackendError("a graph that was given back is queued: wait for it before")
        with watched(self._check):
            work()

    def _check(self, address: int, nbytes: int) -> None:
        if not any(first <= address and address + nbytes <= first + size for first, size in self._static()):
            raise BackendError(f"a recorded graph names {nbytes} bytes at {address:#x}, which do not stay: drop it before")


class CalledAgain:
    """Recorded work of operations that run when they are called: it is called again."""

    nbytes = 0

    def __init__(self, work: Callable[[], object]) -> None:
        self._work = work

    def replay(self, stream: DeviceStream) -> None:
        self._work()

    def close(self) -> None:
        """Do nothing: there is no memory to give back."""


class DeferredStreams:
    """Streams of a card that is not there (see the module).

    ``eager`` ones run work at once: beside operations that do so, too.
    """

    def __init__(self, seed: int = 0, eager: bool = False) -> None:
        self.eager = eager
        self.turn = threading.RLock()  # of the thread that queues or runs work
        self._draw = random.Random(seed)
        self._streams: list[DeferredStream] = []
        self._retired: list[torch.Tensor] = []  # kept, so that nothing else gets their addresses
        self._failed: BaseException | None = None

    def stream(self) -> DeferredStream:
        self._streams.append(DeferredStream(self))
        return self._streams[-1]

    def event(self, timed: bool = False) -> DeferredEvent:
        return DeferredEvent(self, timed)

    def record(self, stream: DeviceStream, work: Callable[[], object], static: Ranges) -> DeferredGraph | CalledAgain:
        assert isinstance(stream, DeferredStream), "a stream of other streams"
        if self.eager:
            return CalledAgain(work)
        with self.turn:
            stream.recording = []
            try:
                work()
                return DeferredGraph(stream.recording, static)
            finally:
                stream.recording = None

    def current(self, stream: DeviceStream) -> AbstractContextManager[None]:
        """Change nothing: operations are given the stream that they launch on."""
        return nullcontext()

    def settle(self) -> None:
        with self.turn:
            for stream in self._draw.sample(self._streams, len(self._streams)):
                self.run_until(stream, stream.launched)

    def queued(self) -> int:
        return sum(stream.launched - stream.done for stream in self._streams)

    def poison(self, memory: torch.Tensor) -> None:
        memory.view(torch.uint8).fill_(POISON)

    def retire(self, memory: torch.Tensor) -> None:
        self._retired.append(memory)

    def _check_address(self, address: int, nbytes: int) -> None:
        for memory in self._retired:
            first = memory.data_ptr()
            if address < first + memory.nbytes and first < address + nbytes:
                raise BackendError(f"queued work uses {nbytes} bytes at {address:#x}, which were given back: wait before")

    def check(self) -> None:
        """Raise ``BackendError`` if queued work has failed."""
        if self._failed is not None:
            raise BackendError(f"work of the device has failed before ({self._failed}); start the worker again")

    def run_until(self, stream: DeferredStream, number: int) -> None:
        """Run a stream's first ``number`` operations, what they wait for, and now and then something else."""
        self.check()
        while stream.done < number:
            with self.turn:
                if stream.done < number:
                    other = self._draw.choice(self._streams)
                    self._advance(other if other.queue and self._draw.random() < EAGER else stream)

    def _advance(self, stream: DeferredStream) -> None:
        """Run the next operation of a stream, or of the stream that it waits for.

        Streams never wait for each other in a circle, because an event is recorded before anything waits for it.
        """
        head = stream.queue[0]
        while isinstance(head, tuple) and head[0].done < head[1]:
            stream = head[0]
            head = stream.queue[0]
        stream.queue.popleft()
        if not isinstance(head, tuple):
            try:
                with watched(self._check_address):
                    head()
            except BaseException as error:
                self._failed = error
                raise
        stream.done += 1
