"""Routes end while requests are on them: who leaves when, where everybody goes on, and what is told of it."""

from __future__ import annotations

from typing import Any

from blockwright.actors.gateway.messages import CancelAt, ExportAt, Submit
from blockwright.actors.gateway.switch_messages import SwitchFigures, SwitchRoutes
from blockwright.policies.model.chain import Hop, Route
from blockwright.policies.sweep.page_events import Exported
from blockwright.tests.actors.fake_fleet import GATEWAY
from blockwright.tests.actors.gateway_bench import Bench, emitted, progressed, submits
from blockwright.tests.actors.test_gateway_moving import PAGE_BYTES, target, whole

PIPELINE = Route("m@w0+w1", 1, "m", (Hop("w0", 0, 3), Hop("w1", 3, 6)))
REPLICAS = [whole("w0"), whole("w1")]
LENGTHS = {"a": 10, "b": 8, "c": 6}


class Switched(Bench):
    """Three requests, of which a and c decode on w0 and b on w1, where all are replicas."""

    def __init__(self, routes: list[Route]) -> None:
        super().__init__("w0", "w1", routes=routes, chains=[target()])
        for request, prompt in LENGTHS.items():
            self.generate(request, prompt=prompt, max_tokens=40)
        for request, prompt in LENGTHS.items():
            home = self.state.active[request].route.home
            self.report(home, progressed(request, 1, prompt))
            for number in range(4):
                self.report(home, emitted(request, 1, prompt + number, [number]))

    def homes(self) -> dict[str, str]:
        return {id: record.route.id for id, record in self.state.active.items()}

    def switch(self, to: list[Route], *, dropped: bool, now: float = 1.0, number: int = 7) -> list[Any]:
        ended = sorted({record.route.id for record in self.state.active.values()})
        self.publish(to, [target()], now=now)
        return self(SwitchRoutes(number, self.version, ended, [route.id for route in to], dropped), now)

    @property
    def switching(self) -> Any:
        return self.state.moving.switching

    def story(self, request: str, event: str) -> list[dict[str, Any]]:
        return [detail for _, name, detail in self.state.active[request].events if name == event]


def test_all_leave_at_once_when_parameters_are_dropped() -> None:
    bench = Switched(REPLICAS)
    assert bench.homes() == {"a": "m@w0", "b": "m@w1", "c": "m@w1"}
    effects = bench.switch([PIPELINE], dropped=True)
    assert submits(effects) == [("w0", "a", 2), ("w0", "b", 2), ("w0", "c", 2)]
    assert [(e.worker, e.requests) for e in effects if isinstance(e, CancelAt)] == [
        ("w0", ("a",)), ("w1", ("b",)), ("w1", ("c",))]  # fmt: skip
    assert bench.switching.off(7)
    assert not bench.switching.settled(7)
    assert bench.switch([PIPELINE], dropped=True) == [], "an order that comes twice"
    for number, request in enumerate(LENGTHS, 2):
        bench.report("w0", progressed(request, 2, 0), now=float(number))
    assert bench.switching.settled(7)
    assert bench.switching.figures(7) == SwitchFigures(7, 3, 0, 0, 0, 14 + 12 + 10, 1.0 + 2.0 + 3.0, 3.0)
    bench.report("w0", emitted("a", 2, 14, [4]), now=5.0)
    assert bench.story("a", "paused") == [
        {"source": "w0", "target": "w0", "reason": "parameters were dropped for a burst"}]  # fmt: skip
    assert bench.story("a", "moved")[0]["paused"] == 4.0
    assert bench.switching.figures(1) == SwitchFigures(1), "nobody knows of another"
    assert bench.switching.settled(1)


def test_all_decode_on_when_parameters_come_back_and_are_dealt_out() -> None:
    bench = Switched([PIPELINE])
    effects = bench.switch(REPLICAS, dropped=False)
    assert {type(effect) for effect in effects} == {ExportAt}
    targets = {effect.wanted.request: {to.worker for to in effect.wanted.to} for effect in effects}
    assert targets == {"a": {"w0"}, "b": {"w1"}, "c": {"w1"}}, "the longest apart from the two others"
    assert not bench.switching.off(7)
    for effect in effects:
        news = Exported(GATEWAY, effect.wanted.request, effect.wanted.number, 2, 2 * PAGE_BYTES, 0, "")
        (begun,) = [e for e in bench.report(effect.worker, news, now=2.0) if isinstance(e, Submit)]
        bench.report(begun.worker, progressed(effect.wanted.request, 2, 8, 8), now=2.5)
    assert bench.homes() == {"a": "m@w0", "b": "m@w1", "c": "m@w1"}
    assert bench.switching.off(7)
    assert bench.switching.settled(7)
    assert bench.switching.figures(7) == SwitchFigures(7, 3, 3, 6, 6 * PAGE_BYTES, 6 + 4 + 2, 1.5, 0.5)


def test_who_ends_or_dies_is_not_waited_for() -> None:
    bench = Switched(REPLICAS)
    bench.switch([PIPELINE], dropped=True)
    bench.report("w0", progressed("a", 2, 0), emitted("a", 2, 14, [1], finish="stop"), now=2.0)
    bench.die("w0", back=False)
    assert bench.switching.off(7)
    assert bench.switching.settled(7)
    assert bench.switching.figures(7).stale == 3
    assert not bench.state.active["b"].workers, "they wait for a route, like everybody"


def test_without_a_route_that_holds_it_a_request_waits() -> None:
    bench = Switched(REPLICAS)
    effects = bench.switch([], dropped=True)
    assert not submits(effects)
    assert bench.switching.off(7)
    assert bench.switching.settled(7)
    assert submits(bench.publish([whole("w0")], [target()])) == [("w0", "a", 2), ("w0", "b", 2), ("w0", "c", 2)]
