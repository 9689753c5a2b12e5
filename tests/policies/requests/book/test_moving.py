"""Requests that move: what the gateway asks of workers, when the new attempt begins, and what a move is not."""

from __future__ import annotations

from typing import Any

import pytest

from blockwright.policies.model.chain import Block, Chain, Component, Hop, Kind, KvLayout, Route
from blockwright.policies.model.lineage import page_hashes
from blockwright.policies.requests.book.messages import (
    CancelAt,
    Deliver,
    ExportAt,
    ExportUnsent,
    GatewayTick,
    Submit,
    Vacate,
    WorkerJoined,
)
from blockwright.policies.requests.moving import PATIENCE
from blockwright.policies.requests.refusal import Refusal, RequestRefused
from blockwright.policies.sweep.page_events import Exported, PageTarget
from blockwright.tests.policies.requests.book.gateway_bench import GATEWAY, Bench, emitted, progressed, submits

LAYOUT = KvLayout(1, 8, "float32", 4)
PAGE_BYTES = LAYOUT.raw_bytes


def target(application: str = "m") -> Chain:
    """Two layers with KV among six components."""
    kinds = [Kind.EMBEDDING, Kind.ATTENTION, Kind.MLP, Kind.ATTENTION, Kind.MLP, Kind.HEAD]
    parts = [Component(bytes([i]) * 16, k, 100, 8, 8, LAYOUT if k is Kind.ATTENTION else None) for i, k in enumerate(kinds)]
    return Chain(application, (Block(tuple(parts)),), 4096)


def whole(worker: str) -> Route:
    return Route(f"m@{worker}", 1, "m", (Hop(worker, 0, 6),))


HALVES = Route("m@w1+w2", 1, "m", (Hop("w1", 0, 3), Hop("w2", 3, 6)))


class Mover(Bench):
    """Request r of 10 prompt tokens decodes on w0; whoever else there is is idle."""

    def __init__(self, *routes: Route) -> None:
        workers = dict.fromkeys(hop.worker for one in (whole("w0"), *routes) for hop in one.hops)
        super().__init__(*workers, routes=[whole("w0"), *routes], chains=[target()])
        effects = self.generate("r", prompt=10, max_tokens=40)
        assert submits(effects) == [("w0", "r", 1)]

    def decode(self, tokens: int) -> None:
        self.report("w0", progressed("r", 1, 10))
        for number in range(tokens):
            self.report("w0", emitted("r", 1, 10 + number, [number]))

    def move(self, worker: str = "", name: str = "", now: float = 1.0) -> list[Any]:
        return self(self.state.plan_move("r", worker, name, now), now)

    def exported(self, worker: str, number: int, pages: int, reason: str = "", now: float = 2.0) -> list[Any]:
        return self.report(worker, Exported(GATEWAY, "r", number, pages, pages * PAGE_BYTES, 0, reason), now=now)

    def story(self, event: str) -> list[dict[str, Any]]:
        record = self.state.parts.active.get("r")
        assert record is not None
        return [detail for _, name, detail in record.history.events if name == event]


def work_when_moved(bench: Bench) -> dict[str, int]:
    """The work of each worker once all moves are done."""
    return bench.state.parts.claims.work(bench.state.parts.table.work, bench.state.parts.active)


def exports(effects: list[Any]) -> list[ExportAt]:
    return [effect for effect in effects if isinstance(effect, ExportAt)]


def test_pages_first_then_what_became_full_then_the_attempt() -> None:
    bench = Mover(whole("w1"))
    bench.decode(4)  # 14 tokens, 13 with KV
    (asked,) = bench.move("w1")
    tokens = [*range(1, 11), *range(4)]
    assert isinstance(asked, ExportAt)
    assert (asked.worker, asked.wanted.to, asked.wanted.since) == ("w0", [PageTarget("w1", 0, 2)], 0)
    assert asked.wanted.hashes == page_hashes(tokens, 4)[:3]
    for number in range(4, 8):
        assert [type(e) for e in bench.report("w0", emitted("r", 1, 10 + number, [number]))] == [Deliver], "it goes on"
    (again,) = exports(bench.exported("w0", asked.wanted.number, 3))
    assert (again.wanted.since, len(again.wanted.hashes)) == (3, 4)
    bench.report("w0", emitted("r", 1, 18, [8]))
    effects = bench.exported("w0", again.wanted.number, 1, now=3.0)
    assert [type(effect) for effect in effects] == [CancelAt, Submit]
    assert submits(effects) == [("w1", "r", 2)]
    assert effects[1].submission.tokens == [*range(1, 11), *range(9)]
    assert not bench.report("w0", emitted("r", 1, 19, [9]))[1:], "what comes late from the old home is not delivered"
    bench.report("w1", progressed("r", 2, 16, 16), now=3.1)
    bench.report("w1", emitted("r", 2, 19, [9]), now=3.5)
    (moved,) = bench.story("moved")
    assert moved == {
        "source": "w0", "target": "w1", "pages": 4, "bytes": 4 * PAGE_BYTES, "recomputed": 3, "paused": 0.5,
    }  # fmt: skip
    assert bench.state.parts.claims.figures.outcomes == {"copied": 1, "recomputed": 0, "abandoned": 0}
    record = bench.state.parts.active["r"]
    assert (record.deaths.present, record.deaths.near) == (0, 0)


def test_a_pipeline_gets_each_layer_where_it_is_computed() -> None:
    bench = Mover(HALVES)
    bench.decode(2)
    (asked,) = bench.move("w1")
    assert asked.wanted.to == [PageTarget("w1", 0, 1), PageTarget("w2", 1, 2)]


def test_a_page_is_copied_when_all_of_its_layers_are() -> None:
    """From a pipeline each worker sends its own."""
    bench = Mover(HALVES)
    bench.publish([HALVES], [target()])
    bench.die("w0", back=False)
    bench.report("w1", *[emitted("r", 2, 10 + number, [number]) for number in range(4)])
    bench(WorkerJoined("w0", 2))
    bench.publish([whole("w0"), HALVES], [target()])
    asked = exports(bench.move("w0"))
    assert [(one.worker, one.wanted.to) for one in asked] == [
        ("w1", [PageTarget("w0", 0, 1)]),
        ("w2", [PageTarget("w0", 1, 2)]),
    ]
    assert bench.exported("w1", asked[0].wanted.number, 3) == []
    assert submits(bench.exported("w2", asked[1].wanted.number, 2)) == [("w0", "r", 3)]
    bench.report("w0", emitted("r", 3, 14, [4]), incarnation=2)
    assert bench.story("moved")[0]["pages"] == 2


def test_what_has_not_decoded_begins_there_at_once() -> None:
    """Its pages come from the back, while it is computed from the front."""
    bench = Mover(whole("w1"))
    bench.report("w0", progressed("r", 1, 8))
    effects = bench.move("w1")
    assert [type(effect) for effect in effects] == [ExportAt, CancelAt, Submit]
    bench.report("w1", emitted("r", 2, 10, [0]))
    assert bench.state.parts.claims.figures.outcomes["recomputed"] == 1
    assert bench.exported("w0", effects[0].wanted.number, 2) == []


@pytest.mark.parametrize("decodes", [True, False])
def test_a_copy_that_ends_after_the_attempt_has_begun_begins_it_no_second_time(decodes: bool) -> None:
    """No request waited for it any longer, or at all; what it brought is reported all the same."""
    bench = Mover(whole("w1"))
    if decodes:
        bench.decode(4)
    else:
        bench.report("w0", progressed("r", 1, 8))
    number = next(one.wanted.number for one in exports(bench.move("w1")))
    if decodes:
        assert submits(bench(GatewayTick(), 1.0 + PATIENCE + 0.1)) == [("w1", "r", 2)]
    assert bench.exported("w0", number, 2, now=90.0) == []
    assert bench.state.parts.active["r"].placement.attempt == 2
    bench.report("w1", emitted("r", 2, 14 if decodes else 10, [9]), now=91.0)
    assert bench.story("moved")[0]["pages"] == 2


def test_a_request_that_has_left_counts_for_its_new_worker_once() -> None:
    """The next one that moves goes to the other worker only while what is under way makes this one the busier."""
    bench = Mover(whole("w1"), whole("w2"))
    bench.decode(4)
    bench.move("w1")
    work = work_when_moved(bench)
    assert (work["w1"], work.get("w2", 0)) == (bench.state.parts.active["r"].placement.counted, 0), "it is on its way there"
    bench.exported("w0", 1, 3)
    assert work_when_moved(bench) == bench.state.parts.table.work
    assert bench.state.parts.table.work["w1"] == bench.state.parts.active["r"].placement.counted


def test_what_no_worker_has_begun_just_moves() -> None:
    bench = Mover(whole("w1"))
    assert [type(effect) for effect in bench.move()] == [CancelAt, Submit]


def test_a_move_that_cannot_be() -> None:
    bench = Mover(whole("w1"))
    cases = [
        ("w0", "", "worker", "is on worker w0 already"),
        ("w9", "", "worker", "no route of model m that can hold it begins on worker w9; possible targets: worker w1$"),
        ("", "m@w0", "route", "on route m@w0 already"),
        ("", "m@w9", "route", "route m@w9 of model m is not active, or cannot hold it; possible targets: route m@w1$"),
    ]
    for worker, name, param, text in cases:
        with pytest.raises(RequestRefused, match=text) as raised:
            bench.move(worker, name)
        assert (raised.value.why, raised.value.param) == (Refusal.CONFLICT, param)
    bench.decode(3)
    bench.move()
    with pytest.raises(RequestRefused, match="is moving to worker w1 already"):
        bench.move()
    alone = Mover()
    with pytest.raises(RequestRefused, match="there is no other route"):
        alone.move()
    with pytest.raises(RequestRefused, match=r"begins on worker w1; there is no other one$"):
        alone.move("w1")
    alone.die("w0", back=False)
    with pytest.raises(RequestRefused, match="waits for a worker"):
        alone.move()


def test_who_is_leaving_a_worker_that_is_drained_is_not_said_to_stay() -> None:
    bench = Mover(whole("w1"), whole("w2"))
    bench.decode(3)
    (asked,) = bench.move("w1")
    assert bench(Vacate("w0"), 1.0) == []
    assert submits(bench.exported("w0", asked.wanted.number, 3)) == [("w1", "r", 2)]
    assert bench.story("not_moved") == []


@pytest.mark.parametrize("begun", [False, True])
def test_who_has_just_come_to_a_worker_that_is_drained_leaves_it_too(begun: bool) -> None:
    """It counted as moving there until its first token had come, and stayed until it was given back without its pages."""
    bench = Mover(whole("w1"), whole("w2"))
    bench.decode(4)
    bench.move("w1")
    assert submits(bench.exported("w0", 1, 3)) == [("w1", "r", 2)]
    if begun:
        bench.report("w1", progressed("r", 2, 12, 12), progressed("r", 2, 13, 12), now=2.0)
    bench.publish([whole("w0"), whole("w2")], [target()], now=2.0)
    effects = bench(Vacate("w1"), 2.0)
    if begun:
        assert [(one.worker, len(one.wanted.hashes)) for one in exports(effects)] == [("w1", 3)], "with its pages"
        assert submits(bench(ExportUnsent("w1", Exported(GATEWAY, "r", 2, 3, 3 * PAGE_BYTES, 0, "")), 3.0)) in (
            [("w0", "r", 3)],
            [("w2", "r", 3)],
        )
    else:
        assert [(request, attempt) for _, request, attempt in submits(effects)] == [("r", 3)]
    assert not bench.story("not_moved")


def test_a_target_that_is_drained_is_left_out_while_pages_are_copied_there() -> None:
    bench = Mover(whole("w1"))
    bench.decode(4)
    bench.move("w1")
    bench.publish([whole("w0")], [target()], now=1.5)
    assert bench(Vacate("w1"), 1.5) == []
    assert submits(bench.exported("w0", 1, 3)) == []
    assert bench.story("not_moved") == [{"reason": "route m@w1 is gone"}]
    bench.report("w0", emitted("r", 1, 14, [4]), now=3.0)
    assert not bench.state.parts.claims.open


def test_a_target_that_dies_leaves_the_request_where_it_is() -> None:
    bench = Mover(whole("w1"))
    bench.decode(3)
    (asked,) = bench.move()
    bench.die("w1", back=False)
    assert bench.story("not_moved") == [{"reason": "worker w1 died"}]
    assert bench.exported("w0", asked.wanted.number, 1) == []
    assert bench.state.parts.active["r"].placement.attempt == 1
    assert bench.state.parts.claims.figures.outcomes["abandoned"] == 1


def test_a_source_that_dies_ends_the_move() -> None:
    bench = Mover(whole("w1"))
    bench.decode(3)
    bench.move()
    assert submits(bench.die("w0", back=False)) == [("w1", "r", 2)]
    assert bench.state.parts.claims.figures.outcomes["abandoned"] == 1


@pytest.mark.parametrize("how", ["late", "unreached", "failed"])
def test_a_copy_that_fails_is_not_waited_for(how: str) -> None:
    bench = Mover(whole("w1"))
    bench.decode(3)
    (asked,) = bench.move()
    number = asked.wanted.number
    if how == "late":
        effects = bench(GatewayTick(), 1.0 + PATIENCE + 0.1)
    elif how == "unreached":
        effects = bench(ExportUnsent("w0", Exported(GATEWAY, "r", number, 0, 0, 0, "it was not asked")), 2.0)
    else:
        effects = bench.exported("w0", number, 0, "worker w1 cannot be reached")
    assert submits(effects) == [("w1", "r", 2)]
    bench.report("w1", emitted("r", 2, 13, [9]))
    assert "reason" in bench.story("moved")[0]
    assert bench.state.parts.claims.figures.outcomes == {"copied": 0, "recomputed": 1, "abandoned": 0}


def test_a_request_that_ends_first() -> None:
    bench = Mover(whole("w1"))
    bench.decode(3)
    (asked,) = bench.move()
    bench.report("w0", emitted("r", 1, 13, [9], finish="stop"))
    assert bench.exported("w0", asked.wanted.number, 2) == []
    assert not bench.state.parts.active
