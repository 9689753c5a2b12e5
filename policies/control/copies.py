"""Copies: a block with a long queue is deployed once more on another worker, for a burst.

``policies/cluster/scaling.py`` decides where. Claims one route more past the block, until it is out of use, or its
application or one of its workers is gone.
"""

from __future__ import annotations

from collections.abc import Iterable

from ..cluster.scaling import PressedBlock, scale_out
from ..model.chain import Route
from .claims import Claimant, ClaimKind, PlanRoutes, Withdrawal
from .events import Event, Idle, LoadFailed, Park, Pressed, Remove, Undeploy, WorkerDown
from .holdings import Holdings
from .party import Conclusions, Party


class Copies(Party):
    """The copies of one cluster (see the module). idle: seconds without use after which one ends; 0: none is made."""

    def __init__(self, idle: float) -> None:
        self._idle = idle

    def handle(self, event: Event, view: Holdings, now: float) -> Conclusions:
        match event:
            case Pressed(worker, incarnation, blocks) if self._idle and view.current(worker, incarnation):
                if (route := self._route(worker, blocks, view)) is not None:
                    why = f"a block was pressed in a burst; it goes after {self._idle:g} s without use"
                    yield PlanRoutes(Claimant.COPIES, why, (route,), self._idle)
            case Idle(worker, incarnation, names) if view.current(worker, incarnation):
                yield self._end(view.copies(lambda one: one.route.application in names and one.is_on(worker)))
            case WorkerDown(worker):
                yield self._end(view.copies(lambda one: one.is_on(worker)))
            case LoadFailed(worker, _, load):
                yield self._end(view.copies(lambda one: one.route.application == load.holder and one.is_on(worker)))
            case Undeploy(name) | Remove(name) | Park(name):
                yield self._end(view.copies(lambda one: one.route.application == name))

    def _route(self, worker: str, pressed: Iterable[PressedBlock], view: Holdings) -> Route | None:
        """Return one more route past a worker's heaviest block, if there is room and no other copy is being loaded."""
        if view.copies(lambda one: one.open > 0):
            return None
        known = {name: s.application for name, s in view.served.items() if s.wanted and s.shown and not s.draining}
        known = {name: one for name, one in known.items() if not one.variant_of}  # a variant adds no parameters
        blocks = [
            PressedBlock(block.pressure, {name: at for name, at in block.applications.items() if name in known})
            for block in pressed
        ]
        taken = {(name, worker) for worker, here in view.residency.items() for name, hops in here.hops.items() if hops}
        taken |= {(name, worker) for worker, here in view.residency.items() for name in here.refused}
        pressing = [known[name] for block in blocks for name in block.applications]
        return scale_out(worker, blocks, known, view.placement.rooms(pressing), taken)

    def _end(self, routes: tuple[str, ...]) -> Withdrawal:
        return Withdrawal(Claimant.COPIES, ClaimKind.PLANNED, routes)

    def check(self, view: Holdings) -> None:
        """Raise AssertionError when a claim has no reason any more."""
        for id in view.claims.of(ClaimKind.PLANNED, Claimant.COPIES):
            assert view.plan[id].served.wanted, f"route {id} is a copy of what is not wanted"
