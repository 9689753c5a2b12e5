"""Pages of sequences move between workers, and nobody can tell: what attention reads was written for that very prefix."""

from __future__ import annotations

import random

import pytest

from blockwright.policies.memory.cache_news import MarkPages
from blockwright.policies.memory.pages import PageTable
from blockwright.policies.model.lineage import page_hashes
from blockwright.policies.sweep import migration, page_transfers
from blockwright.policies.sweep.events import PeerLost
from blockwright.policies.sweep.page_events import Export, PagesTaken, PageTarget
from blockwright.policies.sweep.state import SweepState
from blockwright.tests.claims import claim
from blockwright.tests.parts import parts
from blockwright.tests.policies.sweep_world import FakeWorker, World, chain, generate, guesses, pipeline, replica, submission

LAYERS = 3
BASE = chain("base", LAYERS)
ROUTES = [replica("w0", BASE), replica("w1", BASE), pipeline(["w0", "w1"], BASE), pipeline(["w1", "w0"], BASE)]
PROMPT = [3, 1, 4, 1, 5, 9, 2, 6, 5, 3, 5, 8, 9, 7, 9, 3]
SEEDS = 400
PARTS = 8
DAILY = 1


def world(*, chunks: int = 200, **more: object) -> World:
    return World(["w0", "w1"], [BASE], ROUTES, budget=chunks * 64 * 1024, chunk_size=6, max_rows=5, sweep_tokens=24, **more)


def turns(where: World, worker: str, count: int) -> None:
    """So many plans of a worker, one after the other."""
    for _ in range(count):
        where.start_plan(where.workers[worker])
        where.end_plan(where.workers[worker])


def pages(worker: FakeWorker) -> PageTable:
    return worker.state.parts.memory.pages


def counted(worker: FakeWorker, name: str) -> int:
    return worker.state.counters[name]


@claim("A running request moves to another worker with its KV pages", of="serving")
def test_a_sequence_goes_on_elsewhere_with_its_pages() -> None:
    where = world()
    where.submit(submission("r", PROMPT, 40, "base@w0"))
    turns(where, "w0", 10)
    known = len(PROMPT) + len(where.emitted["r"])
    where.move("r", "base@w1")
    turns(where, "w0", 2)  # it goes on meanwhile
    while any(where.wire.values()):
        for pair in list(where.wire):
            if where.wire[pair]:
                where.deliver(pair)
        turns(where, "w1", 1)
    full = (known - 1) // 4
    assert where.moved == [("r", full)]
    assert len(PROMPT) + len(where.emitted["r"]) > known
    where.run()
    assert where.emitted["r"] == generate("base", PROMPT, 40, [])
    target = where.workers["w1"]
    assert counted(target, "imported_pages") == counted(where.workers["w0"], "exported_pages") == full
    assert counted(target, "imported_bytes") == counted(where.workers["w0"], "exported_bytes") == full * LAYERS * 32 * 1024
    assert counted(target, "computed_tokens") == 39 - 4 * full
    where.assert_quiet()


def test_nothing_is_taken_from_those_who_run() -> None:
    """Memory of the target is all in use: the pages are refused, and computed again when there is room."""
    where = world(chunks=10)
    for name in "ab":
        where.submit(submission(name, [ord(name), *PROMPT[:7]], 12, "base@w1"))
    where.submit(submission("r", PROMPT, 22, "base@w0"))
    turns(where, "w0", 5)
    turns(where, "w1", 3)
    where.move("r", "base@w1")
    before = list(where.workers["w1"].state.parts.queue.running)
    where.deliver(("w0", "w1"))
    turns(where, "w1", 1)
    assert counted(where.workers["w1"], "refused_pages") > 0
    assert counted(where.workers["w1"], "preemptions") == 0
    assert where.workers["w1"].state.parts.queue.running == before
    where.run()
    assert where.emitted["r"] == generate("base", PROMPT, 22, [])
    where.assert_quiet()


@pytest.mark.parametrize("running", [0, 1, 3])
def test_pages_that_come_leave_one_to_each_sequence_that_runs(running: int) -> None:
    """Its next token may need one."""
    where = World(["w0", "w1"], [BASE], ROUTES[:2], budget=23 * 64 * 1024, chunk_size=6, max_rows=5, sweep_tokens=24)
    for name in range(running):
        where.submit(submission(f"x{name}", [90 + name] * 8, 12, "base@w1"))
    where.submit(submission("r", [*PROMPT, *PROMPT, *PROMPT], 60, "base@w0"))
    turns(where, "w0", 10)
    turns(where, "w1", 3)
    where.move("r", "base@w1")
    target = where.workers["w1"].state
    local = target.parts.routes.known("base@w1")
    assert local is not None
    (span,) = local.spans
    allocator = pages(where.workers["w1"]).allocator(span.arena)
    free = (allocator.room + pages(where.workers["w1"]).idle.slots[span.arena]) // span.layers
    assert len(target.parts.queue.running) == running
    while where.wire.get(("w0", "w1")):
        where.deliver(("w0", "w1"))
    turns(where, "w1", 1)
    taken, refused = counted(where.workers["w1"], "imported_pages"), counted(where.workers["w1"], "refused_pages")
    assert taken + refused == 12
    assert taken == min(12, free - running)
    assert refused > 0 or not running
    where.run()
    where.assert_quiet()


def test_pages_of_another_attempt_are_not_sent() -> None:
    """What it has computed may be of other tokens: who asks means the attempt that it names."""
    where = world(prefix_cache=False)
    where.submit(submission("r", PROMPT, 40, "base@w0"))
    turns(where, "w0", 6)
    source = where.workers["w0"]
    for attempt, sent in ((2, 0), (1, 4)):
        asked = Export(
            "head/gateway", "r", attempt, attempt, "base@w0", "", page_hashes(PROMPT, 4), 0, [PageTarget("w1", 0, 3)]
        )
        source.state.apply(asked, 0.0)
        assert counted(source, "exported_pages") == sent


def test_a_host_sends_the_pages_of_its_guest_in_the_attempt_that_is_meant() -> None:
    where = world(prefix_cache=False)
    where.submit(submission("r", PROMPT, 40, ROUTES[2].id))
    while not where.emitted.get("r"):
        assert any(where._move(kind, what) for kind, what in where.moves())
    host = where.workers["w1"]
    for attempt, sent in ((2, 0), (1, 4)):
        asked = Export(
            "head/gateway", "r", attempt, attempt, ROUTES[2].id, "", page_hashes(PROMPT, 4), 0, [PageTarget("w0", 0, 3)]
        )
        host.state.apply(asked, 0.0)
        assert counted(host, "exported_pages") == sent


@pytest.mark.parametrize("lower", [0, 1])
def test_other_parameters_make_other_pages(lower: int) -> None:
    """An application that shares the lowest layer takes in at most this one, where it is a span, and says that no page came
    whole."""
    others = [chain(name, LAYERS, own_from=3) for name in ("other", "third")[: 1 + lower]]
    where = World(["w0", "w1"], [BASE, *others], [replica("w0", BASE), *[replica("w1", other) for other in others]])
    where.submit(submission("r", PROMPT, 30, "base@w0"))
    turns(where, "w0", 4)
    where.routes["base@w1"] = replica("w1", BASE)
    where.move("r", "base@w1")
    where.deliver(("w0", "w1"))
    turns(where, "w1", 1)
    (answer,) = where.wire["w1", "w0"]
    assert isinstance(answer, PagesTaken)
    assert (answer.there, answer.refused) == (0, 4)
    assert pages(where.workers["w1"]).cached == 4 * lower
    where.workers["w1"].state.check()


def test_a_border_that_one_of_them_knows() -> None:
    """The target cuts the spans that the source has whole, or the other way round: what travels are layers."""
    other = chain("other", LAYERS, own_from=3)
    for cut in ("w0", "w1"):
        where = World(["w0", "w1"], [BASE, other], [replica("w0", BASE), replica("w1", BASE), replica(cut, other)])
        where.submit(submission("r", PROMPT, 30, "base@w0"))
        turns(where, "w0", 4)
        where.move("r", "base@w1")
        where.run()
        assert where.emitted["r"] == generate("base", PROMPT, 30, [])
        assert counted(where.workers["w1"], "imported_pages") > 0
        assert counted(where.workers["w1"], "cached_tokens") == 4 * counted(where.workers["w1"], "imported_pages")
        where.assert_quiet()


def test_a_border_that_comes_while_pages_are_written() -> None:
    where = world()
    where.submit(submission("r", PROMPT, 30, "base@w0"))
    turns(where, "w0", 4)
    where.move("r", "base@w1")
    where.deliver(("w0", "w1"))
    where.start_plan(where.workers["w1"])
    other = chain("other", LAYERS, own_from=3)
    where.serve([BASE, other], [*ROUTES, replica("w1", other)])
    where.run()
    assert where.emitted["r"] == generate("base", PROMPT, 30, [])
    assert counted(where.workers["w1"], "cached_tokens") > 0
    where.assert_quiet()


@pytest.mark.parametrize("victim", ["w0", "w1", "gateway"])
def test_whoever_is_lost_is_not_waited_for(victim: str) -> None:
    """A target: the gateway hears what was sent. A source: what came whole is cache. A gateway: nothing more is sent."""
    where = world()
    where.submit(submission("r", PROMPT, 30, "base@w0"))
    turns(where, "w0", 4)
    where.move("r", "base@w1")
    if victim == "gateway":
        where.workers["w0"].state.apply(PeerLost("head"), 0.0)
        assert not where.workers["w0"].state.parts.page_transfers.exports
    elif victim == "w1":
        where.kill("w1")
        assert where.moved == []
        assert not where.workers["w0"].state.parts.page_transfers.exports
    else:
        where.deliver(("w0", "w1"))
        where.kill("w0")
        turns(where, "w1", 1)
        assert pages(where.workers["w1"]).cached > 0
    for worker in where.workers.values():
        worker.state.check()


def test_recomputed_from_the_front_and_copied_from_the_back_until_the_two_meet(monkeypatch: pytest.MonkeyPatch) -> None:
    """One page comes with each sweep of the new home, the last first: about half of the prompt is computed there."""
    monkeypatch.setattr(migration, "BATCH_BYTES", 1)
    where, prompt = world(), [n % 50 for n in range(81)]
    where.submit(submission("r", prompt, 90, "base@w0"))
    turns(where, "w0", 20)
    where.move("r", "base@w1")
    where.hand_over("r", "base@w1")
    where.exports[1] = ("r", "base@w1", {"nobody"})  # its end is no news
    source, target = where.workers["w0"], where.workers["w1"]
    order = list[bytes]()
    while where.wire.get(("w0", "w1")):
        order += where.wire["w0", "w1"][0].event.hashes  # type: ignore[attr-defined]
        where.deliver(("w0", "w1"))
        turns(where, "w1", 1)
        target.state.check()
        while where.wire.get(("w1", "w0")):
            where.deliver(("w1", "w0"))
    assert order == page_hashes([*prompt, *where.emitted["r"]], 4)[len(order) - 1 :: -1]
    where.run()
    assert where.emitted["r"] == generate("base", prompt, 90, [])
    assert counted(source, "exported_pages") == len(order) >= 20
    computed, cached = counted(target, "computed_tokens"), counted(target, "cached_tokens")
    assert computed + cached == 89
    assert 24 <= cached <= 56
    where.assert_quiet()


def test_a_snapshot_has_what_is_on_its_way() -> None:
    where = world()
    where.submit(submission("r", PROMPT, 30, "base@w0"))
    turns(where, "w0", 4)
    where.move("r", "base@w1")
    where.deliver(("w0", "w1"))
    for _ in range(2):
        for worker in where.workers.values():
            copy = SweepState.restore(worker.state.snapshot())
            assert copy.digest() == worker.state.digest() == worker.state.fork().digest()
            copy.check()
        where.start_plan(where.workers["w1"])


class Unrest:
    """One seed: requests come, move between routes of one and two workers, and are cancelled, in little memory."""

    def __init__(self, seed: int) -> None:
        self.chance = random.Random(seed)
        self.where = world(chunks=self.chance.choice((18, 30, 100)))
        self.requests: dict[str, list[int]] = {}

    def play(self) -> None:
        where, chance = self.where, self.chance
        for step in range(120):
            kind = chance.random()
            if kind < 0.08 and len(self.requests) < 6:
                self._submit(f"r{step}")
            elif kind < 0.2 and (going := [r for r in self.requests if r not in where.finished]):
                request = chance.choice(going)
                route = chance.choice([r for r in where.routes if r != where.submitted[request].route])
                where.move(request, route)
                number = max(where.exports)
                if chance.random() < 0.5 and where.exports[number][2]:  # it begins there while its pages come
                    where.exports[number] = (request, route, {"nobody"})
                    where.hand_over(request, route)
            else:
                moves = where.moves()
                where._move(*chance.choice(moves))
        where.run(chance.randrange(1 << 30))

    def _submit(self, name: str) -> None:
        stem = PROMPT if self.chance.random() < 0.5 else [self.chance.randrange(50) for _ in range(12)]
        prompt = stem[: self.chance.randint(1, 16)]
        self.requests[name] = prompt
        limit, route = len(prompt) + 12, self.chance.choice(list(self.where.routes))
        drafts = guesses(generate("base", prompt, limit, []), random.Random(f"{name}/{prompt}"))
        self.where.submit(submission(name, prompt, limit, route, arrival=1.0, drafts=drafts))


@pytest.mark.parametrize("part", parts(PARTS, DAILY))
def test_seeds_of_moves(part: int) -> None:
    copied = 0
    for seed in range(part, SEEDS, PARTS):
        unrest = Unrest(seed)
        unrest.play()
        where = unrest.where
        for request, prompt in unrest.requests.items():
            assert where.emitted[request] == generate("base", prompt, len(prompt) + 12, []), seed
        copied += sum(pages for _, pages in where.moved)
        where.assert_quiet()
    assert copied > SEEDS // PARTS // 4


class MarkedUnrest(Unrest):
    """The same, while cached pages are marked as redundant and marks are ended, at random."""

    marked = kept = 0

    def play(self) -> None:
        step = self.where._move

        def moved(kind: str, what: object) -> bool:
            if self.chance.random() < 0.1:
                self._mark(self.chance.choice([*self.where.workers.values()]))
            return step(kind, what)

        self.where._move = moved  # type: ignore[method-assign]
        super().play()

    def _mark(self, worker: FakeWorker) -> None:
        table = pages(worker)
        listed = [handle for s in worker.state.parts.rows.live() for handle in worker.state.parts.rows.handles(s)]
        known = [key for handle in {*table.idle, *listed} if (key := table.key(handle)) is not None]
        chosen = self.chance.sample(known, self.chance.randint(0, len(known)))
        sent = {token_hash for one in worker.state.parts.page_transfers.exports.values() for token_hash in one.wanted.hashes}
        half = len(chosen) // 2
        marks = MarkPages(chosen[half:], chosen[:half])
        worker.state.apply(marks, self.where.now)
        missing = worker.state.unmarked(marks)
        for key in marks.redundant:
            handle = table.find_key(key)
            assert handle is not None, "marking evicts nothing"
            assert (key in missing) == (table.references(handle) > 0 or key[0] in sent), "used, or being sent"
        self.marked += len(table.redundant)
        self.kept += len(marks.kept)
        worker.state.check()


@claim("Marks on redundant cached pages change no token, through moves, copies and preemption", of="serving")
@pytest.mark.parametrize("part", parts(PARTS, DAILY))
def test_seeds_of_moves_with_marks(part: int) -> None:
    marked = found = 0
    for seed in range(part, SEEDS // 2, PARTS):
        unrest = MarkedUnrest(seed)
        unrest.play()
        where = unrest.where
        for request, prompt in unrest.requests.items():
            assert where.emitted[request] == generate("base", prompt, len(prompt) + 12, []), seed
        marked += unrest.marked
        found += sum(counted(worker, "cached_tokens") for worker in where.workers.values())
        where.assert_quiet()
    assert marked > 100
    assert found > 100


def test_a_move_ends_the_marks_of_the_pages_that_it_reads() -> None:
    where = world()
    where.submit(submission("r", PROMPT, 17, "base@w0"))
    where.run()
    source = where.workers["w0"]
    local = source.state.parts.routes.known("base@w0")
    assert local is not None
    keys = [(token_hash, span.lineage, span.layer) for token_hash in page_hashes(PROMPT, 4) for span in local.spans]
    source.state.apply(MarkPages(keys), 0.0)
    assert len(pages(source).redundant) == len(keys) == 8
    wanted = Export("head/gateway", "r", 1, 1, "base@w0", "", page_hashes(PROMPT, 4), 1, [PageTarget("w1", 0, 3)])
    where.exports[1] = ("r", "base@w1", {"nobody"})
    source.state.apply(wanted, 0.0)
    first = [pages(source).find_key(key) for key in keys[:2]]
    assert {*first} == pages(source).redundant, "the first page is not sent"
    assert [*pages(source).idle][:2] == first
    source.state.apply(MarkPages(keys), 0.0)
    assert len(pages(source).redundant) == 2, "while they are read"
    where.collect(source)
    where.run()
    source.state.apply(MarkPages(keys), 0.0)
    assert len(pages(source).redundant) == 8
    source.state.check()


def test_pages_that_several_sequences_list_travel_last(monkeypatch: pytest.MonkeyPatch) -> None:
    """One page at a time, of two requests that move at once: what both list goes once nothing else is left."""
    for module in (migration, page_transfers):
        monkeypatch.setattr(module, "BATCH_BYTES", 1)
    monkeypatch.setattr(page_transfers, "WINDOW", 1)
    where, stem = world(), PROMPT[:8]
    prompts = {"a": [*stem, *[40] * 8, 1], "b": [*stem, *[41] * 16, 1]}
    for name, prompt in prompts.items():
        where.submit(submission(name, prompt, 60, "base@w0"))
    turns(where, "w0", 8)
    for name in prompts:
        where.move(name, "base@w1")
    shared = {*page_hashes(stem, 4)}
    order = list[bytes]()
    source = where.workers["w0"].state
    while source.parts.page_transfers.exports:
        sent = where.wire.get(("w0", "w1"), [])
        while sent:
            order += sent[0].event.hashes  # type: ignore[attr-defined]
            where.deliver(("w0", "w1"))
            turns(where, "w1", 1)
        while where.wire.get(("w1", "w0")):
            where.deliver(("w1", "w0"))
    marks = [one in shared for one in order]
    assert marks == sorted(marks), "no shared page goes before one that a single sequence lists"
    assert marks.count(True) == 4
    assert marks.count(False) >= 6
    where.run()
    for name, prompt in prompts.items():
        assert where.emitted[name] == generate("base", prompt, 60, [])
    where.assert_quiet()
