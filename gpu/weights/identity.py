"""Identity of components, deltas and packed tensors: a hash of content, by which models share equal blocks.

Uses no torch; nothing stays resident. A component's id is a 128-bit BLAKE2b of its kind, its configuration (JSON with
sorted keys) and, per role in alphabetical order, the hash of the raw tensor (type, shape, bytes as stored). The place of a
tensor, fusion and packing do not enter. A packed tensor's id is a 128-bit BLAKE2b of the raw tensor's hash and the packed
form, so that neither names nor components enter. A delta's id is made like a component's, from both configurations and its
own tensors. A checkpoint's id is made of the ids of its components and deltas.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict
from typing import Any

from ...policies.model.chain import Kind
from ..errors import CheckpointError
from ..model.config import ComponentConfig, ComponentSpec, TensorRef
from ..model.deltas import DeltaConfig
from ..regular_file import open_regular

_LATER = (("rounded", False),)
PIECE = 256 << 10  # bytes read at a time: small enough to stay in a core's cache while they are hashed and checked
Progress = Callable[[int], None]  # called with the bytes hashed since the last call


class NotFinite(CheckpointError):
    """A tensor has NaN or infinity, or values that become that. ``hash`` is what ``hash_tensor`` would have returned."""

    def __init__(self, ref: TensorRef, hash: bytes) -> None:
        super().__init__(
            f"{ref.path}: tensor {ref.name} has values that are NaN or infinite, or so large (1.8e19 and more) that they "
            "become that, so that every answer would be garbage; repair the model, or train it again"
        )
        self.hash = hash


def begin_hash(dtype: str, shape: Sequence[int]) -> hashlib.blake2b:
    """Return the hash of a raw tensor of this type and shape, before any of its bytes. Its digest has 32 bytes."""
    return hashlib.blake2b(json.dumps([dtype, list(shape)]).encode() + b"\0", digest_size=32)


def pieces(ref: TensorRef) -> Iterator[memoryview]:
    """Yield the tensor's bytes in order, whole values, at most ``PIECE`` bytes at a time.

    Each piece is valid until the next is requested. Raises ``CheckpointError`` if the file has become shorter.
    """
    buffer = memoryview(bytearray(min(PIECE, max(ref.nbytes, 1))))
    fd = open_regular(ref.path)
    try:
        done = 0
        for offset, length in ref.stretches():
            end = offset + length
            while offset < end:
                piece, filled = buffer[: min(len(buffer), end - offset)], 0
                while filled < len(piece):
                    filled += (n := os.preadv(fd, [piece[filled:]], offset + filled))
                    if n == 0:
                        raise CheckpointError(
                            f"{ref.path} ends within tensor {ref.name} ({done + filled} of {ref.nbytes} bytes); "
                            "download it again"
                        )
                yield piece
                offset, done = offset + filled, done + filled
    finally:
        os.close(fd)


def hash_tensor(ref: TensorRef, progress: Progress | None = None) -> bytes:
    """Return 32 bytes over type, shape and content.

    Raises ``CheckpointError`` if the file has become shorter, and ``NotFinite`` for NaN and infinity. This is the one place
    that reads everything that is added, and a tensor that is loaded later must have this hash.
    """
    from .finite import is_finite  # imports numpy, which a process that only reads a zoo does not need

    digest, finite = begin_hash(ref.dtype, ref.shape), True
    for piece in pieces(ref):
        digest.update(piece)
        finite = finite and is_finite(piece, ref.dtype)
        if progress is not None:
            progress(len(piece))
    if not finite:
        raise NotFinite(ref, digest.digest())
    return digest.digest()


def component_id(kind: Kind, config: ComponentConfig, contents: dict[str, bytes]) -> bytes:
    """Return 16 bytes; ``contents`` are tensor hashes by role."""
    digest = hashlib.blake2b(digest_size=16, person=b"blockwright/comp")
    digest.update(json.dumps([kind.value, _content(config)], sort_keys=True).encode())
    for role in sorted(contents):
        digest.update(b"\0" + role.encode() + b"\0" + contents[role])
    return digest.digest()


def checkpoint_id(ids: Sequence[bytes], deltas: Sequence[bytes]) -> bytes:
    """Return 16 bytes over a chain: the identities of its components and deltas, in order.

    Folders with equal ones are interchangeable, whatever their names; tokenizers and templates do not enter.
    """
    digest = hashlib.blake2b(digest_size=16, person=b"blockwright/chck")
    for id, delta in zip(ids, deltas, strict=True):
        digest.update(id + bytes([len(delta)]) + delta)
    return digest.digest()


def _content(config: ComponentConfig) -> dict[str, Any]:
    """Return the fields that enter an identity.

    One that came later enters only with another value than its default, so that stored models keep their identities.
    """
    return {name: value for name, value in asdict(config).items() if (name, value) not in _LATER}


def packed_id(spec: ComponentSpec, role: str, form: str) -> bytes:
    """Return 16 bytes for one tensor of a component in a packed form.

    ``form`` is the form's name and everything else that the packed bytes depend on. If the tensor's hash is not known, the
    component and the role stand in for it; the tensor is then shared with nothing else.
    """
    content = spec.hashes.get(role) or spec.name + b"\0" + role.encode()
    return hashlib.blake2b(content + b"\0" + form.encode(), digest_size=16, person=b"blockwright/pack").digest()


def delta_id(config: ComponentConfig, delta: DeltaConfig, contents: dict[str, bytes]) -> bytes:
    """Return 16 bytes; ``contents`` are tensor hashes by role. The shared component's parameters do not enter."""
    digest = hashlib.blake2b(digest_size=16, person=b"blockwright/dlta")
    digest.update(json.dumps([_content(config), asdict(delta)], sort_keys=True).encode())
    for role in sorted(contents):
        digest.update(b"\0" + role.encode() + b"\0" + contents[role])
    return digest.digest()
