"""What a worker tells gateways and other workers: numbers without gaps, few messages."""

from __future__ import annotations

from blockwright.actors.worker.coalesced_news import CoalescedNews
from blockwright.actors.worker.reports import TOGETHER, WINDOW, Reports
from blockwright.policies.sweep.events import (
    DraftsVerified,
    LeaseReturned,
    PeerMessage,
    Preempted,
    Progressed,
    TokensEmitted,
)

GATEWAY = "head/gateway"


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


def test_who_has_enough_to_take_is_told_the_rest_together() -> None:
    """Once he has taken some; tokens of one request are joined. Others are told as ever."""
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
