"""Workers as the gateway knows them: reports taken in order, fenced with their incarnation."""

from __future__ import annotations

from blockwright.policies.cluster.report_sequence import ACKNOWLEDGE_EVERY
from blockwright.policies.requests.book.messages import Acknowledge, Replay
from blockwright.policies.requests.book.sweep_report import SweepReport
from blockwright.policies.requests.book.workers import Workers


def report(serial: int, incarnation: int = 1) -> SweepReport:
    return SweepReport("w0", incarnation, serial, serial, [])


def test_reports_are_taken_once_in_order_and_a_gap_is_mended_once() -> None:
    workers = Workers()
    assert workers.accept(report(1)) is False, "not announced yet"
    workers.up("w0", 1)
    assert workers.accept(report(1)) is True
    assert workers.accept(report(1)) is False
    assert workers.accept(report(4)) == Replay("w0", 2)
    assert workers.accept(report(5)) is False, "asked for already"
    assert [workers.accept(report(serial)) for serial in (2, 3)] == [True, True]
    workers.check({"w0"})


def test_another_incarnation_is_fenced_and_begins_anew() -> None:
    workers = Workers()
    workers.up("w0", 1)
    assert workers.accept(report(1, incarnation=2)) is False
    assert workers.down("w0", 2) is True, "so has the life before, though nobody said so"
    workers.check(set())
    assert workers.down("w0", 1) is False
    assert workers.incarnation("w0") is None
    assert workers.has_ended("w0", 2)
    workers.up("w0", 3)
    assert not workers.has_ended("w0", 3)
    assert workers.accept(report(1)) is False
    assert workers.accept(report(1, incarnation=3)) is True
    assert workers.incarnation("w0") == 3


def test_heartbeats_acknowledge_what_is_left_and_tell_what_was_lost() -> None:
    workers = Workers()
    workers.up("w0", 1)
    for serial in range(1, ACKNOWLEDGE_EVERY + 1):
        assert workers.accept(report(serial)) is True
        outcome = workers.due("w0")
        assert outcome == ([Acknowledge("w0", serial)] if serial == ACKNOWLEDGE_EVERY else [])
    last = ACKNOWLEDGE_EVERY + 1
    assert workers.accept(report(last)) is True
    assert workers.heard("w0", last + 1) == [Acknowledge("w0", last)], "the next may be on its way"
    assert workers.heard("w0", last + 1) == [Replay("w0", last + 1)]
