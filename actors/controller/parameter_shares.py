"""How many bytes of an application's parameters are its own, and how many it has in common with others."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from blockwright.policies.model.chain import Component


@dataclass(frozen=True, slots=True)
class ParameterShares:
    """Raw bytes of an application's distinct components."""

    own: int
    shared: int

    @property
    def share(self) -> float:
        """From 0 to 1."""
        return self.shared / (self.own + self.shared) if self.own + self.shared else 0.0


def parameter_shares(components: Iterable[Component], others: Iterable[Iterable[Component]]) -> ParameterShares:
    """``others``: components of other applications."""
    sizes = {c.id: c.nbytes for c in components}
    common = sizes.keys() & {c.id for other in others for c in other}
    shared = sum(sizes[id] for id in common)
    return ParameterShares(sum(sizes.values()) - shared, shared)
