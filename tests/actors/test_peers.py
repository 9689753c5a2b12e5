from blockwright.actors.report_sequence import ACKNOWLEDGE_EVERY
from blockwright.actors.worker.messages import PeerReport
from blockwright.actors.worker.peers import Peers
from blockwright.actors.worker.reports import Reports
from blockwright.policies.sweep.events import LeaseReturned
from blockwright.runtime.node.peers import Peer
from blockwright.transport.address import PeerId

HERE = "w0/worker"


def report(serial: int, incarnation: int = 1) -> PeerReport:
    return PeerReport("w1", incarnation, serial, [LeaseReturned("w1", serial)])


def beat(at: float, serial: int, incarnation: int = 1) -> dict[str, Peer]:
    return {"w1": Peer(PeerId("w1", incarnation), "", at, heartbeat_at=at, payload={"reports": {HERE: serial}})}


def test_reports_are_taken_once_and_in_order() -> None:
    peers = Peers(HERE)
    assert peers.accept(report(1)) == (True, None)
    assert peers.accept(report(1)) == (False, None)
    assert peers.accept(report(3)) == (False, ("replay", 2))
    assert peers.accept(report(4)) == (False, None)  # asked for already
    assert [peers.accept(report(serial))[0] for serial in (2, 3, 4)] == [True, True, True]


def test_what_a_heartbeat_twice_shows_to_be_missing_is_asked_for() -> None:
    peers = Peers(HERE)
    assert peers.heartbeats(beat(1.0, 1)) == []  # it may still be on its way
    assert peers.heartbeats(beat(1.0, 1)) == []  # the same heartbeat
    assert peers.heartbeats(beat(1.5, 1)) == [("w1", ("replay", 1))]
    assert peers.accept(report(1)) == (True, None)
    assert peers.heartbeats(beat(2.0, 1)) == [("w1", ("ack", 1))]


def test_many_reports_are_acknowledged_without_a_heartbeat() -> None:
    peers = Peers(HERE)
    answers = [peers.accept(report(serial))[1] for serial in range(1, ACKNOWLEDGE_EVERY + 1)]
    assert answers[-1] == ("ack", ACKNOWLEDGE_EVERY)
    assert set(answers[:-1]) == {None}


def test_each_life_of_a_worker_counts_anew() -> None:
    peers = Peers(HERE)
    assert peers.accept(report(1))[0]
    assert peers.accept(report(1, incarnation=2))[0]
    peers.forget("w1")
    assert peers.accept(report(1, incarnation=2))[0]


def test_other_nodes_heartbeats_are_no_news() -> None:
    peer = Peer(PeerId("g1", 1), "", 1.0, heartbeat_at=1.0, payload={"reports": {"head/gateway": 3}})
    assert Peers(HERE).heartbeats({"g1": peer}) == []


def test_what_is_said_to_a_worker_is_kept_until_it_is_acknowledged() -> None:
    reports = Reports("w1", 1)
    said = [reports.for_worker(HERE, [LeaseReturned("w1", lease)]) for lease in (7, 8)]
    assert [r.serial for r in said] == [1, 2]
    assert reports.since(HERE, 1) == said
    reports.acknowledge(HERE, 1)
    assert reports.since(HERE, 1) == said[1:]
    reports.forget("w0")
    assert reports.since(HERE, 1) == []
    assert reports.for_worker(HERE, []).serial == 1
