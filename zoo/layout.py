"""Layout of a zoo's folder, and valid names.

    zoo.json                     marks the folder as a zoo: the version of its schema
    tensors/3f/3f...safetensors  one raw tensor each, named by the hash of type, shape and bytes
    components/9a....json        kind, configuration and tensors by role of a component, named by its identity
    deltas/d1....json            the same for the delta of an adapter
    profiles/5b....json          device profiles of components, named by the hash of their content
    equivalences/e7....json      measured equivalences of two chains, named by their components
    surrogates/44....json        a block's surrogate with its measurements, named by the components of both
    stitches/51....json          stitches from one chain to another, which are components, too
    files/7c...                  tokenizers, chat templates and configurations, named by the hash of their bytes
    chains/NAME/chain.json       an application: its components in order, base, defaults; beside it links to its files
    tmp/                         files that a writer is making
    lock                         held by the writer

No name or hash from a file becomes a path without a check here.
"""

from __future__ import annotations

import json
import math
import re
import struct
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from ..gpu.model.fields import shown
from ..gpu.weights.tensor_files import ITEM_BYTES
from .errors import ZooError

SCHEMA = 1
CHAIN = "chain.json"
MIRROR_OF = "origin"  # field of zoo.json: the zoo has no tensors of its own, and comes from there
OWN = frozenset(
    (
        *("zoo.json", "tensors", "components", "deltas", "files"),
        *("profiles", "equivalences", "surrogates", "stitches", "chains", "tmp", "lock"),
    )
)
TENSOR_NAME = "tensor"  # the name of the only tensor in each file
ALIGNMENT = 64  # alignment of a tensor's bytes in its file
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}")
_HEX = re.compile(r"[0-9a-f]+")


def check_name(name: str) -> None:
    """Refuse a name that an application cannot have: it becomes a folder and a model id."""
    if not is_name(name):
        raise ZooError(
            f"an application cannot be called {shown(name)}; give at most 100 letters, digits, '.', '_' and '-', "
            "a letter or digit first"
        )


def is_name(name: str) -> bool:
    """Return whether an application can have this name."""
    return _NAME.fullmatch(name) is not None


def data_offset(dtype: str, shape: Sequence[int]) -> int:
    """Return the offset of the bytes of a stored tensor."""
    return len(tensor_header(dtype, shape))


def tensor_header(dtype: str, shape: Sequence[int]) -> bytes:
    """Return the bytes before a stored tensor: safetensors' length and header, padded for alignment."""
    entry = {"dtype": dtype, "shape": list(shape), "data_offsets": [0, tensor_bytes(dtype, shape)]}
    text = json.dumps({TENSOR_NAME: entry}, separators=(",", ":")).encode()
    text += b" " * (-(8 + len(text)) % ALIGNMENT)
    return struct.pack("<Q", len(text)) + text


def tensor_bytes(dtype: str, shape: Sequence[int]) -> int:
    return math.prod(shape) * ITEM_BYTES[dtype]


@dataclass(frozen=True, slots=True)
class Layout:
    """Paths below ``root``. Raises ZooError for invalid names and hashes."""

    root: Path

    @property
    def mark(self) -> Path:
        return self.root / "zoo.json"

    @property
    def tmp(self) -> Path:
        return self.root / "tmp"

    @property
    def tensors(self) -> Path:
        return self.root / "tensors"

    @property
    def components(self) -> Path:
        return self.root / "components"

    @property
    def deltas(self) -> Path:
        return self.root / "deltas"

    @property
    def files(self) -> Path:
        return self.root / "files"

    @property
    def profiles(self) -> Path:
        return self.root / "profiles"

    @property
    def equivalences(self) -> Path:
        return self.root / "equivalences"

    @property
    def surrogates(self) -> Path:
        return self.root / "surrogates"

    @property
    def stitches(self) -> Path:
        return self.root / "stitches"

    @property
    def chains(self) -> Path:
        return self.root / "chains"

    def tensor(self, hash: str) -> Path:
        return self.tensors / _hex(hash, 64)[:2] / f"{hash}.safetensors"

    def component(self, id: str) -> Path:
        return self.components / f"{_hex(id, 32)}.json"

    def delta(self, id: str) -> Path:
        return self.deltas / f"{_hex(id, 32)}.json"

    def file(self, hash: str) -> Path:
        return self.files / _hex(hash, 64)

    def profile(self, hash: str) -> Path:
        return self.profiles / f"{_hex(hash, 32)}.json"

    def equivalence(self, name: str) -> Path:
        return self.equivalences / f"{_hex(name, 32)}.json"

    def surrogate(self, name: str) -> Path:
        return self.surrogates / f"{_hex(name, 32)}.json"

    def stitch(self, name: str) -> Path:
        return self.stitches / f"{_hex(name, 32)}.json"

    def chain(self, name: str) -> Path:
        """Return the folder of an application, which ``open_source`` accepts, too."""
        check_name(name)
        return self.chains / name


def is_hash(text: str, digits: int) -> bool:
    return len(text) == digits and _HEX.fullmatch(text) is not None


def _hex(text: str, digits: int) -> str:
    if not is_hash(text, digits):
        raise ZooError(f"{shown(text)} is no hash of {digits} hexadecimal digits; run 'blockwright zoo verify'")
    return text
