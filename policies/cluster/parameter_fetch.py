"""Parameter transfer from another worker: which bytes are requested next, and which components are settled.

Owns the wishes of one load to one source: batches in the order of its components, a few of them requested and not yet
written. Whatever does not come (the source lacks it, dies, or is given up) is read from the checkpoint instead, so nothing
here is an error. Holds no bytes, reads no clock.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Container, Sequence
from dataclasses import dataclass

from ..memory.packed_tensor import PackedTensor, TensorPiece

AHEAD = 4  # limit of batches requested and not written yet
BATCH_BYTES = 4 << 20
SHARE = 64  # divisor: a batch has at most 1/64 of a worker's memory
STALL = 5.0  # seconds without an answer until a source is given up


def batch_bytes(memory: int) -> int:
    """Return the bytes of a batch at a worker with ``memory``; at most ``AHEAD`` batches lie beside its pool."""
    return max(1, min(BATCH_BYTES, memory // SHARE))


Wanted = tuple[bytes, TensorPiece]  # (component, bytes of one of its tensors)


@dataclass(frozen=True, slots=True)
class BatchPart:
    """The part of a batch that belongs to one component. ``at``: its first byte."""

    component: bytes
    at: int
    pieces: list[TensorPiece]


def cut(wanted: Sequence[tuple[bytes, Sequence[PackedTensor]]], batch: int) -> list[list[Wanted]]:
    """Cut the tensors of components, in order, into batches of ``batch`` bytes; the last one may be smaller."""
    batches, filled = list[list[Wanted]](), batch
    for component, tensors in wanted:
        for tensor in tensors:
            first = 0
            while first < tensor.nbytes:
                if filled == batch:
                    batches.append([])
                    filled = 0
                last = min(tensor.nbytes, first + batch - filled)
                batches[-1].append((component, TensorPiece(tensor.id, tensor.nbytes, first, last)))
                filled, first = filled + last - first, last
    return batches


class ParameterFetch:
    """One load's transfer from one source (see the module). wanted: tensors by component. batch: bytes."""

    def __init__(self, wanted: Sequence[tuple[bytes, Sequence[PackedTensor]]], batch: int) -> None:
        self._waiting = deque(cut(wanted, batch))  # not requested yet
        self._asked: dict[int, list[Wanted]] = {}  # by number: requested and not answered
        self._writing: set[int] = set()  # answered and not written
        self._left = {component: 0 for component, _ in wanted}  # component -> pieces still to come, in loading order
        for component, _ in (piece for one in self._waiting for piece in one):
            self._left[component] += 1
        self.missing: set[bytes] = set()  # tensors that the source lacks
        self.nbytes = 0  # bytes received
        self.reason = ""  # why the source was given up, if it was

    @property
    def unanswered(self) -> bool:
        return bool(self._asked)

    @property
    def busy(self) -> bool:
        """True while something may still come, or is being written."""
        return bool(self._waiting or self._asked or self._writing)

    def ask(self, number: int) -> list[TensorPiece]:
        """Return the next batch, to be answered under ``number``; empty if enough are in flight, or none is left."""
        while self._waiting and len(self._asked) + len(self._writing) < AHEAD:
            batch = self._waiting.popleft()
            kept = [(c, piece) for c, piece in batch if c in self._left and piece.id not in self.missing]
            for component, piece in batch:
                if component in self._left and piece.id in self.missing:
                    self._left[component] -= 1
            if kept:
                self._asked[number] = kept
                return [piece for _, piece in kept]
        return []

    def arrived(self, number: int, missing: Container[bytes]) -> list[BatchPart]:
        """Record an arrived batch without its ``missing`` tensors; return the parts to write, until ``written``.

        Empty for a late batch.
        """
        if (batch := self._asked.pop(number, None)) is None:
            return []
        self._writing.add(number)
        found = list[BatchPart]()
        at = 0
        end = 0
        for component, piece in batch:
            if component in self._left:
                self._left[component] -= 1
                if piece.id in missing:
                    self.missing.add(piece.id)
                else:
                    self.nbytes += piece.last - piece.first
                    if not found or found[-1].component != component or end != at:
                        found.append(BatchPart(component, at, []))
                    found[-1].pieces.append(piece)
                    end = at + piece.last - piece.first
            at += piece.last - piece.first
        return found

    def written(self, number: int) -> None:
        """Note that the memory of an arrived batch is free again."""
        self._writing.discard(number)

    def drop(self, component: bytes) -> None:
        """Drop a component that is no longer needed."""
        self._left.pop(component, None)

    def give_up(self, reason: str) -> None:
        """Give the source up: nothing more comes from it."""
        if any(self._left.values()):
            self.reason = reason
        self._waiting.clear()
        self._asked.clear()
        self._left = dict.fromkeys(self._left, 0)

    def settled(self) -> list[bytes]:
        """Return components for which nothing more will come, in order; each is returned once."""
        found = []
        for component, left in self._left.items():
            if left:
                break
            found.append(component)
        for component in found:
            del self._left[component]
        return found
