"""Conversations that are away from a gateway: what its workers are asked for, and what it knows of it then."""

from __future__ import annotations

from typing import Any

from blockwright.policies.requests.absent import PERIOD
from blockwright.policies.requests.book.messages import ExportAt, GatewayTick, HeartbeatReceived, RetireAt
from blockwright.policies.requests.paces import WorkerLink
from blockwright.policies.sweep.page_events import Exported
from blockwright.tests.policies.requests.book.gateway_bench import GATEWAY, Bench, emitted, route
from blockwright.tests.policies.requests.book.test_kv import HISTORY, sent, with_kv

PAGES = (HISTORY + 3) // 4


def bench(capacity: int = 10_000, **more: Any) -> Bench:
    routes = [route("w0"), route("w1")]
    made = Bench("w0", "w1", routes=routes, chains=[with_kv("m")], kv="owner", **more)
    made.publish(routes, [with_kv("m")], {one.id: capacity for one in routes})
    made.state.parts.table.link = WorkerLink(0.0, 800.0)
    for worker in ("w0", "w1"):
        made(HeartbeatReceived(worker, 1, 0, speed=40_000.0))  # a hundredth of a second for a token
    return made


def conversation(made: Bench) -> None:
    """A conversation is away since 1.0, and its owner has more to do than the other worker."""
    assert sent(made.generate("a", HISTORY, max_tokens=4)) == "w0"
    made.report("w0", emitted("a", 1, HISTORY, [9] * 4, finish="length"), now=1.0)


def asked(effects: list[Any], kind: Any = ExportAt) -> list[Any]:
    return [effect for effect in effects if isinstance(effect, kind)]


def test_pages_of_a_conversation_go_ahead_to_who_has_less_to_do() -> None:
    made = bench(proactive_copies=True)
    conversation(made)
    assert sent(made.generate("b", 30, max_tokens=90, salt=b"b", now=1.0)) == "w0"
    assert asked(made(GatewayTick(), 1.0)) == []
    (copy,) = asked(made(GatewayTick(), 9.0))
    wanted = copy.wanted
    assert (copy.worker, wanted.request, wanted.route, len(wanted.hashes)) == ("w0", "a", route("w0").id, PAGES)
    assert [to.worker for to in wanted.to] == ["w1"]
    made.report("w0", Exported(GATEWAY, "a", wanted.number, PAGES, 99, 0, ""), now=9.5)
    assert sent(made.generate("c", HISTORY, now=9.6)) == "w1", "both have it, and there is less to do"
    assert asked(made(GatewayTick(), 20.0)) == [], "it is not away any more"


def test_pages_that_did_not_arrive_are_not_counted_on() -> None:
    made = bench(proactive_copies=True)
    conversation(made)
    made.generate("b", 30, max_tokens=90, salt=b"b", now=1.0)
    (copy,) = asked(made(GatewayTick(), 9.0))
    made.report("w0", Exported(GATEWAY, "a", copy.wanted.number, 2, 99, PAGES - 2, ""), now=9.5)
    assert sent(made.generate("c", HISTORY, now=9.6)) == "w0"


def test_cold_kv_goes_first_where_the_cache_is_full_or_moves_where_there_is_room() -> None:
    for link, kinds in ((800.0, [RetireAt]), (1e9, [ExportAt])):
        made = bench(capacity=130, cold_kv="least-waste")
        made.state.parts.table.link = WorkerLink(0.0, link)
        conversation(made)
        assert asked(made(GatewayTick(), 9.0), (ExportAt, RetireAt)) == [], "there is room"
        assert sent(made.generate("b", 95, max_tokens=9, salt=b"b", now=9.0)) == "w0"
        found = asked(made(GatewayTick(), 99.0), (ExportAt, RetireAt))
        assert [type(one) for one in found] == kinds
        if kinds == [ExportAt]:
            number = found[0].wanted.number
            effects = made.report("w0", Exported(GATEWAY, "a", number, PAGES, 99, 0, ""), now=99.5)
            found = asked(effects, RetireAt)
        assert [(one.worker, one.route, len(one.hashes)) for one in found] == [("w0", route("w0").id, PAGES)]


def test_nothing_is_noted_while_both_are_off() -> None:
    made = bench()
    conversation(made)
    made.generate("b", 30, max_tokens=90, salt=b"b", now=1.0)
    assert not len(made.state.parts.absent)
    assert asked(made(GatewayTick(), 9.0 + PERIOD), (ExportAt, RetireAt)) == []
