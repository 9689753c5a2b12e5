"""Families among the applications: a top tier and its lower tiers come, go and count their memory together. Pure."""

from __future__ import annotations

from collections.abc import Mapping

from .parameter_shares import ParameterShares, holders
from .residency import Served, serving


def members(served: Mapping[str, Served], one: Served) -> list[Served]:
    """Return an application and, if it is a top tier, its lower tiers that take new requests or are being added."""
    model = one.application.served_as
    tiers = dict.fromkeys(o.application.served_as for o in served.values() if model and o.application.family == model)
    found = [serving(served, tier) for tier in tiers]
    return [one, *(tier for tier in found if tier is not None)]


def family_shares(served: Mapping[str, Served], family: list[Served]) -> ParameterShares:
    """Return the bytes that an application and its tiers own together, and the bytes that others have, too."""
    names = {one.application.name for one in family}
    held = holders(one.application for name, one in served.items() if one.deployed and name not in names)
    tensors: dict[bytes, int] = {}
    for one in family:
        tensors |= one.application.tensors()
    shared = sum(nbytes for hash, nbytes in tensors.items() if held[hash])
    return ParameterShares(sum(tensors.values()) - shared, shared)
