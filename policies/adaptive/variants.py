"""Variants of an application: chains in which blocks of other applications stand in for its own.

A variant is a chain like any other, with its own lineage. It has no parameters of its own but stitches, which join blocks of
different widths: all other components belong to applications of the same zoo. Its source names the application's folder and
the swapped components.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

from .equivalence import EquivalenceLimits

MOST_VARIANTS = 8  # of one application
LIMITS = EquivalenceLimits()  # of a single swap, held for all swaps of a variant together
_SWAP = r"\d{1,9}-\d{1,9}=[0-9a-f]{32}(?:\+[0-9a-f]{32})*"
_SOURCE = re.compile(rf"(.+)/variant:({_SWAP}(?:,{_SWAP})*)", re.DOTALL)


@dataclass(frozen=True, slots=True, order=True)
class Swap:
    """Components ``first`` .. ``last`` (exclusive) of a chain, and the identities that replace them, stitches among them."""

    first: int
    last: int
    ids: tuple[str, ...]

    def __str__(self) -> str:
        return f"{self.first}-{self.last}={'+'.join(self.ids)}"


@dataclass(frozen=True, slots=True)
class Equivalent:
    """A block of another application that may stand in for one of this chain.

    ``lost``: answers lost by the swap in 100; None: not judged. ``kl``: divergence of the output in nats; None: not
    measured.
    """

    swap: Swap
    donor: str
    lost: float | None = None
    kl: float | None = None


@dataclass(frozen=True, slots=True)
class Variant:
    """A chain that may serve in place of another one. ``donors``: the applications whose blocks stand in.

    rank: place in the order of accuracy; 0: as accurate as the chain itself.
    """

    swaps: tuple[Swap, ...]
    donors: tuple[str, ...]
    lost: float = 0.0
    rank: int = 0


def variant_source(folder: str, swaps: Sequence[Swap]) -> str:
    """Return the source of the variant of an application in a folder of a zoo; without swaps, the folder itself."""
    return f"{folder}/variant:{','.join(map(str, swaps))}" if swaps else folder


def folder_and_swaps(source: str) -> tuple[str, tuple[Swap, ...]]:
    """Return the folder of a source, and the swaps of its variant: none for every other source."""
    found = _SOURCE.fullmatch(source)
    if found is None:
        return source, ()
    swaps = []
    for text in found[2].split(","):
        places, _, ids = text.partition("=")
        first, _, last = places.partition("-")
        swaps.append(Swap(int(first), int(last), tuple(ids.split("+"))))
    return found[1], tuple(swaps)


def swapped(components: Sequence[str], swaps: Iterable[Swap]) -> tuple[str, ...]:
    """Return the chain with its swaps. Raises ValueError if they overlap or lie outside the chain."""
    found, end = list[str](), 0
    for swap in sorted(swaps):
        if not end <= swap.first < swap.last <= len(components):
            raise ValueError(f"components {swap.first} to {swap.last - 1} cannot be swapped in a chain of {len(components)}")
        found += [*components[end : swap.first], *swap.ids]
        end = swap.last
    return (*found, *components[end:])


def make_variants(components: Sequence[str], equivalents: Iterable[Equivalent], most: int = MOST_VARIANTS) -> list[Variant]:
    """Return the variants of a chain, the ones with most components swapped first.

    Each donor gives the variant with as many of its blocks as together lose little enough; each equivalent alone gives one
    more. Losses of single swaps are added: swaps together were not measured.
    """
    known = list(equivalents)
    found: dict[tuple[str, ...], Variant] = {}
    for donor in dict.fromkeys(one.donor for one in known):
        _keep(found, components, _together([one for one in known if one.donor == donor]))
    for one in known:
        _keep(found, components, [one])
    ranked = sorted(found.values(), key=lambda one: (-_count(one), one.lost, one.swaps))
    return ranked[:most]


def less_accurate(
    components: Sequence[str], alike: Iterable[Equivalent], ranks: Mapping[str, int], most: int = MOST_VARIANTS
) -> list[Variant]:
    """Return the variants by blocks that only look alike, the most accurate donor first: one for each donor.

    alike: the blocks, which may lose more answers than the limits allow. ranks: donor -> place in the order of accuracy.
    """
    known = [one for one in alike if one.donor in ranks]
    found: dict[tuple[str, ...], Variant] = {}
    for donor in sorted({one.donor for one in known}, key=lambda donor: (ranks[donor], donor)):
        taken = _apart([one for one in known if one.donor == donor], lambda chosen: True)
        _keep(found, components, taken, ranks[donor])
    return [*found.values()][:most]


def accuracy_ranks(name: str, order: Sequence[str]) -> dict[str, int]:
    """Return the rank of each other application in an order of accuracy, the most accurate first.

    Applications before ``name`` are as accurate at least, and have rank 0. Without ``name`` it counts as the first.
    """
    behind = order.index(name) if name in order else -1
    return {other: max(place - behind, 0) for place, other in enumerate(order) if other != name}


def _together(equivalents: Sequence[Equivalent]) -> list[Equivalent]:
    """Return equivalents that do not overlap, the longest first, as long as their losses stay within the limits."""
    return _apart(equivalents, _within)


def _apart(equivalents: Sequence[Equivalent], allowed: Callable[[Sequence[Equivalent]], bool]) -> list[Equivalent]:
    """Return equivalents that do not overlap and are allowed together, the longest first."""
    taken: list[Equivalent] = []
    for one in sorted(equivalents, key=lambda one: (one.swap.first - one.swap.last, _lost(one), one.swap)):
        apart = all(one.swap.last <= other.swap.first or other.swap.last <= one.swap.first for other in taken)
        if apart and allowed([*taken, one]):
            taken.append(one)
    return taken


def _within(equivalents: Sequence[Equivalent]) -> bool:
    lost, moved = sum(map(_lost, equivalents)), sum(one.kl or 0.0 for one in equivalents if one.lost is None)
    return lost <= LIMITS.damage and moved <= LIMITS.kl


def _lost(one: Equivalent) -> float:
    return max(one.lost or 0.0, 0.0)


def _keep(
    found: dict[tuple[str, ...], Variant], components: Sequence[str], equivalents: Sequence[Equivalent], rank: int = 0
) -> None:
    """Add the variant with these equivalents, unless it is the chain itself or is there."""
    swaps = tuple(sorted(one.swap for one in equivalents))
    chain = swapped(components, swaps)
    if chain != tuple(components) and chain not in found:
        donors = tuple(dict.fromkeys(one.donor for one in equivalents))
        found[chain] = Variant(swaps, donors, sum(map(_lost, equivalents)), rank)


def _count(variant: Variant) -> int:
    return sum(swap.last - swap.first for swap in variant.swaps)
