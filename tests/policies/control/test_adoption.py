"""A new head takes over: in worlds of all parties, at any moment, with what members keep and workers hold."""

from __future__ import annotations

from random import Random
from typing import Any

import msgpack
import pytest

from blockwright.policies.control import events
from blockwright.policies.control.adoption import Adopted, ToldWorker, adopt, configured, first_words, unclaimed
from blockwright.policies.control.state import ControllerState
from blockwright.tests.claims import claim
from blockwright.tests.fake_cluster import FakeWorker, application
from blockwright.tests.policies.control.test_world_walks import at_rest
from blockwright.tests.policies.control.world import ControlWorld

STEPS = 240
FEW, MANY = 40, 1000  # seeds of any run, and of a nightly one
PART = 50  # seeds of one nightly test


def travelled(state: ControllerState) -> dict[str, Any]:
    """Return a snapshot as a member gives it back."""
    return msgpack.unpackb(msgpack.packb(state.snapshot()), strict_map_key=False)  # type: ignore[no-any-return]


def account(
    worker: FakeWorker,
    known: dict[str, events.Application],
    joined: bool = False,
    capacity: events.KvCapacity | None = None,
) -> ToldWorker:
    """Return what a worker tells."""
    held = []
    for holder in sorted(worker.names()):
        mine = worker.of(holder)
        for depth, one in enumerate(known[holder].components):
            ids = tuple(id for id in (one.shared, one.delta) if id)
            if mine.issuperset(ids):
                held.append(events.HeldBlock(holder, depth, depth + 1, ids))
    return ToldWorker(worker.name, worker.incarnation, 0, 0, None, tuple(held), joined=joined, capacity=capacity)


class MortalWorld(ControlWorld):
    """A world whose head dies now and then. Members keep its state as it was at the last two publications."""

    def __init__(self, seed: int) -> None:
        super().__init__(seed)
        self.dice = Random(seed)
        self.kept: list[tuple[int, dict[str, Any]]] = []
        self.decided = -1
        self.known: dict[str, events.Application] = {}
        self.adopting = False
        self.heads = 1
        self.loads = 0  # loads of components that the worker held already, after an adoption

    def handle(self, event: events.Event) -> list[events.Effect]:
        if self.adopting:
            self.count += 1
            self.before = []
            effects = self.state.handle(event, self.now)
            self.state.check()
        else:
            effects = super().handle(event)
        self.known |= {name: one.application for name, one in self.state.served.items()}
        return effects

    def take(self, effect: events.Effect) -> list[events.Event]:
        if isinstance(effect, events.Publish) and self.decided != self.state.decided:  # as the publisher of routes does
            self.decided = self.state.decided
            self.kept = [*self.kept[-1:], (self.state.version, travelled(self.state))]
        return super().take(effect)

    def compare(self) -> None:
        if not self.adopting:
            super().compare()

    def lose_head(self) -> None:
        """Let the head die, workers with it, and the next one take over."""
        asked, self.asked = self.asked, []
        for effect in asked:  # some were done without an answer
            if (
                isinstance(effect, events.Load)
                and self.lives(effect.worker, effect.incarnation)
                and self.dice.random() < 0.5
            ):
                worker = self.workers[effect.worker]
                if worker.refusal(effect.load) is None:
                    worker.hold(effect.load)
        for name in [name for name in self.workers if self.dice.random() < 0.1]:
            del self.workers[name]
        version, snapshot = self.dice.choice(self.kept)
        joined = {name for name, one in self.state.workers.items() if one.joined}
        told = [
            account(worker, self.known, name in joined, self.capacity(name) if self.dice.random() < 0.8 else None)
            for name, worker in self.workers.items()
        ]
        first = [name for name in self.state.workers if name.startswith("w")]
        fresh = ControllerState(first, stall_timeout=10.0, **self.options)
        adopted = adopt(fresh, snapshot, told, max(self.state.version, version))
        former = self.state.version
        for name in self.asked_to_add:
            if name in adopted.state.additions:
                self.added.pop(name, None)
            else:
                self.added.setdefault(name, "its caller is gone")
        self.take_over(adopted)
        assert self.state.version > former, "members take what is newer"
        assert not self.state.table.news(former).since, "and the whole of it"
        self.heads += 1

    def take_over(self, adopted: Adopted) -> None:
        self.state = adopted.state
        self.adopting = True
        for name in adopted.strangers:
            del self.workers[name]
        for event in adopted.events:
            self(event)
        self.adopting = False
        self.compare()


def play(seed: int) -> MortalWorld:
    """Return a world that has come to rest after some heads."""
    world = MortalWorld(seed)
    try:
        world.start()
        for _ in range(STEPS):
            world.step()
            if world.kept and world.dice.random() < 0.03:
                world.lose_head()
        world.settle()
        at_rest(world)
    except Exception as error:
        error.add_note(f"again: play({seed})")
        raise
    return world


@claim("A new head takes over any cluster at any moment, and comes to rest with what the head before had begun", of="faults")
@pytest.mark.parametrize("part", range(0, FEW, 10))
def test_a_world_whose_head_dies_comes_to_rest(part: int) -> None:
    heads = [play(seed).heads for seed in range(part, part + 10)]
    assert sum(heads) > 30


@pytest.mark.nightly
@pytest.mark.parametrize("part", range(0, MANY, PART))
def test_more_worlds_whose_head_dies_come_to_rest(part: int, request: pytest.FixtureRequest) -> None:
    first = request.config.getoption("--seed") + part
    for seed in range(first, first + PART):
        play(seed)


def adopted_anew(*held: events.HeldBlock) -> Adopted:
    """Return the beginning of a head whose members keep no state. One worker came, which holds these blocks."""
    fresh = ControllerState(["w0", "w1"], 0.0)
    adopted = adopt(fresh, None, [ToldWorker("w0", 3, 17, 8, None, held)], 8)
    for event in adopted.events:
        fresh.handle(event, 0.0)
    return adopted


def test_the_applications_of_the_settings_are_served_by_a_first_head_and_where_none_has_begun_to() -> None:
    one = application("a")
    first = ControllerState(["w0"], 0.0)
    assert configured(first, None, [one]) == (events.Serve((one,)),)
    adopted = adopted_anew()
    assert configured(adopted.state, adopted, [one]) == (events.Serve((one,)),)
    adopted.state.handle(events.Serve((one,)), 0.0)
    assert configured(adopted.state, adopted, [one]) == ()


def test_what_workers_hold_of_no_application_is_unloaded() -> None:
    here, gone = (events.HeldBlock(name, 0, 1, (name.encode() * 16,)) for name in ("a", "b"))
    adopted = adopted_anew(here, gone)
    adopted.state.handle(events.Serve((application("a"),)), 0.0)
    assert unclaimed(adopted.state, adopted) == (events.Unload("w0", 3, "b", (b"b" * 16,)),)
    assert unclaimed(adopted.state, None) == ()


def test_the_first_words_of_a_head_name_the_workers_that_live() -> None:
    words = first_words(adopted_anew().state)
    assert (words.lives, words.drops) == ((("w0", 3),), False)


def followed(state: ControllerState, event: events.Event) -> None:
    """Handle an event and all that comes of it: each load succeeds, each worker has room."""
    effects = state.handle(event, 0.0)
    for effect in effects:
        if isinstance(effect, events.Load):
            effects += state.handle(events.Loaded(effect.worker, effect.incarnation, effect.load), 0.0)
        elif isinstance(effect, events.AskCapacity):
            effects += state.handle(events.KvCapacity(effect.worker, effect.incarnation, 1 << 20), 0.0)


@claim(
    "Routes that served are in force in the first publication of the next head, so that no request begins anew", of="faults"
)
@pytest.mark.parametrize("told", [True, False])
def test_routes_that_served_are_in_force_at_once(told: bool) -> None:
    """The state that members keep is from before the loads: these were no decisions. A release that does not tell capacities
    is asked for them first.
    """
    state = ControllerState(["w0", "w1"], 10.0)
    one = application("a")
    for name in state.workers:
        followed(state, events.WorkerUp(name, 1))
    snapshot, decided = {}, -1
    waiting: list[events.Event] = [events.Serve((one,))]
    while waiting:
        effects = state.handle(waiting.pop(0), 0.0)
        if state.decided != decided:
            snapshot, decided = travelled(state), state.decided
        for effect in effects:
            if isinstance(effect, events.Load):
                waiting.append(events.Loaded(effect.worker, effect.incarnation, effect.load))
            elif isinstance(effect, events.AskCapacity):
                waiting.append(events.KvCapacity(effect.worker, effect.incarnation, 1 << 20))
    assert state.whole
    assert not ControllerState.restore(snapshot).whole
    held = tuple(
        events.HeldBlock("a", depth, depth + 1, tuple(id for id in (part.shared, part.delta) if id))
        for depth, part in enumerate(one.components)
    )
    capacities = {name: events.KvCapacity(name, 1, 1 << 20) if told else None for name in state.workers}
    accounts = [ToldWorker(name, 1, 0, 0, None, held, capacity=found) for name, found in capacities.items()]
    adopted = adopt(ControllerState(["w0", "w1"], 10.0), snapshot, accounts, state.version)
    for event in adopted.events:
        adopted.state.handle(event, 0.0)
    assert (adopted.state.routes.keys() == state.routes.keys()) is told
    assert adopted.state.whole is told


@claim("Publications after deaths, returns and loads of workers do not keep the whole state again", of="faults")
def test_what_workers_tell_themselves_is_no_decision() -> None:
    state = ControllerState(["w0", "w1", "w2"], 10.0)
    followed(state, events.Serve((application("a"), application("b"))))
    for name in state.workers:
        followed(state, events.WorkerUp(name, 1))
    assert state.whole
    decided, version = state.decided, state.version
    for incarnation in range(1, 20):
        followed(state, events.WorkerDown("w1", incarnation, "killed"))
        followed(state, events.WorkerUp("w1", incarnation + 1))
    assert state.whole
    assert state.version >= version + 2 * 19
    assert state.decided == decided
    followed(state, events.DrainWorker("w1", True))
    assert state.decided > decided


def test_a_worker_of_which_only_the_name_was_kept_is_forgotten() -> None:
    """It and the head before ended as it joined."""
    state = ControllerState(["w0"], 0.0)
    for event in (events.Serve((application("a"),)), events.WorkerStarting("w0", 1, 7), events.WorkerUp("w0", 1)):
        state.handle(event, 0.0)
    state.handle(events.WorkerEnters("j0", {}), 0.0)
    adopted = adopt(ControllerState(["w0"], 0.0), travelled(state), [ToldWorker("w0", 1, 7, 1, None, ())], 1)
    effects = [effect for event in adopted.events for effect in adopted.state.handle(event, 1.0)]
    assert [effect for effect in effects if isinstance(effect, events.VacateWorker)] == [
        events.VacateWorker("j0", 0.0, "it did not come to the new head")
    ]
    effects = adopted.state.handle(events.Vacated("j0"), 2.0)
    assert events.StopWorker("j0", joined=1) in effects
    assert [*adopted.state.workers] == ["w0"]
