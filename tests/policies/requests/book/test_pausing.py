"""Requests that pause: answers that come late are for another attempt, and pages are let go when a request has moved."""

from __future__ import annotations

import pytest

from blockwright.policies.control.route_switch import SwitchFigures, SwitchRoutes
from blockwright.policies.model.chain import Hop, Route
from blockwright.policies.requests.book.messages import (
    CancelAt,
    End,
    ExportAt,
    HoldAnswered,
    Submit,
    UnholdAt,
    WorkerEnded,
    WorkerJoined,
)
from blockwright.policies.sweep.page_events import Unhold
from blockwright.tests.policies.requests.book.gateway_bench import emitted, progressed, submits
from blockwright.tests.policies.requests.book.test_switching import PIPELINE, REPLICAS, Switched, holds, target

BACK = Route("m@w1+w0", 1, "m", (Hop("w1", 0, 3), Hop("w0", 3, 6)))


def paused_again(*, ran: bool) -> Switched:
    """Return a gateway whose requests pause for the second time, for attempt 3. ``ran``: attempt 2 had begun to decode."""
    bench = Switched(REPLICAS)
    bench.switch([PIPELINE], dropped=True)
    if ran:
        bench.left("a", "b", "c")
        for request, prompt in (("a", 14), ("b", 12), ("c", 10)):
            (asked,) = bench(HoldAnswered(request, 2, expects=True, room=True), 1.0)
            bench.exported(asked, 2, 1.0)
            bench.report("w0", progressed(request, 2, 8, 8), progressed(request, 2, prompt), now=1.0)
            bench.report("w0", emitted(request, 2, prompt, [4]), now=1.0)
    bench.switch([BACK], dropped=True, now=2.0, number=8)
    assert {record.placement.attempt for record in bench.state.parts.active.values()} == {3}
    return bench


def test_an_answer_to_the_pause_before_does_not_say_that_the_next_attempt_has_left() -> None:
    bench = paused_again(ran=False)
    for request in "abc":
        assert bench(HoldAnswered(request, 2, expects=False, room=False), 2.1) == []
    assert not bench.off(8), "their workers have not answered"
    for request in "abc":
        assert submits(bench(HoldAnswered(request, 3, expects=False, room=False), 2.2)) == [("w1", request, 3)]
    assert bench.off(8)


def test_an_answer_that_comes_after_its_request_has_paused_for_the_next_attempt_asks_for_no_room() -> None:
    bench = paused_again(ran=True)
    assert bench(HoldAnswered("a", 2, expects=False, room=False), 2.1) == []
    assert not bench.off(8)
    assert holds(bench(HoldAnswered("a", 3, expects=False, room=False), 2.2)) == {"a": (["w0", "w1"], True)}


def test_room_that_was_made_for_the_attempt_before_lets_nothing_be_copied() -> None:
    bench = paused_again(ran=True)
    bench(HoldAnswered("a", 3, expects=False, room=False), 2.1)
    assert bench(HoldAnswered("a", 2, expects=True, room=True), 2.2) == []
    asked = bench(HoldAnswered("a", 3, expects=True, room=True), 2.3)
    assert {(type(one), one.wanted.attempt) for one in asked} == {(ExportAt, 2)}


def test_an_answer_after_the_attempt_has_begun_begins_it_no_second_time() -> None:
    """Its worker repeats itself, or it took longer than anybody waited."""
    bench = Switched(REPLICAS)
    bench.switch([PIPELINE], dropped=True)
    bench.left("a")
    (asked,) = bench(HoldAnswered("a", 2, expects=True, room=True), 1.5)
    assert submits(bench.exported(asked, 2, 1.6)) == [("w0", "a", 2)]
    for expects, room in ((False, False), (True, True), (True, False)):
        assert bench(HoldAnswered("a", 2, expects=expects, room=room), 1.7) == []
    assert bench.homes()["a"] == PIPELINE.id


def test_an_answer_for_a_request_that_has_ended_is_for_nobody() -> None:
    bench = Switched(REPLICAS)
    bench.switch([PIPELINE], dropped=True)
    bench(End("a"), 1.5)
    assert bench(HoldAnswered("a", 2, expects=False, room=False), 1.6) == []
    assert bench(HoldAnswered("a", 2, expects=True, room=True), 1.7) == []


@pytest.mark.parametrize("request_id", ["b", "c"])
def test_a_worker_that_is_left_lets_pages_go_when_the_request_has_moved(request_id: str) -> None:
    """One that is on the new route needs them no more either, and finds that out itself: the attempt uses them."""
    away = Route("m@w0+w2", 1, "m", (Hop("w0", 0, 3), Hop("w2", 3, 6)))
    bench = Switched(REPLICAS)
    bench(WorkerJoined("w2", 1))
    bench.switch([away], dropped=True)
    bench.left("a", "b", "c")
    (asked,) = bench(HoldAnswered(request_id, 2, expects=True, room=True), 1.5)
    unheld, begun = [e for e in bench.exported(asked, 2, 1.6) if not isinstance(e, CancelAt)]
    assert unheld == UnholdAt(("w1",), Unhold(request_id, 1))
    assert isinstance(begun, Submit)
    (asked,) = bench(HoldAnswered("a", 2, expects=True, room=True), 1.7)
    assert [type(effect) for effect in bench.exported(asked, 2, 1.8)] == [Submit], "w0 is on its new route"


def test_a_death_on_the_new_route_is_one_reason_to_begin_anew() -> None:
    """The death of what was to come from there is none besides."""
    bench = Switched(REPLICAS)
    bench.switch([PIPELINE], dropped=True)
    bench.left("a", "b", "c")
    bench(WorkerEnded("w1", 1, "killed"), 2.0)
    for request in "abc":
        assert bench.story(request, "not_moved") == []
        assert bench.state.parts.active[request].placement.attempt == 2
        assert bench.state.parts.active[request].state == "waiting"


def test_what_an_old_attempt_tells_while_its_pages_are_copied_ends_no_stall() -> None:
    """A request that moves in turn goes on where it is; tokens that it finds there are none that were copied."""
    bench = Switched([PIPELINE])
    for effect in bench.switch(REPLICAS, dropped=False):
        request = effect.wanted.request
        bench.report("w0", progressed(request, 1, 8, 8), now=1.5)
    assert not bench.switching.settled(7)
    assert bench.switching.figures(7) == SwitchFigures(7, stale=3)


def test_a_copy_that_ends_late_begins_no_attempt_of_the_next_move() -> None:
    """The worker answers by number: what it says of the move before is no news of this one."""
    bench = Switched([PIPELINE])
    first = {effect.wanted.request: effect for effect in bench.switch(REPLICAS, dropped=False)}
    bench.publish([*REPLICAS, PIPELINE], [target()], now=1.5)
    order = SwitchRoutes(8, [PIPELINE.id], [REPLICAS[1].id], dropped=False, version=bench.version)
    again = [effect for effect in bench(order, 1.5) if isinstance(effect, ExportAt)]
    second = {(effect.wanted.request, effect.worker): effect for effect in again}
    old = first["b"]
    assert second["b", old.worker].wanted.number > old.wanted.number
    assert bench.exported(old, 2, 1.6) == []
    assert bench.state.parts.active["b"].placement.attempt == 1
    (begun,) = [e for e in bench.exported(second["b", old.worker], 2, 1.7) if isinstance(e, Submit)]
    assert begun.submission.attempt == 2


def test_a_paused_request_whose_next_route_ends_without_another_waits_for_any() -> None:
    """It was at no worker, and nothing would have sent it."""
    bench = Switched(REPLICAS)
    bench.switch([PIPELINE], dropped=True)
    effects = bench.switch([], dropped=False, now=2.0, number=8)
    assert {type(one) for one in effects} == {UnholdAt, CancelAt}
    reason = "its next route has ended, and no other can take it"
    assert bench.story("a", "not_moved") == [{"reason": reason}]
    assert {record.stage.name for record in bench.state.parts.active.values()} == {"RETRIED"}
    started = submits(bench.publish(REPLICAS, [target()], now=3.0))
    assert sorted(request for _, request, _ in started) == ["a", "b", "c"]
