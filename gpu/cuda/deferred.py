"""Deferred streams: queued work runs as late as events allow, in a seeded order of the streams.

For tests of the CUDA back end without a card. A wait that is missing, a host buffer that is reused too early or a result
that is read too early gives wrong numbers, whatever the speed of the machine. As on a card, an error of queued work ends
everything.
"""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext

import torch

from ..errors import BackendError
from .streams import DeviceEvent, DeviceStream

EAGER = 0.3  # share of the turns in which a stream runs that nothing waits for, too
POISON = 0xA5  # every byte of a host buffer that is taken again: finite, and unlike what anyone writes


class DeferredStream:
    """A queue of work that runs when something waits for it."""

    def __init__(self, streams: DeferredStreams) -> None:
        self._streams = streams
        self.queue: deque[Callable[[], object] | tuple[DeferredStream, int]] = deque()  # work, or a place to wait for
        self.launched = 0
        self.done = 0

    def launch(self, work: Callable[[], object]) -> None:
        self._streams.check()
        self.queue.append(work)
        self.launched += 1
        if self._streams.eager:
            self._streams.run_until(self, self.launched)

    def wait(self, event: DeviceEvent) -> None:
        assert isinstance(event, DeferredEvent), "an event of other streams"
        if event.place is not None:
            self.queue.append(event.place)
            self.launched += 1


class DeferredEvent:
    """A place in a deferred stream."""

    def __init__(self, streams: DeferredStreams) -> None:
        self._streams = streams
        self.place: tuple[DeferredStream, int] | None = None

    def record(self, stream: DeviceStream) -> None:
        assert isinstance(stream, DeferredStream), "a stream of other streams"
        self.place = stream, stream.launched

    def wait(self) -> None:
        if self.place is not None:
            self._streams.run_until(*self.place)

    def done(self) -> bool:
        return self.place is None or self.place[0].done >= self.place[1]


class DeferredStreams:
    """Streams of a card that is not there (see the module).

    ``eager`` ones run work at once: beside operations that do so, too.
    """

    def __init__(self, seed: int = 0, eager: bool = False) -> None:
        self.eager = eager
        self._draw = random.Random(seed)
        self._streams: list[DeferredStream] = []
        self._failed: BaseException | None = None

    def stream(self) -> DeferredStream:
        self._streams.append(DeferredStream(self))
        return self._streams[-1]

    def event(self) -> DeferredEvent:
        return DeferredEvent(self)

    def current(self, stream: DeviceStream) -> AbstractContextManager[None]:
        """Change nothing: operations are given the stream that they launch on."""
        return nullcontext()

    def settle(self) -> None:
        for stream in self._draw.sample(self._streams, len(self._streams)):
            self.run_until(stream, stream.launched)

    def queued(self) -> int:
        return sum(stream.launched - stream.done for stream in self._streams)

    def poison(self, memory: torch.Tensor) -> None:
        memory.view(torch.uint8).fill_(POISON)

    def check(self) -> None:
        """Raise ``BackendError`` if queued work has failed."""
        if self._failed is not None:
            raise BackendError(f"work of the device has failed before ({self._failed}); start the worker again")

    def run_until(self, stream: DeferredStream, number: int) -> None:
        """Run a stream's first ``number`` operations, what they wait for, and now and then something else."""
        self.check()
        while stream.done < number:
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
                head()
            except BaseException as error:
                self._failed = error
                raise
        stream.done += 1
