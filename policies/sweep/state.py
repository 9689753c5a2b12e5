"""The sweep state machine: what a worker runs next, who owns its memory, when a sequence starts, waits, leaves.

One class for the live worker, forecasts and the simulator. Events come in through ``apply`` and ``commit``, plans go out
through ``plan``, everything else leaves as effects. Pure: time is an argument, ids stand for tensors. Work per call follows
what changed and the rows of one sweep, never the length of the queue.

The parts: ``rows.py`` (sequences as columns), ``pages.py`` (handles, prefix index), ``slots.py`` and ``chunks.py`` (memory),
``residence.py`` (parameters), ``runs.py`` (routes seen from here), ``planning.py`` (one plan), ``announce.py`` (pages about
to be made), ``leases.py`` (sequences that cross workers).
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from blockwright.policies.memory.chunks import CHUNK, ChunkPool
from blockwright.policies.memory.pages import PageTable
from blockwright.policies.memory.residence import Residence
from blockwright.policies.memory.slots import SlotAllocator
from blockwright.policies.model.chain import KvLayout
from blockwright.policies.model.lineage import next_hash, root_hash
from blockwright.policies.model.runs import LocalRoute, Run, localize
from blockwright.policies.plan.sweep_plan import Arrival, Edit, SweepPlan, SweepResult, TokenLogprob
from blockwright.policies.requests.admission import admit
from blockwright.policies.sweep import announcements as announce
from blockwright.policies.sweep import leases, planning
from blockwright.policies.sweep.digest import digest
from blockwright.policies.sweep.events import (
    Cancelled,
    Effect,
    Event,
    Flight,
    FlightDone,
    GivenBack,
    LeaseGranted,
    LeaseReturned,
    LeaseWanted,
    PeerLost,
    Progressed,
    PromptScored,
    RoutesChanged,
    Submission,
    TokensEmitted,
)
from blockwright.policies.sweep.rows import Rows, Status

UNDECIDING = ("config", "effects")  # of a state: what never changes, what has been said already


@dataclass(frozen=True, slots=True, kw_only=True)
class SweepConfig:
    """The numbers of a worker. ``slot_bytes`` is the back end's answer for a layout: a pure function."""

    worker: str
    numerics: str
    budget: int  # bytes
    slot_bytes: Callable[[KvLayout], int]
    page_size: int = 16
    chunk_size: int = 256
    sweep_tokens: int = 512
    max_rows: int = 256
    max_length: int = 1 << 30  # tokens that a row of the device tables holds
    prefix_cache: bool = True


class SweepState:
    """See the module. Each attribute's invariant stands beside it; ``check`` verifies what matters."""

    def __init__(self, config: SweepConfig) -> None:
        self.config = config
        self.number = 1  # of the next plan
        self.pool = ChunkPool(config.budget // CHUNK)
        self.pages = PageTable()
        self.parameters = Residence(self.pool, self.pages)
        self.rows = Rows()
        self.free_rows = list(range(config.max_rows - 1, -1, -1))
        self.waiting: list[tuple[int, float, int]] = []  # order keys of WAITING sequences, ascending
        self.running: list[tuple[int, float, int]] = []  # order keys of RUNNING sequences at home, ascending
        self.leaving = 0  # sequences that are LEAVING
        self.by_request: dict[str, int] = {}  # home sequences
        self.by_lease: dict[tuple[str, int], int] = {}  # (home, lease) -> sequence, both kinds
        self.next_lease = 1
        self.announced: dict[tuple[bytes, bytes], int] = {}  # page that a running sequence will make -> that sequence
        self.parked: dict[tuple[bytes, bytes], dict[int, None]] = {}  # announced page -> PARKED sequences, as a set
        self.flights: list[tuple[Flight, list[int]]] = []  # arrived, not planned: with the guest of each row
        self.grounded: list[int] = []  # flights that no plan takes any more: the device may forget them
        self.airborne: dict[int, int] = {}  # plan number -> its rows that are away
        self.open_plans: dict[int, SweepPlan] = {}
        self.planned_sequences: dict[int, list[int]] = {}  # open plan -> sequence of each batch row
        self.edits: list[Edit] = []  # table edits for the next plan
        self.effects: list[Effect] = []
        self.routes: dict[str, LocalRoute] = {}  # planned routes through this worker
        self.in_force: dict[str, int] = {}  # route id -> version
        self.route_version = 0
        self.runs: dict[Run, int] = {}  # run -> id, never reused
        self.counters = dict.fromkeys(
            ("prompt_tokens", "cached_tokens", "generated_tokens", "computed_tokens", "preemptions", "refused", "parked"), 0
        )

    # events (a Flight comes through leases.arrive, which says whether its hidden states are wanted) -------------------

    def apply(self, event: Event, now: float) -> None:
        """Take note of one event."""
        match event:
            case Submission():
                self._submit(event)
            case Cancelled():
                self._cancel(event)
            case RoutesChanged():
                self._change_routes(event)
            case LeaseWanted():
                leases.want(self, event)
            case LeaseGranted():
                leases.granted(self, event)
            case LeaseReturned():
                leases.returned(self, event)
            case FlightDone():
                leases.landed(self, event)
            case PeerLost():
                leases.lost(self, event.worker)

    def take_effects(self) -> list[Effect]:
        effects, self.effects = self.effects, []
        return effects

    def _submit(self, submission: Submission) -> None:
        if (old := self.by_request.get(submission.request)) is not None:
            self.drop(old)
        local = self.routes.get(submission.route)
        if local is None or local.hop or submission.route not in self.in_force:
            self.give_back(submission, "route")
            return
        if reason := admit(submission.max_length, self.capacity(local)):
            self.counters["refused"] += 1
            self.give_back(submission, "refused: " + reason)
            return
        s = self.rows.add(submission, local)
        if not self.config.prefix_cache:
            self.rows.hashes[s] = []
        self.by_request[submission.request] = s
        self.counters["prompt_tokens"] += submission.prompt_length
        insort(self.waiting, self.rows.order(s))

    def _cancel(self, event: Cancelled) -> None:
        s = self.by_request.get(event.request)
        if s is not None and event.attempt in (-1, self.rows.submission[s].attempt):
            self.drop(s)

    def _change_routes(self, event: RoutesChanged) -> None:
        if event.version <= self.route_version:
            return
        self.route_version = event.version
        config = self.config
        routes = localize(config.worker, event.chains, event.planned, config.numerics)
        for component in (c for chain in event.chains for c in chain.components):
            if component.kv is not None and component.kv.key not in self.pages.slots:
                key = component.kv.key
                self.pages.add_layout(SlotAllocator(key, config.slot_bytes(component.kv), self.pool))
        moved = {name for name, local in self.routes.items() if name in routes and routes[name].spans != local.spans}
        self.routes, self.in_force = routes, {r.id: r.version for r in event.routes if r.id in routes}
        for local in routes.values():
            for run in local.runs:
                self.runs.setdefault(run, len(self.runs))
        for s in self.rows.live():
            name = self.rows.route[s].route.id
            if name in moved or name not in self.in_force:
                # Borders of spans or the route itself are gone: the gateway sends the sequence again.
                if self.rows.home[s]:
                    leases.dismiss(self, s)
                else:
                    leases.abandon(self, s, "route")
            else:
                self.rows.route[s] = routes[name]
        leases.ground(self)

    def give_back(self, submission: Submission, reason: str) -> None:
        self.effects.append(GivenBack(submission.gateway, submission.request, submission.attempt, reason))

    # sequences leave -------------------------------------------------------------------------------------------------

    def drop(self, s: int) -> None:
        """End a sequence, wherever it is: no later plan names it."""
        rows = self.rows
        if rows.status[s] is Status.LEAVING:
            rows.requeue[s] = False
            self._unname(s)
            return
        if rows.status[s] is Status.WAITING:
            _take_out(self.waiting, rows.order(s))
        elif rows.status[s] is Status.PARKED:
            announce.unpark(self, s)
        self._unname(s)
        self.leave(s, requeue=False)

    def _unname(self, s: int) -> None:
        request = self.rows.submission[s].request
        if not self.rows.home[s] and self.by_request.get(request) == s:
            del self.by_request[request]

    def leave(self, s: int, *, requeue: bool) -> None:
        """Out of all new plans; row and pages return now, or when the last open plan or flight that names it ends."""
        rows = self.rows
        if rows.status[s] is Status.RUNNING and not rows.home[s]:
            _take_out(self.running, rows.order(s))
        announce.withdraw(self, s)
        rows.status[s], rows.requeue[s] = Status.LEAVING, requeue
        self.leaving += 1
        self.settle(s)

    def settle(self, s: int) -> None:
        """Finish leaving if nothing names the sequence any more."""
        rows = self.rows
        if rows.status[s] is not Status.LEAVING or rows.open[s]:
            return
        self.leaving -= 1
        for handles in rows.pages[s]:
            for handle in reversed(handles):  # the tail is given up first
                self.pages.release(handle)
        rows.pages[s] = [[] for _ in rows.route[s].spans]
        if rows.row[s] >= 0:
            self.free_rows.append(rows.row[s])
            rows.row[s] = -1
        leases.end(self, s)
        if rows.requeue[s]:
            rows.status[s], rows.requeue[s] = Status.WAITING, False
            rows.computed[s] = rows.planned[s] = rows.cached[s] = 0
            rows.known[s] = len(rows.tokens[s])
            insort(self.waiting, rows.order(s))
        else:
            rows.remove(s)

    # plans -----------------------------------------------------------------------------------------------------------

    def plan(self, now: float) -> SweepPlan | None:
        """The next sweep, or None when there is nothing to do. The plan is open until ``commit``."""
        plan, sequences = planning.build(self)
        plan.memory, self.pages.memory = self.pages.memory, []
        if not plan.row and not plan.memory and not self.grounded:
            return None
        plan.arrivals += [Arrival(flight, []) for flight in self.grounded]
        self.grounded = []
        if plan.row:
            plan.edits, self.edits = self.edits, []
        self.number += 1
        self.open_plans[plan.number] = plan
        self.planned_sequences[plan.number] = sequences
        return plan

    def commit(self, plan: SweepPlan, result: SweepResult, now: float) -> None:
        """The plan has run. Each plan is ended exactly once, in order."""
        del self.open_plans[plan.number]
        rows = self.rows
        drawn = {i: [token] for i, token in zip(plan.sample, result.tokens, strict=True)}
        logprobs = dict(zip(plan.sample, result.logprobs, strict=True)) if result.logprobs else {}
        scores = dict(zip(plan.score, result.scores, strict=True)) if plan.score else {}
        landed = leases.Landing(self)
        for i, s in enumerate(self.planned_sequences.pop(plan.number)):
            tokens, logprob = drawn.get(i, []), logprobs.get(i)
            if rows.away[s]:
                rows.flying[s] = True
                continue
            if rows.home[s] and rows.route[s].next_worker is None and rows.status[s] is Status.RUNNING:
                landed.add(s, plan.start[i], plan.count[i], tokens, logprob, scores.get(i))
            elif i in scores and not rows.home[s]:
                self.scored(s, plan.start[i], scores[i])
            self.advance(s, plan.start[i] + plan.count[i], tokens, [] if logprob is None else [logprob])
            rows.open[s] -= 1
            if rows.status[s] is Status.LEAVING:
                self.settle(s)
        landed.send()

    def jump(self, plan: SweepPlan, sweeps: int, now: float) -> None:
        """What ``sweeps`` equal sweeps lead to, at most ``planning.repeat``; tokens are unknown, 0 stands for each."""
        del self.open_plans[plan.number]
        self.number += sweeps - 1
        sampled = set(plan.sample)
        for i, s in enumerate(self.planned_sequences.pop(plan.number)):
            self.rows.planned[s] += sweeps - 1
            self.rows.known[s] += sweeps - 1
            tokens = [0] * sweeps if i in sampled else []
            self.advance(s, plan.start[i] + plan.count[i] + sweeps - 1, tokens, [])
            self.rows.open[s] -= 1
            self.settle(s)

    def advance(self, s: int, computed: int, tokens: Sequence[int], logprobs: list[TokenLogprob]) -> None:
        """KV of ``s`` is written up to ``computed``, and ``tokens`` follow; tell the gateway, publish, perhaps finish."""
        rows = self.rows
        if rows.status[s] is Status.LEAVING and not rows.requeue[s]:
            return
        before = rows.computed[s]
        self.counters["computed_tokens"] += computed - before
        rows.computed[s] = computed
        submission = rows.submission[s]
        position = len(rows.tokens[s])
        size = self.config.page_size
        for token in tokens:
            rows.tokens[s].append(token)
            if self.config.prefix_cache and len(rows.tokens[s]) % size == 0:
                previous = rows.hashes[s][-1] if rows.hashes[s] else root_hash(submission.salt)
                rows.hashes[s].append(next_hash(previous, rows.tokens[s][-size:]))
        if computed // size > before // size and rows.status[s] is Status.RUNNING:
            self._publish(s, before)
        if rows.home[s]:
            return
        if not tokens:
            head = (submission.gateway, submission.request, submission.attempt)
            self.effects.append(Progressed(*head, computed, rows.cached[s]))
            return
        self.counters["generated_tokens"] += len(tokens)
        finish = "length" if len(rows.tokens[s]) >= submission.max_length else ""
        if tokens[-1] in submission.stop_tokens:
            finish = "stop"
        self.effects.append(
            TokensEmitted(
                submission.gateway, submission.request, submission.attempt, position, list(tokens), logprobs, finish
            )
        )
        if finish:
            self.drop(s)

    def scored(self, s: int, start: int, entries: list[TokenLogprob]) -> None:
        """The prompt tokens behind position ``start`` of ``s`` have their log-probabilities."""
        submission = self.rows.submission[s]
        head = (submission.gateway, submission.request, submission.attempt)
        self.effects.append(PromptScored(*head, start + 1, entries))

    def _publish(self, s: int, before: int) -> None:
        """Full pages computed since position ``before`` can be found by others."""
        rows, size = self.rows, self.config.page_size
        if not rows.pages[s]:
            return
        for page in range(before // size, min(rows.computed[s] // size, len(rows.hashes[s]))):
            token_hash = rows.hashes[s][page]
            for handles in rows.pages[s]:
                self.pages.publish(handles[page], token_hash)
            announce.made(self, s, token_hash)

    # memory ----------------------------------------------------------------------------------------------------------

    def capacity(self, local: LocalRoute) -> int:
        """Tokens of one sequence on this route that fit when nothing else is here."""
        layers = sum(span.layers for span in local.spans)
        if not layers:
            return self.config.max_length
        slots = self.pages.slots[local.spans[0].arena]
        groups = (self.pool.total - self.parameters.used) // slots.group_chunks
        return min(groups * slots.group_slots // layers * self.config.page_size, self.config.max_length)

    def check(self) -> None:
        """The memory invariant: every slot and every chunk is free or owned exactly once; every count is right."""
        owned = self.parameters.chunks
        for allocator in self.pages.slots.values():
            owned += allocator.chunks
        self.pool.check(owned)
        listed: dict[int, int] = {}
        held = list(self.free_rows)
        for s in self.rows.live():
            for handles in self.rows.pages[s]:
                for handle in handles:
                    listed[handle] = listed.get(handle, 0) + 1
            if self.rows.row[s] >= 0:
                held.append(self.rows.row[s])
        self.pages.check(listed)
        assert sorted(held) == list(range(self.config.max_rows)), "a row is lost or owned twice"

    # copies ----------------------------------------------------------------------------------------------------------

    def fork(self) -> SweepState:
        """An independent copy for a forecast: requests, handles, counts; device tables have no part in it."""
        copy = SweepState(self.config)
        for name, value in vars(self).items():
            setattr(copy, name, value.copy() if isinstance(value, dict | list) else value)
        copy.pool = self.pool.fork()
        copy.pages, copy.rows = self.pages.fork(copy.pool), self.rows.fork()
        copy.parameters = self.parameters.fork(copy.pool, copy.pages)
        copy.parked = {key: dict(sleepers) for key, sleepers in self.parked.items()}
        copy.effects = []
        return copy

    def digest(self) -> bytes:
        """16 bytes, equal for states that came about alike; all that decides what happens next counts."""
        return digest({name: value for name, value in vars(self).items() if name not in UNDECIDING})


def _take_out(queue: list[tuple[int, float, int]], key: tuple[int, float, int]) -> None:
    """Remove ``key`` from an ascending list without looking at the others."""
    place = bisect_left(queue, key)
    assert queue[place] == key, "a queue has lost a sequence"
    del queue[place]
