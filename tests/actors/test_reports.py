"""Reports of a worker to gateways and other workers: numbers without gaps, few messages, and the offline credit."""

from __future__ import annotations

from blockwright.actors.worker.coalesced_news import CoalescedNews
from blockwright.actors.worker.messages import PeerReport
from blockwright.actors.worker.reports import TOGETHER, WINDOW, OfflineCredit, Peers, Reports
from blockwright.policies.cluster.report_sequence import ACKNOWLEDGE_EVERY
from blockwright.policies.requests.routes_changed import RoutesChanged
from blockwright.policies.sweep.config import SweepConfig
from blockwright.policies.sweep.events import (
    DraftsVerified,
    LeaseReturned,
    PeerMessage,
    Preempted,
    Progressed,
    SatOut,
    TokensEmitted,
)
from blockwright.policies.sweep.offline_capacity import decode_capacities
from blockwright.policies.sweep.state import SweepState
from blockwright.runtime.node.peers import Peer
from blockwright.tests.policies.sweep.offline_world import CHUNK, commit, offline, online, world
from blockwright.tests.policies.sweep_world import chain, replica
from blockwright.transport.address import PeerId

GATEWAY, HERE = "head/gateway", "w0/worker"


def emitted(request: str, position: int, tokens: list[int], attempt: int = 1, finish: str = "") -> TokensEmitted:
    return TokensEmitted(GATEWAY, request, attempt, position, tokens, [], finish)


def test_a_thousand_leases_are_a_few_messages_in_order() -> None:
    sent: list[PeerMessage] = [LeaseReturned("w9", i) for i in range(1000)]
    reports = Reports("w0", 1)
    made = reports.for_worker("w1/worker", sent)
    assert len(made) == -(-1000 // TOGETHER)
    assert [report.serial for report in made] == [*range(1, len(made) + 1)]
    assert [message for report in made for message in report.messages] == sent
    assert reports.since("w1/worker", 1) == made


def test_reports_of_a_gateway_that_is_gone_are_forgotten() -> None:
    reports = Reports("w0", 1)
    for gateway in ("head/gateway", "g1/gateway"):
        reports.make([Progressed(gateway, "r0", 1, 1, 0)], 1, lambda gateway: None)
    reports.forget("g1")
    assert reports.last == {"head/gateway": 1}
    assert reports.since("g1/gateway", 1) == []
    assert len(reports.since("head/gateway", 1)) == 1


def test_a_report_says_how_long_its_sweep_took() -> None:
    ((_, report),) = Reports("w0", 1).make([emitted("r0", 0, [1])], 1, lambda gateway: None, 0.25)
    assert report.seconds == 0.25


def test_a_reader_with_enough_to_read_gets_the_rest_together() -> None:
    """Once it has read some. Tokens of one request are joined. Other readers get theirs as ever."""
    reports = Reports("w0", 1)

    def make(*effects: TokensEmitted | Preempted) -> list[tuple[str, int]]:
        return [(to, report.serial) for to, report in reports.make(effects, 1, lambda gateway: None)]

    for position in range(WINDOW):
        assert make(emitted("r0", position, [position])) == [(GATEWAY, position + 1)]
    assert reports.last == {GATEWAY: WINDOW}
    assert make(emitted("r0", WINDOW, [7]), Preempted("g1/gateway", "r9", 1)) == [("g1/gateway", 1)]
    assert make(emitted("r0", WINDOW + 1, [8]), emitted("r1", 0, [1])) == []
    assert reports.last == {GATEWAY: WINDOW + 1, "g1/gateway": 1}, "who misses a report asks for it"
    assert make() == []
    reports.acknowledge(GATEWAY, 32)
    ((_, report),) = reports.make((), 5, lambda gateway: None)
    assert (report.serial, report.sweep) == (WINDOW + 1, 5)
    assert report.news == [emitted("r0", WINDOW, [7, 8]), emitted("r1", 0, [1])]
    assert make() == []
    assert make(emitted("r1", 1, [2])) == [(GATEWAY, WINDOW + 2)]


def test_who_asks_for_a_report_that_waits_gets_it() -> None:
    """Its acknowledgements were lost."""
    reports = Reports("w0", 1)
    for position in range(WINDOW + 3):
        reports.make([emitted("r0", position, [position])], 1, lambda gateway: None)
    assert reports.last == {GATEWAY: WINDOW + 1}
    assert reports.since(GATEWAY, WINDOW + 1) == []
    ((_, report),) = reports.make((), 1, lambda gateway: None)
    assert report.news == [emitted("r0", WINDOW, [WINDOW, WINDOW + 1, WINDOW + 2])]


def test_what_waits_for_a_gateway_that_is_gone_is_forgotten() -> None:
    reports = Reports("w0", 1)
    for position in range(WINDOW + 3):
        reports.make([emitted("r0", position, [position])], 1, lambda gateway: None)
    reports.forget("head")
    assert (reports.last, reports.make((), 1, lambda gateway: None)) == ({}, [])


def test_news_of_a_request_are_joined_where_they_follow_each_other() -> None:
    held, preempted = CoalescedNews(), Preempted(GATEWAY, "r0", 1)
    held.add([emitted("r0", 4, [1]), emitted("r1", 9, [5]), emitted("r0", 5, [2, 3]), emitted("r1", 10, [6], finish="stop")])
    assert held.news == [emitted("r0", 4, [1, 2, 3]), emitted("r1", 9, [5, 6], finish="stop")]
    held.add([preempted, emitted("r0", 7, [4]), emitted("r0", 8, [5], attempt=2), emitted("r0", 8, [5], attempt=2)])
    assert held.news[2:] == [preempted, emitted("r0", 7, [4]), *[emitted("r0", 8, [5], attempt=2)] * 2]
    held.add([emitted("r1", 11, [0])])
    assert held.news[-1] == emitted("r1", 11, [0]), "what comes behind an end is not joined to it"


def test_rounds_of_drafts_are_added_up_and_come_before_the_end_of_their_request() -> None:
    held = CoalescedNews()
    for position in (4, 7):
        held.add([DraftsVerified(GATEWAY, "r0", 1, "prompt", 5, 2), emitted("r0", position, [1, 2, 3])])
    held.add([DraftsVerified(GATEWAY, "r0", 1, "prompt", 6, 1, 3), DraftsVerified(GATEWAY, "r0", 1, "prediction", 4, 4)])
    held.add([DraftsVerified(GATEWAY, "r0", 2, "prompt", 1, 0), emitted("r0", 10, [9], finish="stop")])
    assert held.news == [
        DraftsVerified(GATEWAY, "r0", 1, "prompt", 16, 5, 5),
        DraftsVerified(GATEWAY, "r0", 1, "prediction", 4, 4, 1),
        DraftsVerified(GATEWAY, "r0", 2, "prompt", 1, 0, 1),
        emitted("r0", 4, [1, 2, 3, 1, 2, 3, 9], finish="stop"),
    ]


def test_steps_that_a_request_sat_out_are_added_up_and_come_before_its_end() -> None:
    held = CoalescedNews()
    held.add([emitted("r0", 4, [1]), SatOut(GATEWAY, "r0", 1, 1, 0.25), SatOut(GATEWAY, "r1", 1, 1, 8.0)])
    held.add([SatOut(GATEWAY, "r0", 1, 2, 0.5), emitted("r0", 5, [2], finish="stop"), SatOut(GATEWAY, "r0", 2, 1, 4.0)])
    parked = [SatOut(GATEWAY, "r0", 1, 3, 0.75), SatOut(GATEWAY, "r1", 1, 1, 8.0), SatOut(GATEWAY, "r0", 2, 1, 4.0)]
    assert held.news == [*parked, emitted("r0", 4, [1, 2], finish="stop")]


def test_reports_say_what_has_changed_while_offline_sequences_are_here() -> None:
    state = world(60).workers["w0"].state
    credit = OfflineCredit(state)
    assert credit.changed_for("g0") is None
    state.apply(offline("o", [5] * 6, 3), 0.0)
    first = credit.changed_for("g0")
    assert first is not None
    assert credit.changed_for("g0") is None, "as it said before"
    assert credit.changed_for("g1") == first, "another gateway has not heard it"
    plan = state.plan(0.0)
    assert plan is not None
    commit(state, plan)
    second = credit.changed_for("g0")
    assert second is not None
    assert second != first
    rooms, _ = decode_capacities(credit.beat(None))
    assert rooms == second
    assert credit.changed_for("g1") is None, "the heartbeat has reported it"
    while (plan := state.plan(0.0)) is not None:
        commit(state, plan)
    assert credit.changed_for("g0") is not None, "once more when they have gone"
    assert credit.changed_for("g0") is None
    state.apply(online("a", [1] * 6, 3), 0.0)
    assert credit.changed_for("g0") is None, "no offline sequence is here"


def test_applications_are_reported_together_where_they_are_alike_and_apart_where_they_are_not() -> None:
    models = [chain(f"m{n}") for n in range(4)] + [chain("other", own_from=0, heads=64)]
    routes = [replica("w0", one) for one in models]
    config = SweepConfig(
        worker="w0", numerics="fake", budget=80 * CHUNK, page_size=4, chunk_size=8, sweep_tokens=32, max_rows=8
    )
    state = SweepState(config)
    state.apply(RoutesChanged(1, models, routes, routes), 0.0)
    rooms = state.offline_capacities()
    assert [one.applications for one in rooms] == [("m0", "m1", "m2", "m3"), ("other",)]
    assert decode_capacities(OfflineCredit(state).beat(None))[0] == rooms
    state.apply(RoutesChanged(2, models[1:], routes[1:], routes[1:]), 0.0)
    assert [one.applications for one in state.offline_capacities()] == [("m1", "m2", "m3"), ("other",)]
    assert state.fork().offline_capacities() == state.offline_capacities()


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
    said = [report for lease in (7, 8) for report in reports.for_worker(HERE, [LeaseReturned("w1", lease)])]
    assert [r.serial for r in said] == [1, 2]
    assert reports.since(HERE, 1) == said
    reports.acknowledge(HERE, 1)
    assert reports.since(HERE, 1) == said[1:]
    reports.forget("w0")
    assert reports.since(HERE, 1) == []
    assert [r.serial for r in reports.for_worker(HERE, [LeaseReturned("w1", 9)])] == [1]
