"""Segments of families: the layers between two exits, which a worker runs once in a sweep for all rows that pass them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from itertools import pairwise
from typing import NamedTuple

from ..model.runs import LocalRoute, Run
from ..model.tiers import family_of


class Segment(NamedTuple):
    """Layers ``first`` to ``last``, counted from 1, of a family's top tier."""

    family: str
    first: int
    last: int


def family_segments(routes: Iterable[LocalRoute], models: Mapping[str, str]) -> dict[Run, Segment]:
    """Return the segment of each run of the families that lie whole on this worker.

    ``models``: application -> model id. A run without attention is part of a layer and stands for no segment.
    """
    whole = {models.get(one.route.application, ""): one for one in routes if not one.hop and one.next_worker is None}
    found: dict[Run, Segment] = {}
    for family in dict.fromkeys([family_of(model) for model in whole]):
        runs = whole[family].runs if family in whole else ()
        for run, following in pairwise(runs):
            if run.kv_layer < following.kv_layer:
                found[run] = Segment(family, run.kv_layer + 1, following.kv_layer)
    return found
