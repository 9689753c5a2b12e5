"""Making of a surrogate: an equivalent smaller block that the zoo knows, or a pruned one; measured, then stored at once."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch

from ...gpu.backend import HostBackend
from ...gpu.errors import CheckpointError
from ...gpu.model.config import ComponentConfig
from ...gpu.weights.checkpoint import KINDS, Checkpoint
from ...gpu.weights.finite import is_finite
from ...gpu.weights.identity import begin_hash, component_id
from ...gpu.weights.loader import DTYPES, read_rows
from ..disk import Disk, Waiting, writing
from ..equivalence.measuring import Progress
from ..equivalence.probe import Probe, Row
from ..equivalence.records import read_equivalences
from ..errors import ZooError
from ..family.network import ChainNetwork
from ..layout import tensor_header
from ..records import StoredComponent, StoredTensor
from ..source import open_chain, place
from ..zoo import Zoo
from .pruning import PrunedComponent, prunable, prune
from .records import EQUIVALENT, PRUNED, StoredSurrogate, stored_surrogates, surrogate_name
from .row_time import RawBlock, row_seconds
from .similarity import states_before, surrogate_figures

HELD_OUT = 4  # one row of this number is not fitted, but measured
NAMES = {dtype: name for name, dtype in DTYPES.items()}  # of types, as safetensors spells them


@dataclass(frozen=True, slots=True)
class SurrogateSite:
    """Components ``first`` to ``last - 1`` of an application of a zoo, which is opened and cannot be removed meanwhile."""

    root: Path
    name: str
    checkpoint: Checkpoint
    first: int
    last: int

    @property
    def block(self) -> tuple[str, ...]:
        """The identities of the components."""
        return Zoo(self.root).chain(self.name).components[self.first : self.last]


def open_site(root: Path, name: str) -> SurrogateSite:
    """Open an application, with all of its components that can be pruned and what lies between them.

    Raises ZooError, and CheckpointError if its blocks can have no surrogates.
    """
    checkpoint = open_chain(Zoo(root).folder(name))
    if checkpoint.deltas:
        raise CheckpointError(f"{name} is an adapter, whose blocks are its base's with a change; name its base")
    if checkpoint.embeds:
        raise CheckpointError(f"{name} gives vectors and has no vocabulary to compare by; name a model that generates")
    return narrowed(SurrogateSite(root, name, checkpoint, 0, len(checkpoint)), "the whole chain")


def narrowed(site: SurrogateSite, said: str) -> SurrogateSite:
    """Return a site without components at its ends from which nothing can be removed. ``said``: how the caller named it.

    Raises CheckpointError if none is left.
    """
    places = [i for i in range(site.first, site.last) if prunable(site.checkpoint.parts[i][0])]
    if not places:
        raise CheckpointError(
            f"{said} of {site.name} has no heads and no columns to remove; name layers, such as 'layers 0-1'"
        )
    return SurrogateSite(site.root, site.name, site.checkpoint, places[0], places[-1] + 1)


def make_surrogate(
    site: SurrogateSite,
    probe: Probe,
    backend: HostBackend,
    threads: int,
    *,
    progress: Progress,
    waiting: Waiting | None = None,
) -> StoredSurrogate:
    """Make, measure and store a surrogate. One that was made with the same probe is returned as it is stored.

    Raises ZooError; the zoo is unchanged then.
    """
    zoo, block = Zoo(site.root), site.block
    digest = probe.digest(())
    equivalent = _smaller(zoo, block)
    if (stored := _stored(zoo, block, digest, equivalent)) is not None:
        return stored
    with writing(site.root, waiting=waiting):
        pass  # a zoo that cannot be written is refused before minutes of work
    rows = random.Random(0).sample(probe.rows, len(probe.rows))
    held_out = -(-len(rows) // HELD_OUT)
    network = ChainNetwork(site.checkpoint)
    raw = raw_block(zoo, block)
    surrogate = raw_block(zoo, equivalent) if equivalent else _pruned(network, site, raw, rows[held_out:], progress)
    components = [_component(config, weights) for config, weights in surrogate]
    ids = tuple(one.id for one in components)
    if ids == block:
        raise ZooError(f"{site.name} has nothing to remove there; name another block")
    figures = surrogate_figures(network, site.first, site.last, surrogate, rows[:held_out])
    block_seconds, seconds = row_seconds(backend, [raw, surrogate])
    made = StoredSurrogate(
        block=block,
        surrogate=ids,
        made=EQUIVALENT if equivalent else PRUNED,
        probe=digest,
        tokens=figures.tokens,
        similarity=figures.similarity,
        low=figures.low,
        kl=figures.kl,
        agreement=figures.agreement,
        block_seconds=block_seconds,
        seconds=seconds,
        numerics=backend.numerics,
        threads=threads,
        block_bytes=_nbytes(raw),
        nbytes=_nbytes(surrogate),
    )
    with writing(site.root, waiting=waiting) as disk:
        _store(disk, made, components, surrogate)
    return made


def raw_block(zoo: Zoo, ids: Sequence[str]) -> list[tuple[ComponentConfig, dict[str, torch.Tensor]]]:
    """Return components of a zoo with their parameters as they are stored. Raises ZooDamaged."""
    found = []
    for stored in map(zoo.component, ids):
        refs = {role: place(zoo.layout, tensor) for role, tensor in stored.tensors.items()}
        assert isinstance(stored.config, tuple(KINDS)), "no delta is among the components"
        found.append((stored.config, {role: read_rows(ref, 0, ref.shape[0]).clone() for role, ref in refs.items()}))
    return found  # type: ignore[return-value]


def _pruned(
    network: ChainNetwork, site: SurrogateSite, raw: RawBlock, rows: Sequence[Row], progress: Progress
) -> list[tuple[ComponentConfig, dict[str, torch.Tensor]]]:
    components = [network.component(network.parameters, i) for i in range(site.first, site.last)]
    dtypes = [{role: one.dtype for role, one in weights.items()} for _, weights in raw]
    found: list[PrunedComponent] = prune(components, dtypes, states_before(network, rows, site.first), progress)
    return [(one.config, one.weights) for one in found]


def _smaller(zoo: Zoo, block: tuple[str, ...]) -> tuple[str, ...]:
    """Return the smallest block that counts as an equivalent of a block and has fewer bytes; () if there is none."""
    sizes = {block: sum(zoo.component(id).nbytes for id in block)}
    for path in sorted(zoo.layout.equivalences.glob("*.json")):
        for pair in read_equivalences(path).pairs:
            if pair.block == block and pair.counts:
                sizes[pair.equivalent] = sum(zoo.component(id).nbytes for id in pair.equivalent)
    best = min(sizes, key=lambda one: (sizes[one], one))
    return best if sizes[best] < sizes[block] else ()


def _stored(zoo: Zoo, block: tuple[str, ...], probe: str, equivalent: tuple[str, ...]) -> StoredSurrogate | None:
    for one in stored_surrogates(zoo):
        if (one.block, one.probe) == (block, probe) and equivalent in ((), one.surrogate):
            return one
    return None


def _component(config: ComponentConfig, weights: dict[str, torch.Tensor]) -> StoredComponent:
    tensors = {}
    for role, one in weights.items():
        content, name = _bytes(one), NAMES[one.dtype]
        if not is_finite(memoryview(content), name):
            raise ZooError("a repaired projection has values that are not finite; give a longer or another probe text")
        digest = begin_hash(name, one.shape)
        digest.update(content)
        tensors[role] = StoredTensor(digest.hexdigest(), name, tuple(one.shape))
    contents = {role: bytes.fromhex(tensor.hash) for role, tensor in tensors.items()}
    return StoredComponent(component_id(KINDS[type(config)], config, contents).hex(), config, tensors)


def _store(disk: Disk, made: StoredSurrogate, components: Sequence[StoredComponent], surrogate: RawBlock) -> None:
    layout = disk.layout
    alive = {id for chain in Zoo(layout.root).chains().values() for id in chain.parts}
    if not alive.issuperset(made.block):
        raise ZooError("the application was removed from the zoo while its surrogate was made; add it and repeat")
    for component, (_, weights) in zip(components, surrogate, strict=True):
        for role, tensor in component.tensors.items():
            path = layout.tensor(tensor.hash)
            disk.rely_on(path)
            if not path.is_file():
                disk.folder(path.parent)
                disk.write(path, [tensor_header(tensor.dtype, tensor.shape), _bytes(weights[role])])
        path = layout.component(component.id)
        disk.rely_on(path)
        if not path.is_file():
            disk.write(path, [component.encoded()])
    disk.folder(layout.surrogates)  # an older zoo lacks the folder
    disk.write(layout.surrogate(surrogate_name(made.block, made.surrogate)), [made.encoded()])
    disk.sync()


def _bytes(tensor: torch.Tensor) -> bytes:
    return tensor.contiguous().view(torch.uint8).numpy().tobytes()


def _nbytes(block: RawBlock) -> int:
    return sum(one.numel() * one.element_size() for _, weights in block for one in weights.values())
