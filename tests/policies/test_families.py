"""Families of tiers in random worlds: hidden states at exits are kept, found, evicted, moved and copied like KV.

The fake device asserts that a row passes each component once, that what it reads at an exit was written there for that very
prefix, and that attention finds KV of every layer. ``make nightly`` plays all seeds, any run the first tenth.
"""

from __future__ import annotations

import random

import pytest

from blockwright.policies.drafts.options import DraftOptions
from blockwright.policies.memory.packed_tensor import PackedTensor, WantedComponent
from blockwright.policies.model.chain import Chain
from blockwright.policies.sweep.events import ComponentsReleased, ComponentsWanted, ExitEntered
from blockwright.tests.claims import claim
from blockwright.tests.parts import parts

from .sweep_world import World, chain, generate, guesses, replica, submission, tier

TOP = chain("base", 4)
LOW, MIDDLE = tier(TOP, 1), tier(TOP, 3)
FAMILY = [TOP, LOW, MIDDLE]
TIERS = [MIDDLE.application, LOW.application]
SEEDS = 500
PARTS = 10
DAILY = 1
TURNS = [
    {}, {"tier_sweeps": "decoupled", "tier_turns": 1}, {"tier_sweeps": "decoupled", "tier_turns": 4},
    {"tier_sweeps": "lockstep"}, {"group_batching": False},
]  # fmt: skip
SCARCE, AMPLE = 24, 400  # chunks of 64 KiB, two slots each


class EntryWorld(World):
    """A world that keeps the reports of entries at exits, each of which the device must have computed as reported."""

    def hear(self, effects: list[object]) -> list[object]:
        self.entries = [*getattr(self, "entries", []), *[one for one in effects if isinstance(one, ExitEntered)]]
        return effects


def world(chunks: int = AMPLE, workers: int = 1, **more: object) -> EntryWorld:
    names = [f"w{number}" for number in range(workers)]
    routes = [replica(name, one) for name in names for one in FAMILY]
    numbers: dict[str, object] = {"chunk_size": 8, "max_rows": 6, "sweep_tokens": 24, **more}
    return EntryWorld(names, FAMILY, routes, budget=chunks * 64 * 1024, **numbers)


def ask(made: World, request: str, target: Chain, prompt: list[int], new: int = 4, **more: object) -> list[int]:
    """Submit a request to the first worker and wait for its answer."""
    made.submit(submission(request, prompt, len(prompt) + new, f"{target.application}@w0", **more))
    made.run()
    return made.emitted[request]


def entered(made: World) -> int:
    return sum(worker.device.entered for worker in made.workers.values())


def steps_of(made: World) -> list[tuple[int, int]]:
    """Make plans until nothing is to be done; return (depth, tokens) of each step."""
    worker, found = made.workers["w0"], list[tuple[int, int]]()
    while (plan := worker.state.plan(made.now)) is not None:
        runs = worker.state.parts.routes.runs
        found += [(runs[step.run].depth, sum(plan.count[i] for i in step.batch)) for step in plan.steps]
        result = worker.device.execute(plan, worker.state.batch(plan.number))
        worker.state.commit(plan, result, made.now)
        made.collect(worker)
    return found


def test_a_higher_tier_computes_only_the_layers_behind_the_exit() -> None:
    made, prompt = world(chunk_size=16), list(range(16))
    ask(made, "low", LOW, prompt, 1)
    made.submit(submission("top", prompt, 17, "base@w0"))
    tokens = dict.fromkeys([0, 3, 7, 9], 0)
    for depth, count in steps_of(made):
        tokens[depth] += count
    # three pages are entered behind the first layer; the fourth is never skipped, since its last position is drawn from
    assert tokens == {0: 4, 3: 16, 7: 16, 9: 4}, "the head gets the last batch row alone"
    assert made.emitted["top"] == generate("base", prompt, 17, [])


def test_the_deepest_exit_is_taken() -> None:
    made, prompt = world(), list(range(16))
    ask(made, "low", LOW, prompt, 1)
    ask(made, "middle", MIDDLE, prompt, 1)
    assert entered(made) == 12
    made.submit(submission("top", prompt, 17, "base@w0"))
    depths = [depth for depth, _ in steps_of(made)]
    assert depths == [7, 7, 0, 3, 7, 9], "two chunks enter behind three layers, the last one at the embedding"
    entries = [(one.request, one.attempt, one.layers, one.start, one.end) for one in made.entries]
    assert entries == [("middle", 1, 1, 0, 8), ("middle", 1, 1, 8, 12), ("top", 1, 3, 0, 8), ("top", 1, 3, 8, 12)]


def test_an_answer_serves_the_next_tier_like_a_prompt() -> None:
    """Moving up after an answer runs the missing layers alone, except for the page that is not full."""
    made, prompt = world(), list(range(9))
    answer = ask(made, "low", LOW, prompt, 12)
    ask(made, "top", TOP, [*prompt, *answer])
    assert entered(made) == 20


def test_an_answer_with_drafts_by_a_tier_serves_the_next_tier_too() -> None:
    """Hidden states of drafts that stood are kept, and those of the others are overwritten."""
    made, prompt = world(), list(range(9))
    answer = ask(made, "middle", MIDDLE, prompt, 12, drafts=DraftOptions(tokens=3, tiers=[LOW.application]))
    worker = made.workers["w0"]
    assert 0 < worker.state.counters["accepted_tokens"] < worker.device.drafts
    text = [*prompt, *answer]
    assert ask(made, "top", TOP, text) == generate("base", text, len(text) + 4, [])
    assert entered(made) == 20


def test_a_row_that_drafts_runs_beside_one_that_enters() -> None:
    """The one that drafts enters nowhere; the other begins at the exit, and both have the right answers."""
    made = world()
    prompt = list(range(24))
    new = [50, 51, 52]
    ask(made, "low", LOW, prompt, 1)
    drafts = DraftOptions(tokens=3, tiers=[LOW.application])
    made.submit(submission("drafting", new, 40, "base@w0", drafts=drafts))
    worker, together = made.workers["w0"], 0
    while (plan := worker.state.plan(made.now)) is not None:
        resumed = [i for rows in plan.resumed for i in rows.batch]
        assert not {*resumed} & {*plan.drafting}
        together += bool(resumed and plan.drafting)
        worker.state.commit(plan, worker.device.execute(plan, worker.state.batch(plan.number)), made.now)
        made.collect(worker)
        if plan.drafting and "entering" not in made.submitted:
            made.submit(submission("entering", prompt, 26, "base@w0", arrival=1.0))
    assert together > 0
    assert entered(made) == 20
    assert made.emitted["drafting"] == generate("base", new, 40, [])
    assert made.emitted["entering"] == generate("base", prompt, 26, [])


def test_a_chunk_ends_where_the_entry_changes() -> None:
    made, prompt = world(chunk_size=64, sweep_tokens=64), list(range(24))
    ask(made, "low", LOW, prompt[:20], 1)
    ask(made, "middle", MIDDLE, prompt[:12], 1)
    made.submit(submission("top", prompt, 25, "base@w0"))
    worker, chunks = made.workers["w0"], list[tuple[int, int]]()
    while (plan := worker.state.plan(0.0)) is not None:
        chunks += zip(plan.start, plan.count, strict=True)
        worker.state.commit(plan, worker.device.execute(plan, worker.state.batch(plan.number)), 0.0)
    assert chunks == [(0, 12), (12, 8), (20, 4)]


def test_a_lower_tier_skips_what_a_higher_one_computed_and_keeps_no_hidden_states_of_it() -> None:
    made, prompt = world(), list(range(16))
    ask(made, "top", TOP, prompt, 1)
    before = made.workers["w0"].device.computed_tokens
    ask(made, "low", LOW, prompt, 1)
    assert made.workers["w0"].device.computed_tokens == before + 4
    ask(made, "middle", MIDDLE, [*prompt, 40, 41, 42, 43, 44], 1)
    assert entered(made) == 0, "nothing may be read that was not written"


def test_a_higher_tier_waits_for_a_prompt_that_a_lower_one_computes() -> None:
    made, prompt = world(), list(range(40))
    made.submit(submission("low", prompt, 42, f"{LOW.application}@w0", arrival=1.0))
    made.start_plan(made.workers["w0"])
    made.submit(submission("top", prompt, 42, "base@w0", arrival=2.0))
    made.run()
    assert entered(made) == 36
    assert made.emitted["top"] == generate("base", prompt, 42, [])


@pytest.mark.parametrize("setting", ["off", "auto", "on"])
def test_hidden_states_are_kept_where_a_higher_tier_can_use_them(setting: str) -> None:
    alone = World(["w0"], [LOW], [replica("w0", LOW)], hidden_pages=setting)
    ask(alone, "low", LOW, list(range(9)), 1)
    pages = alone.workers["w0"].state.parts.memory.pages
    assert bool(pages.slots_in_use.get("hidden-8-float32-4")) == (setting == "on")
    made = world(hidden_pages=setting)
    ask(made, "low", LOW, list(range(9)), 1)
    ask(made, "top", TOP, list(range(9)), 1)
    assert entered(made) == (0 if setting == "off" else 8)


def test_without_the_prefix_cache_nothing_is_kept() -> None:
    made = world(prefix_cache=False)
    ask(made, "low", LOW, list(range(9)), 1)
    assert not made.workers["w0"].state.parts.memory.pages.slots_in_use["hidden-8-float32-4"]


def test_hidden_states_move_to_another_worker_with_the_pages_of_their_sequence() -> None:
    made, prompt = world(workers=2), list(range(16))
    made.submit(submission("low", prompt, 30, f"{LOW.application}@w0"))
    while len(made.emitted["low"]) < 3:
        made.start_plan(made.workers["w0"])
        made.end_plan(made.workers["w0"])
    made.move("low", f"{LOW.application}@w1")
    made.run()
    assert made.emitted["low"] == generate(LOW.application, prompt, 30, [])
    made.submit(submission("top", prompt, 18, "base@w1"))
    made.run()
    assert made.workers["w1"].device.entered == 12


def test_hidden_states_give_way_before_any_sequence_does() -> None:
    """Eight chunks hold 16 slots: 13 pages of KV, and hidden states only while there is room for both."""
    made = world(8)
    answer = ask(made, "long", LOW, list(range(4)), 46)
    assert answer == generate(LOW.application, list(range(4)), 50, [])
    worker = made.workers["w0"]
    assert worker.state.counters["preemptions"] == 0
    assert worker.state.hidden_pages <= 3
    more = World(["w0"], FAMILY, [replica("w0", one) for one in FAMILY], budget=8 * 64 * 1024, tenant_kv_share={"a": 0.8})
    more.submit(submission("capped", list(range(4)), 48, f"{LOW.application}@w0", tenant="a"))
    more.run()
    assert more.emitted["capped"] == generate(LOW.application, list(range(4)), 48, [])


def test_hidden_states_take_no_room_that_was_counted_for_kv() -> None:
    """Nine chunks hold the KV that the middle tier lacks, and no hidden states beside it."""
    made, prompt = world(9), list(range(21))
    ask(made, "low", LOW, prompt, 1)
    assert ask(made, "middle", MIDDLE, prompt, 1) == generate(MIDDLE.application, prompt, 22, [])


class Play:
    """A random world: requests of all tiers with prompts that begin alike, cuts, cancellations, moves, loads."""

    def __init__(self, seed: int) -> None:
        self.chance = random.Random(seed)
        shares = {"tenant_kv_share": {"a": 0.95}} if seed % 3 == 0 else {}
        modes = {**TURNS[seed % len(TURNS)], **shares}
        self.world = world(AMPLE if seed % 2 else SCARCE, workers=1 + seed % 2, **modes)
        self.prompts: dict[str, tuple[Chain, list[int]]] = {}

    def play(self) -> None:
        made, chance = self.world, self.chance
        for step in range(60):
            kind = chance.random()
            if kind < 0.3 and len(self.prompts) < 16:
                self.submit(f"r{step}")
            elif kind < 0.34 and self.prompts:
                made.cancel(request := chance.choice(sorted(self.prompts)))
                made.finished.setdefault(request, "cancelled")
            elif kind < 0.4 and len(made.workers) > 1 and (left := [r for r in self.prompts if r not in made.finished]):
                name = self.prompts[request := chance.choice(left)][0].application
                made.move(request, f"{name}@{chance.choice(sorted(made.workers))}")
            elif kind < 0.44:
                self.load(step)
            elif kind < 0.47:
                self.serve(step)
            elif moves := made.moves():
                made._move(*chance.choice(moves))
        made.run(step)
        for request, (target, prompt) in self.prompts.items():
            if made.finished.get(request) != "cancelled":
                of = made.submitted[request]
                assert made.emitted[request] == generate(target.application, prompt, of.max_length, of.stop_tokens), request
        made.assert_quiet()

    def submit(self, request: str) -> None:
        made, chance = self.world, self.chance
        target = chance.choice(FAMILY)
        known = [[*prompt, *made.emitted[r]] for r, (_, prompt) in self.prompts.items()]
        text = chance.choice(known) if known and chance.random() < 0.6 else []
        prompt = [*text[: chance.randint(0, 24)], *[chance.randrange(40) for _ in range(chance.randint(1, 9))]]
        limit = len(prompt) + chance.randint(1, 12)
        answer = generate(target.application, prompt, limit, [])
        more = {"tenant": chance.choice("ab"), "arrival": float(len(self.prompts)), "drafts": guesses(answer, chance, TIERS)}
        self.prompts[request] = target, prompt
        route = f"{target.application}@{chance.choice(sorted(made.workers))}"
        made.submit(submission(request, prompt, limit, route, **more))

    def load(self, step: int) -> None:
        """Parameters come and go, for which slots move together."""
        made = self.world
        for worker in made.workers.values():
            wanted = [WantedComponent(f"more{step}".encode(), [PackedTensor(f"t{step}".encode(), 300_000)])]
            worker.state.apply(ComponentsWanted(step, "more", wanted), made.now)
            made.collect(worker)
            worker.state.apply(ComponentsReleased([wanted[0].id], "more"), made.now)
            made.collect(worker)

    def serve(self, step: int) -> None:
        """Another application cuts the spans of the family, or goes."""
        made, own = self.world, chain(f"t{step}", 4, own_from=self.chance.choice([2, 4, 6]))
        chains = [*FAMILY, *([own] if self.chance.random() < 0.6 else [])]
        routes = [replica(name, one) for name in made.workers for one in chains]
        if not any(worker.open for worker in made.workers.values()):
            made.serve(chains, routes)


@claim("Higher tiers compute a lower one's prompts from the exit on, whatever is evicted, moved or preempted", of="families")
@pytest.mark.parametrize("part", parts(PARTS, DAILY))
def test_nobody_notices(part: int) -> None:
    total = preempted = drafts = short = 0
    for seed in range(part * SEEDS // PARTS, (part + 1) * SEEDS // PARTS):
        play = Play(seed)
        play.play()
        total += entered(play.world)
        assert entered(play.world) == sum(one.end - one.start for one in play.world.entries)
        drafts += sum(worker.device.drafts for worker in play.world.workers.values())
        short += sum(worker.state.counters["short_sweeps"] for worker in play.world.workers.values())
        preempted += sum(worker.state.counters["preemptions"] for worker in play.world.workers.values())
    assert total > 100
    assert drafts > 100
    assert preempted > 2
    assert short > 100
