"""Speculation across a bottleneck: the surrogates that draft for an application, and the slow blocks at which they do.

The chain with a surrogate draws the drafts, and the application's own chain verifies several of them in one passage of the
slow block. So no token changes. A worker chooses its bottlenecks anew each second (``sweep/bottlenecks.py``).
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from math import ceil

from ..model.chain import Chain, Component
from .guessing import is_guessing

LONGEST = 8  # drafts of a round that are considered
SUFFIX = "~surrogate"
MOST_SURROGATES = 4  # of one application, each of another block
GAIN = 1.1  # promise from which drafts are drawn by default
TOP = 0.1  # part of the block instances of a worker that count as bottlenecks, at least one


@dataclass(frozen=True, slots=True)
class DraftingSurrogate:
    """A surrogate of components ``first`` to ``last - 1``.

    ``saved``: bytes of parameters that its chain reads less for a token. ``agreement``: share of positions where both chains
    have the same likeliest token.
    """

    first: int
    last: int
    saved: int
    agreement: float


@dataclass(frozen=True, slots=True)
class DraftingChain:
    """A chain that drafts for an application, with surrogates of its components ``first`` to ``last - 1``.

    ``name``: of this version of it. ``model``: its id, by which requests ask for it.
    """

    name: str
    first: int
    last: int
    model: str


def drafting_chain(application: str, number: int = 0) -> str:
    """Return the id of a chain that drafts for an application, counted from 0. No client can name it."""
    return f"{application}{SUFFIX}{number + 1 if number else ''}"


def chosen_surrogates(
    surrogates: Sequence[DraftingSurrogate], components: int, nbytes: int, least: float = 0.0
) -> list[int]:
    """Return the places of the surrogates that draft for a chain of ``components`` and ``nbytes``, the best first.

    Each promises ``least``. Their blocks do not overlap, and none is the last of the chain: behind it nothing is left to
    save.
    """
    gains = [0.0 if one.last >= components else promise(one, nbytes) for one in surrogates]
    found: list[int] = []
    for place in sorted(range(len(surrogates)), key=lambda place: -gains[place]):
        one = surrogates[place]
        apart = all(one.last <= surrogates[other].first or surrogates[other].last <= one.first for other in found)
        if gains[place] > 0 and gains[place] >= least and apart and len(found) < MOST_SURROGATES:
            found.append(place)
    return found


def promise(surrogate: DraftingSurrogate, nbytes: int) -> float:
    """Return the most tokens that drafts promise for the time of a token without them, as far as time is reading bytes.

    A round with ``g`` drafts reads the chain once and the drafting chain ``g`` times.
    """
    part = 1 - surrogate.saved / nbytes
    return max(_tokens(surrogate.agreement, g) / (1 + g * part) for g in range(1, LONGEST + 1))


def _tokens(agreement: float, drafts: int) -> float:
    """Return the mean number of tokens of a round if each draft stands with the same chance."""
    return sum(agreement**place for place in range(drafts + 1))


def drafting_chains(chains: Iterable[Chain]) -> dict[str, list[DraftingChain]]:
    """Return the chains that draft for each application, the best first."""
    known = {chain.application: chain for chain in chains}
    found: dict[str, list[DraftingChain]] = {}
    for name, chain in sorted(known.items(), key=lambda one: (len(one[0]), one[0])):
        if chain.drafts_for in known:
            first, last = replaced(known[chain.drafts_for].components, chain.components)
            if is_guessing(chain):  # the head follows its surrogate
                last = len(chain.components) - 1
            found.setdefault(chain.drafts_for, []).append(DraftingChain(name, first, last, chain.served_as))
    return found


def replaced(own: Sequence[Component], other: Sequence[Component]) -> tuple[int, int]:
    """Return the components of a chain, first and the one after the last, in whose place another chain has others."""
    same = [one.id == two.id for one, two in zip(own, other, strict=False)]
    first = same.index(False) if False in same else len(same)
    behind = 0
    while behind < min(len(own), len(other)) - first and own[-1 - behind].id == other[-1 - behind].id:
        behind += 1
    return first, len(own) - behind


def bottlenecks(times: Mapping[bytes, float], chains: Iterable[Sequence[bytes]], able: Collection[bytes]) -> list[bytes]:
    """Return the block instances of a worker at which drafts are drawn, the slowest first.

    These are the tenth that needs longest to empty its queue, of the ones that are ``able`` because they have a surrogate.
    Never the last block of a chain, and never two that follow each other: of these the slower one counts.

    Args:
        times: block -> time to empty its queue, in any unit.
        chains: the blocks of each chain, in order.
        able: the blocks that have surrogates.
    """
    beside: dict[bytes, set[bytes]] = {}
    last: set[bytes] = set()
    for blocks in chains:
        last.update(blocks[-1:])
        for one, following in pairwise(blocks):
            beside.setdefault(one, set()).add(following)
            beside.setdefault(following, set()).add(one)
    waiting = [block for block in times if times[block] > 0 and block in able and block not in last]
    top = sorted(waiting, key=lambda block: (-times[block], block))[: ceil(len(times) * TOP)]
    found: list[bytes] = []
    for block in top:
        if beside.get(block, set()).isdisjoint(found):
            found.append(block)
    return found
