"""The lease book: every step of a lease's life is in the table, and no other can be taken."""

from __future__ import annotations

import pytest

from blockwright.policies.plan.sweep_plan import FlightRow
from blockwright.policies.sweep.events import Flight
from blockwright.policies.sweep.leases import LeaseTable, Stage


def test_a_lease_at_its_home() -> None:
    book = LeaseTable("w0")
    book.begin(3)
    lease = book.ask(7, 4, "w1")
    assert (lease.number, book.find("w0", lease.number)) == ((3 << 32) + 1, 7)
    assert book.grant(7, 5) == 1
    book.ask(7, 4, "w1")
    assert book.grant(7, 2) == 2
    assert book.cached(7) == 2
    book.hold(7)
    assert book.urgent == {7}
    book.start(7)
    assert not book.urgent
    assert book.want(7, 5, 2)
    assert not book.want(7, 6, 2), "they have been asked"
    book.grow(7)
    assert book.pages(7) == 4, "another host is still to grant it"
    book.grow(7)
    assert book.pages(7) == 5
    assert book.depart(7, 11) == lease.number
    assert book.is_away(7)
    assert book.flying(7) == 0
    book.sent(7)
    book.depart(7, 12)
    assert (book.flying(7), book.left(7)) == (1, 12)
    assert (book.microbatches("w1"), book.microbatches("w2")) == ([11, 12], [])
    book.check({7})
    book.bring_back(7)
    assert (book.microbatches("w1"), book.is_away(7)) == ([12], True)
    assert book.recall(7) == 0, "its plan is still open"
    assert (book.microbatches("w1"), book.is_away(7)) == ([], False)
    book.check({7})
    assert book.end(7) is lease
    assert book.find("w0", lease.number) is None
    assert book.end(7) is None


def test_steps_that_cannot_come_are_faults_that_name_the_lease() -> None:
    book = LeaseTable("w0")
    book.ask(7, 1, "w1")
    for step in (lambda s: book.ask(s, 1, "w1"), book.start, lambda s: book.depart(s, 1)):
        with pytest.raises(AssertionError, match="lease 1 of w0 is ASKED"):
            step(7)
    for unsent in (book.sent, book.bring_back):
        with pytest.raises(AssertionError, match="lease 1 of w0"):
            unsent(7)
    book.queue(8, "w1", 5, 1, urgent=False)
    with pytest.raises(AssertionError, match="lease 5 of w1 is QUEUED"):
        book.grant(8, 0)


def test_a_flight_is_taken_by_a_plan_or_forgotten() -> None:
    book = LeaseTable("w1")
    for s in (0, 1):
        book.queue(s, "w0", s + 5, 1, urgent=False)
        book.start(s)
    rows = [FlightRow(5, 0, 1, True), FlightRow(6, 0, 1, True)]
    assert book.arrive(Flight("w0", 1, 8, rows)) == [0, 1]
    gone = FlightRow(9, 0, 1, True)
    assert book.arrive(Flight("w0", 2, 8, [gone])) is None, "its lease is gone"
    mixed = Flight("w0", 4, 8, [rows[1], gone])
    assert book.arrive(mixed) is None, "one of its leases is gone"
    assert book.guests(mixed) == [1]
    assert book.guests_in_flights() == [0, 1]
    assert book.cancel_flights({0}) == []
    assert book.cancel_flights({0, 1, 4}) == [0, 1]
    assert book.take_void() == [2, 4, 1]
    assert not book.pending
    assert book.next_flight() is None


def test_a_copy_and_a_restored_book_go_their_own_ways() -> None:
    book = LeaseTable("w0")
    book.ask(7, 1, "w1")
    for copy in (book.fork(), LeaseTable.restore(book.snapshot())):
        copy.grant(7, 1)
        copy.check({7})
    assert book.snapshot()["leases"][0][3] == Stage.ASKED


def test_a_lease_at_its_host_grows_and_is_revoked() -> None:
    book = LeaseTable("w1")
    book.queue(3, "w0", 5, 2, urgent=False)
    book.queue(4, "w0", 6, 2, urgent=True)
    assert book.urgent == {4}, "it has leases of other hosts"
    book.await_pages(3, 3)
    assert book.wanted(3) == 2, "it has none yet"
    for s in (3, 4):
        book.start(s)
    book.await_pages(3, 3)
    assert (book.urgent, book.pages(3), book.lent()) == ({3}, 2, [3, 4])
    book.check({3, 4})
    assert book.extend(3) == 5
    assert (book.urgent, book.pages(3)) == (set(), 3)
    book.await_pages(4, 3)
    book.revoke(4)
    assert (book.urgent, book.lent(), book.revoked) == (set(), [3], True)
    book.await_pages(4, 4)
    assert not book.urgent, "it is on its way back"
    book.check({3, 4})
    book.end(4)
    assert not book.revoked
