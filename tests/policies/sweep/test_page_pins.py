"""Pages are kept for requests that pause while their route changes: against younger work, never against older, and never for
ever."""

from __future__ import annotations

import random

import pytest

from blockwright.policies.model.lineage import page_hashes
from blockwright.policies.requests.dispatch import workers_of
from blockwright.policies.requests.routes_changed import RoutesChanged
from blockwright.policies.sweep.events import PeerLost
from blockwright.policies.sweep.page_events import HoldPages, Unhold
from blockwright.policies.sweep.state import SweepState
from blockwright.tests.claims import claim
from blockwright.tests.parts import parts
from blockwright.tests.policies.sweep_world import World, chain, generate, guesses, pipeline, replica, submission

BASE = chain("base", 3)
REPLICAS, PIPELINE = [replica("w0", BASE), replica("w1", BASE)], pipeline(["w0", "w1"], BASE)
BACK = pipeline(["w1", "w0"], BASE)
PROMPT = [3, 1, 4, 1, 5, 9, 2, 6, 5, 3, 5, 8, 9, 7, 9, 3]
SEEDS = 240
PARTS = 8
DAILY = 1


class Dropped(World):
    """Two replicas, of which some time a pipeline is made: who runs pauses, with its pages held, and begins there."""

    def __init__(self, chunks: int = 200) -> None:
        routes, numbers = [*REPLICAS, PIPELINE, BACK], {"chunk_size": 6, "max_rows": 8, "sweep_tokens": 24}
        super().__init__(["w0", "w1"], [BASE], routes, budget=chunks * 64 * 1024, **numbers)

    def turns(self, worker: str, count: int = 1) -> None:
        for _ in range(count):
            self.start_plan(self.workers[worker])
            self.end_plan(self.workers[worker])
            self.workers[worker].state.check()

    def hold(self, request: str, route: str = "", *, expects: bool = False, seconds: float = 60.0) -> None:
        """At all workers of a route, or of that which it is on, its home last."""
        of = self.submitted[request]
        name = route or of.route
        tokens = [*of.tokens[: of.prompt_length], *self.emitted[request]]
        hashes = page_hashes(tokens[:-1], 4)
        for worker in [w for w in workers_of(self.routes[name])[::-1] if w in self.workers]:
            wanted = HoldPages(
                of.gateway, request, of.attempt, name, of.tenant, of.priority, of.arrival, hashes, seconds, expects
            )
            self.workers[worker].state.apply(wanted, self.now)
            self.workers[worker].state.check()
            self.collect(self.workers[worker])

    def pause(self, request: str, to: str = PIPELINE.id) -> None:
        """Its attempt ends, its pages stay, and go where they are computed from now on; then it begins there."""
        self.hold(request)
        self.hold(request, to, expects=True)
        self.move(request, to)

    def hand_over(self, request: str, route: str) -> None:
        """What is kept on workers that it does not come to is needed no more."""
        for name in self.workers.keys() - workers_of(self.routes[route]):
            self.workers[name].state.apply(Unhold(request, self.submitted[request].attempt), self.now)
        super().hand_over(request, route)

    def held(self, worker: str, request: str = "r") -> int:
        hold = self.workers[worker].state.parts.page_pins.find(request)
        return 0 if hold is None else len(hold.handles)

    def expect(self, request: str, prompt: list[int], limit: int) -> None:
        assert self.emitted[request] == generate("base", prompt, limit, []), request


def running(chunks: int = 200, sweeps: int = 6) -> Dropped:
    """Request r decodes on w0."""
    where = Dropped(chunks)
    where.submit(submission("r", PROMPT, 40, "base@w0", arrival=1.0))
    where.turns("w0", sweeps)
    return where


@claim("Sequences that pause keep their pages and go on with them", of="parameter-dropping")
def test_a_request_pauses_and_goes_on_with_all_of_its_pages() -> None:
    where = running()
    known = len(PROMPT) + len(where.emitted["r"])
    full = (known - 1) // 4
    where.hold("r")
    source = where.workers["w0"].state
    assert not source.running
    assert where.held("w0") == full * 2, "of the spans on both sides of the cut"
    where.publish([PIPELINE])
    where.deliver(("head", "w0"))
    where.deliver(("head", "w1"))
    where.hold("r", PIPELINE.id, expects=True)
    assert where.workers["w1"].state.room("r")
    where.move("r", PIPELINE.id)
    while where.wire.get(("w0", "w1")):
        where.deliver(("w0", "w1"))
        where.turns("w1")
    assert where.held("w1") == full
    where.deliver(("w1", "w0"))
    assert where.moved == [("r", full)]
    where.run()
    where.expect("r", PROMPT, 40)
    computed = sum(worker.state.counters["computed_tokens"] for worker in where.workers.values())
    assert computed - 2 * (39 - 4 * full) <= known, "on both workers nothing but what was no full page"
    where.assert_quiet()


def test_younger_work_does_not_take_what_is_held_nor_what_is_awaited() -> None:
    where = running(chunks=16)
    where.hold("r")
    where.hold("r", PIPELINE.id, expects=True)
    for worker in ("w0", "w1"):
        for n in range(4):
            prompt = [20 + n] * 14
            where.submit(submission(f"{worker}{n}", prompt, 18, f"base@{worker}", arrival=2.0 + n))
    for _ in range(100):
        where.turns("w0")
        where.turns("w1")
    assert where.held("w0") == 2 * 4
    assert len(where.finished) == 8, "beside it"
    assert where.workers["w1"].state.room("r")
    where.move("r", PIPELINE.id)
    where.run()
    where.expect("r", PROMPT, 40)
    assert where.moved == [("r", 4)]
    assert where.workers["w1"].state.counters["refused_pages"] == 0
    where.assert_quiet()


def test_an_older_request_has_the_youngest_hold_given_up() -> None:
    where = Dropped(chunks=16)
    for n, name in enumerate("ab"):
        where.submit(submission(name, [n, *PROMPT[:11]], 20, "base@w0", arrival=2.0 + n))
    where.turns("w0", 5)
    for name in "ab":
        where.hold(name)
    assert where.held("w0", "a") == where.held("w0", "b") == 2 * 3
    where.submit(submission("old", [7] * 20, 23, "base@w0", arrival=1.0))
    where.turns("w0", 3)
    assert where.held("w0", "a") == 2 * 3
    assert where.held("w0", "b") == 0
    for name in "ab":
        where.hand_over(name, "base@w0")
    where.run()
    where.assert_quiet()


def test_who_has_pages_here_does_not_queue_behind_a_younger_one_that_waits_for_them() -> None:
    """Whose account was given less, and goes first in the fair queue."""
    where = Dropped(chunks=16)
    where.submit(submission("r", PROMPT, 30, "base@w0", arrival=1.0, tenant="x"))
    where.turns("w0", 3)
    where.submit(submission("y", [9] * 28, 32, "base@w0", arrival=2.0, tenant="y"))
    where.turns("w0", 6)
    where.hold("r")
    where.turns("w0", 3)
    assert where.workers["w0"].state.waiting == 1
    where.hand_over("r", "base@w0")
    where.run()
    where.expect("r", PROMPT, 30)
    where.expect("y", [9] * 28, 32)
    where.assert_quiet()


@pytest.mark.parametrize("end", ["unhold", "late", "gateway", "time", "taken"])
def test_nothing_is_held_for_ever(end: str) -> None:
    where = running()
    state = where.workers["w0"].state
    where.hold("r", seconds=5.0)
    assert state.next_deadline == 5.0
    copies = [SweepState.restore(state.snapshot()), state.fork()]
    assert all(copy.digest() == state.digest() for copy in copies)
    if end == "unhold":
        state.apply(Unhold("r", 0), 0.0)
        assert where.held("w0"), "of an earlier attempt"
        state.apply(Unhold("r", 1), 0.0)
    elif end == "gateway":
        state.apply(PeerLost("head"), 0.0)
    elif end == "time":
        where.now = 5.0
        where.turns("w0")
    else:
        where.hand_over("r", "base@w0")
        where.turns("w0", 1)
        assert where.submitted["r"].attempt == 2
        assert state.counters["cached_tokens"] == 16
        if end == "late":  # the same word once more
            where.submitted["r"] = submission("r", PROMPT, 40, "base@w0", arrival=1.0)
            where.hold("r")
            assert state.running == 1
    assert not where.held("w0")
    state.check()
    if end in ("taken", "late"):
        where.run()
        where.expect("r", PROMPT, 40)
    where.run()
    where.assert_quiet()


def test_of_a_pipeline_every_worker_keeps_its_layers() -> None:
    """The second worker learns from the hold under which hashes its pages can be found."""
    where = Dropped()
    where.submit(submission("r", PROMPT[:6], 30, PIPELINE.id, arrival=1.0))
    while len(where.emitted["r"]) < 8:
        where._move(*random.Random(1).choice(where.moves()))
        for pair in list(where.wire):
            while where.wire[pair]:
                where.deliver(pair)
        where.turns("w0")
        where.turns("w1")
    where.hold("r")
    assert where.held("w0") == where.held("w1") >= 3
    where.publish([BACK])
    where.move("r", BACK.id)
    where.run()
    where.expect("r", PROMPT[:6], 30)
    assert where.moved[0][1] >= 3
    where.assert_quiet()


class Play:
    """One seed: requests on replicas, in little memory; a drop in their midst, a restore, and drops again."""

    def __init__(self, seed: int) -> None:
        self.chance = random.Random(seed)
        self.where = Dropped(self.chance.choice((18, 26, 100)))
        self.prompts: dict[str, list[int]] = {}
        self.dropped = False
        self.paused: dict[str, str] = {}

    def play(self) -> None:
        where, chance = self.where, self.chance
        for step in range(160):
            kind = chance.random()
            if kind < 0.08 and len(self.prompts) < 8:
                self._submit(f"r{step}")
            elif kind < 0.11:
                self._switch()
            elif kind < 0.2 and self.paused:
                self._go_on(chance.choice(sorted(self.paused)))
            else:
                where._move(*chance.choice(where.moves()))
        for request in sorted(self.paused):
            self._go_on(request)
        where.run(chance.randrange(1 << 30))

    def _submit(self, name: str) -> None:
        stem = PROMPT if self.chance.random() < 0.5 else [self.chance.randrange(50) for _ in range(12)]
        prompt = self.prompts[name] = stem[: self.chance.randint(1, 16)]
        routes = [PIPELINE, BACK] if self.dropped else REPLICAS
        drafts = guesses(generate("base", prompt, len(prompt) + 14, []), random.Random(f"{name}/{prompt}"))
        sub = submission(name, prompt, len(prompt) + 14, self.chance.choice(routes).id, arrival=len(self.prompts) / 8,
                         tenant=self.chance.choice("xy"), drafts=drafts)  # fmt: skip
        self.where.submit(sub)

    def _switch(self) -> None:
        """Everybody leaves. As live, workers forget the old routes when all have left."""
        where, self.dropped = self.where, not self.dropped
        to = [PIPELINE, BACK] if self.dropped else REPLICAS
        for request in [r for r in self.prompts if r not in where.finished and r not in self.paused]:
            where.hold(request)
            self.paused[request] = self.chance.choice(to).id
        for request in self.paused:
            self.paused[request] = self.chance.choice(to).id
        for number, (request, route, _) in where.exports.items():
            where.exports[number] = (request, route, {"nobody"})
        where.update = RoutesChanged(where.update.version + 1, where.update.chains, to, where.update.planned)
        for worker in where.workers.values():
            worker.state.apply(where.update, where.now)
            worker.device.compose()
            where.collect(worker)
            worker.state.check()
        where.returned.clear()

    def _go_on(self, request: str) -> None:
        where, to = self.where, self.paused.pop(request)
        if self.chance.random() < 0.7:
            where.hold(request, to, expects=True)
            where.move(request, to)
            number = max(where.exports)
            if where.exports[number][2]:
                if self.chance.random() < 0.7:
                    return
                where.exports[number] = (request, to, {"nobody"})  # it gives up, and computes
        where.hand_over(request, to)


@pytest.mark.parametrize("part", parts(PARTS, DAILY))
def test_seeds_of_drops(part: int) -> None:
    found = 0
    for seed in range(part, SEEDS, PARTS):
        play = Play(seed)
        play.play()
        for request, prompt in play.prompts.items():
            assert play.where.emitted[request] == generate("base", prompt, len(prompt) + 14, []), (seed, request)
        found += sum(worker.state.counters["cached_tokens"] for worker in play.where.workers.values())
        play.where.assert_quiet()
    assert found > SEEDS // 2
