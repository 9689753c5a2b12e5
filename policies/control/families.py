"""Families among the applications: a top tier and its lower tiers come and go together. Pure."""

from __future__ import annotations

from collections.abc import Mapping

from .residency import Served, serving


def members(served: Mapping[str, Served], one: Served) -> list[Served]:
    """Return an application and, if it is a top tier, its lower tiers that take new requests or are being added."""
    model = one.application.served_as
    tiers = dict.fromkeys(o.application.served_as for o in served.values() if model and o.application.family == model)
    found = [serving(served, tier) for tier in tiers]
    return [one, *(tier for tier in found if tier is not None)]
