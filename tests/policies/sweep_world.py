"""A world of sweep states without tensors: a fake device that obeys plans, and workers that exchange messages.

The fake device keeps, for each slot and offset, what a real one would compute: a digest of the lineage and of all tokens up
to the position. A row may be computed only if every earlier position of every local layer holds the digest of its own
prefix, so a page that is shared wrongly, freed early or written late is seen at once. The "model" samples a token that
depends on the whole prefix.
"""

from __future__ import annotations

import random
from dataclasses import dataclass, field

from blockwright.policies.memory.slots import SlotAllocator
from blockwright.policies.model.chain import Block, Chain, Component, Hop, Kind, KvLayout, Route
from blockwright.policies.model.lineage import lineages, page_hashes
from blockwright.policies.model.runs import Run
from blockwright.policies.plan.sampling import SamplingParams
from blockwright.policies.plan.sweep_plan import SetPages, Step, SweepPlan, SweepResult, WriteTokens
from blockwright.policies.sweep.config import SweepConfig
from blockwright.policies.sweep.events import (
    Cancelled,
    Flight,
    GivenBack,
    PeerLost,
    RoutesChanged,
    Send,
    Submission,
    TokensEmitted,
)
from blockwright.policies.sweep.state import SweepState

VOCABULARY = 50
CHUNK = 64 * 1024


def next_token(application: str, tokens: tuple[int, ...]) -> int:
    """The fake model."""
    # Of numbers alone, which hash alike in every process.
    return hash((*application.encode(), tokens)) % VOCABULARY


def generate(application: str, prompt: list[int], limit: int, stop: list[int]) -> list[int]:
    """What a sequence must yield, whatever the scheduling."""
    tokens = list(prompt)
    while len(tokens) < limit:
        tokens.append(next_token(application, tuple(tokens)))
        if tokens[-1] in stop:
            break
    return tokens[len(prompt) :]


def chain(application: str, layers: int = 2, *, own_from: int | None = None, page_size: int = 4, heads: int = 1) -> Chain:
    """Embedding, (attention, mlp) * layers, head; components from depth ``own_from`` on belong to this application alone."""
    layout = KvLayout(heads, 8, "float32", page_size)
    kinds = [Kind.EMBEDDING, *[Kind.ATTENTION, Kind.MLP] * layers, Kind.HEAD]
    parts = []
    for depth, kind in enumerate(kinds):
        owner = application if own_from is not None and depth >= own_from else "base"
        identity = f"{owner}/{depth}".encode().ljust(16, b".")
        parts.append(Component(identity, kind, 100, 8, 8, layout if kind is Kind.ATTENTION else None))
    return Chain(application, (Block(tuple(parts)),), 1000)


def variant(base: Chain, application: str, depths: list[int]) -> Chain:
    """``base`` with a delta of its own at these depths."""
    parts = list(base.components)
    for depth in depths:
        parts[depth] = parts[depth].variant(f"{application}/{depth}".encode().ljust(16, b"."), 10)
    return Chain(application, (Block(tuple(parts)),), base.max_length)


def submission(
    request: str,
    prompt: list[int],
    limit: int,
    route: str,
    *,
    stop: list[int] | None = None,
    page_size: int = 4,
    **more: object,
) -> Submission:
    values: dict[str, object] = {
        "request": request, "attempt": 1, "gateway": "head/gateway", "route": route, "route_version": 1, "tokens": prompt,
        "prompt_length": len(prompt), "page_hashes": page_hashes(prompt, page_size), "max_length": limit,
        "stop_tokens": stop or [], "sampling": SamplingParams(temperature=0.0), **more,
    }  # fmt: skip
    return Submission(**values)  # type: ignore[arg-type]


@dataclass
class FakeDevice:
    """Obeys plans in order; asserts that what it reads is what was written for that very prefix."""

    state: SweepState
    applications: dict[str, str]  # route -> application
    tokens: dict[int, list[int]] = field(default_factory=dict)
    slots: dict[tuple[int, int, int], int] = field(default_factory=dict)  # (row, layer, page) -> slot
    kv: dict[tuple[str, int, int], int] = field(default_factory=dict)  # (arena, slot, offset) -> digest of the prefix
    backed: set[tuple[str, int]] = field(default_factory=set)  # (arena, chunk unit)
    computed_tokens: int = 0
    composed: set[Run] = field(default_factory=set)
    lines: dict[str, list[bytes]] = field(default_factory=dict)  # by application

    def compose(self) -> None:
        """What the routes in force need; everything else is dropped, as after unloading."""
        self.composed = {run for local in self.state.parts.routes.all_in_force() for run in local.runs}

    def execute(self, plan: SweepPlan, sequences: list[int]) -> SweepResult:
        for edit in plan.memory:
            for unit in range(edit.offset, edit.offset + len(edit.chunks)):
                if edit.back:
                    self.backed.remove((edit.arena, unit))
                else:
                    assert (edit.arena, unit) not in self.backed
                    self.backed.add((edit.arena, unit))
        for change in plan.edits:
            if isinstance(change, WriteTokens):
                column = self.tokens.setdefault(change.row, [])
                column[change.position :] = change.tokens
            elif isinstance(change, SetPages):
                for i, slot in enumerate(change.slots):
                    self.slots[change.row, change.layer + i, change.page] = slot
        by_id = self.state.parts.routes.runs
        for step in plan.steps:
            assert by_id[step.run] in self.composed, "a plan names a run that was dropped"
            self._check_deltas(by_id[step.run], step, sequences)
            self._step(plan, by_id[step.run], step.batch, sequences)
        self.computed_tokens += plan.tokens
        return self._sample(plan, sequences)

    def _check_deltas(self, run: Run, step: Step, sequences: list[int]) -> None:
        """Every row meets the deltas of its route in the run, and no others."""
        rows = self.state.parts.rows
        for i, number in zip(step.batch, step.delta or [0] * len(step.batch), strict=True):
            local = rows.route[sequences[i]]
            inside = [d for d, _ in local.deltas if run.depth <= d < run.depth + len(run.components)]
            assert number == (local.delta if inside else 0), "a row meets other deltas than its route has"

    def _step(self, plan: SweepPlan, run: Run, batch: list[int], sequences: list[int]) -> None:
        if run.head:
            return
        layers: list[tuple[int, int]] = []  # KV layer, depth
        allocator: SlotAllocator | None = None
        for local in self.state.parts.routes.planned():
            if run in local.runs:
                parts = self.state_components(local.route.application)
                attentions = [d for d, c in enumerate(parts) if c.kv]
                layers = [(n, d) for n, d in enumerate(attentions) if 0 <= d - run.depth < len(run.components)]
                allocator = self.state.parts.memory.pages.allocator(parts[attentions[0]].kv.key)  # type: ignore[union-attr]
        size = self.state.config.page_size
        assert allocator is not None, "a plan names a run of no route"
        for i in batch:
            row, start, count = plan.row[i], plan.start[i], plan.count[i]
            tokens = self.tokens[row]
            lines = self._lineages(self.state.parts.rows.route[sequences[i]].route.application)
            for layer, depth in layers:
                digest = hash(lines[depth])
                for position in range(start + count):
                    if position < len(tokens):  # between the first and the last worker nobody is told any
                        digest = hash((digest, tokens[position]))
                    slot = self.slots[row, layer, position // size]
                    unit = slot * allocator.slot_bytes // CHUNK
                    assert (allocator.arena, unit) in self.backed, "a slot without memory is used"
                    if position >= start:
                        self.kv[allocator.arena, slot, position % size] = digest
                    found = self.kv.get((allocator.arena, slot, position % size))
                    assert found == digest, "attention reads a foreign or missing position"

    def _lineages(self, application: str) -> list[bytes]:
        return self.lines.setdefault(application, lineages(self.state_components(application), ""))

    def state_components(self, application: str) -> tuple[Component, ...]:
        return self.chains[application].components

    chains: dict[str, Chain] = field(default_factory=dict)

    def _sample(self, plan: SweepPlan, sequences: list[int]) -> SweepResult:
        result = SweepResult(plan.number)
        for i in plan.sample:
            end = plan.start[i] + plan.count[i]
            tokens = self.tokens[plan.row[i]]
            application = self.state.parts.rows.route[sequences[i]].route.application
            token = next_token(application, tuple(tokens[:end]))
            tokens[end:] = [token]
            result.tokens.append(token)
        return result


@dataclass
class FakeWorker:
    """A state, its device, and up to two open plans, as in the live worker."""

    name: str
    state: SweepState
    device: FakeDevice
    open: list[tuple[SweepPlan, SweepResult]] = field(default_factory=list)
    flight_numbers: int = 0


class World:
    """Workers, messages between them in order for each pair, and what gateways were told."""

    def __init__(
        self,
        workers: list[str],
        chains: list[Chain],
        routes: list[Route],
        *,
        budget: int = 8 << 20,
        page_size: int = 4,
        **config: object,
    ) -> None:
        self.chains = {c.application: c for c in chains}
        self.routes = {r.id: r for r in routes}
        self.workers: dict[str, FakeWorker] = {}
        self.now = 0.0  # seconds; passes when the test says so
        self.update = RoutesChanged(1, chains, routes, routes)
        self.numbers = {"budget": budget, "page_size": page_size, **config}
        for name in workers:
            self.start(name)
        self.wire: dict[tuple[str, str], list[object]] = {}
        self.emitted: dict[str, list[int]] = {}
        self.finished: dict[str, str] = {}
        self.returned: list[GivenBack] = []

    def start(self, name: str) -> None:
        """A worker, or the next life of one that was killed."""
        config = SweepConfig(worker=name, numerics="fake", slot_unit=32 * 1024, **self.numbers)  # type: ignore[arg-type]
        state = SweepState(config)
        state.apply(self.update, self.now)
        device = FakeDevice(state, {name: r.application for name, r in self.routes.items()}, chains=self.chains)
        device.compose()
        self.workers[name] = FakeWorker(name, state, device)

    def publish(self, routes: list[Route]) -> None:
        """The controller's word, which reaches each worker in its own time."""
        self.update = RoutesChanged(self.update.version + 1, self.update.chains, routes, self.update.planned)
        for name in self.workers:
            self.wire.setdefault(("head", name), []).append(self.update)

    def serve(self, chains: list[Chain], routes: list[Route]) -> None:
        """These applications alone, from now on, known to all workers at once."""
        self.chains |= {c.application: c for c in chains}
        self.routes |= {r.id: r for r in routes}
        self.update = RoutesChanged(self.update.version + 1, chains, routes, routes)
        for worker in self.workers.values():
            worker.state.apply(self.update, self.now)
            worker.device.applications.update({name: r.application for name, r in self.routes.items()})
            worker.device.compose()
            self.collect(worker)
            worker.state.check()

    # one thing happens ----------------------------------------------------------------------------------------------

    def submit(self, sub: Submission) -> None:
        self.emitted.setdefault(sub.request, sub.tokens[sub.prompt_length :])
        worker = self.workers[self.routes[sub.route].home]
        worker.state.apply(sub, self.now)
        self.collect(worker)

    def cancel(self, request: str) -> None:
        for worker in self.workers.values():
            worker.state.apply(Cancelled(request), self.now)
            self.collect(worker)

    def start_plan(self, worker: FakeWorker) -> bool:
        """Plan and execute; the commit comes later, so that the next plan is made before the tokens are known."""
        if len(worker.open) == 2:
            return False
        plan = worker.state.plan(self.now)
        spoke = self.collect(worker)
        if plan is None:
            return spoke
        sequences = worker.state.batch(plan.number)
        worker.open.append((plan, worker.device.execute(plan, sequences)))
        return True

    def end_plan(self, worker: FakeWorker) -> bool:
        if not worker.open:
            return False
        plan, result = worker.open.pop(0)
        worker.state.commit(plan, result, self.now)
        for departure in plan.departures:
            flight = Flight(departure.home, 0, departure.width, departure.rows)
            self.wire.setdefault((worker.name, departure.worker), []).append(flight)
        self.collect(worker)
        return True

    def deliver(self, pair: tuple[str, str]) -> None:
        message = self.wire[pair].pop(0)
        worker = self.workers.get(pair[1])
        if worker is None:
            return
        if isinstance(message, Flight):
            worker.flight_numbers += 1
            worker.state.apply(Flight(message.home, worker.flight_numbers, message.width, message.rows), self.now)
        else:
            worker.state.apply(message, self.now)  # type: ignore[arg-type]
        if isinstance(message, RoutesChanged):
            worker.device.compose()
        self.collect(worker)

    def kill(self, name: str) -> None:
        """The worker is gone, with all messages from and to it."""
        del self.workers[name]
        self.wire = {pair: m for pair, m in self.wire.items() if name not in pair}
        for worker in self.workers.values():
            worker.state.apply(PeerLost(name), self.now)
            self.collect(worker)

    def collect(self, worker: FakeWorker) -> bool:
        """Perform effects; whether there were any."""
        effects = worker.state.take_effects()
        for effect in effects:
            if isinstance(effect, Send):
                self.wire.setdefault((worker.name, effect.worker), []).append(effect.message)
            elif isinstance(effect, TokensEmitted):
                column = self.emitted[effect.request]
                prompt = effect.position - len(column)
                assert prompt >= 0, "a token was repeated or lost"
                column += effect.tokens
                if effect.finish:
                    assert effect.request not in self.finished
                    self.finished[effect.request] = effect.finish
            elif isinstance(effect, GivenBack):
                self.returned.append(effect)
        return bool(effects)

    # until quiet ----------------------------------------------------------------------------------------------------

    def moves(self) -> list[tuple[str, object]]:
        live = [p for p, m in self.wire.items() if m]
        return [*(("deliver", p) for p in live), *((k, w) for w in self.workers.values() for k in ("plan", "commit"))]

    def run(self, seed: int = 0, limit: int = 20_000) -> None:
        """Random moves until nothing can happen; the memory invariant holds after each."""
        chance = random.Random(seed)
        for _ in range(limit):
            moves = self.moves()
            chance.shuffle(moves)
            if not any(self._move(kind, what) for kind, what in moves):
                return
        raise AssertionError("the world does not come to rest")

    def _move(self, kind: str, what: object) -> bool:
        if kind == "deliver":
            self.deliver(what)  # type: ignore[arg-type]
            return True
        assert isinstance(what, FakeWorker)
        moved = self.start_plan(what) if kind == "plan" else self.end_plan(what)
        if moved:
            what.state.check()
        return moved

    def assert_quiet(self) -> None:
        """Nothing runs, waits, or holds a row; all memory is free or cache."""
        for worker in self.workers.values():
            state = worker.state
            assert not state.parts.rows.live()
            assert not state.waiting
            assert not state.running
            assert not len(state.parts.leases)
            assert not state.open_plans
            state.check()


def replica(worker: str, target: Chain) -> Route:
    return Route(f"{target.application}@{worker}", 1, target.application, (Hop(worker, 0, len(target.components)),))


def pipeline(workers: list[str], target: Chain) -> Route:
    """Cut evenly."""
    total = len(target.components)
    borders = [total * i // len(workers) for i in range(len(workers) + 1)]
    hops = tuple(Hop(w, a, b) for w, a, b in zip(workers, borders[:-1], borders[1:], strict=True))
    return Route(f"{target.application}@{'+'.join(workers)}", 1, target.application, hops)
