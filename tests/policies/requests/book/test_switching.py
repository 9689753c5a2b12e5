"""Routes that end while requests are on them: which request leaves when, where it goes on, and what is reported."""

from __future__ import annotations

from typing import Any

import pytest

from blockwright.policies.control.route_switch import SwitchFigures, SwitchRoutes
from blockwright.policies.model.chain import Hop, Route
from blockwright.policies.requests.book.messages import (
    CancelAt,
    End,
    ExportAt,
    ExportUnsent,
    GatewayTick,
    HoldAnswered,
    HoldAt,
    Submit,
    UnholdAt,
    WorkerJoined,
)
from blockwright.policies.sweep.page_events import Exported, Unhold
from blockwright.tests.claims import claim
from blockwright.tests.policies.requests.book.gateway_bench import GATEWAY, Bench, emitted, preempted, progressed, submits
from blockwright.tests.policies.requests.book.test_moving import PAGE_BYTES, target, whole

PIPELINE = Route("m@w0+w1", 1, "m", (Hop("w0", 0, 3), Hop("w1", 3, 6)))
REPLICAS = [whole("w0"), whole("w1")]
HALF = PAGE_BYTES  # of one of two layers
LENGTHS = {"a": 10, "b": 8, "c": 6}


class Switched(Bench):
    """Three requests, of which a and c decode on w0 and b on w1, where all are replicas."""

    def __init__(self, routes: list[Route]) -> None:
        super().__init__("w0", "w1", routes=routes, chains=[target()])
        for request, prompt in LENGTHS.items():
            self.generate(request, prompt=prompt, max_tokens=40)
        for request, prompt in LENGTHS.items():
            home = self.state.parts.active[request].placement.route.home
            self.report(home, progressed(request, 1, prompt))
            for number in range(4):
                self.report(home, emitted(request, 1, prompt + number, [number]))

    def homes(self) -> dict[str, str]:
        return {id: record.placement.route.id for id, record in self.state.parts.active.items()}

    def switch(self, to: list[Route], *, dropped: bool, now: float = 1.0, number: int = 7) -> list[Any]:
        ended = sorted({record.placement.route.id for record in self.state.parts.active.values()})
        self.publish(to, [target()], now=now)
        return self(SwitchRoutes(number, ended, [route.id for route in to], dropped, self.version), now)

    def left(self, *requests: str, now: float = 1.0) -> dict[str, tuple[list[str], bool]]:
        """Workers have answered; who is asked next to have room."""
        found = {}
        for request in requests:
            found.update(holds(self(HoldAnswered(request, 2, expects=False, room=False), now)))
        return found

    def exported(self, asked: ExportAt, pages: int, now: float) -> list[Any]:
        wanted = asked.wanted
        return self.report(
            asked.worker, Exported(GATEWAY, wanted.request, wanted.number, pages, pages * HALF, 0, ""), now=now
        )

    @property
    def switching(self) -> Any:
        return self.state.parts.switches

    def story(self, request: str, event: str) -> list[dict[str, Any]]:
        return [detail for _, name, detail in self.state.parts.active[request].history.events if name == event]


def holds(effects: list[Any]) -> dict[str, tuple[list[str], bool]]:
    """Request -> workers that keep its pages, in order, and whether they expect some."""
    found = [effect for effect in effects if isinstance(effect, HoldAt)]
    return {effect.request: ([worker for worker, _ in effect.holds], effect.holds[0][1].expects) for effect in found}


@claim("Running sequences pause while their KV is exchanged, the shortest stall first", of="parameter-dropping")
def test_all_leave_at_once_when_parameters_are_dropped_and_begin_when_their_pages_have_come() -> None:
    bench = Switched(REPLICAS)
    assert bench.homes() == {"a": "m@w0", "b": "m@w1", "c": "m@w1"}
    effects = bench.switch([PIPELINE], dropped=True)
    assert holds(effects) == {"a": (["w0"], False), "b": (["w1"], False), "c": (["w1"], False)}
    assert len(effects) == 3, "nothing is cancelled: that would give their pages up"
    (_, events), *_ = effects[0].holds
    assert (events.attempt, events.route, len(events.hashes)) == (1, "m@w0", 3)
    assert bench.switch([PIPELINE], dropped=True) == [], "an order that comes twice"
    assert not bench.off(7)
    assert bench.left("a", "b", "c") == {"a": (["w1"], True), "b": (["w0"], True), "c": (["w0"], True)}
    assert bench.off(7)
    for number, request in enumerate("abc", 2):
        (asked,) = bench(HoldAnswered(request, 2, expects=True, room=True), float(number))
        assert isinstance(asked, ExportAt)
        assert asked.wanted.since == 0
        effects = bench.exported(asked, 2, float(number))
        assert submits(effects) == [("w0", request, 2)]
        assert not bench.switching.settled(7)
        bench.report("w0", progressed(request, 2, 8, 8), now=float(number))
    assert bench.switching.settled(7)
    assert bench.switching.figures(7) == SwitchFigures(7, 3, 3, 6, 6 * HALF, 6 + 4 + 2, 1.0 + 2.0 + 3.0, 3.0)
    bench.report("w0", emitted("a", 2, 14, [4]), now=5.0)
    assert bench.story("a", "paused") == [{"source": "w0", "target": "w0+w1", "reason": "parameters were dropped"}]
    assert bench.story("a", "moved")[0]["paused"] == 4.0
    assert bench.switching.figures(1) == SwitchFigures(1), "nobody knows of another"
    assert bench.switching.settled(1)


def test_of_whom_nothing_was_computed_yet_nobody_waits() -> None:
    """It waited for memory before the drop, and may do so for long after it: nothing pauses, nothing is computed again, and
    the drop does not take as long as its queue."""
    bench = Switched(REPLICAS)
    bench.generate("d", prompt=9)
    assert bench.state.parts.active["d"].placement.route is not None
    assert "d" in holds(bench.switch([PIPELINE], dropped=True)), "its worker is to end its attempt like any other"
    bench.left("a", "b", "c")
    assert not bench.off(7)
    assert submits(bench(HoldAnswered("d", 2, expects=False, room=False), 1.0)) == [("w0", "d", 2)], "without any pages"
    assert bench.off(7)
    for request in "abc":
        bench(End(request), 2.0)
    assert bench.switching.settled(7)
    bench.report("w0", progressed("d", 2, 9), emitted("d", 2, 9, [0]), now=60.0)
    assert bench.switching.figures(7) == SwitchFigures(7, stale=3)
    values = {"source": "w0", "target": "w0+w1"}
    assert bench.story("d", "rerouted") == [{**values, "reason": "parameters were dropped"}]
    assert bench.story("d", "moved") == [{**values, "pages": 0, "bytes": 0, "recomputed": 0, "paused": 0.0}]
    assert not bench.story("d", "paused")


@pytest.mark.parametrize("dropped", [True, False])
def test_who_was_preempted_has_no_kv_and_pauses_for_nothing(dropped: bool) -> None:
    """Later reports of the plan in flight give c no KV. b has started again, and has what it found and computed."""
    bench = Switched(REPLICAS)
    bench.report("w1", preempted("c"), emitted("c", 1, 10, [4]), preempted("b"), progressed("b", 1, 8, 0), now=0.5)
    bench.report("w1", progressed("b", 1, 4, 4), progressed("b", 1, 12, 4), emitted("b", 1, 12, [4]), now=0.5)
    effects = bench.switch([PIPELINE], dropped=dropped)
    assert bench.switching.figures(7).stale == 2
    if not dropped:
        assert submits(effects) == [("w0", "c", 2)], "nothing is copied that it could wait for"
        return
    asked = {effect.request: len(effect.holds[0][1].hashes) for effect in effects if isinstance(effect, HoldAt)}
    assert asked == {"a": 3, "b": 3, "c": 0}
    assert submits(bench(HoldAnswered("c", 2, expects=False, room=False), 1.0)) == [("w0", "c", 2)]
    assert bench.story("c", "rerouted")
    assert not bench.story("c", "paused")
    bench.report("w0", progressed("c", 2, 0), progressed("c", 2, 11), emitted("c", 2, 11, [5]), now=9.0)
    assert bench.story("c", "moved")[0]["paused"] == 0.0
    assert bench.story("c", "moved")[0]["recomputed"] == 0
    assert bench.switching.figures(7) == SwitchFigures(7, stale=2)


def test_who_finds_no_room_waits_and_in_the_end_one_is_computed_again() -> None:
    """The longest, so that the others have its memory."""
    bench = Switched(REPLICAS)
    bench.switch([PIPELINE], dropped=True)
    bench.left("a", "b", "c")
    for request in "abc":
        assert bench(HoldAnswered(request, 2, expects=True, room=False), 1.1) == []
    asked = bench(GatewayTick(), 1.2)
    assert list(holds(asked)) == ["b", "c", "a"], "shortest stall first"
    for request in "abc":
        bench(HoldAnswered(request, 2, expects=True, room=False), 1.3)
    effects = bench(GatewayTick(), 2.4)
    assert submits(effects) == [("w0", "a", 2)]
    assert [effect.workers for effect in effects if isinstance(effect, UnholdAt)] == [("w0", "w1")]
    assert list(holds(effects)) == ["b", "c"]
    for request in "bc":
        (asked,) = bench(HoldAnswered(request, 2, expects=True, room=True), 2.5)
        bench.exported(asked, 2, 2.6)
        assert not bench.switching.settled(7)
        bench.report("w0", progressed(request, 2, 8, 8), now=2.7)
    assert bench.switching.settled(7), "a waits for memory, and perhaps until parameters are dropped once more"
    assert bench.switching.figures(7).stall_worst == 2.7 - 1.0
    bench.report("w0", emitted("a", 2, 14, [4]), now=30.0)
    assert bench.switching.figures(7).recomputed == 14 + 4 + 2
    (moved,) = bench.story("a", "moved")
    assert (moved["reason"], moved["paused"]) == ("there was no room for its pages", 29.0)


def test_pages_that_nobody_can_send_are_computed_again() -> None:
    """Their worker dies, which is none of the new route, or is out of reach."""
    away = Route("m@w0+w2", 1, "m", (Hop("w0", 0, 3), Hop("w2", 3, 6)))
    bench = Switched(REPLICAS)
    bench(WorkerJoined("w2", 1))
    bench.switch([away], dropped=True)
    bench.left("a", "b", "c")
    (asked,) = bench(HoldAnswered("b", 2, expects=True, room=True), 1.5)
    effects = bench.die("w1", now=2.0, back=False)
    assert sorted(submits(effects)) == [("w0", "b", 2), ("w0", "c", 2)]
    assert bench.exported(asked, 1, 2.5) == [], "what comes late of the dead"
    (asked,) = bench(HoldAnswered("a", 2, expects=True, room=True), 3.0)
    news = Exported(GATEWAY, "a", asked.wanted.number, 0, 0, 0, "worker w0 was not asked")
    assert submits(bench(ExportUnsent("w0", news), 3.5)) == [("w0", "a", 2)]


def test_all_decode_on_when_parameters_come_back_and_are_dealt_out() -> None:
    bench = Switched([PIPELINE])
    effects = bench.switch(REPLICAS, dropped=False)
    assert {type(effect) for effect in effects} == {ExportAt}
    targets = {effect.wanted.request: {to.worker for to in effect.wanted.to} for effect in effects}
    assert targets == {"a": {"w0"}, "b": {"w1"}, "c": {"w1"}}, "the longest apart from the two others"
    assert not bench.off(7)
    for effect in effects:
        news = Exported(GATEWAY, effect.wanted.request, effect.wanted.number, 2, 2 * PAGE_BYTES, 0, "")
        (begun,) = [e for e in bench.report(effect.worker, news, now=2.0) if isinstance(e, Submit)]
        bench.report(begun.worker, progressed(effect.wanted.request, 2, 8, 8), now=2.5)
    assert bench.homes() == {"a": "m@w0", "b": "m@w1", "c": "m@w1"}
    assert bench.off(7)
    assert bench.switching.settled(7)
    assert bench.switching.figures(7) == SwitchFigures(7, 3, 3, 6, 6 * PAGE_BYTES, 6 + 4 + 2, 1.5, 0.5)


def test_as_many_move_at_a_time_as_their_new_route_has_room_for_beyond_all_that_goes_there() -> None:
    """What is copied lies in two places until its request has moved. b (12 tokens) and c (10) go to w1."""
    bench = Switched([PIPELINE])
    bench.publish(REPLICAS, [target()], {"m@w0": 64, "m@w1": 2 * (12 + 10 + 21)})
    order = SwitchRoutes(7, [PIPELINE.id], ["m@w0", "m@w1"], version=bench.version, dropped=False, gateways=2)
    begun = [effect.wanted.request for effect in bench(order, 1.0)]
    assert begun == ["a", "b"]
    assert bench(GatewayTick(), 1.1) == []
    bench(End("b"), 1.15)
    assert [effect.wanted.request for effect in bench(GatewayTick(), 1.2)] == ["c"]
    assert not bench.off(7)
    bench = Switched([PIPELINE])
    bench.publish(REPLICAS, [target()], {"m@w1": 12 + 10 + 22})
    bench(SwitchRoutes(7, [PIPELINE.id], ["m@w0", "m@w1"], version=bench.version, dropped=False), 1.0)
    assert {*bench.state.parts.claims.open} == {"a", "b", "c"}, "there is room for both, and to w0 for who knows how many"


def test_who_ends_before_its_turn_is_not_waited_for() -> None:
    bench = Switched([PIPELINE])
    bench.publish(REPLICAS, [target()], {"m@w0": 64, "m@w1": 64})
    order = SwitchRoutes(7, [PIPELINE.id], ["m@w0", "m@w1"], version=bench.version, dropped=False, gateways=4)
    asked = {effect.wanted.request: effect for effect in bench(order, 1.0)}
    assert {*asked} == {"a", "b"}, "one at a time where there is no room"
    bench(End("c"), 1.5)
    for request, effect in asked.items():
        (begun,) = [e for e in bench.exported(effect, 2, 2.0) if isinstance(e, Submit)]
        bench.report(begun.worker, progressed(request, 2, 8, 8), now=2.5)
    bench(GatewayTick(), 3.0)
    assert bench.off(7)
    assert bench.switching.settled(7)


def test_who_has_not_moved_stays_where_the_new_route_has_died() -> None:
    """The order is void then; what begins there later is not waited for."""
    bench = Switched([PIPELINE])
    bench.publish([PIPELINE, *REPLICAS], [target()], {"m@w0": 64, "m@w1": 64, PIPELINE.id: 900})
    order = SwitchRoutes(7, [PIPELINE.id], ["m@w1"], version=bench.version, dropped=False)
    begun = {effect.wanted.request for effect in bench(order, 1.0) if isinstance(effect, ExportAt)}
    (waiting,) = {*LENGTHS} - begun
    bench.publish([PIPELINE], [target()], {PIPELINE.id: 900})
    for request in begun:
        bench(End(request), 1.5)
    assert bench(GatewayTick(), 1.6) == []
    assert bench.homes() == {waiting: PIPELINE.id}
    assert bench.switching.settled(7)
    bench.generate("d", prompt=9)
    assert not bench.off(7)
    bench(End(waiting), 2.0)
    assert bench.homes() == {"d": PIPELINE.id}
    assert bench.off(7)


def test_who_ends_or_dies_is_not_waited_for() -> None:
    bench = Switched(REPLICAS)
    bench.switch([PIPELINE], dropped=True)
    bench.left("a", "b")
    (cancelled, _, unheld) = bench(End("a"), 1.5)
    assert isinstance(cancelled, CancelAt)
    assert unheld == UnholdAt(("w0", "w1"), Unhold("a", 1))
    bench.die("w0", back=False)
    assert not bench.off(7), "one has not left as far as is known"
    bench(HoldAnswered("c", 2, expects=False, room=False), 2.0)
    assert bench.off(7)
    assert bench.switching.settled(7)
    assert bench.switching.figures(7).stale == 3
    assert not bench.state.parts.active["b"].placement.workers, "they wait for a route, like everybody"


def test_without_a_route_that_holds_it_a_request_waits() -> None:
    bench = Switched(REPLICAS)
    effects = bench.switch([], dropped=True)
    assert not submits(effects)
    assert bench.off(7)
    assert bench.switching.settled(7)
    assert submits(bench.publish([whole("w0")], [target()])) == [("w0", "a", 2), ("w0", "b", 2), ("w0", "c", 2)]
