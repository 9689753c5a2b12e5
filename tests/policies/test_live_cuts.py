"""Applications that come and go cut the spans of those that are served: nobody notices.

The shadow is the same world without them: the same moves in the same order, so that every plan can be compared.
``make nightly`` plays all seeds, any run the first tenth.
"""

from __future__ import annotations

import random

import pytest

from blockwright.policies.model.chain import Chain, Route
from blockwright.policies.plan.sweep_plan import SweepPlan
from blockwright.tests.claims import claim
from blockwright.tests.parts import parts

from .sweep_world import FakeWorker, World, chain, generate, guesses, pipeline, replica, submission

LAYERS, NEW = 3, 4
BASE = chain("base", LAYERS)
SEEDS = 1000
PARTS = 20
DAILY = 1
SCARCE, AMPLE = 24, 200  # chunks of 64 KiB, two slots each


def routes_of(target: Chain) -> list[Route]:
    return [replica("w0", target), pipeline(["w0", "w1"], target), pipeline(["w1", "w0"], target)]


def world(seed: int) -> World:
    budget = (AMPLE if seed % 2 else SCARCE) * 64 * 1024
    return World(["w0", "w1"], [BASE], routes_of(BASE), budget=budget, chunk_size=6, max_rows=5, sweep_tokens=24)


def columns(plan: SweepPlan) -> tuple[object, ...]:
    """What a plan computes. Runs have other numbers, and pages are listed piece by piece."""
    away = [(d.worker, d.home, d.batch, d.rows) for d in plan.departures]
    return plan.number, plan.row, plan.start, plan.count, plan.sample, plan.arrivals, away


class Shadow:
    """Two worlds that take the same moves; in one of them applications come and go."""

    def __init__(self, seed: int) -> None:
        self.chance = random.Random(seed)
        self.real = world(seed)
        # Where memory is scarce a piece of a page is evicted alone, so that other pages are cached and plans differ.
        self.worlds = [self.real, world(seed)] if seed % 2 else [self.real]
        self.prompts: dict[str, list[int]] = {}
        self.tenants: dict[str, Chain] = {}

    def play(self) -> None:
        for step in range(36):
            kind = self.chance.random()
            if kind < 0.2 and len(self.prompts) < 5:
                self.submit(f"r{step}")
            elif kind < 0.3:
                self.change(f"t{step}")
            elif kind < 0.3 and self.prompts:
                self.cancel(self.chance.choice(sorted(self.prompts)))
            else:
                self.move()
        while self.move():
            pass
        for request, prompt in self.prompts.items():
            assert self.real.emitted[request] == generate("base", prompt, len(prompt) + NEW, []), request
        assert not self.real.returned, "a cut gave a sequence back"
        self.compare()
        for each in self.worlds:
            each.assert_quiet()

    def submit(self, request: str) -> None:
        prompt = [self.chance.randrange(2)] * self.chance.randint(0, 12) + [self.chance.randrange(40) for _ in range(6)]
        route = self.chance.choice(routes_of(BASE))
        limit = len(prompt) + NEW
        drafts = guesses(generate("base", prompt, limit, []), random.Random(f"{request}/{prompt}"))
        for each in self.worlds:
            each.submit(submission(request, prompt, limit, route.id, arrival=float(request[1:]), drafts=drafts))
        self.prompts[request] = prompt

    def cancel(self, request: str) -> None:
        for each in self.worlds:
            each.cancel(request)
        del self.prompts[request]

    def change(self, name: str) -> None:
        """An application comes that differs from some depth on, or goes."""
        if self.tenants and self.chance.random() < 0.3:
            del self.tenants[self.chance.choice(sorted(self.tenants))]
        else:
            depth = self.chance.randint(1, len(BASE.components) - 1)
            self.tenants[name] = chain(name, LAYERS, own_from=depth)
        chains = [BASE, *self.tenants.values()]
        self.real.serve(chains, [route for target in chains for route in routes_of(target)])

    def move(self) -> bool:
        """The same in all worlds: a message arrives, a plan is made or ends."""
        moves = [each.moves() for each in self.worlds]
        order = list(range(len(moves[0])))
        self.chance.shuffle(order)
        for place in order:
            made = {one_move(each, *found[place]) for each, found in zip(self.worlds, moves, strict=True)}
            assert len(made) == 1
            if made == {True}:
                self.compare()
                return True
        return False

    def compare(self) -> None:
        for each in self.worlds[1:]:
            assert each.emitted == self.real.emitted
            for one, other in zip(self.real.workers.values(), each.workers.values(), strict=True):
                assert [columns(plan) for plan, _ in one.open] == [columns(plan) for plan, _ in other.open]
                ours, theirs = ({k: v for k, v in w.state.counters.items() if k != "shared_pages"} for w in (one, other))
                assert ours == theirs, "cache hits differ"


def one_move(each: World, kind: str, what: object) -> bool:
    """Without a check of everything, which is made after each cut."""
    if isinstance(what, FakeWorker):
        return each.start_plan(what) if kind == "plan" else each.end_plan(what)
    return each._move(kind, what)


@claim("Running sequences and cached pages survive a new cut of their model", of="fine-tunes")
@pytest.mark.parametrize("part", parts(PARTS, DAILY))
def test_who_is_cut_notices_nothing(part: int) -> None:
    for seed in range(part * SEEDS // PARTS, (part + 1) * SEEDS // PARTS):
        Shadow(seed).play()


@claim("Variants share the KV cache below the first layer in which they differ", of="fine-tunes")
def test_a_sibling_finds_the_pages_below_its_first_own_layer() -> None:
    sibling = chain("sibling", LAYERS, own_from=5)  # embedding and two layers are the base's
    one = World(["w0"], [BASE], [replica("w0", BASE)])
    pages = one.workers["w0"].state.parts.memory.pages
    prompt = list(range(9))
    one.submit(submission("r0", prompt, 12, "base@w0"))
    one.run()
    before = sum(pages.slots_in_use.values())
    one.serve([BASE, sibling], [replica("w0", BASE), replica("w0", sibling)])
    assert sum(pages.slots_in_use.values()) == before
    one.submit(submission("r1", prompt, 12, "sibling@w0"))
    one.run()
    assert one.emitted["r1"] == generate("sibling", prompt, 12, [])
    assert pages.shared == 2, "both full pages of the prompt, on two layers"
    one.submit(submission("r2", prompt, 12, "base@w0"))
    one.run()
    assert one.workers["w0"].state.counters["cached_tokens"] == 8, "what was cached before the cut is found after it"


def test_pages_that_both_made_before_they_met_are_kept_once() -> None:
    """While neither knew of the other, no border showed that the lower layers are equal."""
    sibling = chain("sibling", LAYERS, own_from=5)
    one = World(["w0"], [BASE], [replica("w0", BASE)])
    for target in (BASE, sibling):
        one.serve([target], [replica("w0", target)])
        one.submit(submission(target.application, list(range(9)), 12, f"{target.application}@w0"))
        one.run()
    pages = one.workers["w0"].state.parts.memory.pages
    before = sum(pages.slots_in_use.values())
    one.serve([BASE, sibling], [replica("w0", BASE), replica("w0", sibling)])
    assert sum(pages.slots_in_use.values()) == before - 2 * 2
    one.assert_quiet()
