"""KV swapping to host memory instead of recomputation: when a preempted sequence returns.

After InferCept (ICML 2024) and vLLM's swapping, to compare parameter dropping with. The sweep machine chooses the
preempted sequence; its KV moves to host memory while others run on. It comes back when there is room for all of it, the
oldest first. While any sequence is swapped out, no new one starts, as in vLLM. Pure: one queue for each instance, told of
arrivals.
"""

from __future__ import annotations

from dataclasses import dataclass

SPARE = 0.01  # fraction of memory kept free for running sequences (vLLM's watermark)


@dataclass(frozen=True, slots=True)
class SwappedSequence:
    """A sequence with ``pages`` of KV in host memory, or on their way there."""

    request: str
    arrival: float
    pages: int


class SwapQueue:
    """The swapped-out sequences of an instance of ``total`` pages."""

    def __init__(self, total: int) -> None:
        self._total = total
        self._out: dict[str, SwappedSequence] = {}
        self._leaving: set[str] = set()  # sequences whose KV has not arrived in host memory
        self._returning: set[str] = set()

    def leave(self, sequence: SwappedSequence) -> None:
        """Add a sequence whose KV begins to move to host memory."""
        self._out[sequence.request] = sequence
        self._leaving.add(sequence.request)

    def arrived(self, request: str) -> None:
        """Note that its KV is in host memory."""
        self._leaving.discard(request)

    def next(self, free: int, running: int) -> list[SwappedSequence]:
        """Return the sequences whose KV begins to return now. free: pages of the instance. running: sequences there."""
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
        """Remove a sequence whose KV is back."""
        self._returning.discard(request)
        del self._out[request]

    @property
    def left(self) -> int:
        """The number of swapped-out sequences."""
        return len(self._out)

    @property
    def pages(self) -> int:
        """The number of their KV pages."""
        return sum(sequence.pages for sequence in self._out.values())
