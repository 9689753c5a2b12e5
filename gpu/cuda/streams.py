"""Streams, events and graphs of the CUDA back end: torch's, behind protocols that ``deferred.py`` also fulfils.

Work of one stream ends in its order. Work of two streams has no order but the one that events give it, and the host may
read a result, or write to a buffer that queued work reads, only after it has waited.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from typing import Any, Protocol

import torch

Ranges = Callable[[], Sequence[tuple[int, int]]]  # address and bytes of each allocation


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
        """Wait until that work has ended."""

    def done(self) -> bool: ...

    def seconds_since(self, earlier: Any) -> float:
        """Return the seconds between two events of one stream that were asked for with ``timed`` and are done."""


class DeviceGraph(Protocol):
    """Work that was recorded, to be queued again as a whole."""

    nbytes: int  # of the card's memory that it takes

    def replay(self, stream: DeviceStream) -> None:
        """Queue the work."""

    def close(self) -> None:
        """Give the graph's memory back. It is not queued, and not replayed any more."""


class Streams(Protocol):
    """Streams of one card."""

    def stream(self) -> DeviceStream: ...

    def event(self, timed: bool = False) -> DeviceEvent: ...

    def record(self, stream: DeviceStream, work: Callable[[], object], static: Ranges) -> DeviceGraph:
        """Record what ``work`` queues on a stream, without running it.

        It has run before, so that nothing is compiled. ``static`` returns the memory that it may name: what stays until the
        graph is dropped.
        """

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

    def retire(self, memory: torch.Tensor) -> None:
        """Take note that memory of the card is given back, so that nothing which is queued may use it."""


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

    def __init__(self, timed: bool) -> None:
        self.of_torch = CUDA.Event(blocking=True, enable_timing=timed)

    def record(self, stream: DeviceStream) -> None:
        assert isinstance(stream, TorchStream), "a stream of other streams"
        self.of_torch.record(stream.of_torch)

    def wait(self) -> None:
        self.of_torch.synchronize()

    def done(self) -> bool:
        return bool(self.of_torch.query())

    def seconds_since(self, earlier: TorchEvent) -> float:
        return float(earlier.of_torch.elapsed_time(self.of_torch)) / 1000


class TorchGraph:
    """A CUDA graph. Its bytes are what the card has less of since it was recorded."""

    def __init__(self, stream: TorchStream, work: Callable[[], object]) -> None:
        self._graph = CUDA.CUDAGraph()
        free, _ = torch.cuda.mem_get_info()
        with torch.cuda.stream(stream.of_torch):
            self._graph.capture_begin(capture_error_mode="thread_local")  # the thread that waits may ask for events
            try:
                work()
            finally:
                self._graph.capture_end()
        self.nbytes = max(0, free - torch.cuda.mem_get_info()[0])

    def replay(self, stream: DeviceStream) -> None:
        stream.launch(self._graph.replay)

    def close(self) -> None:
        self._graph.reset()


class TorchStreams:
    """``Streams`` of a card that torch knows, by its number."""

    def __init__(self, device: int) -> None:
        self.device = torch.device("cuda", device)
        self.settled = True

    def stream(self) -> TorchStream:
        return TorchStream(self)

    def event(self, timed: bool = False) -> TorchEvent:
        return TorchEvent(timed)

    def record(self, stream: DeviceStream, work: Callable[[], object], static: Ranges) -> TorchGraph:
        assert isinstance(stream, TorchStream), "a stream of other streams"
        return TorchGraph(stream, work)

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

    def retire(self, memory: torch.Tensor) -> None:
        """Do nothing: a card does not tell who uses memory."""
