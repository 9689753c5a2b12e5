"""Applications on demand beside parameters that are dropped: memory that a drop frees is for KV, nobody loads into it."""

from __future__ import annotations

from dataclasses import replace
from random import Random
from typing import Any

import pytest

from blockwright.policies.cluster.demand import BURST_PATIENCE, PATIENCE
from blockwright.policies.control.drop_events import (
    AwaitSwitched,
    DropParameters,
    RestoreParameters,
)
from blockwright.policies.control.drop_groups import refusal, refused_workers, serving_groups
from blockwright.policies.control.events import DrainWorker, Effect, Load, Quiet, RecheckLater, WorkerDown, WorkerUp
from blockwright.policies.control.route_switch import SwitchRoutes
from blockwright.policies.model.chain import Hop
from blockwright.tests.claims import claim
from blockwright.tests.fake_cluster import KV, FakeCluster, application

PAIR = DropParameters("a", (Hop("w0", 0, 3), Hop("w1", 3, 6)), "throttling")
BEGINNING = 100.0  # seconds: everything has been resident for long


class Tight(FakeCluster):
    """``a`` and ``b`` do not fit beside each other, but ``b`` fits into what a drop of ``a`` frees."""

    def __init__(self, *workers: str, **options: Any) -> None:
        super().__init__(*workers, room=9, **options)
        self.serve(application("a", "abcdef", kv=KV), application("b", "uvwxyz", kv=KV))
        assert self.states() == {"a": "ready", "b": "on demand"}
        self.active, self.now = {"a": 1}, BEGINNING

    @property
    def late(self) -> list[Effect]:
        """The effects that gateways and clocks have not answered."""
        return self.pending(SwitchRoutes, AwaitSwitched, RecheckLater)

    def drop(self, application: str = "a") -> None:
        self.order(replace(PAIR, application=application))
        self.left()
        self.switched()
        assert self.stage() == "pipeline"

    def restore(self) -> None:
        self(RestoreParameters("w0+w1", {}))
        assert self.stage() == "returning", "all of it is there again"
        self.left()

    def loads(self, name: str) -> list[str]:
        """Workers that were asked to load some of it, in this life of the controller."""
        return [effect.worker for effect in self.log if isinstance(effect, Load) and effect.load.holder == name]


@pytest.fixture
def tight() -> Tight:
    made = Tight("w0", "w1")
    made.log.clear()
    return made


@claim("Models on demand are not loaded into memory that a drop has freed", of="parameter-dropping")
def test_nothing_is_loaded_into_memory_that_a_drop_has_freed(tight: Tight) -> None:
    """It was: it took the memory from those for whom it was freed, they lacked it again, and what was dropped had no room to
    come back in."""
    tight.drop()
    tight.want("b")
    for _ in range(9):
        tight.tick(1.0)
    assert (tight.loads("b"), tight.stage(), tight.published()) == ([], "pipeline", ["a"])
    assert tight.state.demand.coming == "b", "it waits"
    tight.restore()
    assert tight.loads("b"), "it is tried as soon as the parameters are back"
    assert (tight.stage(), tight.awaited, tight.open()) == ("", ["a"], []), "and a gives way as it always does"
    tight.end("a")
    tight(Quiet("a"))
    assert tight.published() == ["b", "b"]


def test_what_nobody_uses_any_more_gives_way_without_a_restore(tight: Tight) -> None:
    tight.drop()
    tight.end("a")
    tight.want("b")
    assert (tight.stage(), tight.published()) == ("", ["b", "b"])


def test_a_burst_without_end_gives_way_after_a_while(tight: Tight) -> None:
    tight.drop()
    tight.want("b")
    tight.tick(BURST_PATIENCE - 0.01)
    assert tight.awaited == []
    tight.tick(0.01)
    assert (tight.awaited, tight.open()) == (["a"], [])
    assert refusal(tight.state, RestoreParameters("w0+w1", {})) == "model a gives way to one that is loaded on demand"
    assert refusal(tight.state, PAIR) == "model a gives way to one that is loaded on demand"
    tight.end("a")
    tight(Quiet("a"))
    assert (tight.stage(), tight.published()) == ("", ["b", "b"])


def test_who_asked_and_went_changes_nothing(tight: Tight) -> None:
    tight.drop()
    tight.want("b")
    tight.tick(BURST_PATIENCE)
    assert tight.open() == []
    tight.end("b")
    tight.tick(0.03)
    assert (tight.stage(), tight.open(), tight.state.demand.coming) == ("pipeline", ["a@w0+w1"], "")
    tight.restore()
    assert tight.open() == ["a@w0", "a@w1"]
    assert tight.states()["b"] == "on demand"


def test_it_is_loaded_where_nothing_is_dropped() -> None:
    made = Tight("w0", "w1", "w2")
    made.drop()
    made.log.clear()
    made.room = 12  # of the workers
    made.want("b")
    assert (made.loads("b"), made.stage(), made.open()) == (["w2"], "pipeline", ["a@w0+w1", "a@w2", "b@w2"])
    assert made.state.demand.coming == "", "it is served, and does not wait for the burst"
    made.tick(2 * BURST_PATIENCE)
    assert made.awaited == []
    made(WorkerDown("w2", 1, "killed"))
    made.want("b")
    made.tick(2 * BURST_PATIENCE)
    assert made.awaited == ["a"], "now it is served nowhere else"


def test_a_drop_does_not_begin_while_something_comes(tight: Tight) -> None:
    tight.want("b")
    assert serving_groups(tight.state) == []
    assert refused_workers(tight.state)["w0"] == "worker w0 has not loaded all of b"
    tight.tick(PATIENCE + 0.01)
    assert tight.awaited == ["a"]


@pytest.mark.parametrize("stage", ["leaving", "returning"])
def test_nobody_opens_what_somebody_else_has_paused(tight: Tight, stage: str) -> None:
    """Gateways were to leave these routes, and one that was to give way, and then was not, opened them again."""
    if stage == "leaving":
        tight(PAIR)
    else:
        tight.drop()
        tight(RestoreParameters("w0+w1", {}))
    assert tight.stage() == stage
    before = tight.open()
    tight.want("b")
    tight.tick(BURST_PATIENCE)
    assert (tight.awaited, tight.open()) == (["a"], [])
    tight.end("b")
    tight.tick(0.03)
    assert tight.open() == before


def test_not_all_workers_are_drained_while_everything_gives_way(tight: Tight) -> None:
    """Of a model that started nothing new for a moment no route counted."""
    tight.want("b")
    tight.tick(PATIENCE + 0.01)
    assert (tight.awaited, tight.open()) == (["a"], [])
    assert tight.state.scaling.undrainable("w0", tight.state.holdings) == ""
    tight(DrainWorker("w0", True))
    assert "would have no route left" in tight.state.scaling.undrainable("w1", tight.state.holdings)


def test_who_serves_again_opens_nothing_that_is_to_give_way(tight: Tight) -> None:
    tight(DrainWorker("w0", True))
    tight.want("b")
    tight.tick(PATIENCE + 0.01)
    assert (tight.awaited, tight.open()) == (["a"], [])
    tight(DrainWorker("w0", False))
    assert tight.open() == []


@pytest.mark.parametrize("seed", range(20))
def test_whatever_is_dropped_and_asked_for_everything_is_served_in_the_end(seed: int) -> None:
    """Orders, requests that come and end, deaths, drains: invariants after each, nothing loaded into a pipeline's memory,
    and in the end no route is paused for anybody."""
    source, made = Random(seed), Tight("w0", "w1", "w2")
    for _ in range(150):
        made.tick(source.choice([0.03, 0.3, 3.0]))
        state = made.state
        name = source.choice("ab")
        worker = source.choice(["w0", "w1", "w2"])
        groups = state.overload.groups
        match source.randrange(9):
            case 0 if not refusal(state, PAIR):
                made(PAIR)
            case 1 | 2 if late := made.late:
                made.reply(late[source.randrange(len(late))])
            case 3 if groups and not refusal(state, RestoreParameters("w0+w1", {})):
                made(RestoreParameters("w0+w1", {}))
            case 4 | 5:
                made.want(name)
            case 6 | 7 if made.active.get(name):
                made.end(name)
                if made.state.demand.leaving == name and not made.active[name]:
                    made(Quiet(name))
            case 8 if source.random() < 0.5:
                drain = worker not in state.scaling.drained
                if not drain or not state.scaling.undrainable(worker, state.holdings):
                    made(DrainWorker(worker, drain))
            case 8 if state.workers[worker].alive:
                made(WorkerDown(worker, state.workers[worker].incarnation, "killed"))
                made(WorkerUp(worker, state.workers[worker].last + 1))
        members = {one for group in made.state.overload.groups.values() for one in group.workers}
        assert not any("b" in made.workers[one].names() for one in members), "memory of a burst"
    for name in sorted(made.state.scaling.drained):
        made(DrainWorker(name, False))
    for _ in range(40):
        made.active = {"a": 0, "b": 0}
        if made.state.demand.leaving:
            made(Quiet(made.state.demand.leaving))
        for one in made.late:
            made.reply(one)
        if made.state.overload.groups and not refusal(made.state, RestoreParameters("w0+w1", {})):
            made(RestoreParameters("w0+w1", {}))
        made.tick(3.0)
    assert (made.stage(), made.state.demand.coming, made.state.demand.leaving) == ("", "", "")
    for name in "ab":
        made.active = {}
        made.want(name)
        assert made.open() == [f"{name}@w0", f"{name}@w1", f"{name}@w2"]
        made.end(name)
