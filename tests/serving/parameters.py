"""Parameters of a simulated device: where packed tensors lie, and what is read of them for other workers and written."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from blockwright.policies.memory.packed_tensor import TensorPiece


class SimulatedParameters:
    """The places of packed tensors, and tensors that come from other workers.

    The bytes of a tensor are its id, repeated; so is its checksum. ``backed``: chunks that have memory, of ``chunk`` bytes.
    """

    def __init__(self, backed: dict[tuple[str, int], int], chunk: int) -> None:
        self.tensors: dict[bytes, range] = {}  # bytes of the parameters arena
        self._arriving: dict[bytes, int] = {}
        self._backed, self._chunk = backed, chunk

    def place(self, id: bytes, place: range) -> None:
        """A tensor is packed there."""
        self.touch(place)
        for other in self.tensors.values():
            assert other.stop <= place.start or place.stop <= other.start, "a tensor is loaded over another"
        self.tensors[id] = place
        self._arriving.pop(id, None)

    def touch(self, place: range) -> None:
        for unit in range(place.start // self._chunk, -(-place.stop // self._chunk)):
            assert ("parameters", unit) in self._backed, "parameters are loaded where no memory is"

    def forget(self, id: bytes) -> None:
        self.tensors.pop(id, None)
        self._arriving.pop(id, None)

    def read(
        self, pieces: Sequence[TensorPiece], memory: bytearray, missing: list[bytes], checksums: dict[bytes, bytes]
    ) -> Iterator[None]:
        at = 0
        for piece in pieces:
            size = piece.last - piece.first
            if piece.id in self.tensors:
                self.touch(self.tensors[piece.id])
                memory[at : at + size] = (piece.id * piece.nbytes)[piece.first : piece.last]
                checksums |= {piece.id: piece.id} if piece.last == piece.nbytes else {}
            else:
                missing.append(piece.id)
            at += size
            yield

    def write(
        self,
        pieces: Sequence[tuple[TensorPiece, int]],
        came: memoryview,
        checksums: Mapping[bytes, bytes],
        damaged: list[bytes],
    ) -> Iterator[None]:
        at = 0
        for piece, offset in pieces:
            size = piece.last - piece.first
            assert came[at : at + size] == (piece.id * piece.nbytes)[piece.first : piece.last], "other bytes came"
            if piece.id not in self.tensors and piece.first in (0, self._arriving.get(piece.id)):
                self.touch(range(offset, offset + piece.nbytes))
                self._arriving[piece.id] = piece.last
                if piece.last == piece.nbytes:
                    assert checksums[piece.id] == piece.id, "another checksum came"
                    assert not damaged
                    self.place(piece.id, range(offset, offset + piece.nbytes))
            at += size
            yield
