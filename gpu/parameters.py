"""The parameters in a worker's memory: packed tensors, the components that they make, and deltas.

Obeys: where a tensor lies is the plan's (``policies/memory/residence.py``). Used by the device thread alone.
"""

from __future__ import annotations

from collections.abc import Generator, Iterator, Sequence
from typing import Any

import numpy as np
import torch

from ..policies.memory.packed_tensor import TensorPiece
from .backend import SLICE, Backend, Packed, PackedPart
from .errors import ExecutorError
from .memory import Arena
from .model.config import ComponentSpec
from .weights.loader import HashedTensor, read_delta

ALIGNMENT = 64  # bytes, of packed tensors


class ResidentParameters:
    """See the module. ``components`` and ``deltas``: what can be composed and attached, by id."""

    def __init__(self, backend: Backend, arena: Arena) -> None:
        self._backend, self._arena = backend, arena
        self._tensors: dict[bytes, tuple[int, torch.Tensor]] = {}  # packed: offset and memory, by id
        self._loading: dict[bytes, Generator[None, None, None]] = {}  # components of which not all tensors are packed
        self._arriving: dict[bytes, int] = {}  # tensors that come from another worker: bytes that are written
        self.components: dict[bytes, Packed] = {}
        self.deltas: dict[bytes, Any] = {}

    def load(self, spec: ComponentSpec, offsets: Sequence[int]) -> Iterator[None]:
        """Read a component's tensors and pack them at these bytes of the parameters arena, which is committed there.

        Of a variant its delta is loaded; the component that it shares is loaded by itself.

        ``offsets``: of each part that the back end names. What is packed already is not packed again. Each step of the
        iterator packs about ``SLICE`` bytes; the component can be composed when it has ended. What is not what was hashed
        raises ``CheckpointError`` and is not registered, as packed tensors are shared by that hash.
        """
        id, parts = spec.name, self._backend.parts(spec)
        if id in self.components or id in self.deltas or id in self._loading:
            raise ExecutorError(f"component {id.hex()} is already loaded; load it once and count its holders")
        for part, offset in zip(parts, offsets, strict=True):
            if offset % ALIGNMENT:
                raise ExecutorError(f"offset {offset} of {part.role} of component {id.hex()} is no multiple of {ALIGNMENT}")
        self._loading[id] = steps = self._load(spec, list(zip(parts, offsets, strict=True)))
        return steps

    def _load(self, spec: ComponentSpec, places: list[tuple[PackedPart, int]]) -> Generator[None, None, None]:
        id, done = spec.name, 0
        try:
            if spec.delta is not None:
                ((part, offset),) = places
                memory = self._arena.view(offset, part.nbytes)
                tensors = yield from _together(read_delta(spec, spec.delta, SLICE))
                self.deltas[id] = yield from _together(self._backend.pack_delta(spec, tensors, memory))
                self._tensors[part.id] = offset, memory
                return
            for part, offset in places:
                known = self._tensors.get(part.id)
                if known is not None and known[0] != offset:
                    raise ExecutorError(f"{part.role} of component {id.hex()} is packed at {known[0]} already, not {offset}")
                if known is not None:
                    continue
                self._arriving.pop(part.id, None)  # what may still come of it comes too late
                memory, raw = self._arena.view(offset, part.nbytes), spec.tensors[part.role]
                source = HashedTensor(raw, spec.hashes.get(part.role))
                for first, last, nbytes in _slices(part, raw.nbytes):
                    if done and done + nbytes > SLICE:
                        done = 0
                        yield
                    self._backend.pack(part, source.read(first, last), memory, first)
                    done += nbytes
                source.check()
                self._tensors[part.id] = offset, memory
            self.components[id] = self._backend.assemble(spec, {part.role: self._tensors[part.id][1] for part, _ in places})
        finally:
            self._loading.pop(id, None)

    def unload(self, component_id: bytes, tensors: Sequence[bytes]) -> None:
        """Forget a component or a delta, or stop loading it, and packed tensors that nothing else needs."""
        self.components.pop(component_id, None)
        self.deltas.pop(component_id, None)
        if (loading := self._loading.pop(component_id, None)) is not None:
            loading.close()
        for id in tensors:
            self._tensors.pop(id, None)
            self._arriving.pop(id, None)

    # between workers: packed tensors as they are, since equal ids mean equal bytes

    def read(self, pieces: Sequence[TensorPiece], memory: Any, missing: list[bytes]) -> Iterator[None]:
        """Copy pieces of tensors that are packed here into ``memory`` (writable, bytes-like), about ``SLICE`` bytes at a
        step. Of a tensor that is not here, or not any more, the bytes stay as they are, and its id goes to ``missing``."""
        out_B, at = np.frombuffer(memory, dtype=np.uint8), 0
        for piece in pieces:
            for first in range(piece.first, piece.last, SLICE):
                last = min(first + SLICE, piece.last)
                packed = self._tensors.get(piece.id)  # looked up at each step: it may be unloaded between two
                if packed is None or packed[1].numel() != piece.nbytes:
                    missing.append(piece.id)
                    break
                out_B[at + first - piece.first :][: last - first] = packed[1][first:last].numpy()
                yield
            at += piece.last - piece.first

    def write(self, pieces: Sequence[tuple[TensorPiece, int]], came: Any) -> Iterator[None]:
        """Lay what ``read`` gave of these pieces at these places of their tensors, step by step. A tensor of which all has
        come is packed; one that was packed meanwhile, or lacks an earlier piece, is left as it is."""
        came_B, at = np.frombuffer(came, dtype=np.uint8), 0
        for piece, offset in pieces:
            size = piece.last - piece.first
            if piece.id not in self._tensors and piece.first in (0, self._arriving.get(piece.id)):
                memory = self._arena.view(offset, piece.nbytes)
                for first in range(0, size, SLICE):
                    last = min(first + SLICE, size)
                    memory[piece.first + first : piece.first + last].numpy()[:] = came_B[at + first : at + last]
                    yield
                self._arriving[piece.id] = piece.last
                if piece.last == piece.nbytes:
                    del self._arriving[piece.id]
                    self._tensors[piece.id] = offset, memory
            at += size


def _together(steps: Generator[int, None, Any]) -> Generator[None, None, Any]:
    """The value of small steps, which say how many bytes they packed, taken ``SLICE`` bytes at a time."""
    done = 0
    while True:
        try:
            done += next(steps)
        except StopIteration as end:
            return end.value
        if done >= SLICE:
            done = 0
            yield


def _slices(part: PackedPart, nbytes: int) -> Iterator[tuple[int, int, int]]:
    """Rows of a raw tensor of so many bytes, first and last + 1, that are packed at once, and their bytes."""
    rows = part.shape[0]
    row = max(1, nbytes // max(1, rows))
    step = max(1, SLICE // (row * part.together)) * part.together
    for first in range(0, rows, step):
        last = min(first + step, rows)
        yield first, last, (last - first) * row
