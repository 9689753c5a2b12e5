"""KV that is swapped to host memory instead of computed again: when a preempted sequence returns.

After InferCept (ICML 2024) and vLLM's swapping, to compare a drop of parameters with. Who is preempted is the sweep
machine's decision; its KV moves to host memory while others run on. It comes back when there is room for all of it, the
oldest first, and as long as anybody is out nobody who has not started yet does, as in vLLM.

Pure: one queue for each instance, told of what has arrived.
"""

from __future__ import annotations

from dataclasses import dataclass

SPARE = 0.01  # share of the memory that stays free for those who run (vLLM's watermark)


@dataclass(frozen=True, slots=True)
class SwappedSequence:
    """``pages`` of KV are in host memory, or on their way there."""

    request: str
    arrival: float
    pages: int


class SwapQueue:
    """The sequences of an instance of ``total`` pages whose KV is not there."""

    def __init__(self, total: int) -> None:
        self._total = total
        self._out: dict[str, SwappedSequence] = {}
        self._leaving: set[str] = set()  # whose KV has not arrived in host memory
        self._returning: set[str] = set()

    def leave(self, sequence: SwappedSequence) -> None:
        """Its KV begins to move to host memory."""
        self._out[sequence.request] = sequence
        self._leaving.add(sequence.request)

    def arrived(self, request: str) -> None:
        """Its KV is in host memory."""
        self._leaving.discard(request)

    def next(self, free: int, running: int) -> list[SwappedSequence]:
        """Those whose KV begins to come back now. ``free``: pages of the instance; ``running``: sequences there."""
        found = list[SwappedSequence]()
        spare = round(SPARE * self._total) if running or self._returning else 0
        for sequence in sorted(self._out.values(), key=lambda one: (one.arrival, one.request)):
            if sequence.request in self._returning:
                continue
            free -= sequence.pages + 1
            if sequence.request in self._leaving or free < spare:
                break
            self._returning.add(sequence.request)
            found.append(sequence)
            spare = round(SPARE * self._total)
        return found

    def returned(self, request: str) -> None:
        """Its KV is back."""
        self._returning.discard(request)
        del self._out[request]

    @property
    def left(self) -> int:
        """Sequences that are out."""
        return len(self._out)

    @property
    def pages(self) -> int:
        """Of their KV."""
        return sum(sequence.pages for sequence in self._out.values())
