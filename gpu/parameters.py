"""Resident parameters: the packed tensors in a worker's memory, and the components and deltas made of them.

Each packed tensor has a checksum, made as it is packed from values that had the hash of the raw tensor. It goes with the
tensor from worker to worker, and is compared wherever the tensor arrives.

Decides nothing: the plan says where a tensor lies (``policies/memory/residence.py``). Used by the device thread alone.
"""

from __future__ import annotations

import hashlib
from collections.abc import Generator, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import torch

from ..policies.memory.packed_tensor import TensorPiece
from .backend import Backend, Packed, PackedPart
from .device import Arena
from .errors import ExecutorError
from .model.config import ComponentSpec
from .weights.loader import HashedTensor, read_delta

ALIGNMENT = 64  # bytes; alignment of packed tensors
_WORD, _COLUMNS = 8, 1024  # of a checksum: bytes of a word, and words of a row


class Checksum:
    """A checksum of bytes that come piece by piece, which any flipped bit changes.

    The bytes are rows of 64-bit words; the words of each column are added up, and the sums are hashed. So it takes a small
    part of the time that a hash of all bytes would, and is no proof against intent.
    """

    def __init__(self) -> None:
        self._sums = np.zeros(_COLUMNS, np.uint64)

    def add(self, at: int, piece_B: np.ndarray) -> None:
        """Add a piece that begins at byte ``at``: uint8 of any length."""
        before, after = at % _WORD, -(at + piece_B.size) % _WORD
        if before or after:
            piece_B = np.pad(piece_B, (before, after))
        words = piece_B.view(np.uint64)
        whole = words.size // _COLUMNS * _COLUMNS
        sums = np.add.reduce(words[:whole].reshape(-1, _COLUMNS), axis=0)
        sums[: words.size - whole] += words[whole:]
        first = at // _WORD % _COLUMNS
        self._sums[first:] += sums[: _COLUMNS - first]
        self._sums[:first] += sums[_COLUMNS - first :]

    def digest(self) -> bytes:
        """Return 8 bytes over all that was added."""
        return hashlib.blake2b(self._sums.tobytes(), digest_size=8).digest()


class ResidentParameters:
    """The resident parameters of one worker (see the module).

    ``components`` and ``deltas`` can be composed and attached; both are by id. A step of a load or a copy handles about
    ``slice_bytes``, the device's.
    """

    def __init__(self, backend: Backend, arena: Arena, slice_bytes: int) -> None:
        self._backend, self._arena = backend, arena
        self.slice_bytes = slice_bytes
        self._tensors: dict[bytes, tuple[int, torch.Tensor]] = {}  # packed ones, by id: offset and memory
        self._loading: dict[bytes, Generator[None, None, None]] = {}  # components with tensors still to be packed
        self._checksums: dict[bytes, bytes] = {}  # of packed tensors, by id
        self._arriving: dict[bytes, tuple[int, Checksum]] = {}  # from another worker: bytes written so far
        self.components: dict[bytes, Packed] = {}
        self.deltas: dict[bytes, Any] = {}

    def load(self, spec: ComponentSpec, offsets: Sequence[int]) -> Iterator[None]:
        """Read a component's tensors and pack them at these offsets of the parameters arena.

        The arena must be committed there. For an adapted component the delta is loaded; what it shares is loaded by itself.

        ``offsets`` has one offset for each part that the back end names. A tensor that is packed already is not packed
        again. Each step of the iterator packs about a slice; the component can be composed when the iterator has
        ended. A tensor that differs from its hash raises ``CheckpointError`` and is not registered, because packed tensors
        are shared by that hash.
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
                tensors = yield from self._together(read_delta(spec, spec.delta, self.slice_bytes))
                self.deltas[id] = yield from self._together(self._backend.pack_delta(spec, tensors, memory))
                self._tensors[part.id] = offset, memory
                return
            for part, offset in places:
                known = self._tensors.get(part.id)
                if known is not None and known[0] != offset:
                    raise ExecutorError(f"{part.role} of component {id.hex()} is packed at {known[0]} already, not {offset}")
                if known is not None:
                    continue
                self._arriving.pop(part.id, None)  # the rest of a transfer, if it still arrives, is too late
                memory, raw = self._arena.view(offset, part.nbytes), spec.tensors[part.role]
                source, checksum = HashedTensor(raw, spec.hashes.get(part.role)), Checksum()
                for first, last, nbytes in self._slices(part, raw.nbytes):
                    if done and done + nbytes > self.slice_bytes:
                        done = 0
                        yield
                    begin, piece = part.piece(first, last)
                    with self._arena.window(offset + begin, piece.nbytes) as window:
                        self._backend.pack(piece, source.read(first, last), window)
                        checksum.add(begin, window.numpy())
                    done += nbytes
                source.check()
                self._checksums[part.id] = checksum.digest()
                self._tensors[part.id] = offset, memory
            self.components[id] = self._backend.assemble(spec, {part.role: self._tensors[part.id][1] for part, _ in places})
        finally:
            self._loading.pop(id, None)

    def lacking(self, spec: ComponentSpec) -> list[str]:
        """Return the roles of raw tensors that a load of this spec would read."""
        if spec.delta is not None:
            return [*spec.delta.tensors]
        return [part.role for part in self._backend.parts(spec) if part.id not in self._tensors]

    def unload(self, component_id: bytes, tensors: Sequence[bytes]) -> None:
        """Drop a component or a delta, or stop its loading, and drop tensors that nothing else needs."""
        self.components.pop(component_id, None)
        self.deltas.pop(component_id, None)
        if (loading := self._loading.pop(component_id, None)) is not None:
            loading.close()
        for id in tensors:
            self._tensors.pop(id, None)
            self._checksums.pop(id, None)
            self._arriving.pop(id, None)

    # between workers: packed tensors unchanged, since equal ids mean equal bytes

    def read(
        self, pieces: Sequence[TensorPiece], memory: Any, missing: list[bytes], checksums: dict[bytes, bytes]
    ) -> Iterator[None]:
        """Copy pieces of packed tensors into ``memory`` (writable, bytes-like), about a slice per step.

        For a tensor that is not here, or not any more, the bytes are left unchanged, and its id is appended to ``missing``.
        With the last piece of a tensor its checksum is put into ``checksums``.
        """
        out_B, at = np.frombuffer(memory, dtype=np.uint8), 0
        for piece in pieces:
            for first in range(piece.first, piece.last, self.slice_bytes):
                last = min(first + self.slice_bytes, piece.last)
                packed = self._tensors.get(piece.id)  # looked up at each step, because it may be unloaded between two
                if packed is None or packed[1].numel() != piece.nbytes:
                    missing.append(piece.id)
                    break
                self._arena.read(packed[0] + first, out_B[at + first - piece.first :][: last - first])
                yield
            if piece.last == piece.nbytes and piece.id in self._checksums:
                checksums[piece.id] = self._checksums[piece.id]
            at += piece.last - piece.first

    def write(
        self,
        pieces: Sequence[tuple[TensorPiece, int]],
        came: Any,
        checksums: Mapping[bytes, bytes],
        damaged: list[bytes],
    ) -> Iterator[None]:
        """Write bytes from ``read`` to the places of their tensors, step by step.

        A tensor counts as packed once its last byte has arrived. One that was packed meanwhile, or lacks an earlier piece,
        is left unchanged. One that differs from its checksum does not count, and its id is appended to ``damaged``; the last
        release gave no checksums, and what has none is taken.
        """
        came_B, at = np.frombuffer(came, dtype=np.uint8), 0
        for piece, offset in pieces:
            size = piece.last - piece.first
            there, checksum = self._arriving.get(piece.id, (0, Checksum()))
            if piece.first == 0:
                there, checksum = 0, Checksum()
            if piece.id not in self._tensors and piece.first == there:
                for first in range(0, size, self.slice_bytes):
                    last = min(first + self.slice_bytes, size)
                    with self._arena.window(offset + piece.first + first, last - first) as window:
                        window.numpy()[:] = came_B[at + first : at + last]
                    checksum.add(piece.first + first, came_B[at + first : at + last])
                    yield
                self._arriving[piece.id] = piece.last, checksum
                if piece.last == piece.nbytes:
                    del self._arriving[piece.id]
                    self._arrived(piece.id, offset, piece.nbytes, checksum.digest(), checksums, damaged)
            at += size

    def _arrived(
        self, id: bytes, offset: int, nbytes: int, found: bytes, checksums: Mapping[bytes, bytes], damaged: list[bytes]
    ) -> None:
        """Count a tensor as packed, unless it differs from its checksum."""
        if checksums.get(id, found) == found:
            self._tensors[id], self._checksums[id] = (offset, self._arena.view(offset, nbytes)), found
        else:
            damaged.append(id)

    def _together(self, steps: Generator[int, None, Any]) -> Generator[None, None, Any]:
        """Run small steps, which yield the bytes that they packed, about a slice at a time. Return their value."""
        done = 0
        while True:
            try:
                done += next(steps)
            except StopIteration as end:
                return end.value
            if done >= self.slice_bytes:
                done = 0
                yield

    def _slices(self, part: PackedPart, nbytes: int) -> Iterator[tuple[int, int, int]]:
        """Yield (first row, last row + 1, bytes) of each slice of a raw tensor of ``nbytes`` that is packed at once."""
        rows = part.shape[0]
        row = max(1, nbytes // max(1, rows))
        step = max(1, self.slice_bytes // (row * part.together)) * part.together
        for first in range(0, rows, step):
            last = min(first + step, rows)
            yield first, last, (last - first) * row
