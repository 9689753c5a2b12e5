"""Room for a sequence that is longer than what loaded applications leave: idle ones are unloaded for it, and it is kept."""

from __future__ import annotations

from random import Random

import pytest

from blockwright.policies.cluster.demand import PATIENCE, TURN
from blockwright.policies.control.events import (
    ApplicationsWanted,
    AskUsage,
    AwaitQuiet,
    Effect,
    Event,
    Quiet,
    WorkerDown,
    WorkerUp,
)
from blockwright.policies.model.chain import KvLayout
from blockwright.tests.claims import claim
from blockwright.tests.fake_cluster import SIZE, FakeCluster, application

KV = KvLayout(1, 1, "float32", 1)  # 8 bytes for a token of a component: 48 for one of a tune, 32 for one of the base
BESIDE = 10  # tokens of a tune that fit beside another one
FITS = 12  # tokens that fit without the other one; up to 14 do
NEVER = 15  # tokens that never fit


class Crowd(FakeCluster):
    """Gateways send what waits as soon as a route has room for it, and say so the next time that they are asked."""

    def __init__(self, *workers: str) -> None:
        super().__init__(*workers, room=8)
        self.spare = 480
        self.sent: list[str] = []

    def answers(self, effect: Effect) -> list[Event]:
        if isinstance(effect, AskUsage):
            self.send()
        return super().answers(effect)

    def send(self) -> None:
        capacity = self.state.publication().capacity
        for route in self.state.table.news().routes:
            name, tokens = route.application, self.waits.get(route.application, 0)
            left = self.spare + SIZE * (self.room - len(self.workers[route.home].held))  # a report may be older than a load
            page = 8 * len(self.state.served[name].application.components)
            if 0 < tokens <= min(capacity[route.id], left // page):
                self.waits[name] = 0
                self.sent.append(name)

    def ask(self, name: str, tokens: int) -> None:
        self.waits[name] = tokens
        self.want(name, tokens)

    def tokens(self, name: str) -> tuple[int, int]:
        """Tokens now, and once others are unloaded, of its route on the first worker."""
        outcome = self.state.publication()
        return outcome.capacity[f"{name}@w0"], outcome.capacity_alone[f"{name}@w0"]


def crowd(*workers: str) -> Crowd:
    """A base of four components and four tunes with two of their own, of which two have room."""
    tunes = [application(f"t{i}", "abcd" + own, kv=KV) for i, own in enumerate(("pP", "qQ", "rR", "sS"))]
    return Crowd(*workers).serve(application("base", "abcd", kv=KV), *tunes)


def test_what_a_route_holds_is_reported_with_others_and_without() -> None:
    made = crowd()
    assert made.published() == ["base", "t0", "t1"]
    assert (made.tokens("t0"), made.tokens("base")) == ((BESIDE, 14), (15, 27))


@claim("Idle models are unloaded for a request that is longer than the loaded ones leave room for", of="fine-tunes")
def test_an_idle_one_is_unloaded_for_it_and_no_more_than_that() -> None:
    made = crowd()
    made.now, made.last = 10.0, {"t1": 2.0, "base": 1.0}
    made.ask("t0", FITS)
    assert made.published() == ["base", "t0"], "the base would free nothing"
    assert (made.sent, made.state.demand.coming, made.state.demand.wanted) == (["t0"], "", {})
    assert made.states()["t1"] == "on demand"
    made.ask("t0", FITS)
    assert made.sent == ["t0"], "there is room: no gateway asks"


def test_what_fits_beside_others_or_never_makes_nobody_leave() -> None:
    for tokens in (BESIDE, NEVER):
        made = crowd()
        made.ask("t0", tokens)
        assert made.published() == ["base", "t0", "t1"]
        assert not made.state.demand.wanted


def test_one_that_has_to_be_loaded_gets_the_room_with_it() -> None:
    made = crowd()
    made.ask("t3", FITS)
    assert made.published() == ["base", "t3"]
    assert made.sent == ["t3"]


def test_nothing_comes_between_the_room_and_the_request_that_waits_for_it() -> None:
    made = crowd()
    made.active = {"t1": 1, "base": 1}
    made.now = 100.0
    made.ask("t0", FITS)
    made.ask("t3", BESIDE)
    assert (made.published(), made.state.demand.coming) == (["base", "t0", "t1"], "t0"), "t1 is in use"
    made.end("t1")
    made.tick(0.1)
    assert made.sent == ["t0", "t3"]
    assert made.published() == ["base", "t0", "t3"]


def test_what_is_in_use_is_waited_for_and_starts_nothing_new_then() -> None:
    made = crowd()
    made.active = {"t1": 1, "base": 1}
    made.now = 100.0
    made.ask("t0", FITS)
    made.tick(PATIENCE / 2)
    assert made.awaited == []
    made.tick(PATIENCE)
    assert made.awaited == ["t1"]
    assert made.published() == ["base", "t0"]
    assert made.sent == [], "its requests run"
    made.active["t1"] = 0
    made(Quiet("t1"))
    made.tick(0.1)
    assert made.sent == ["t0"]


def test_who_asked_and_went_makes_nobody_leave_and_stays_loaded() -> None:
    made = crowd()
    made.active = {"t1": 1, "base": 1}
    made.ask("t0", FITS)
    made.end("t0")
    made.waits = {}
    made.tick(2 * PATIENCE)
    assert (made.published(), made.awaited, made.state.demand.wanted) == (["base", "t0", "t1"], [], {})


def test_two_that_need_each_other_away_take_turns() -> None:
    made = crowd()
    made.now = 100.0
    made.active = {"base": 1}
    running = ""
    for turn in range(6):
        for name in ("t0", "t1"):
            if not made.waits.get(name):
                made.ask(name, FITS)
        for _ in range(3):  # both have patience, and each its turn
            if len(made.sent) == turn + 1:
                break
            made.tick(TURN + PATIENCE)
            if made.awaited:  # what ran has ended
                made.active[made.awaited[-1]] -= 1
                made.reply(made.pending(AwaitQuiet)[-1])
                made.tick(0.1)
        assert len(made.sent) == turn + 1, (turn, made.sent)
        assert made.sent[-1] != running
        running = made.sent[-1]
    assert sorted(made.sent) == ["t0"] * 3 + ["t1"] * 3


def test_the_death_of_the_worker_loses_nothing() -> None:
    made = crowd()
    made.active = {"t1": 1}
    made.now = 100.0
    made.ask("t0", FITS)
    made(WorkerDown("w0", 1, "killed"))
    made.tick(0.1)
    made(WorkerUp("w0", 2))
    made.active["t1"] = 0
    made.tick(0.1)
    assert made.sent == ["t0"]
    assert not made.state.demand.wanted


def test_of_two_workers_one_has_to_have_the_room() -> None:
    made = crowd("w0", "w1")
    made.ask("t0", FITS)
    assert made.sent[0] == "t0"
    assert made.states()["t1"] == "on demand"


@pytest.mark.parametrize("seed", range(20))
def test_whatever_comes_and_goes_each_is_sent_in_the_end(seed: int) -> None:
    made = crowd()
    chance = Random(seed)
    life = 1
    names = ["base", "t0", "t1", "t2", "t3"]
    for _ in range(120):
        name = chance.choice(names)
        match chance.randrange(5):
            case 0:
                made.ask(name, chance.choice([1, BESIDE, FITS, 14, NEVER if name == "base" else 14]))
            case 1 if made.active.get(name, 0) > bool(made.waits.get(name)):
                made.end(name)  # one that ran
            case 2 if made.waits.get(name):
                made.waits[name] = 0  # its client is gone
                made.end(name)
            case 3 if chance.random() < 0.2:
                made(WorkerDown("w0", life, "killed"))
                life += 1
                made(WorkerUp("w0", life))
            case _:
                made.tick(chance.choice([0.03, PATIENCE, TURN]))
        _quiet(made)
    for _ in range(60):  # what runs ends, what waits is sent
        for name in names:
            if made.active.get(name, 0) > bool(made.waits.get(name)):
                made.end(name)
        _quiet(made)
        made.tick(TURN)
        made.send()
        for name, tokens in list(made.waits.items()):  # gateways say again what waits and has no room
            if tokens:
                made(ApplicationsWanted({name: tokens}))
    assert not any(made.waits.values())
    assert not made.state.demand.wanted


def _quiet(made: Crowd) -> None:
    """Those that start nothing new and have nothing that runs are so."""
    for effect in made.pending(AwaitQuiet):
        if made.active.get(effect.application, 0) <= bool(made.waits.get(effect.application)):
            made.reply(effect)


def test_without_on_demand_only_what_fits_now_is_reported() -> None:
    made = FakeCluster(room=8, on_demand=False).serve(application("t0", "abcdpP", kv=KV), application("t1", "abcdqQ", kv=KV))
    assert made.state.publication().capacity_alone == {}
