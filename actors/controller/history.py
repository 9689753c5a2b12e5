"""The recent history of the cluster for people: workers that come, die and serve again, models that become available.

Owns the last ``KEPT`` events, found by comparing each touched item with its former state. Each is a line of the log, too.
Changes nothing and decides nothing.
"""

from __future__ import annotations

import logging
from collections import deque
from dataclasses import dataclass
from typing import Any

from ...policies.control.events import (
    GiveUpWorker,
    ResumeWorker,
    ScalingEffect,
    StartWorker,
    StopWorker,
    VacateWorker,
    WishWorkers,
)
from ...policies.control.labels import label
from ...policies.control.residency import serving
from ...policies.control.state import ControllerState

KEPT = 200
NAMED = 3  # models named in a line; more are counted
log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class HistoryEvent:
    """An event of the history. ``at``: seconds on the node's clock."""

    number: int
    at: float
    event: str  # "starting" | "up" | "ready" | "down" | "routes" | "gateway" | "scaling" | "recovered" | "parameters"
    subject: str  # worker, application (or several, with ", " between) or gateway process
    text: str


class History:
    """The history of one cluster (see the module)."""

    def __init__(self) -> None:
        self.events: deque[HistoryEvent] = deque(maxlen=KEPT)
        self._count = 0
        self._workers: dict[str, tuple[str, int]] = {}  # worker -> (state, incarnation) when last compared
        self._died: dict[str, float] = {}  # worker -> time of death, until it serves again
        self._routes: dict[str, int] = {}  # application -> number of routes in force
        self._models: dict[str, str] = {}  # application that had routes -> its model

    def tick(self, state: ControllerState, now: float) -> None:
        """Note what the last event changed."""
        for name in state.changed:
            worker = state.workers[name]
            before, life = self._workers.get(name, ("down", 0))
            here = self._workers[name] = (worker.state, worker.incarnation)
            if here == (before, life):
                continue
            if life and worker.incarnation != life:
                self._died.setdefault(name, now)
                self.record(now, "down", name, f"worker {name} died: {worker.cause}")
            elif before == "starting" and worker.state == "down":
                self.record(now, "down", name, f"worker {name} ended before it was up: {worker.cause}")
            if worker.state == "starting":
                text = "has joined" if worker.joined else "is being started"
                self.record(now, "starting", name, f"worker {name} {text}")
            elif worker.incarnation and worker.incarnation != life:
                self.record(now, "up", name, f"worker {name} is up and loads its blocks")
            if worker.state == "ready":
                died = self._died.pop(name, None)
                after = "" if died is None else f", {now - died:.2f} s after it died"
                self.record(now, "ready", name, f"worker {name} serves" + (" again" if worker.restarts else "") + after)
        for name in [name for name in self._models if name not in state.served]:
            model = self._models.pop(name)
            before = "the version before of " if serving(state.served, model) is not None else ""
            if self._routes.pop(name, 0):
                self.record(now, "routes", model, f"{before}model {model} is removed")
        changed: dict[tuple[int, int], list[str]] = {}  # (routes in force, planned) -> models, in the table's order
        for name in state.table.applications:
            served = state.served.get(name)
            if served is not None and served.in_force != self._routes.get(name, 0):
                self._routes[name], self._models[name] = served.in_force, served.application.served_as
                changed.setdefault((served.in_force, len(served.planned)), []).append(label(state.served, name))
        for (in_force, planned), names in changed.items():
            self.record(now, "routes", ", ".join(names), f"{_models(names)} ready on {in_force} of {planned} routes")

    def scaled(self, effect: ScalingEffect, now: float) -> None:
        """Note a scaling decision about a worker."""
        match effect:
            case StartWorker(worker, why):
                self.record(now, "scaling", worker, f"worker {worker} is being added: {why}")
            case WishWorkers(workers, why):
                self.record(now, "scaling", "", f"{workers} further workers are wanted: {why}")
            case VacateWorker(worker, _, why):
                self.record(now, "scaling", worker, f"worker {worker} is drained: {why}")
            case ResumeWorker(worker):
                self.record(now, "scaling", worker, f"worker {worker} is no longer drained: it takes requests again")
            case GiveUpWorker(worker, why):
                self.record(now, "scaling", worker, f"worker {worker} is given up: {why}")
            case StopWorker(worker, joined):
                self._workers.pop(worker, None)
                self._died.pop(worker, None)
                text = "has left" if joined else "is stopped: it is empty"
                self.record(now, "scaling", worker, f"worker {worker} {text}")

    def record(self, now: float, event: str, subject: str, text: str) -> None:
        self._count += 1
        log.info("%s", text)
        self.events.append(HistoryEvent(self._count, now, event, subject, text))

    def view(self, now: float, wall: float) -> list[dict[str, Any]]:
        """Return the events, oldest first, with ``at`` in seconds since the epoch. ``wall``: the epoch time at ``now``."""
        return [
            {"number": e.number, "at": round(wall - now + e.at, 3), "event": e.event, "subject": e.subject, "text": e.text}
            for e in self.events
        ]


def _models(names: list[str]) -> str:
    """Return the models as one phrase. A death or a return changes all models of a worker at once, and is one line."""
    if len(names) == 1:
        return f"model {names[0]} is"
    return f"{len(names)} models are" if len(names) > NAMED else f"models {', '.join(names)} are"
