"""Invariants of the gateway's state machine, checked by tests after every event."""

from __future__ import annotations

from typing import Protocol

from ...policies.requests.overload import Overload
from ...policies.requests.queue import WaitingQueue
from .asking import Asking
from .move_under_way import MovedParts
from .moving import Moving
from .offline import OfflineBook
from .room_waits import RoomWaits
from .uses import Uses
from .workers import Workers


class CheckedParts(MovedParts, Protocol):
    """The parts of a ``GatewayState`` that must agree with one another."""

    queue: WaitingQueue
    workers: Workers
    asking: Asking
    moving: Moving
    overload: Overload
    uses: Uses
    offline: OfflineBook
    room_waits: RoomWaits


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
    state.room_waits.check(waiting)
    state.moving.check()
    assert all(r.state == ("running" if r.workers else "waiting") for r in active)
    assert set(state.quarantine.routes) <= {r.id for r in active if r.alone or r.deaths.suspect}
    assert all(r.counted == r.cost() for r in active)
    state.overload.check([(r.account, r.counted) for r in active if not r.offline])
    state.offline.check(active)
    state.uses.check(r.application for r in active)
    for worker, on in table.on.items():
        assert on == {r.id for r in active if worker in r.workers}, worker
        assert table.work[worker] == sum(state.active[request].counted for request in on), worker
