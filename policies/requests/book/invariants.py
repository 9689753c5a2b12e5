"""Invariants of the gateway's state machine, checked by tests after every event."""

from __future__ import annotations

from typing import Protocol

from ..admission_limit import AdmissionLimit
from ..queue import WaitingQueue
from .application_usage import ApplicationUsage
from .capacity_waits import CapacityWaits
from .dispatch_queries import DispatchQueries
from .move_in_progress import MovedParts
from .offline import OfflineBook
from .request_moves import RequestMoves
from .tier_choices import TierChoices
from .workers import Workers


class CheckedParts(MovedParts, Protocol):
    """The parts of a ``RequestBook`` that must agree with one another."""

    queue: WaitingQueue
    workers: Workers
    asking: DispatchQueries
    moving: RequestMoves
    overload: AdmissionLimit
    usage: ApplicationUsage
    choosing: TierChoices
    offline: OfflineBook
    capacity_waits: CapacityWaits


def check_state(state: CheckedParts) -> None:
    """Raise AssertionError when an invariant is broken."""
    active, table = state.active.values(), state.table
    table.check()
    state.quarantine.check()
    state.queue.check()
    state.workers.check(table.alive)
    waiting = {r.id for r in active if r.state == "waiting"}
    assert set(state.queue.in_order(state.queue.applications())) == waiting
    state.asking.check(waiting)
    state.capacity_waits.check(waiting)
    state.moving.check()
    assert all((r.state == "running") == bool(r.workers) for r in active)
    assert all(r.state in ("running", "waiting", "held") for r in active)
    assert all((r.waits_from is not None) == r.waits for r in active if r.state != "held"), "a wait is lost"
    state.choosing.check(active)
    assert set(state.quarantine.routes) <= {r.id for r in active if r.alone or r.deaths.suspect}
    assert all(r.counted == r.cost() for r in active)
    state.overload.check([(r.account, r.counted) for r in active if not r.offline])
    state.offline.check(active)
    state.usage.check(name for r in active for name in r.applications)
    for worker, on in table.on.items():
        assert on == {r.id for r in active if worker in r.workers}, worker
        assert table.work[worker] == sum(state.active[request].counted for request in on), worker
