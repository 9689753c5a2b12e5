"""The lease book: every step of a lease's life is in the table, and no other can be taken."""

from __future__ import annotations

import pytest

from blockwright.policies.plan.sweep_plan import FlightRow
from blockwright.policies.sweep.events import Flight
from blockwright.policies.sweep.leases import LeaseBook, Stage


def test_a_lease_at_its_home() -> None:
    book = LeaseBook("w0")
    book.begin(3)
    lease = book.ask(7)
    assert (lease.number, book.find("w0", lease.number)) == ((3 << 32) + 1, 7)
    book.grant(7, 5)
    book.ask(7)
    book.grant(7, 2)
    assert (book.granted(7), book.cached(7)) == (2, 2)
    book.start(7)
    assert book.depart(7, 11) == lease.number
    assert book.is_away(7)
    assert not book.is_in_flight(7)
    book.sent(7)
    assert book.is_in_flight(7)
    assert book.microbatches == 1
    assert book.bring_back(7)
    assert (book.microbatches, book.is_away(7)) == (0, False)
    book.depart(7, 12)
    assert not book.bring_back(7), "its plan is still open"
    book.check({7})
    assert book.end(7) is lease
    assert book.find("w0", lease.number) is None
    assert book.end(7) is None


def test_steps_that_cannot_come_are_faults_that_name_the_lease() -> None:
    book = LeaseBook("w0")
    book.ask(7)
    for step in (book.ask, book.start, book.sent, book.bring_back, lambda s: book.depart(s, 1)):
        with pytest.raises(AssertionError, match="lease 1 of w0 is ASKED"):
            step(7)
    book.queue(8, "w1", 5)
    with pytest.raises(AssertionError, match="lease 5 of w1 is QUEUED"):
        book.grant(8, 0)


def test_a_flight_is_taken_by_a_plan_or_forgotten() -> None:
    book = LeaseBook("w1")
    for s in (0, 1):
        book.queue(s, "w0", s + 5)
        book.start(s)
    rows = [FlightRow(5, 0, 1, True), FlightRow(6, 0, 1, True)]
    assert book.arrive(Flight("w0", 1, 8, rows)) == [0, 1]
    assert book.arrive(Flight("w0", 2, 8, [*rows, FlightRow(9, 0, 1, True)])) is None, "a lease is gone"
    assert book.guests_in_flights() == [0, 1]
    assert book.cancel_flights({0}) == []
    assert book.cancel_flights({0, 1, 4}) == [0, 1]
    assert book.take_void() == [2, 1]
    assert not book.pending
    assert book.next_flight() is None


def test_a_copy_and_a_restored_book_go_their_own_ways() -> None:
    book = LeaseBook("w0")
    book.ask(7)
    for copy in (book.fork(), LeaseBook.restore(book.snapshot())):
        copy.grant(7, 1)
        copy.check({7})
        assert book.granted(7) == 0
    assert book.snapshot()["leases"][0][3] == Stage.ASKED
