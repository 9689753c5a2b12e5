"""Invariants of the request book, checked by tests after every event."""

from __future__ import annotations

from .lifecycle import LifeStage
from .parts import BookParts
from .record import RequestRecord


def check_parts(parts: BookParts) -> None:
    """Raise AssertionError when an invariant is broken."""
    active, table = parts.active.values(), parts.table
    table.check()
    parts.quarantine.check()
    parts.queue.check()
    parts.workers.check(table.alive)
    waiting = {r.id for r in active if r.waiting}
    assert set(parts.queue.in_order(parts.queue.applications())) == waiting
    parts.asking.check(waiting)
    parts.capacity_waits.check(waiting, parts.active)
    parts.claims.check(parts.active)
    parts.pauses.check(parts.claims.open)
    parts.switches.check(parts.claims.open)
    for record in active:
        _check_stage(parts, record)
    parts.choices.check(active)
    assert not parts.due, "a claim is not settled"
    assert set(parts.quarantine.routes) <= {r.id for r in active if r.placement.alone or r.deaths.suspect}
    assert all(r.placement.counted == r.cost() for r in active)
    parts.overload.check([(r.account, r.placement.counted) for r in active if not r.offline])
    parts.offline.check(active, table.alive)
    parts.usage.check(name for r in active for name in r.applications)
    for worker, on in table.on.items():
        assert on == {r.id for r in active if worker in r.placement.workers}, worker
        assert table.work[worker] == sum(parts.active[request].placement.counted for request in on), worker


def _check_stage(parts: BookParts, record: RequestRecord) -> None:
    """Check that a request's stage is what its parts say."""
    stage, progress = record.stage, record.progress
    claim = parts.claims.open.get(record.id)
    assert (record.state == "running") == bool(record.placement.workers), record.id
    assert record.state in ("running", "waiting", "held"), record.id
    if record.state != "held":
        assert (record.history.waits_from is not None) == progress.waits, f"a wait of {record.id} is lost"
    assert (stage is LifeStage.ASKED) == (record.id in parts.asking.open), f"{record.id} is {stage.name}"
    assert (stage is LifeStage.MOVING) == (claim is not None and claim.left is None), f"{record.id} is {stage.name}"
    if claim is not None:
        assert (stage is LifeStage.PAUSED) == claim.pauses, f"{record.id} is {stage.name}"
    if stage in (LifeStage.SENT, LifeStage.STREAMING, LifeStage.MOVING):
        assert (stage is not LifeStage.SENT) == progress.planned, f"{record.id} is {stage.name}"
