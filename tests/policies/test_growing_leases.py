"""Leases that grow: pipelines hold what they use, older sequences take from younger ones everywhere, and all end.

``make nightly`` plays all seeds, any run the first tenth.
"""

from __future__ import annotations

import random
from collections import Counter
from dataclasses import replace

import pytest

from blockwright.policies.model.chain import Route
from blockwright.policies.sweep.columns import Status
from blockwright.policies.sweep.events import GrowthWanted, LeaseRevoked
from blockwright.policies.sweep.preemption import ages
from blockwright.tests.claims import claim
from blockwright.tests.parts import parts

from .fake_device import CHUNK
from .sweep_world import World, chain, generate, guesses, pipeline, replica, submission

BASE, OTHER = chain("base", layers=3), chain("other", layers=3, own_from=4)
WORKERS = ["w0", "w1", "w2"]
SEEDS = 1000
PARTS = 20
DAILY = 1
REQUESTS = 7
MOST = 3  # preemptions for each request


def routes(chance: random.Random) -> list[Route]:
    """Pipelines that pass the workers in every order, and replicas beside them."""
    groups = [chance.sample(WORKERS, chance.choice((1, 2, 2, 3))) for _ in range(5)]
    found = [pipeline(g, c) if len(g) > 1 else replica(g[0], c) for g in groups for c in (BASE, OTHER)]
    return list({route.id: route for route in found}.values())


class Crowd:
    """Requests of several accounts and priorities that come and go by chance where memory is short."""

    def __init__(self, seed: int) -> None:
        self.chance = chance = random.Random(seed)
        self.routes = routes(chance)
        more = {"tenant_kv_share": {"b": 0.8}} if chance.random() < 0.2 else {}
        self.world = World(
            WORKERS, [BASE, OTHER], self.routes, budget=chance.choice((12, 12, 14, 20)) * CHUNK, chunk_size=8,
            max_rows=chance.choice((2, 4, 8)), sweep_tokens=chance.choice((8, 32)), prefix_cache=chance.random() < 0.8,
            **more,
        )  # fmt: skip
        self.expected: dict[str, list[int]] = {}
        self.messages: Counter[str] = Counter()

    def submit(self, name: str) -> None:
        chance, route = self.chance, self.chance.choice(self.routes)
        prompt = [1] * chance.randint(0, 8) + [chance.randrange(40) for _ in range(chance.randint(1, 6))]
        limit = len(prompt) + chance.randint(1, 24 - len(prompt))
        stop = [chance.randrange(50) for _ in range(chance.choice((0, 4)))]
        fields = {"arrival": chance.random(), "priority": chance.choice((0, 0, 1)), "tenant": chance.choice("ab")}
        self.expected[name] = generate(route.application, prompt, limit, stop)
        drafts = guesses(self.expected[name], random.Random(f"{name}/{prompt}"))
        self.world.submit(submission(name, prompt, limit, route.id, stop=stop, drafts=drafts, **fields))

    def play(self) -> None:
        coming = [f"r{i}" for i in range(REQUESTS)]
        for name in coming[:4]:
            self.submit(name)
        for name in coming[4:]:
            self.move(self.chance.randint(0, 30))
            self.submit(name)
            if self.chance.random() < 0.2:
                gone = self.chance.choice(sorted(self.expected))
                self.world.cancel(gone)
                self.expected.pop(gone)
        self.move(4000)
        assert not self.world.returned
        assert {name: self.world.emitted[name] for name in self.expected} == self.expected
        self.world.assert_quiet()

    def move(self, limit: int) -> None:
        """So many things happen in any order, or all that can."""
        for _ in range(limit):
            moves = self.world.moves()
            self.chance.shuffle(moves)
            for kind, what in moves:
                if kind == "deliver":
                    self.messages[type(self.world.wire[what][0]).__name__] += 1
                if self.world._move(kind, what):
                    break
            else:
                return
        assert limit < 4000, "the world does not come to rest"

    @property
    def preemptions(self) -> int:
        return sum(worker.state.counters["preemptions"] for worker in self.world.workers.values())


@claim("Pipelines over workers with tight memory do not wait for each other in a circle", of="serving")
@pytest.mark.parametrize("part", parts(PARTS, DAILY))
def test_every_sequence_ends_whoever_needs_memory_first(part: int) -> None:
    messages: Counter[str] = Counter()
    for seed in range(part * SEEDS // PARTS, (part + 1) * SEEDS // PARTS):
        crowd = Crowd(seed)
        crowd.play()
        assert crowd.preemptions <= MOST * REQUESTS, "sequences preempt one another again and again"
        messages += crowd.messages
    assert messages["LeaseRevoked"] > SEEDS // PARTS // 4, "memory is not short enough"
    assert messages["GrowthWanted"] > SEEDS // PARTS * 3


def two(rows: int = 16, layers: int = 2, **numbers: int) -> tuple[World, Route]:
    """Half the layers on each worker."""
    target = chain("base", layers=layers)
    route = pipeline(["w0", "w1"], target)
    return World(["w0", "w1"], [target], [route], chunk_size=8, max_rows=rows, sweep_tokens=64, **numbers), route


def test_a_pipeline_runs_as_many_sequences_as_fit_by_what_they_hold() -> None:
    """Each may have 96 tokens and ends after 16; with leases for whole sequences four would run at a time."""
    world, route = two(budget=48 * CHUNK)
    prompts = [[i, i + 1, i + 2, i + 3] for i in range(16)]
    answers = [generate("base", prompt, 96, [])[:12] for prompt in prompts]
    for i, (prompt, answer) in enumerate(zip(prompts, answers, strict=True)):
        world.submit(submission(f"r{i}", prompt, 96, route.id, stop=[answer[-1]], arrival=float(i)))
    home, memory = world.workers["w0"].state, world.workers["w1"].state.parts.memory
    spans = world.workers["w1"].state.parts.routes.passing(route.id)
    assert spans is not None
    whole = memory.pages_of(spans.spans, "") // (96 // 4)
    peak = 0
    while any(world._move(kind, what) for kind, what in world.moves()):
        peak = max(peak, home.running)
    assert (whole, peak) == (4, 16)
    assert home.counters["preemptions"] == 0
    for i, prompt in enumerate(prompts):
        assert world.emitted[f"r{i}"] == generate("base", prompt, 96, [answers[i][-1]])
    world.assert_quiet()


def test_no_sweep_waits_for_a_page_and_hosts_are_asked_once_for_all() -> None:
    """A page ahead: whenever it is the turn of a row, all hosts have room for it."""
    world, route = two()
    for i in range(8):
        world.submit(submission(f"r{i}", [i, 2, 3, 4, 5], 60, route.id))
    home, host = world.workers["w0"], world.workers["w1"]
    home.state.parts.config = replace(home.state.config, lookahead=0)  # prompts leave together
    asked: list[GrowthWanted] = []
    rows, leases = home.state.parts.rows, home.state.parts.leases
    while len(world.finished) < 8:
        while world.start_plan(home):
            pass
        for s in rows.with_status(Status.RUNNING):
            assert leases.pages(s) * rows.page_size > rows.planned[s] or rows.planned[s] == 59, "a row waits for a page"
        for worker in (home, host):
            world.start_plan(worker)
            world.end_plan(worker)
        for pair in [pair for pair, messages in world.wire.items() if messages]:
            asked += [message for message in world.wire[pair] if isinstance(message, GrowthWanted)]
            while world.wire[pair]:
                world.deliver(pair)
    world.run()
    assert sum(len(message.leases) for message in asked) == 8 * (15 - 3), "of 15 pages the first 3 come with the lease"
    assert max(len(message.leases) for message in asked) >= 2
    world.assert_quiet()


def test_a_revoked_lease_returns_when_the_row_in_flight_is_back() -> None:
    """The host is full. Its younger guest gives way to the older one: preempted at home, computed again from its tokens."""
    world, route = two(budget=6 * CHUNK)
    for i in range(2):
        world.submit(submission(f"r{i}", [i, 2, 3], 30, route.id, arrival=float(-i)))  # the second is the older one
    host = world.workers["w1"].state
    seen: list[LeaseRevoked] = []
    while not seen:
        assert any(world._move(kind, what) for kind, what in world.moves())
        seen = [message for message in world.wire.get(("w1", "w0"), []) if isinstance(message, LeaseRevoked)]
    young = host.parts.leases.find("w0", seen[0].lease)
    assert young is not None
    assert host.parts.rows.submission[young].request == "r0"
    assert host.parts.rows.status[young] == Status.RUNNING, "its memory stays until the home has called it back"
    while host.parts.leases.find("w0", seen[0].lease) is not None:
        assert any(world._move(kind, what) for kind, what in world.moves())
        host.check()
    world.run()
    assert list(world.finished) == ["r1", "r0"]
    for i in range(2):
        assert world.emitted[f"r{i}"] == generate("base", [i, 2, 3], 30, [])
    world.assert_quiet()


@pytest.mark.parametrize("chunks", [8, 9, 10])
def test_who_waits_for_memory_leaves_his_place_to_whom_he_waits_for(chunks: int) -> None:
    """The urgent one comes first, and the older one of the same account has the memory: of two rows one leaves at a time."""
    world, route = two(layers=3, budget=chunks * CHUNK)
    prompts = {"old": [1, 2, 2], "urgent": [0] + [2] * (5 if chunks == 9 else 2)}
    for priority, name in enumerate(("urgent", "old")):
        world.submit(submission(name, prompts[name], 30, route.id, arrival=float(1 - priority), priority=priority))
    world.run()
    for name, prompt in prompts.items():
        assert world.emitted[name] == generate("base", prompt, 30, [])
    world.assert_quiet()


def test_priorities_of_an_account_order_what_nobody_else_sees() -> None:
    """On one worker the urgent one of an account takes the age of its oldest; a guest and others keep theirs."""
    world, _ = two()
    rows = world.workers["w0"].state.parts.rows
    local = replica("w0", BASE)
    world.serve([BASE], [local, pipeline(["w0", "w1"], BASE)])
    for name, route, priority, tenant in (
        ("1", local.id, 1, "a"), ("2", "base@w0+w1", 1, "a"), ("3", local.id, 0, "a"), ("4", local.id, 0, "b"),
    ):  # fmt: skip
        world.submit(submission(name, [1], 4, route, arrival=float(name), priority=priority, tenant=tenant))
    found = ages(rows, rows.live())
    order = [rows.submission[s].request for s in sorted(found, key=found.__getitem__)]
    assert order == ["3", "2", "1", "4"]


def test_a_forecast_does_not_jump_while_a_guest_waits_to_grow() -> None:
    target = chain("base", layers=2)
    crossing, local = pipeline(["w0", "w1"], target), replica("w1", target)
    world = World(["w0", "w1"], [target], [crossing, local], chunk_size=8, max_rows=4, sweep_tokens=64)
    host = world.workers["w1"]
    world.submit(submission("guest", [1, 2, 3], 60, crossing.id))
    while not world.emitted["guest"]:
        assert any(world._move(kind, what) for kind, what in world.moves())
    while host.open or world.start_plan(host):
        world.end_plan(host)
    world.submit(submission("here", [4], 60, local.id))
    for _ in range(2):
        plan = host.state.plan(0.0)
        assert plan is not None
        host.state.commit(plan, host.device.execute(plan, host.state.batch(plan.number)), 0.0)
    plan = host.state.plan(0.0)
    assert plan is not None
    assert host.state.repeat(plan) > 1
    (s,) = host.state.parts.leases.lent()
    book = host.state.parts.leases
    host.state.apply(GrowthWanted("w0", [(book.number(s), book.pages(s) + 1)]), 0.0)
    assert host.state.repeat(plan) == 1
    host.state.check()
