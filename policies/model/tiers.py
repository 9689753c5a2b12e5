"""Names of tiers: the model id of a tier, and the source from which its checkpoint is opened.

A tier is a model made of the first layers of another one, with a head. Pure functions of texts.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

EXITS_FILE = "exits.json"  # file of a folder that lists its exits
_SOURCE = re.compile(rf"(.+)/{re.escape(EXITS_FILE)}:([1-9]\d{{0,8}})", re.DOTALL)
_ID = re.compile(r"(.+):([1-9]\d{0,8})", re.DOTALL)


def tier_id(family: str, layers: int) -> str:
    """Return the model id of a tier: ``NAME:4`` has the first 4 layers of ``NAME``."""
    return f"{family}:{layers}"


def family_of(model: str) -> str:
    """Return the id of the family that a tier of this id belongs to; "" if the id has not the form of a tier's."""
    found = _ID.fullmatch(model)
    return found[1] if found else ""


def layers_of(model: str) -> int:
    """Return the number of layers in the id of a tier; 0 if the id has not the form of a tier's."""
    found = _ID.fullmatch(model)
    return int(found[2]) if found else 0


def tier_source(folder: str, layers: int) -> str:
    """Return the source of the tier with this many layers of a folder; of the top tier, with 0, the folder itself."""
    return f"{folder}/{EXITS_FILE}:{layers}" if layers else folder


def folder_and_layers(source: str) -> tuple[str, int]:
    """Return the folder of a source, and the layers of its tier: 0 for the top tier and for every other model."""
    found = _SOURCE.fullmatch(source)
    return (found[1], int(found[2])) if found else (source, 0)


def no_tier(model: str, tiers: Iterable[str]) -> str:
    """Return a sentence for a model id that looks like a tier of a family; "" if it does not.

    ``tiers`` are the ids of the tiers that there are.
    """
    family = family_of(model)
    there = [one for one in tiers if family and family_of(one) == family]
    return f"{family} has the tiers {', '.join((*there, family))} (all layers)" if there else ""
