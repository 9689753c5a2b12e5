"""Load failures: what becomes of an application that a worker cannot load, and what those who ask for it are told.

What is being added is given up. What is on demand and fails wherever it belongs is parked with the reason, and tried again
when it is asked for; where that cannot help, as it fits on no worker or nobody would try, the failure is final. Owns the
number of the last one.
"""

from __future__ import annotations

from typing import Protocol

from blockwright.actors.controller.additions import Additions
from blockwright.actors.controller.controller_parts import ControllerParts
from blockwright.actors.controller.messages import Effect, Fatal, LoadFailed
from blockwright.actors.controller.on_demand import OnDemand
from blockwright.actors.controller.residency import Served
from blockwright.policies.requests.load_failure import LoadFailure, without_folders


class FailingParts(ControllerParts, Protocol):
    """``ControllerState``, as far as failures look."""

    additions: Additions
    demand: OnDemand
    never_ready: dict[str, None]

    def reject(self, name: str, why: str) -> None: ...

    def perform(self, effect: Effect) -> None: ...


class LoadFailures:
    """See the module. ``state``: whose applications they are."""

    def __init__(self, state: FailingParts) -> None:
        self._state = state
        self._number = 0  # of the last failure

    def failed(self, event: LoadFailed) -> None:
        state, worker, name = self._state, event.worker, event.load.holder
        residency = state.residency[worker]
        if residency.loading is not None and residency.loading.holder == name:
            residency.loading = None
        state.touched[worker] = None
        state.demand.forget(name)
        if name in state.additions:
            state.reject(name, f"worker {worker} cannot load it: {event.message}")
        elif name in state.served:
            residency.refuse(name, event.message)
            state.overload.failed(worker, name)
            state.end_extras(lambda extra: extra.route.application == name and extra.is_on(worker))
            self.note(name, f"worker {worker}: {event.message}", final=event.final)
        if name in state.never_ready:
            state.perform(Fatal(f"worker {worker} cannot load {name}: {event.message}"))

    def note(self, name: str, why: str, *, final: bool) -> None:
        """An application could not be loaded on a worker; news where it now can come nowhere."""
        served = self._state.served[name]
        if not served.here or not served.shown or served.in_force or not _blocked(served):
            return  # as a pipeline it can be served where replicas of it cannot be loaded
        self._number += 1
        told = without_folders(why, (served.application.checkpoint, served.application.base))
        served.failure = LoadFailure(name, self._number, told, final or not served.on_demand)
        if served.on_demand:
            self._state.demand.park(name)
        else:
            self._state.catalog()

    def cleared(self, worker: str) -> None:
        """A worker ended or begins anew: what belongs there is loaded then, whatever became of it before."""
        those = [self._state.served[name] for name in self._state.residency[worker].hops]
        again = [served for served in those if served.failure is not None and served.here and not _blocked(served)]
        for served in again:
            served.failure = None
        if again:
            self._state.catalog()


def _blocked(served: Served) -> bool:
    """Each of its routes passes a worker that cannot load it."""
    name = served.application.name
    routes = [planned for planned in served.planned if not planned.ended]
    return all(any(name in hop.residency.refused for hop in planned.hops) for planned in routes)
