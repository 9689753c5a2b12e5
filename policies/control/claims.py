"""Claims: the parties that want components on a worker, and their reasons.

A component stays on a worker while a party claims it. Whatever is held beyond that was loaded again by a restore that was
broken off; it is unloaded when KV needs its memory.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from .holdings import Holdings
from .residency import PlannedRoute


class Claimant(StrEnum):
    """The parties that want components on workers."""

    SERVING = "serving"
    DEMAND = "demand"
    COPIES = "copies"
    DROPS = "drops"


@dataclass(frozen=True, slots=True)
class Claim:
    """A claim on components ``first`` to ``last`` (exclusive) of an application on a worker.

    held: all of them are there. paused_by: the parties that want no new requests on the route.
    """

    application: str
    first: int
    last: int
    route: str
    by: Claimant
    why: str
    held: bool
    paused_by: tuple[str, ...] = ()


def claims_on(holdings: Holdings, worker: str) -> list[Claim]:
    """Return the claims on a worker's memory, in order of applications and routes."""
    found = []
    for name, hops in holdings.residency[worker].hops.items():
        for hop in hops:
            if hop.route.suspended or not hop.route.served.here:
                continue
            route = hop.route.route.id
            by, why = _claimed(holdings, hop.route, worker)
            found.append(Claim(name, hop.first, hop.last, route, by, why, not hop.missing, holdings.table.pausing(route)))
    return found


def _claimed(holdings: Holdings, planned: PlannedRoute, worker: str) -> tuple[Claimant, str]:
    """Return who wants a route on a worker, and why: the second half of a sentence."""
    group = holdings.group_of(worker)
    if group is not None and planned in group.pipelines:
        return Claimant.DROPS, f"group {group.name} serves as a pipeline, since parameters were dropped"
    if planned.route.id in holdings.placement.extras:
        return Claimant.COPIES, f"a block was pressed in a burst; it goes after {planned.idle:g} s without use"
    if planned.late:
        return Claimant.SERVING, "it came while parameters were dropped there, and loads when they are back"
    if planned.served.draining:
        return Claimant.SERVING, "it takes no new requests, and running ones end"
    if planned.served.on_demand:
        return Claimant.DEMAND, "requests asked for it"
    return Claimant.SERVING, "it is served"
