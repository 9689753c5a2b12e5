"""The subject of ``gpu.py``: a card, or its mirror on this machine; what both must offer, and how time is taken on each.

A card's times come from CUDA events on the stream of the computation; the mirror's from ``time.perf_counter`` around work
that has ended, so they say nothing about any card. Memory is never timed while it holds zeros, and buffers are taken in turn
so that no cache holds the next one.
"""

from __future__ import annotations

import gc
import importlib.util
import math
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from itertools import cycle, pairwise
from typing import Any, Protocol, TypeVar

import torch

from blockwright.gpu.cuda.backend import CudaBackend, Platform
from blockwright.gpu.cuda.deferred import DeferredStreams
from blockwright.gpu.cuda.memory import ChunkMemory
from blockwright.gpu.cuda.mirror import MirrorMemory
from blockwright.gpu.cuda.ops import Ops
from blockwright.gpu.cuda.ops_fast import FAST, fast_on_card, fast_on_host
from blockwright.gpu.cuda.ops_torch import TorchOps
from blockwright.gpu.cuda.tiles import Tiling

CARD, MIRROR = "cuda", "cuda-mirror"
POISON = float("nan")
BEYOND_CACHE = 256 << 20  # bytes of the buffers of one kind together: several times the cache of an H200
DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16}
_T = TypeVar("_T")


class NotBuilt(Exception):
    """Error for a part whose subject is not built yet; the text names it."""


class NotMeasured(Exception):
    """Error for a subject that is built and that this benchmark does not measure yet; the text names it."""


class Card(Protocol):
    """A card or its mirror."""

    name: str
    device: torch.device
    mirrored: bool
    chunk: int  # bytes of a chunk of memory
    cached: int  # bytes of buffers that no cache holds

    def backend(self, dtype: str, bits: str = "invariant") -> CudaBackend:
        """Open a back end. ``bits`` "fast": products by cuBLAS, or what stands for it."""

    def ops(self, dtype: str, tiling: Tiling | None = None) -> Ops:
        """Return operations whose work is queued where ``seconds`` looks, with tiles of one's own where given."""

    def mark(self) -> Any:
        """Return this moment of the back end's computation."""

    def between(self, first: Any, last: Any) -> float:
        """Return the seconds between two marks."""

    def settle(self) -> None:
        """Wait until all that was queued has ended."""

    def release(self) -> None:
        """Give back the memory of all back ends that were opened. They are not used any more."""

    def busy(self, work: Callable[[], object]) -> float:
        """Run ``work``, and return the seconds in which something computed for it."""


class MirrorCard:
    """The mirror: host code of CUDA over operations by torch, for running every line of a benchmark without a card."""

    mirrored = True
    device = torch.device("cpu")
    chunk, cached = 64 << 10, 1 << 16

    def __init__(self) -> None:
        self.name = "mirror: no figure of a card"
        torch.set_num_threads(1)
        self._streams = DeferredStreams(35)
        self._computed = 0.0
        self._memory: list[ChunkMemory] = []

    def backend(self, dtype: str, bits: str = "invariant") -> CudaBackend:
        compute = self._streams.stream()

        def launch(work: Callable[[], object]) -> None:
            compute.launch(lambda: self._timed(work))

        def open_memory(chunk: int, chunks: int) -> MirrorMemory:
            self._memory.append(made := MirrorMemory(chunk, chunks, self._streams.queued))
            return made

        ops: Ops = TorchOps(DTYPES[dtype], launch)
        if bits == FAST:
            ops = fast_on_host(ops, launch)
        return CudaBackend(Platform(MIRROR, self.device, self._streams, compute, ops, open_memory), dtype)

    def ops(self, dtype: str, tiling: Tiling | None = None) -> Ops:
        return TorchOps(DTYPES[dtype], self._timed)

    def mark(self) -> float:
        self._streams.settle()
        return time.perf_counter()

    def between(self, first: float, last: float) -> float:
        return last - first

    def settle(self) -> None:
        self._streams.settle()

    def release(self) -> None:
        _release(self, self._memory)

    def busy(self, work: Callable[[], object]) -> float:
        before = self._computed
        work()
        self.settle()
        return self._computed - before

    def _timed(self, work: Callable[[], object]) -> None:
        began = time.perf_counter()
        work()
        self._computed += time.perf_counter() - began


class RealCard:
    """The first card that torch knows."""

    mirrored = False
    chunk, cached = 2 << 20, BEYOND_CACHE

    def __init__(self) -> None:
        from blockwright.gpu.cuda.streams import TorchStreams

        self.device = torch.device("cuda", 0)
        torch.cuda.set_device(self.device)
        torch.zeros(1, device=self.device)  # makes the context that the driver's calls need
        self.name = torch.cuda.get_device_name(self.device)
        self._streams = TorchStreams(0)
        self._compute = self._streams.stream()
        self._memory: list[ChunkMemory] = []

    def backend(self, dtype: str, bits: str = "invariant") -> CudaBackend:
        from blockwright.gpu.cuda.driver import CudaMemory
        from blockwright.gpu.cuda.platforms import card_platform

        def open_memory(chunk: int, chunks: int) -> CudaMemory:
            self._memory.append(made := CudaMemory(chunk, chunks, 0, self._streams.queued))
            return made

        ops = fast_on_card(0, self.ops(dtype)) if bits == FAST else self.ops(dtype)
        return CudaBackend(card_platform(0, self._streams, self._compute, ops, open_memory), dtype)

    def ops(self, dtype: str, tiling: Tiling | None = None) -> Ops:
        from blockwright.gpu.cuda.ops_triton import TritonOps

        return TritonOps(DTYPES[dtype], tiling)

    def mark(self) -> Any:
        event: Any = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
        event.record(self._compute.of_torch)
        return event

    def between(self, first: Any, last: Any) -> float:
        last.synchronize()
        return float(first.elapsed_time(last)) / 1000

    def settle(self) -> None:
        self._streams.settle()

    def release(self) -> None:
        _release(self, self._memory)
        torch.cuda.empty_cache()

    def busy(self, work: Callable[[], object]) -> float:
        from torch.profiler import ProfilerActivity, profile

        self.settle()
        with profile(activities=[ProfilerActivity.CUDA]) as seen:
            work()
            self.settle()
        return sum(float(event.self_device_time_total) for event in seen.key_averages()) / 1e6

    @contextmanager
    def current(self) -> Iterator[None]:
        """Let torch and Triton queue on the stream whose moments ``mark`` returns."""
        with self._streams.current(self._compute):
            yield


def _release(card: Card, memory: list[ChunkMemory]) -> None:
    card.settle()
    gc.collect()
    while memory:
        memory.pop().close()


def open_card(name: str) -> Card:
    """Open the card of this name. Exits with a sentence where there is none."""
    if name == MIRROR:
        return MirrorCard()
    if not torch.cuda.is_available():
        raise SystemExit(
            f"--device {CARD} needs a card that torch can use; here --device {MIRROR} runs every part without one"
        )
    return RealCard()


def timed(card: Card, work: Sequence[Callable[[], object]], repeats: int) -> list[float]:
    """Return the seconds of each of ``repeats`` calls, which take turns over ``work``: equal work on other buffers.

    Every one of them has run before, so that nothing is compiled or allocated while the time is taken.
    """
    with _queueing(card):
        for one in work:
            one()
        card.settle()
        turns = cycle(work)
        marks = [card.mark()]
        for _ in range(repeats):
            next(turns)()
            marks.append(card.mark())
    return [card.between(first, last) for first, last in pairwise(marks)]


def median_of(card: Card, work: Sequence[Callable[[], object]], repeats: int) -> float:
    return statistics.median(timed(card, work, repeats))


@contextmanager
def _queueing(card: Card) -> Iterator[None]:
    if isinstance(card, RealCard):
        with card.current():
            yield
    else:
        yield


def in_order(card: Card, work: Callable[[], _T]) -> _T:
    """Run ``work`` on the stream of the computation, and wait for it."""
    with _queueing(card):
        found = work()
        card.settle()
    return found


def copies(card: Card, nbytes: int) -> int:
    """Return how many buffers of this size no cache holds together."""
    return max(2, min(64, math.ceil(card.cached / max(1, nbytes))))


def random_tensor(card: Card, *shape: int, dtype: torch.dtype = torch.float32, seed: int = 0, spread: float = 1.0) -> Any:
    """Return normal numbers on the card, made there."""
    generator = torch.Generator(card.device).manual_seed(seed)
    return (torch.randn(*shape, generator=generator, device=card.device) * spread).to(dtype)


def poisoned(card: Card, *shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    """Return memory whose old content would show in any result."""
    return torch.full(shape, POISON, dtype=dtype, device=card.device)


def need(built: str, what: str) -> None:
    """Say what is missing: the module ``built`` of the package, or else a measurement of what it does."""
    try:
        found = importlib.util.find_spec(f"blockwright.{built}")
    except ModuleNotFoundError:
        found = None
    if found is None:
        raise NotBuilt(what)
    raise NotMeasured(f"{built} is built, and no measurement of it here yet: {what}")
