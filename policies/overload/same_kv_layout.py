"""Models with the same KV layout, which can be dropped together as one chain."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace

from ..model.chain import Component


def alike(chains: Iterable[Sequence[Component]]) -> bool:
    """Return whether stages cut at the same depths have the same KV for each chain."""
    first, *others = [[component.kv for component in chain] for chain in chains]
    return all(other == first for other in others)


def united(chains: Sequence[Sequence[Component]]) -> list[Component]:
    """Return one chain for chains that are alike: at each depth the total size, with shared parts counted once."""
    found = []
    for depth in zip(*chains, strict=True):
        shared, deltas = ({c.shared: c.nbytes for c in depth}, {c.delta: c.delta_nbytes for c in depth if c.delta})
        found.append(replace(depth[0], nbytes=sum(shared.values()), delta_nbytes=sum(deltas.values())))
    return found
