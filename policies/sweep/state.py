"""A worker's scheduler, the sweep state machine: it decides what runs next and which sequences own memory.

One class serves the live worker, forecasts and the simulator. Every change is an event that goes in through ``apply``, or
a plan that is made by ``plan`` and ended by ``commit``; everything else leaves as effects. Pure: time is an argument, ids
stand for tensors. Work per call follows what changed and the rows of one sweep, never the length of the queue.

Sub-states own the data (``parts.py`` has one of each): ``row_table.py`` (sequences as columns), ``sequence_queue.py``
(waiting and running order), ``memory/worker_memory.py`` (chunks, KV pages, components), ``leases.py`` (sequences that cross
workers), ``page_transfers.py`` (pages in flight between workers), ``page_pins.py`` (pages that are kept),
``pending_pages.py`` (pages about to be made), ``local_routes.py``, ``open_plans.py``. Procedures change them in the right
order: ``sequences.py`` (a sequence comes, runs, leaves), ``pipeline.py`` (leases and flights), ``migration.py`` (pages that
move), ``pinning.py``, ``planner.py`` (one plan), ``row_picker.py`` (a row of it), ``backfill.py`` (offline sequences in
it), ``preemption.py`` and ``memory/eviction.py`` (victims), ``forecast.py`` (jumps).
"""

from __future__ import annotations

import hashlib
from dataclasses import replace
from typing import TypeVar, assert_never

from ..cluster.scaling import RouteQueue
from ..memory.cache_news import CacheReport, MarkPages
from ..memory.prefix_index import Key
from ..model.chain import HIDDEN
from ..plain import Plain
from ..plan.sweep_plan import Arrival, SweepPlan, SweepResult, TokenLogprob
from ..requests.routes_changed import RoutesChanged
from . import forecast, route_queues
from .columns import NEVER_DRAFTED, Status
from .config import SweepConfig
from .events import (
    Cancelled,
    ComponentGone,
    ComponentsReleased,
    ComponentsWanted,
    CostsLearned,
    Effects,
    Event,
    Flight,
    FlightDone,
    GrammarReady,
    GrowthGranted,
    GrowthWanted,
    GuessesStand,
    LeaseGranted,
    LeaseReturned,
    LeaseRevoked,
    LeaseWanted,
    NumericsChanged,
    PeerLost,
    Started,
    Submission,
    TokensEmitted,
)
from .loading import place_components
from .local_routes import layouts
from .migration import Migration
from .offline_capacity import OfflineCapacity, offline_capacities
from .open_plans import OpenPlan, OpenPlans
from .page_events import Export, HoldPages, PagesArrived, PagesTaken, PagesUnsent, Unhold
from .parts import Parts
from .pinning import Pinning
from .pipeline import Pipeline, Returns
from .planner import Planner
from .sequences import Sequences

T = TypeVar("T")


class SweepState:
    """The sweep machine of one worker (see the module). ``check`` verifies the invariants after every call."""

    def __init__(self, config: SweepConfig, parts: Parts | None = None, plans: OpenPlans | None = None) -> None:
        self.parts = parts = Parts(config) if parts is None else parts  # for reading; only the methods here change anything
        self._plans = OpenPlans() if plans is None else plans
        self._sequences = Sequences(parts)
        self._pipeline = Pipeline(parts, self._sequences)
        self._pinning = Pinning(parts, self._sequences)
        self._planner = Planner(parts, self._sequences, self._pipeline, self._pinning)
        self._migration = Migration(parts, self._pinning)

    # events ----------------------------------------------------------------------------------------------------------

    def apply(self, event: Event, now: float) -> None:
        """Apply one event. ``now``: seconds on a clock that never goes back."""
        self.parts.at(now)
        match event:
            case Submission():
                self._sequences.submit(event, now)
            case Cancelled():
                self._cancel(event)
            case RoutesChanged():
                self._change_routes(event)
            case Started():
                self._begin(event.incarnation)
            case CostsLearned():
                self.parts.learn(event.costs)
            case NumericsChanged():
                self.parts.routes.change_numerics(event.numerics)
            case GrammarReady():
                self._sequences.begin_drawing(event)
            case PeerLost():
                self._lose(event)
            case LeaseWanted():
                self._pipeline.wanted(event, now)
            case LeaseGranted():
                self._pipeline.granted(event)
            case LeaseReturned():
                self._pipeline.given_back(event)
            case LeaseRevoked():
                self._pipeline.revoked(event)
            case GuessesStand():
                self._pipeline.accept(event)
            case GrowthWanted():
                self._pipeline.pages_wanted(event)
            case GrowthGranted():
                self._pipeline.extended(event)
            case Flight():
                self._pipeline.arrived(event, now)
            case FlightDone():
                self._pipeline.returned(event)
            case ComponentsWanted():
                place_components(self.parts, event)
            case ComponentsReleased():
                self._release_components(event)
            case Export():
                self._migration.export(event)
            case PagesArrived():
                self._migration.arrived(event)
            case PagesTaken():
                self._migration.taken(event)
            case PagesUnsent():
                self._migration.unsent(event)
            case HoldPages():
                self._pinning.hold(event, now)
            case Unhold():
                self._pinning.end(event.request, event.attempt)
            case MarkPages():
                self._migration.mark(event)
            case _:
                assert_never(event)
        self._sequences.tell_evicted()

    def _lose(self, event: PeerLost) -> None:
        """Handle the death of a node."""
        self._pipeline.lost(event)
        self._migration.lost(event.worker)
        self._pinning.lost(event.worker)

    def _begin(self, incarnation: int) -> None:
        """Begin a life of the worker: it numbers leases and batches of pages anew."""
        self.parts.leases.begin(incarnation)
        self.parts.page_transfers.begin(incarnation)
        self.parts.routes.begin()

    def note_cache(self) -> None:
        """Note the changes of cached pages from now on, for ``cache_report``. Forks and replicas note nothing."""
        self.parts.memory.pages.note_changes()

    def cache_report(self, after: int, now: float) -> CacheReport | None:
        """Return the next report on cached pages (``CacheNews``); None: their changes are not noted."""
        pages = self.parts.memory.pages
        return None if pages.news is None else pages.news.report(after, now, pages.idle, pages.idle.__contains__, pages.key)

    def unused_since(self, marks: MarkPages) -> MarkPages:
        """Return marks without redundant pages that have been used since the last report on cached pages."""
        pages = self.parts.memory.pages
        return replace(marks, redundant=[key for key in marks.redundant if not pages.has_changed(key)])

    def unmarked(self, marks: MarkPages) -> list[Key]:
        """Return the redundant pages that are not marked, after ``marks`` was applied."""
        pages = self.parts.memory.pages
        return [key for key in marks.redundant if pages.find_key(key) not in pages.redundant]

    def take_effects(self) -> Effects:
        """Return all effects since the last call."""
        return self.parts.outgoing.take_effects()

    def _cancel(self, event: Cancelled) -> None:
        if (s := self.parts.rows.find(event.request)) is not None:
            self._sequences.drop(s)

    def _change_routes(self, event: RoutesChanged) -> None:
        """Adopt new routes.

        Sequences continue if their components are still in force, and cached pages stay; others go back.
        """
        parts, rows = self.parts, self.parts.rows
        kept = parts.memory.pages.borders() | rows.borders()
        if not parts.routes.change(event, kept):
            return
        parts.bottlenecks.learn(event.chains)
        for layout in layouts(event):
            parts.memory.add_layout(layout)
        if len(parts.routes.borders) > len(kept):
            pieces = parts.memory.pages.cut(parts.routes.borders)
            rows.cut(parts.routes.borders, pieces)
            parts.page_transfers.cut(pieces)
            parts.page_pins.cut(pieces)
        for s in rows.live():
            if rows.status[s] == Status.FREE:
                continue  # a draft row that has ended with its target
            local = parts.routes.passing(rows.route[s].route.id)
            if local is not None and local.is_like(rows.route[s]):
                rows.reroute(s, local)
            elif rows.is_draft_row(s):
                if rows.status[s] == Status.RUNNING:
                    self._sequences.draft_rows.end(parts.drafts.target(s))
            elif rows.is_guest(s):  # the route itself is gone: the gateway sends the sequence again
                self._pipeline.dismiss(s)
            else:
                self._pipeline.abandon(s, "route")
        self._pipeline.cancel_flights()
        parts.forget_pages()
        parts.memory.pages.forget_spans()
        parts.forget()

    def _release_components(self, event: ComponentsReleased) -> None:
        for component, tensors in self.parts.memory.release(event.components, event.holder):
            self.parts.outgoing.withdraw(component)
            self.parts.outgoing.order(ComponentGone(component, tensors))
        self.parts.forget_pages()
        self.parts.forget()

    # plans -----------------------------------------------------------------------------------------------------------

    def plan(self, now: float) -> SweepPlan | None:
        """Return the next sweep, or None if there is nothing to do. The plan is open until ``commit``."""
        parts = self.parts
        parts.at(now)
        if len(self._plans) and self._planner.waits_for_open_plans():
            return None
        self._sequences.expire(now)
        self._pinning.expire(now)
        parts.bottlenecks.choose(parts.rows, now)
        batch = self._planner.pick(now)
        self._sequences.tell_evicted()
        plan = SweepPlan(self._plans.number)
        sequences = batch.lay_out(parts, plan)
        plan.imports = parts.page_transfers.take(plan.number)
        if not sequences and not plan.imports and not parts.leases.pending and not parts.edits_wanted:
            return None
        plan.memory = parts.memory.take_edits()
        plan.arrivals += [Arrival(flight, []) for flight in parts.leases.take_void()]
        if sequences:
            plan.edits = parts.outgoing.take_edits()
        plain = batch.plain and len(plan.sample) == len(sequences)
        guessed, starved = batch.guessed(plan, sequences), batch.starved or batch.squeezed
        self._plans.add(plan, sequences, guessed, plain, starved, self._sequences.sitting_out(batch.parked))
        parts.outgoing.plan_made()
        return plan

    def commit(self, plan: SweepPlan, result: SweepResult, now: float) -> None:
        """End a plan that has run. Each plan is ended exactly once, in order."""
        self.commit_emitting(plan, result, now, None)

    def commit_emitting(self, plan: SweepPlan, result: SweepResult, now: float, emit_for: set[int] | None) -> int:
        """Commit with effects, for sequences that only continue to decode, for ``emit_for`` alone; None: for all.

        Return the number of sequences without effects.
        """
        self.parts.at(now)
        ended = self._plans.end(plan.number)
        self._migration.written(plan.number)
        if ended.parked and emit_for is None:
            self.parts.outgoing.emit_all([replace(one, seconds=result.seconds) for one in ended.parked])
        batch, rows = ended.sequences, self.parts.rows
        if plan.guesses:
            self._pipeline.judge(plan, result, batch)
        tokens, logprobs = result.tokens, result.logprobs
        assert len(tokens) == len(ended.sample), f"plan {plan.number} samples {len(ended.sample)} rows, not {len(tokens)}"
        if not any(logprobs):
            logprobs = []
        if len(tokens) != len(batch):
            tokens, logprobs = _spread(ended.sample, tokens, -1, batch), _spread(ended.sample, logprobs, None, batch)
        decoded = tokens  # tokens of rows that may be decodes; -1 for all others
        if not ended.plain:
            decoded = [token if count == 1 else -1 for token, count in zip(tokens, ended.count, strict=True)]
        # forecasts have no scores
        scores = dict(zip(ended.score, result.scores, strict=True)) if ended.score and result.scores else {}
        verified = _verified(ended, result) if ended.verify else {}
        vectors = dict(result.vectors)
        forced = {ended.sample[place]: found for place, found in result.forced} if result.forced else {}
        ends = [start + count for start, count in zip(ended.start, ended.count, strict=True)]
        returns = Returns(self.parts, {batch[i]: found for i, found in forced.items()})
        drawing: list[int] = []  # batch rows that are draft rows
        at = silent = 0
        while True:
            emitted: list[TokensEmitted] = []
            full: list[int] = []
            before = at
            at = rows.commit_decodes(batch, ends, decoded, logprobs, at, emitted, full, emit_for)
            silent += at - before - len(emitted)
            self._sequences.decoded(at - before, emitted, full)
            if at == len(batch):
                break
            if rows.is_draft_row(batch[at]):
                drawing.append(at)
                at += 1
                continue
            if at in verified:
                self._commit_drafts(ended, at, *verified[at], returns, now)
                at += 1
                continue
            drawn = [] if tokens[at] == -1 else [tokens[at]]
            logprob, vector = logprobs[at] if logprobs else None, vectors.get(at, b"")
            self._commit_row(ended, at, drawn, logprob, vector, scores.get(at), returns, now)
            at += 1
        for i in drawing:
            self._sequences.draft_rows.commit(batch[i], ends[i])
        for i, found in forced.items():
            self.parts.drafts.force(batch[i], rows.length[batch[i]], found)
        returns.send()
        self._sequences.tell_evicted()
        return silent

    def _commit_row(
        self,
        plan: OpenPlan,
        i: int,
        tokens: list[int],
        logprob: TokenLogprob | None,
        vector: bytes,
        scores: list[TokenLogprob] | None,
        returns: Returns,
        now: float,
    ) -> None:
        """Commit a row of any kind: a prompt, a guest, one away, leaving, or at its end."""
        rows = self.parts.rows
        sequences = self._sequences
        s = plan.sequences[i]
        start = plan.start[i]
        count = plan.count[i]
        if self.parts.leases.is_away(s):
            self.parts.leases.sent(s)
            return
        if rows.is_guest(s):
            if i in plan.supposed:
                self._pipeline.suppose(s, start, tokens, [] if logprob is None else [logprob], returns)
                rows.close(s)
                self._pipeline.passed(s, now)
                sequences.settle(s)
                return
            if rows.route[s].next_worker is None and rows.status[s] == Status.RUNNING:
                returns.add(s, start, count, tokens, logprob, scores, vector)
        elif scores is not None:
            sequences.score(s, start, scores)
        sure = 1 if i in plan.guessed else count  # the host that verifies the others tells only their home how many stood
        sequences.advance(s, start, start + sure, tokens, [] if logprob is None else [logprob], vector)
        rows.close(s)
        if rows.is_guest(s):
            self._pipeline.passed(s, now)
        sequences.settle(s)

    def _commit_drafts(
        self, plan: OpenPlan, i: int, tokens: list[int], logprobs: list[TokenLogprob], returns: Returns, now: float
    ) -> None:
        """Commit a row that was verified here."""
        rows = self.parts.rows
        sequences = self._sequences
        s = plan.sequences[i]
        start = plan.start[i]
        if rows.is_guest(s):
            if rows.status[s] == Status.RUNNING:
                returns.add_verified(s, start, plan.count[i], tokens, logprobs)
            sequences.advance(s, start, start + len(tokens), tokens, [])
            rows.close(s)
            self._pipeline.passed(s, now)
        else:
            sequences.verify(s, start, tokens, logprobs)
            rows.close(s)
        sequences.settle(s)

    # forecasts -------------------------------------------------------------------------------------------------------

    def without_device(self, *, drafts: bool = False) -> None:
        """Make plans without table edits and waits for grammars from now on, as no device runs them.

        They are also without drafts, unless these are wanted.
        """
        self.parts.outgoing.leave_edits()
        self._sequences.draw_all()
        self.parts.guesses.stop()
        if drafts:
            return
        for s in self.parts.drafts.targets():
            self._sequences.draft_rows.end(s)
        for s in self.parts.drafts.stop():
            self.parts.rows.draft_from(s, NEVER_DRAFTED)

    def repeat(self, plan: SweepPlan) -> int:
        """Return how many sweeps from the open ``plan`` on have the same rows, while memory lasts and if no event comes."""
        only = self._plans.only(plan.number)
        return forecast.equal_sweeps(self.parts, only) if only is not None and not self.parts.page_transfers.receiving else 1

    def jump(self, plan: SweepPlan, sweeps: int, now: float, *, emit: bool = True) -> int:
        """Make ``sweeps`` equal sweeps, at most ``repeat(plan)``, at once; end the plan. Return their number.

        ``emit``: if False, several sweeps have effects only of sequences that end; all others drew as many tokens.
        """
        if sweeps == 1:
            self.commit(plan, SweepResult(plan.number, [0] * len(plan.sample)), now)
            return 1
        self.parts.at(now)
        forecast.jump(self.parts, self._sequences, self._plans.end(plan.number), sweeps, emit)
        self._plans.skip(sweeps - 1)
        self._sequences.tell_evicted()
        return sweeps

    def growth(self, plan: SweepPlan, sweeps: int) -> int:
        """Return the pages taken after the only open ``plan``, up to the plan ``sweeps`` equal sweeps later."""
        only = self._plans.only(plan.number)
        return forecast.growth(self.parts, only, sweeps) if only is not None else 0

    # views -----------------------------------------------------------------------------------------------------------

    @property
    def config(self) -> SweepConfig:
        return self.parts.config

    @property
    def number(self) -> int:
        """The number of the next plan."""
        return self._plans.number

    @property
    def open_plans(self) -> int:
        """The number of plans made and not ended."""
        return len(self._plans)

    @property
    def waiting(self) -> int:
        """The number of sequences in the queue."""
        return self.parts.queue.waiting

    @property
    def awaiting(self) -> int:
        """The number of sequences at home that wait: to start, for pages or room elsewhere, or after a preemption."""
        return self.parts.rows.awaiting()

    @property
    def running(self) -> int:
        """The number of running sequences at home."""
        return len(self.parts.queue.running)

    def kv_by_application(self) -> dict[str, tuple[int, int]]:
        """Return the bytes of KV that each application's sequences list here, and the bytes listed by two sequences or
        more.
        """
        return route_queues.kv_by_application(self.parts)

    def queues(self) -> list[RouteQueue]:
        """Return the queue of each route with sequences, with the number of tokens that would fit."""
        return route_queues.queues(self.parts)

    def offline_capacities(self) -> list[OfflineCapacity]:
        """Return the offline capacity of this worker now."""
        return offline_capacities(self.parts)

    def room(self, request: str) -> bool:
        """Return whether there is room for the pages that the hold of a request awaits."""
        return self._pinning.room(request)

    @property
    def next_deadline(self) -> float:
        """The time before which no sequence and no hold expires; infinite: none will."""
        return min(self.parts.rows.next_deadline, self.parts.page_pins.next_deadline)

    @property
    def counters(self) -> dict[str, int]:
        """The totals since the start."""
        own = self.parts.outgoing.counters
        pages = self.parts.memory.pages
        parked = self.parts.pending_pages.parked
        return {**own, "parked": parked, "evicted_pages": pages.evicted, "shared_pages": pages.shared}

    @property
    def hidden_pages(self) -> int:
        """The number of pages of hidden states, including cached ones."""
        return sum([n for arena, n in self.parts.memory.pages.slots_in_use.items() if arena.startswith(HIDDEN)])

    def batch(self, number: int) -> list[int]:
        """Return the sequence of each batch row of an open plan."""
        return self._plans.sequences(number)

    # copies ----------------------------------------------------------------------------------------------------------

    def fork(self) -> SweepState:
        """Return an independent copy for a forecast: requests, handles, counts, without device tables and effects."""
        return SweepState(self.parts.config, self.parts.fork(), self._plans.fork())

    def snapshot(self) -> dict[str, Plain]:
        """Return the whole state as plain data for transport, without effects that were not taken."""
        return {**self.parts.snapshot(), "plans": self._plans.snapshot()}

    @classmethod
    def restore(cls, snapshot: dict[str, Plain]) -> SweepState:
        """Return the state of a snapshot: equal digest, equal plans from here on."""
        return cls((parts := Parts.restore(snapshot)).config, parts, OpenPlans.restore(snapshot["plans"]))

    def digest(self) -> bytes:
        """Return 16 bytes that are equal for equal states."""
        return digest_of(self.snapshot())

    def check(self) -> None:
        """Raise AssertionError unless every chunk, slot, page, row and lease is free or owned once, and counts are right."""
        parts = self.parts
        parts.check(self._plans.check())
        for s in [s for s in parts.rows.live() if not parts.rows.is_draft_row(s)]:
            room = self._sequences.capacity(parts.rows.route[s], parts.rows.tenant[s])
            most = parts.rows.submission[s].max_length
            assert most <= room, f"sequence {s} can never have its {most} tokens, only {room}"


def digest_of(snapshot: dict[str, Plain]) -> bytes:
    """Return the digest of a snapshot's state. The order of dicts counts, because queues are kept in it."""
    return hashlib.blake2b(repr(snapshot).encode(), digest_size=16).digest()


def _verified(plan: OpenPlan, result: SweepResult) -> dict[int, tuple[list[int], list[TokenLogprob]]]:
    """Return the tokens of each verified batch row with their log-probabilities, if requested.

    Without verified tokens, as in forecasts, a row has the one that it draws in any case.
    """
    drawn = zip(result.tokens, result.logprobs or [None] * len(result.tokens), strict=True)
    first = dict(zip(plan.sample, drawn, strict=True))
    more = result.verified or [[] for _ in plan.verify]
    entries = result.verified_logprobs or [[] for _ in plan.verify]
    found = {}
    for i, tokens, logprobs in zip(plan.verify, more, entries, strict=True):
        token, logprob = first[i]
        found[i] = [token, *tokens], [] if logprob is None else [logprob, *logprobs]
    return found


def _spread(places: list[int], values: list[T], empty: T, batch: list[int]) -> list[T]:
    """Return a value for each batch row: that at its place in ``places``, or ``empty``. Without values: empty."""
    if not values:
        return [] if empty is None else [empty] * len(batch)
    spread = [empty] * len(batch)
    for place, value in zip(places, values, strict=True):
        spread[place] = value
    return spread
