"""The work of a tier's token, relative to the top tier of its family.

Work is bytes of parameters that a token passes. A lower tier passes fewer layers, so its token costs less.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from .chain import Chain, Kind

WHOLE = 1 << 20  # work of a token of a top tier, and of every model without tiers; whole numbers, so that sums are exact


@dataclass(frozen=True, slots=True)
class FamilyTier:
    """A tier in the accounts of a worker."""

    family: str  # id of the family
    model: str  # id of the tier; of the top tier, the family's
    work: int  # of a token, in parts of ``WHOLE``


def family_tiers(chains: Iterable[Chain]) -> dict[str, FamilyTier]:
    """Return the tier of each application that belongs to a family with lower tiers among ``chains``.

    The deepest tier that is there counts as the top.
    """
    every = list(chains)
    families = {chain.family for chain in every if chain.family}
    if not families:
        return {}
    of = {c.application: c.family or c.served_as for c in every if not c.base and (c.family or c.served_as) in families}
    passed = {c.application: _passed(c) for c in every if c.application in of}
    tops: dict[str, int] = {}
    for application, nbytes in passed.items():
        tops[of[application]] = max(nbytes, tops.get(of[application], 1))
    return {
        c.application: FamilyTier(family, c.served_as, max(1, WHOLE * passed[c.application] // tops[family]))
        for c in every
        if (family := of.get(c.application, ""))
    }


def _passed(chain: Chain) -> int:
    """Return the bytes of parameters that a token of this chain is multiplied with."""
    return sum(component.nbytes for component in chain.components if component.kind is not Kind.EMBEDDING)
