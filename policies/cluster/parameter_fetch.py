"""Parameters that come from another worker: which bytes are asked for next, and when nothing more will come for a component.

Owns what one load wants of one source: batches in the order of its components, a few of them asked for and not yet written.
Whatever does not come (the source has not got it, dies, or is given up) is read from the checkpoint instead, so nothing here
is an error. Holds no bytes, reads no clock.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Container, Sequence
from dataclasses import dataclass

from ..memory.packed_tensor import PackedTensor, TensorPiece

AHEAD = 4  # batches that are asked for and not written yet
BATCH_BYTES = 4 << 20
SHARE = 64  # a batch has at most one part in so many of a worker's memory
STALL = 5.0  # seconds without an answer after which a source is given up


def batch_bytes(memory: int) -> int:
    """Bytes of a batch at a worker with so much memory; ``AHEAD`` of them lie beside its pool at most."""
    return max(1, min(BATCH_BYTES, memory // SHARE))


Wanted = tuple[bytes, TensorPiece]  # component, bytes of a tensor of it


@dataclass(frozen=True, slots=True)
class BatchPart:
    """The part of a batch that is of one component; ``at``: where it begins, in bytes."""

    component: bytes
    at: int
    pieces: list[TensorPiece]


def cut(wanted: Sequence[tuple[bytes, Sequence[PackedTensor]]], batch: int) -> list[list[Wanted]]:
    """Batches of so many bytes, the last one of fewer: tensors of components, in order."""
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
    """See the module. ``wanted``: tensors by component; ``batch``: bytes."""

    def __init__(self, wanted: Sequence[tuple[bytes, Sequence[PackedTensor]]], batch: int) -> None:
        self._waiting = deque(cut(wanted, batch))  # not asked for yet
        self._asked: dict[int, list[Wanted]] = {}  # by number: not answered
        self._writing: set[int] = set()  # answered, and not written
        self._left = {component: 0 for component, _ in wanted}  # pieces that may still come, in the order of loading
        for component, _ in (piece for one in self._waiting for piece in one):
            self._left[component] += 1
        self.missing: set[bytes] = set()  # tensors that the source has not got
        self.nbytes = 0  # that came
        self.reason = ""  # why it was given up, if it was

    @property
    def unanswered(self) -> bool:
        return bool(self._asked)

    @property
    def busy(self) -> bool:
        """Something may still come, or is being written."""
        return bool(self._waiting or self._asked or self._writing)

    def ask(self, number: int) -> list[TensorPiece]:
        """The next batch, which will be answered under ``number``; nothing while enough are under way, or none is left."""
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
        """A batch is here, but for ``missing`` tensors: what is to be written, before ``written`` is told. Of a late one
        nothing."""
        if (batch := self._asked.pop(number, None)) is None:
            return []
        self._writing.add(number)
        found, at, end = list[BatchPart](), 0, 0
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
        """The memory of a batch that came is free again."""
        self._writing.discard(number)

    def drop(self, component: bytes) -> None:
        """Nobody needs it any more."""
        self._left.pop(component, None)

    def give_up(self, reason: str) -> None:
        """Nothing more comes from this source."""
        if any(self._left.values()):
            self.reason = reason
        self._waiting.clear()
        self._asked.clear()
        self._left = dict.fromkeys(self._left, 0)

    def settled(self) -> list[bytes]:
        """Components of which all that will come has come, in order; each is said once."""
        found = []
        for component, left in self._left.items():
            if left:
                break
            found.append(component)
        for component in found:
            del self._left[component]
        return found
