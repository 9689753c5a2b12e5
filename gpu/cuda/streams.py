"""Streams and events of the CUDA back end: torch's, behind protocols that ``deferred.py`` also fulfils.

Work of one stream ends in its order. Work of two streams has no order but the one that events give it, and the host may
read a result, or write to a buffer that queued work reads, only after it has waited.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any, Protocol

import torch


class DeviceStream(Protocol):
    """A queue of work."""

    def launch(self, work: Callable[[], object]) -> None:
        """Queue work, which may run now or at any time until something waits for it."""

    def wait(self, event: DeviceEvent) -> None:
        """Let what is queued from now on run behind the work that the event was recorded behind."""


class DeviceEvent(Protocol):
    """A place in a stream: behind all work that was queued when it was last recorded. Before that, nothing to wait for."""

    def record(self, stream: DeviceStream) -> None: ...

    def wait(self) -> None:
        """Make the host wait."""

    def done(self) -> bool:
        """Tell whether that work has ended, without waiting."""


class Streams(Protocol):
    """The streams of one card."""

    def stream(self) -> DeviceStream: ...

    def event(self) -> DeviceEvent: ...

    def current(self, stream: DeviceStream) -> AbstractContextManager[None]:
        """Let operations that are called within the context queue on ``stream``."""

    def settle(self) -> None:
        """Wait until all that was queued has ended."""

    def check(self) -> None:
        """Raise the error of queued work that has failed, after which nothing on the card works any more."""

    def queued(self) -> int:
        """Return how much work is queued that has not ended; of a card, 1 unless all of it has been waited for."""

    def poison(self, memory: torch.Tensor) -> None:
        """Overwrite a host buffer that is taken into use again, where that shows a reader who comes too late."""


CUDA: Any = torch.cuda  # its classes have no annotations


class TorchStream:
    """A stream of torch for CUDA."""

    def __init__(self, streams: TorchStreams) -> None:
        self._streams = streams
        self.of_torch: torch.cuda.Stream = CUDA.Stream(streams.device)

    def launch(self, work: Callable[[], object]) -> None:
        self._streams.settled = False
        with torch.cuda.stream(self.of_torch):
            work()

    def wait(self, event: DeviceEvent) -> None:
        assert isinstance(event, TorchEvent), "an event of other streams"
        self.of_torch.wait_event(event.of_torch)


class TorchEvent:
    """An event of torch for CUDA. A thread that waits sleeps, so that it does not burn a core."""

    def __init__(self) -> None:
        self.of_torch = CUDA.Event(blocking=True)

    def record(self, stream: DeviceStream) -> None:
        assert isinstance(stream, TorchStream), "a stream of other streams"
        self.of_torch.record(stream.of_torch)

    def wait(self) -> None:
        self.of_torch.synchronize()

    def done(self) -> bool:
        return bool(self.of_torch.query())


class TorchStreams:
    """``Streams`` of a card that torch knows, by its number."""

    def __init__(self, device: int) -> None:
        self.device = torch.device("cuda", device)
        self.settled = True

    def stream(self) -> TorchStream:
        return TorchStream(self)

    def event(self) -> TorchEvent:
        return TorchEvent()

    @contextmanager
    def current(self, stream: DeviceStream) -> Iterator[None]:
        assert isinstance(stream, TorchStream), "a stream of other streams"
        self.settled = False
        with torch.cuda.stream(stream.of_torch):
            yield

    def settle(self) -> None:
        torch.cuda.synchronize(self.device)
        self.settled = True

    def check(self) -> None:
        torch.cuda.synchronize(self.device)  # an error stays: every call returns it

    def queued(self) -> int:
        return 0 if self.settled else 1

    def poison(self, memory: torch.Tensor) -> None:
        """Do nothing: a card is too fast for poison to tell much."""
