"""Readings of groups, derived from the memory pools of single workers: a group's KV demand, and the size of parameters."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import replace

from ..model.chain import Component
from .demand import DemandReading, of_stages
from .drop_plan import ParameterGroup, nbytes
from .pool_reading import PoolReading


def group_readings(groups: Iterable[ParameterGroup], readings: Mapping[str, PoolReading]) -> dict[str, DemandReading]:
    """Return the readings, by name, of groups whose workers have all answered and serve.

    With one stage missing, nothing can be said of a group.
    """
    found = {}
    for group in groups:
        stages = [readings[member.worker] for member in group.members if member.worker in readings]
        if len(stages) == len(group.members) and all(stage.pages for stage in stages):
            found[group.name] = of_stages(
                [
                    DemandReading(used=stage.used, total=stage.pages, head=stage.head, waiting=stage.waiting)
                    for stage in stages
                ]
            )
    return found


def as_packed(
    components: Sequence[Component], held: Iterable[tuple[str, Collection[int]]], readings: Mapping[str, PoolReading]
) -> list[Component]:
    """Return the components with the bytes that they take in workers' memory, where types may be wider than as stored.

    ``held``: workers, and the depths that each has; the widest counts.
    """
    stored = [(worker, nbytes(components, frozenset(depths))) for worker, depths in held]
    widths = [readings[worker].parameters / raw for worker, raw in stored if raw and worker in readings]
    width = max(widths, default=1.0)
    return [replace(c, nbytes=int(c.nbytes * width), delta_nbytes=int(c.delta_nbytes * width)) for c in components]
