"""How many bytes of an application's parameters are its own, and how many it has in common with others."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from blockwright.actors.controller.messages import Application


@dataclass(frozen=True, slots=True)
class ParameterShares:
    """Raw bytes of an application's distinct tensors."""

    own: int
    shared: int


def parameter_shares(application: Application, others: Iterable[Application]) -> ParameterShares:
    """``shared``: with any of the ``others``."""
    sizes, elsewhere = application.tensors(), set[bytes]()
    for other in others:
        elsewhere.update(other.tensors())
    shared = sum(nbytes for hash, nbytes in sizes.items() if hash in elsewhere)
    return ParameterShares(sum(sizes.values()) - shared, shared)
