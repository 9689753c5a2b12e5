"""How many bytes of an application's parameters are its own, and how many it has in common with others."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from .messages import Application


@dataclass(frozen=True, slots=True)
class ParameterShares:
    """Raw bytes of an application's distinct tensors."""

    own: int
    shared: int


@dataclass(frozen=True, slots=True)
class Saving:
    """Raw bytes of the parameters of several applications."""

    stored: int  # equal tensors once
    saved: int  # what one copy for each application would take beyond that


def saving(applications: Iterable[Application]) -> Saving:
    """Of one place where all of them are; how often they are deployed does not matter."""
    stored: dict[bytes, int] = {}
    alone = 0
    for application in applications:
        tensors = application.tensors()
        alone += sum(tensors.values())
        stored |= tensors
    total = sum(stored.values())
    return Saving(total, alone - total)


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
