"""A world of sweep states without tensors: workers with fake devices (``fake_device.py``) that exchange messages."""

from __future__ import annotations

import random
from dataclasses import dataclass, field, replace
from typing import Any

from blockwright.policies.drafts.options import DraftOptions
from blockwright.policies.model.chain import Block, Chain, Component, Hop, Kind, KvLayout, Route
from blockwright.policies.model.lineage import page_hashes
from blockwright.policies.plan.sampling import SamplingParams
from blockwright.policies.plan.sweep_plan import Departure, SweepPlan, SweepResult
from blockwright.policies.requests.moving import page_targets
from blockwright.policies.requests.routes_changed import RoutesChanged
from blockwright.policies.sweep.config import SweepConfig
from blockwright.policies.sweep.events import (
    Cancelled,
    Flight,
    GivenBack,
    GrammarReady,
    GrammarWanted,
    PeerLost,
    Submission,
    TokensEmitted,
)
from blockwright.policies.sweep.guesses import left_to_send, part_of, standing
from blockwright.policies.sweep.page_events import Export, Exported, MoveSlots, PagesUnsent, PageTarget, SendPages
from blockwright.policies.sweep.state import SweepState
from blockwright.tests.policies.fake_device import FakeDevice, PagesOnTheWay, next_token

# A worker is checked after so many plans made or ended, and at rest: what is counted wrongly stays wrong. Plans are made
# and ended by turns, so an odd number meets both. 1 finds the move of a bug; for all seeds it would be half of their time.
CHECKED = 7
COMPILER = "compiler"  # the sender of the news that a grammar is compiled


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


def tier(top: Chain, layers: int) -> Chain:
    """The lower tier of ``top`` with this many layers and a head of its own."""
    below = top.components[: 1 + 2 * layers]
    head = replace(top.components[-1], id=f"{top.application}/exit {layers}".encode().ljust(16, b"."))
    return Chain(f"{top.application}:{layers}", (Block((*below, head)),), top.max_length, family=top.application)


def variant(base: Chain, application: str, depths: list[int]) -> Chain:
    """``base`` with a delta of its own at these depths."""
    parts = list(base.components)
    for depth in depths:
        parts[depth] = parts[depth].adapted(f"{application}/{depth}".encode().ljust(16, b"."), 10)
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


def guesses(answer: list[int], chance: random.Random, tiers: list[str] | None = None) -> DraftOptions | None:
    """Return drafts at random: none, of the prompt, of a prediction of which each token in 1, 2 or 8 or none is wrong.

    With ``tiers``, half of them have drafts by these, too.
    """
    wrong = chance.choice([0, 1, 2, 8, 1 << 30])
    if not wrong:
        return None
    text = [token if chance.randrange(wrong) else token + 1 for token in answer]
    chosen = DraftOptions(chance.random() < 0.5, chance.choice([0, 1, 3, 8]), text if chance.random() < 0.7 else [])
    return replace(chosen, tiers=tiers) if tiers and chance.random() < 0.5 else chosen


@dataclass
class FakeWorker:
    """A state, its device, and up to two open plans, as in the live worker."""

    name: str
    state: SweepState
    device: FakeDevice
    open: list[tuple[SweepPlan, SweepResult]] = field(default_factory=list)
    flight_numbers: int = 0
    moves: int = 0  # plans made and ended


class World:
    """Workers, messages between them in order for each pair, and the news for gateways."""

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
        self.vectors: dict[str, bytes] = {}  # by request
        self.returned: list[GivenBack] = []
        self.submitted: dict[str, Submission] = {}  # the current attempt of each request
        self.exports: dict[int, tuple[str, str, set[str]]] = {}  # number -> request, next route, workers that have to answer
        self.uncompilable: dict[str, str] = {}  # texts of grammars, and why they cannot be compiled
        self.moved: list[tuple[str, int]] = []  # requests that began anew elsewhere, and pages that were copied for each

    def start(self, name: str) -> None:
        """A worker, or the next life of one that was killed."""
        config = SweepConfig(worker=name, numerics="fake", **{"slot_unit": 32 * 1024, **self.numbers})  # type: ignore[arg-type]
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
        self.submitted[sub.request] = sub
        worker = self.workers[self.routes[sub.route].home]
        worker.state.apply(sub, self.now)
        self.collect(worker)

    def cancel(self, request: str) -> None:
        for worker in self.workers.values():
            worker.state.apply(Cancelled(request), self.now)
            self.collect(worker)

    def move(self, request: str, route: str) -> None:
        """As a gateway does it: have pages copied, then begin anew there."""
        of, number = self.submitted[request], 1 + max(self.exports, default=0)
        source, size = self.routes[of.route], self.numbers["page_size"]
        tokens = [*of.tokens[: of.prompt_length], *self.emitted[request]]
        hashes = page_hashes(tokens[:-1], size)  # type: ignore[arg-type]
        own, other = (self.chains[one.application].components for one in (source, self.routes[route]))
        found = page_targets(own, other, source, self.routes[route])
        asked = {worker: [PageTarget(*layers) for layers in to] for worker, to in found.items() if worker in self.workers}
        self.exports[number] = (request, route, set(asked))
        for worker, to in asked.items():
            wanted = Export(f"head/{worker}", request, of.attempt, number, of.route, of.tenant, hashes, 0, to)
            self.workers[worker].state.apply(wanted, self.now)
        for worker in asked:
            self.collect(self.workers[worker])

    def _exported(self, news: Exported, worker: str) -> None:
        request, route, waiting = self.exports[news.number]
        waiting.discard(worker)
        if waiting or request in self.finished or self.routes[route].home not in self.workers:
            return
        self.moved.append((request, news.pages))
        self.hand_over(request, route)

    def hand_over(self, request: str, route: str) -> None:
        """Begin anew there, with what is known."""
        of = self.submitted[request]
        self.cancel(request)
        tokens = [*of.tokens[: of.prompt_length], *self.emitted[request]]
        hashes = page_hashes(tokens, self.numbers["page_size"])  # type: ignore[arg-type]
        self.submit(replace(of, attempt=of.attempt + 1, route=route, tokens=tokens, page_hashes=hashes))

    def start_plan(self, worker: FakeWorker) -> bool:
        """Plan and execute; the commit comes later, so that the next plan is made before the tokens are known."""
        if len(worker.open) == 2:
            return False
        plan = worker.state.plan(self.now)
        spoke = self.collect(worker)
        if plan is None:
            return spoke
        sequences = worker.state.batch(plan.number)
        verified = {plan.row[i] for i in plan.verify}
        for other, _ in worker.open:
            verified |= {*plan.row} & {other.row[i] for i in other.verify}
            assert not verified & {*other.row}, "a row under verification is in two open plans"
        worker.open.append((plan, worker.device.execute(plan, sequences)))
        for guess in plan.guesses:
            self._depart(worker, guess.sent)  # while the plan goes on
        return True

    def _depart(self, worker: FakeWorker, departure: Departure) -> None:
        if departure.rows:
            flight = Flight(departure.home, 0, departure.width, departure.rows)
            self.wire.setdefault((worker.name, departure.worker), []).append(flight)

    def end_plan(self, worker: FakeWorker) -> bool:
        if not worker.open:
            return False
        plan, result = worker.open.pop(0)
        worker.state.commit(plan, result, self.now)
        stand = standing(plan, result)
        for departure in plan.departures:
            self._depart(worker, part_of(departure, left_to_send(departure, stand)))
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
        elif isinstance(message, PagesOnTheWay):
            worker.flight_numbers += 1
            worker.device.pages[worker.flight_numbers] = message
            worker.state.apply(replace(message.event, source=pair[0], number=worker.flight_numbers), self.now)
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

    def hear(self, effects: list[Any]) -> list[Any]:
        """Return what a worker has to say; a subclass may look at it."""
        return effects

    def collect(self, worker: FakeWorker) -> bool:
        """Perform effects; whether there were any."""
        taken = worker.state.take_effects()
        for to, messages in taken.messages.items():
            self.wire.setdefault((worker.name, to), []).extend(messages)
        effects = self.hear([*taken.orders, *taken.news])
        for effect in effects:
            if isinstance(effect, TokensEmitted):
                column = self.emitted[effect.request]
                prompt = effect.position - len(column)
                assert prompt >= 0, "a token was repeated or lost"
                column += effect.tokens
                if effect.vector:
                    assert effect.finish, "a vector does not end its sequence"
                    self.vectors[effect.request] = effect.vector
                if effect.finish:
                    assert effect.request not in self.finished
                    self.finished[effect.request] = effect.finish
            elif isinstance(effect, SendPages) and effect.worker in self.workers:
                self.wire.setdefault((worker.name, effect.worker), []).append(worker.device.export(effect))
            elif isinstance(effect, SendPages):
                worker.state.apply(PagesUnsent(effect.batch), self.now)
                self.collect(worker)
            elif isinstance(effect, MoveSlots):
                worker.device.move(effect)
            elif isinstance(effect, Exported):
                self._exported(effect, worker.name)
            elif isinstance(effect, GivenBack):
                self.returned.append(effect)
            elif isinstance(effect, GrammarWanted):  # compiled beside the device, in its own time
                ready = GrammarReady(effect.grammar.key, self.uncompilable.get(effect.grammar.text, ""))
                self.wire.setdefault((COMPILER, worker.name), []).append(ready)
        return bool(taken)

    # until quiet ----------------------------------------------------------------------------------------------------

    def moves(self) -> list[tuple[str, object]]:
        live = [p for p, m in self.wire.items() if m]
        return [*(("deliver", p) for p in live), *((k, w) for w in self.workers.values() for k in ("plan", "commit"))]

    def run(self, seed: int = 0, limit: int = 20_000) -> None:
        """Random moves until nothing can happen; the memory invariant holds (``_move``)."""
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
        what.moves += moved
        if moved and what.moves % CHECKED == 0:
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
            assert not state.parts.page_transfers.exports
            assert not state.parts.page_transfers.receiving
            assert not len(state.parts.page_pins)
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
