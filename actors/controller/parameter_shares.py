"""How many bytes of an application's parameters are its own, and how many it has in common with others."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from blockwright.actors.controller.messages import Application


@dataclass(frozen=True, slots=True)
class ParameterShares:
    """Raw bytes of an application's distinct tensors."""

    own: int
    shared: int


def holders(applications: Iterable[Application]) -> Counter[bytes]:
    """Tensor (its hash) -> how many of the applications have it."""
    return Counter(hash for application in applications for hash in application.tensors())


def parameter_shares(application: Application, held: Mapping[bytes, int]) -> ParameterShares:
    """``held``: by ``holders`` of all applications, this one among them."""
    own = shared = 0
    for hash, nbytes in application.tensors().items():
        if held[hash] > 1:
            shared += nbytes
        else:
            own += nbytes
    return ParameterShares(own, shared)
