"""Opening of sources: a Hugging Face folder or hub id, an application of a zoo (``ZOO/chains/NAME``), or an adapter over
one.

The one module that knows all of them. None of them reads a tensor when opened; for an application of a zoo the identities
are known, too.
"""

from __future__ import annotations

import fcntl
import os
from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

from ..gpu.errors import CheckpointError
from ..gpu.model.config import ComponentConfig, TensorRef, pools
from ..gpu.regular_file import open_regular
from ..gpu.weights.adapter import is_adapter, open_adapter
from ..gpu.weights.checkpoint import Checkpoint, DeltaPart, Parts, component_of
from ..gpu.weights.checkpoint_files import CheckpointFiles
from ..gpu.weights.embedder import pooled_over
from ..gpu.weights.generation import read_generation
from ..gpu.weights.tensor_files import read_header
from ..policies.adaptive.variants import Swap, folder_and_swaps, swapped, variant_source
from ..policies.model.tiers import folder_and_layers
from .by_hash import wanted
from .disk import check_zoo, is_mirror, link_text
from .errors import ZooDamaged, ZooError
from .layout import CHAIN, TENSOR_NAME, Layout, check_name, data_offset
from .records import StoredChain, StoredTensor, read_chain, read_component


class Hold:
    """A hold on an application of a zoo. It cannot be removed as long as this object lives, and its process."""

    def __init__(self, folder: Path) -> None:
        """Take the hold. Raises ZooError if the application is being removed."""
        self._fd = -1
        try:
            self._fd = open_regular(folder / CHAIN)
            fcntl.flock(self._fd, fcntl.LOCK_SH | fcntl.LOCK_NB)
            # It may have been moved away between the two calls.
            there = os.path.samestat(os.fstat(self._fd), os.stat(folder / CHAIN))
        except (BlockingIOError, FileNotFoundError):
            there = False
        if not there:
            raise ZooError(f"{folder} is being removed; name another application")

    def __del__(self) -> None:
        if self._fd >= 0:
            os.close(self._fd)


def open_source(source: str | Path, base: str | Path = "") -> Checkpoint:
    """Open a source. With ``base``, another source, open the adapter in folder ``source`` over it.

    The source of a tier (``policies/model/tiers.py``) gives the tier, the source of a variant
    (``policies/adaptive/variants.py``) the variant. If its folder lists no exits, a setting named this
    one, and the tier has the top's head. Raises CheckpointError (ZooError for a zoo) if it cannot be served.
    """
    if base:
        return open_adapter(source, open_source(base))
    named, swaps = folder_and_swaps(str(source))
    if swaps:
        return open_chain(Path(named), swaps)
    named, layers = folder_and_layers(named)
    if layers:
        family = open_source(named)
        return (family if family.exits else family.with_shared_exits([layers], f"exits of {named}")).at_exit(layers)
    try:
        folder = Path(source).expanduser().absolute()
        stored = (folder / CHAIN).is_file()
    except (OSError, RuntimeError, ValueError):  # not a valid file name: the checkpoint's reader reports why
        stored = False
    return open_chain(folder) if stored else Checkpoint.open(source)


def open_chain(folder: Path, swaps: Sequence[Swap] = ()) -> Checkpoint:
    """Open the application in a folder of a zoo, or its variant. It cannot be removed until the result is dropped.

    Tensors of a mirror have no place but their hash (``by_hash.py``).
    """
    layout = Layout(folder.parent.parent)
    check_name(folder.name)
    if folder.parent.name != layout.chains.name or folder.is_symlink() or folder.parent.is_symlink():
        raise ZooError(f"{folder} is not in the folder of a zoo; name ZOO/chains/NAME")
    check_zoo(layout)
    try:
        hold = Hold(folder)
        chain = read_chain(folder)
        check_links(layout, chain)
        parts: Parts = []
        deltas: dict[int, DeltaPart] = {}
        known: dict[TensorRef, bytes] = {}
        elsewhere = is_mirror(layout)

        def part(path: Path) -> tuple[Any, dict[str, TensorRef]]:
            stored = read_component(path)
            tensors = stored.tensors.items()
            refs = {role: wanted(tensor) if elsewhere else place(layout, tensor) for role, tensor in tensors}
            known.update((ref, bytes.fromhex(stored.tensors[role].hash)) for role, ref in refs.items())
            return stored.config, refs

        if swaps:
            chain = _variant(chain, swaps)
        for i, id in enumerate(chain.components):
            parts.append(part(layout.component(id)))
            if chain.deltas and chain.deltas[i]:
                deltas[i] = part(layout.delta(chain.deltas[i]))
        if swaps:
            _check_widths(chain.application, [config for config, _ in parts])
        exits = {one.layers: part(layout.component(one.head))[1] for one in chain.exits}
        # the document's values may be of an earlier release
        generation = read_generation(CheckpointFiles(folder), chain.model)
        rules = {one.layers: one.auto for one in chain.exits if one.auto is not None}
        more: dict[str, Any] = {"known": known, "hold": hold, "exits": exits, "thresholds": rules}
        more["pooled"] = pooled_over(CheckpointFiles(folder), chain.model, embeds=pools(parts[-1][0]))
        more["variant"] = variant_source("", swaps)
        return Checkpoint(folder, chain.model, generation, parts, deltas=deltas, **more)
    except OSError as error:
        raise ZooError(f"{error.filename} cannot be read ({error.strerror}); check its permissions") from None


def _variant(chain: StoredChain, swaps: Sequence[Swap]) -> StoredChain:
    """Return a chain with swaps. Raises ZooError if it cannot have them."""
    if any(chain.deltas):
        raise ZooError(f"{chain.application} is an adapter, whose blocks are its base's; swap blocks of its base")
    try:
        return replace(chain, components=swapped(chain.components, swaps), deltas=(), exits=())
    except ValueError as error:
        raise ZooError(f"{chain.application}: {error}") from None


def _check_widths(application: str, configs: Sequence[ComponentConfig]) -> None:
    """Raise ZooError unless each component of a variant takes the states that the one before it gives."""
    components = [component_of(config, b"", 0) for config in configs]
    for depth, (left, right) in enumerate(pairwise(components), 1):
        if left.width_out != right.width_in:
            ours = f"the {left.kind.value} gives states of width {left.width_out}"
            raise ZooError(
                f"{application}: {ours} and the {right.kind.value} at {depth} takes {right.width_in}; name a stitch between "
                "these two models"
            )


def holds_adapter(folder: Path) -> bool:
    """Return whether a folder holds an adapter, possibly one of a zoo, and not a whole model. Raises ZooError."""
    return is_adapter(folder) or ((folder / CHAIN).is_file() and any(read_chain(folder).deltas))


def check_links(layout: Layout, chain: StoredChain) -> None:
    """Check that the folder holds what its document says and that its links lead nowhere else. Raises ZooDamaged."""
    folder = layout.chain(chain.application)
    for name, hash in chain.files.items():
        expected = link_text(layout, layout.file(hash))
        found = os.readlink(folder / name) if (folder / name).is_symlink() else "none"
        if found != expected:
            raise ZooDamaged(folder / name, f"a link to {expected}", found)
    if strange := {entry.name for entry in folder.iterdir()} - chain.files.keys() - {CHAIN}:
        raise ZooDamaged(folder, f"{CHAIN} and {', '.join(sorted(chain.files))}", min(strange))


def place(layout: Layout, tensor: StoredTensor) -> TensorRef:
    """Return the place of a tensor. Raises ZooDamaged if its file is missing, or has another type, shape or size."""
    path = layout.tensor(tensor.hash)
    expected = TensorRef(
        str(path), TENSOR_NAME, tensor.dtype, tensor.shape, data_offset(tensor.dtype, tensor.shape), tensor.nbytes
    )
    if path.is_symlink() or not path.is_file():
        raise ZooDamaged(path, f"{tensor.dtype} {list(tensor.shape)}", "a link" if path.is_symlink() else "no file")
    try:
        found = read_header(path)
    except CheckpointError as error:
        raise ZooDamaged(path, f"{tensor.dtype} {list(tensor.shape)}", str(error)) from None
    if found != {TENSOR_NAME: expected}:
        one = next(iter(found.values()), None)
        raise ZooDamaged(path, f"{tensor.dtype} {list(tensor.shape)}", f"{one.dtype} {list(one.shape)}" if one else "none")
    return expected
