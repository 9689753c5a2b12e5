"""Load failures: what happens to an application that a worker cannot load, and the answer to its clients.

An addition is given up. An application on demand that fails wherever it belongs is parked with the reasons, and tried
again when it is asked for. The failure is final if retrying cannot help: it fits on no worker, or nothing would retry.
While it can still load elsewhere, clients get no error. Owns the number of the last failure, and which failures are
final.
"""

from __future__ import annotations

from typing import Protocol

from ..cluster.application_life import model_of
from ..model.tiers import folder_and_layers
from ..requests.load_failure import LoadFailure, blocked, reasons, without_folders
from .additions import Additions
from .controller_parts import ControllerParts
from .events import Effect, Fatal, LoadFailed
from .on_demand import OnDemand
from .residency import Residency, Served


class FailingParts(ControllerParts, Protocol):
    """``ControllerState``, as load failures see it."""

    additions: Additions
    demand: OnDemand
    never_ready: dict[str, None]

    def reject(self, name: str, why: str) -> None: ...

    def perform(self, effect: Effect) -> None: ...


class LoadFailures:
    """The load failures of one cluster (see the module). ``state``: the owner of the applications."""

    def __init__(self, state: FailingParts) -> None:
        self._state = state
        self._number = 0  # number of the last failure
        self._final: set[tuple[str, str]] = set()  # (worker, application) where retrying is in vain

    def failed(self, event: LoadFailed) -> None:
        state = self._state
        worker = event.worker
        name = event.load.holder
        residency = state.residency[worker]
        if residency.loading is not None and residency.loading.holder == name:
            residency.loading = None
        state.touched[worker] = None
        if name in state.additions:
            state.demand.forget(name)
            state.reject(name, f"worker {worker} cannot load it: {event.message}")
        elif name in state.served:
            residency.refuse(name, event.message)
            (self._final.add if event.final else self._final.discard)((worker, name))
            state.overload.failed(worker, name)
            state.end_extras(lambda extra: extra.route.application == name and extra.is_on(worker))
            if not state.demand.goes_on(name, worker):
                state.demand.forget(name)
                self._note(name)
        if name in state.never_ready:
            state.perform(Fatal(f"worker {worker} cannot load {model_of(name)}: {event.message}"))

    def _note(self, name: str) -> None:
        """Record that an application could not be loaded on a worker; publish it if it can now load nowhere."""
        served = self._state.served[name]
        refusals = self._refusals(served)
        if not served.here or not served.shown or served.in_force or not blocked(_routes(served), refusals):
            return  # a pipeline may still serve it where replicas cannot be loaded
        self._number += 1
        sources = (served.application.checkpoint, served.application.base)
        message = without_folders(reasons(refusals), [folder_and_layers(source)[0] for source in sources])
        final = blocked(_routes(served), {worker for worker in refusals if (worker, name) in self._final})
        served.failure = LoadFailure(name, self._number, message, final or not served.on_demand)
        if served.on_demand:
            self._state.demand.park(name)
        else:
            self._state.catalog()

    def willing(self, name: str, *, anew: bool) -> list[Residency]:
        """Return the workers that are to load an application. ``anew``: include workers where it failed for good."""
        if anew:
            self.forget(name)
        return [one for worker, one in self._state.residency.items() if (worker, name) not in self._final]

    def forget(self, name: str) -> None:
        """Forget an application's final failures: it is offered anew, or gone."""
        self._final = {one for one in self._final if one[1] != name}

    def cleared(self, worker: str) -> None:
        """Forget the failures of a worker that ended or starts anew: whatever belongs there is loaded again."""
        self._final = {one for one in self._final if one[0] != worker}
        those = [self._state.served[name] for name in self._state.residency[worker].hops]
        again = [s for s in those if s.failure is not None and s.here and not blocked(_routes(s), self._refusals(s))]
        for served in again:
            served.failure = None
        if again:
            self._state.catalog()

    def _refusals(self, served: Served) -> dict[str, str]:
        """Return why an application could not be loaded, by worker."""
        name = served.application.name
        return {worker: one.refused[name] for worker, one in self._state.residency.items() if name in one.refused}


def _routes(served: Served) -> list[list[str]]:
    """Return the workers of each of its routes."""
    return [[hop.worker for hop in planned.route.hops] for planned in served.planned if not planned.ended]
