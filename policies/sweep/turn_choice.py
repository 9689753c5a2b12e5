"""The choice of the rows that the next sweep computes, by the number of rows of each tier and the cost model.

Prices leave out what rows attend to. So the choice depends on nothing that changes while the same rows decode, and many
equal sweeps can be foreseen at once. While sequences here cross workers, all sweeps are whole: others wait for them.
"""

from __future__ import annotations

from dataclasses import replace

from ..model.runs import LocalRoute
from ..plan.coefficients import Coefficients
from ..plan.fit import PLAIN
from .parts import Parts
from .sweep_load import SweepLoad
from .tier_turns import LOCKSTEP, WHOLE, Turn, best_exit


class TurnChoice:
    """The choice of turns of one worker. It keeps nothing."""

    def __init__(self, parts: Parts) -> None:
        self._parts = parts

    def turns(self) -> list[Turn]:
        """Return the turns for the next sweep, best first: the first for which there is anything to do is taken."""
        parts = self._parts
        if parts.routes.tiers == 1 or not self._may_part():
            return [WHOLE]
        if not parts.config.group_batching:
            tiers, last = parts.routes.tiers, parts.turns.tier
            return [Turn(tier, tier) for tier in [(last + 1 + n) % tiers for n in range(tiers)]]
        exit, short = self._best_exit()
        return [Turn(0, exit, short=True), WHOLE] if parts.turns.short < short else [WHOLE]

    def repeats(self) -> bool:
        """Return whether whole sweeps follow one another while the running rows decode and none comes or goes."""
        parts = self._parts
        if parts.routes.tiers == 1 or not self._may_part():
            return True
        if not parts.config.group_batching:
            return not parts.queue.waiting and len({parts.tier(s) for s in parts.queue.running}) <= 1
        return not self._best_exit()[1]

    def sitting_out(self, turn: Turn) -> list[int]:
        """Return the running sequences with something to compute that sit out a short sweep."""
        parts, rows = self._parts, self._parts.rows
        online = parts.queue.running[: parts.queue.online]
        return [s for s in online if rows.known[s] - rows.planned[s] > 1 or not turn.takes(parts.tier(s))]

    def _may_part(self) -> bool:
        parts = self._parts
        apart = not parts.config.group_batching or parts.config.tier_sweeps != LOCKSTEP
        return apart and not len(parts.leases) and not len(parts.page_pins) and parts.leases.next_flight() is None

    def _best_exit(self) -> tuple[int, int]:
        """Return the exit at which the next short sweeps should end, and how many between two whole ones."""
        parts = self._parts
        rows = self._parts.rows
        routes = self._parts.routes
        known = rows.known
        planned = rows.planned
        route = rows.route
        online = parts.queue.online
        decoding: dict[str, int] = {}
        behind: dict[str, int] = {}  # with more than a token to compute
        for s in parts.queue.running[:online]:
            counts = decoding if known[s] - planned[s] <= 1 else behind
            name = route[s].route.id
            counts[name] = counts.get(name, 0) + 1
        local = {name: one for name in sorted({**decoding, **behind}) if (one := routes.known(name)) is not None}
        tiers = {name: routes.tier(name) for name in local}
        lowest, highest = min(tiers.values(), default=0), max(tiers.values(), default=0)
        if lowest == highest:
            return 0, 0
        costs, short = self._costs([*local.values()]), list[tuple[int, float]]()
        for exit in range(highest):
            going = {name: count for name, count in decoding.items() if tiers[name] <= exit}
            short.append((sum(going.values()), self._seconds(costs, local, going)))
        every = {name: decoding.get(name, 0) + behind.get(name, 0) for name in local}
        whole = online, self._seconds(costs, local, every)
        return best_exit(parts.config.tier_sweeps, parts.config.tier_turns, whole, short)

    def _costs(self, routes: list[LocalRoute]) -> Coefficients:
        """Return the cost of sweeps here. Without a profile, a sweep without sizes is one of the largest of these models."""
        costs = self._parts.config.costs or PLAIN
        if costs.parameters:
            return costs
        largest = max([sum([run.nbytes for run in local.runs]) for local in routes])
        return replace(costs, parameters=float(largest or 1), kv=1.0)

    def _seconds(self, costs: Coefficients, routes: dict[str, LocalRoute], counts: dict[str, int]) -> float:
        """Return the estimated seconds of a sweep with this many decoding rows of each route."""
        load = SweepLoad(costs, self._parts.routes)
        for name in sorted(counts):
            load.add(routes[name], counts[name], counts[name], 0, 0)
        return load.seconds
