"""Parameter sizes: the bytes of an application that are its own and those it shares with others."""

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
    """Raw bytes of the parameters of several applications, and the bytes saved by sharing."""

    stored: int  # equal tensors counted once
    saved: int  # what separate copies would take in addition


def saving(applications: Iterable[Application]) -> Saving:
    """Return the sizes for one place that holds all of them, however often they are deployed."""
    stored: dict[bytes, int] = {}
    alone = 0
    for application in applications:
        tensors = application.tensors()
        alone += sum(tensors.values())
        stored |= tensors
    total = sum(stored.values())
    return Saving(total, alone - total)


def holders(applications: Iterable[Application]) -> Counter[bytes]:
    """Return, for each tensor (its hash), the number of applications that have it."""
    return Counter(hash for application in applications for hash in application.tensors())


def parameter_shares(application: Application, held: Mapping[bytes, int]) -> ParameterShares:
    """Return an application's shares. ``held``: the result of ``holders`` for all applications, including this one."""
    own = shared = 0
    for hash, nbytes in application.tensors().items():
        if held[hash] > 1:
            shared += nbytes
        else:
            own += nbytes
    return ParameterShares(own, shared)
