"""Traffic: how often activations pass from each component of a chain to the next, and what that costs if it crosses workers.

Workers count the passages of each application; a *pair* is two neighbouring components. Chains that share both components of
a pair share its count, and variants count: their passages are added where the components belong. Pure.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import pairwise
from typing import NamedTuple, Protocol

from ..model.chain import Component

Pair = tuple[bytes, bytes]
VALUE_BYTES = 4  # of an activation, at most
TOP = 8  # pairs whose order counts


@dataclass(frozen=True, slots=True)
class LinkCost:
    """The cost of crossing: seconds of a message until the next worker begins, and bytes of activations in a second."""

    latency: float = 500e-6
    rate: float = 1e9


UNMEASURED = LinkCost()


class Passages(NamedTuple):
    """The passages of an application through its chain: sweeps that had rows of it, and positions of these rows."""

    sweeps: int
    positions: int


class Counted(Protocol):
    """An application, as far as its traffic counts."""

    @property
    def components(self) -> tuple[Component, ...]: ...

    @property
    def variant_of(self) -> str: ...


def top_pairs(passages: Mapping[str, Passages], chains: Mapping[str, Counted]) -> tuple[tuple[str, ...], ...]:
    """Return the pairs with most positions, most first. Pairs that the same applications pass count as one.

    Each is named by these applications. Ties go by name.
    """
    by: dict[Pair, list[str]] = {}
    for name in passages:
        if name in chains:
            for pair in dict.fromkeys(_pairs(chains[name])):
                by.setdefault(pair, []).append(name)
    counts = {those: sum(passages[name].positions for name in those) for those in {tuple(sorted(of)) for of in by.values()}}
    return tuple(sorted((those for those in counts if counts[those]), key=lambda those: (-counts[those], those))[:TOP])


def crossing_seconds(
    passages: Mapping[str, Passages], chains: Mapping[str, Counted], link: LinkCost = UNMEASURED
) -> dict[str, list[float]]:
    """Return, for each application but variants, the seconds that it costs to cross before each component of its chain.

    A variant's passages count for the application that has the pair: the one in whose place it serves, else another one. A
    pair that only the variant has belongs to no worker.
    """
    found = {name: [0.0] * len(one.components) for name, one in chains.items() if not one.variant_of}
    owners: dict[Pair, tuple[str, int]] = {}
    for name in found:
        for depth, pair in enumerate(_pairs(chains[name]), 1):
            owners.setdefault(pair, (name, depth))
    for name, passed in passages.items():
        if name not in chains:
            continue
        one = chains[name]
        own = one.variant_of if one.variant_of in found else name if name in found else ""
        at = {pair: (own, depth) for depth, pair in enumerate(_pairs(chains[own]), 1)} if own else {}
        for pair, component in zip(_pairs(one), one.components, strict=False):
            if (place := at.get(pair) or owners.get(pair)) is not None:
                found[place[0]][place[1]] += seconds_of(passed, component.width_out, link)
    return found


def seconds_of(passed: Passages, width: int, link: LinkCost = UNMEASURED) -> float:
    """Return the seconds that these passages take if they cross, with ``width`` values for each position."""
    return passed.sweeps * link.latency + passed.positions * width * VALUE_BYTES / link.rate


def _pairs(one: Counted) -> Iterator[Pair]:
    return pairwise([component.shared for component in one.components])
