"""Reports are taken once each, in order; gaps are asked for, acknowledgements are cumulative."""

from blockwright.policies.cluster.report_sequence import ACKNOWLEDGE_EVERY, ReportSequence


def test_takes_in_order_and_ignores_duplicates():
    ledger = ReportSequence(1)
    assert ledger.accept(1)
    assert ledger.accept(2)
    assert not ledger.accept(2)
    assert not ledger.accept(1)
    assert ledger.missing(2) is None, "a duplicate is no gap"


def test_a_gap_is_asked_for_once_and_again_by_a_heartbeat():
    ledger = ReportSequence(1)
    ledger.accept(1)
    assert not ledger.accept(4)
    assert ledger.missing(4) == 2
    assert ledger.missing(5) is None, "already asked"
    assert ledger.heard(5) is None, "the replay may be on its way"
    assert ledger.heard(5) == 2
    assert ledger.accept(2)
    assert ledger.missing(7) == 3, "a new gap"


def test_a_lost_tail_shows_at_the_second_heartbeat():
    ledger = ReportSequence(1)
    ledger.accept(1)
    assert ledger.heard(3) is None
    assert ledger.heard(3) == 2
    ledger.accept(2)
    ledger.accept(3)
    assert ledger.heard(3) is None


def test_reports_that_wait_to_be_taken_are_not_lost():
    ledger = ReportSequence(1)
    for serial in range(1, 10):  # one for each heartbeat
        ledger.accept(serial)
        assert ledger.heard(1000 * serial) is None
    ledger.accept(10)
    assert ledger.heard(9500) is None
    assert ledger.heard(9500) == 11, "nothing was taken in between"
    assert ledger.missing(9501) is None, "asked already"
    assert ledger.heard(9600) == 11, "the replay is lost, too"
    ledger.accept(11)
    assert ledger.heard(9600) is None


def test_acknowledges_in_batches_and_on_heartbeats():
    ledger = ReportSequence(1)
    due = []
    for serial in range(1, 2 * ACKNOWLEDGE_EVERY + 2):
        ledger.accept(serial)
        due.append(ledger.due())
    assert [s for s in due if s] == [ACKNOWLEDGE_EVERY, 2 * ACKNOWLEDGE_EVERY]
    assert ledger.due(heartbeat=True) == 2 * ACKNOWLEDGE_EVERY + 1
    assert ledger.due(heartbeat=True) is None
    ledger.check()
