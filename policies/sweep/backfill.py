"""Backfill: offline sequences fill the rows, tokens and pages that online ones leave, and give way within a sweep.

A plan is made as if there were no offline sequence; then they fill it up. Beside online rows they run only as far as the
cost model says that answers become slower by no more than a set fraction. Without online sequences they have a sweep of
their own, which is short and not planned ahead, so that a new request waits for no more than the rest of one sweep. Rows
and pages that an online sequence lacks are taken from them: the one that loses the least work goes first, back to its
gateway.
"""

from __future__ import annotations

from ..memory import eviction
from ..plan.coefficients import Coefficients
from ..plan.fit import PLAIN
from .batch_builder import BatchBuilder
from .columns import Place, Status
from .fitting import Fitting
from .microbatch_scheduler import NOW
from .parts import Parts
from .pipeline import Pipeline
from .preemption import private_work
from .reserve import reserved_rows, reserved_slots, withheld_from_starts, withheld_slots
from .row_picker import RowPicker
from .sequences import Found, Sequences
from .sweep_load import BackfillBudget, SweepLoad


class Backfill:
    """The offline sequences of one worker in the plan being made (see the module). It keeps nothing between two plans."""

    def __init__(self, parts: Parts, sequences: Sequences, pipeline: Pipeline, fitting: Fitting, picker: RowPicker) -> None:
        self._parts = parts
        self._sequences = sequences
        self._pipeline = pipeline
        self._rows = parts.rows
        self._fitting = fitting
        self._picker = picker

    def is_alone(self) -> bool:
        """Return whether everything that could run is offline."""
        queue, leases = self._parts.queue, self._parts.leases
        if not queue.offline or queue.online or queue.waiting > queue.offline_waiting:
            return False
        return not leases.urgent and leases.next_flight() is None

    def fill(self, batch: BatchBuilder) -> None:
        """Add offline rows to a batch that has all online ones."""
        left = batch.budget
        config = self._parts.config
        costs: Coefficients | None = config.costs
        load = SweepLoad(PLAIN if costs is None else costs, self._parts.routes)
        self._weigh(batch, load)
        online = bool(batch.picked) or not all(map(self._rows.is_offline, batch.guests))
        budget = BackfillBudget(load, config.offline_delay, None if costs is None else config.offline_sweep, online=online)
        prompts = self._add_decodes(batch, budget)
        shares = self._picker.microbatches.chunks(prompts)
        for s in prompts:
            if self._rows.status[s] == Status.RUNNING and (self._rows.place[s] == Place.LOCAL or s in shares):
                self._add_prompt(batch, budget, s, shares.get(s, 1 << 30))
        self._admit(batch, budget)
        self._parts.outgoing.count("offline_tokens", left - batch.budget)

    # giving way

    def restore_reserve(self) -> None:
        """Take back from offline sequences what online ones have taken of the reserve."""
        queue = self._parts.queue
        waits = queue.waiting > queue.offline_waiting
        if queue.online or waits:
            self._vacate(reserved_slots(self._parts), {}, max(reserved_rows(self._parts), int(waits)))

    def give_way(self, s: int, found: Found, awaited: dict[str, int]) -> bool:
        """Preempt offline sequences for ``s``, which waits; return whether there is room for it now."""
        queue = self._parts.queue
        if queue.online == len(queue.running):
            return False
        need, kept = self._fitting.need(s, found, awaited)
        return self._vacate(need, kept, 0)

    def _vacate(self, need: dict[str, int], kept: dict[str, int], rows: int) -> bool:
        """Preempt offline sequences until ``rows`` rows and ``need`` slots are free or being freed.

        Return whether the slots are free now. kept: idle slots, by arena, that do not count.
        """
        parts, table = self._parts, self._rows
        while True:
            lacking = eviction.shortage(parts.memory.pages, need, kept) * parts.config.memory_chunk
            if lacking > 0:
                lacking -= self._leaving_bytes()
            if lacking <= 0 and rows <= table.free_rows + table.leaving:
                break
            if (victim := self._victim(-1, set())) < 0:
                break
            self._sequences.preempt(victim)
        return parts.memory.make_room(need, kept)

    def _victim(self, s: int, busy: set[int]) -> int:
        """Return the offline sequence that loses the least work, and of equals the youngest; -1: none.

        If ``s`` is given, the victim must be younger. Sequences in ``busy`` are in the plan being made and are left out.
        """
        rows = self._rows
        queue = self._parts.queue
        pages = self._parts.memory.pages
        found = [other for other in queue.running[queue.online :] if other not in busy]
        if s >= 0:
            age = rows.age(s)
            found = [other for other in found if rows.age(other) > age]
        if not found:
            return -1
        return min(found, key=lambda v: (private_work(rows, pages, v), -rows.submission[v].arrival, v))

    def _leaving_bytes(self) -> int:
        """Return the bytes that leaving sequences give back when no plan names them any more."""
        rows = self._rows
        pages = self._parts.memory.pages
        nbytes = 0
        for s in rows.with_status(Status.LEAVING):
            nbytes += sum([pages.page_bytes(pages.span(h)) for h in rows.handles(s) if pages.references(h) == 1])
        return nbytes

    # choosing offline rows

    def _weigh(self, batch: BatchBuilder, load: SweepLoad) -> None:
        """Add what is in the batch already to the load."""
        rows, found = self._rows, dict[str, list[int]]()
        for s, start in zip(batch.picked, batch.starts, strict=True):
            self._note(found, s, start, batch.count_of(s))
        for flight, guests in batch.flights:
            for s, row in zip(guests, flight.rows, strict=True):
                self._note(found, s, row.start, row.count)
        for s, tokens, drawn, near, far in found.values():
            load.add(rows.route[s], tokens, drawn, near, far)

    def _note(self, found: dict[str, list[int]], s: int, start: int, count: int) -> None:
        """Add to the sums of a route: a sequence of it, tokens, rows, and the positions they attend to."""
        sums = found.setdefault(self._rows.route[s].route.id, [s, 0, 0, 0, 0])
        sums[1] += count
        sums[2] += 1
        if count == 1:
            sums[3] += start + 1
        else:
            sums[4] += count * start + count * (count + 1) // 2

    def _add_decodes(self, batch: BatchBuilder, budget: BackfillBudget) -> list[int]:
        """Add decoding offline rows, oldest first; return the sequences with prompt tokens left."""
        rows = self._rows
        queue = self._parts.queue
        leases = self._parts.leases
        plain = batch.decodes == len(batch.picked)
        prompts: list[int] = []
        for s in queue.running[queue.online :]:
            if batch.budget <= 0 or budget.over:
                break
            start = rows.planned[s]
            if rows.status[s] != Status.RUNNING or start >= rows.known[s] or not batch.turn.takes(self._parts.tier(s)):
                continue  # it has given way, waits for its last token, or has another turn
            if rows.known[s] - start > 1:
                prompts.append(s)
            elif start >= rows.limit[s] - 1 or leases.is_away(s) or rows.held[s] or not self._has_turn(s):
                continue
            elif not budget.takes(rows.route[s], start):
                break
            elif rows.place[s] != Place.LOCAL:
                self._picker.leave(batch, s)
            elif self._beside_others(batch, s, start + 1):
                self._picker.pick(batch, s, 1)
        if plain:
            batch.decodes = len(batch.picked)
        return prompts

    def _has_turn(self, s: int) -> bool:
        """Return whether a row may go with this plan. A row that crosses workers goes with its microbatch."""
        return self._rows.place[s] == Place.LOCAL or self._picker.microbatches.of(s) == NOW

    def _add_prompt(self, batch: BatchBuilder, budget: BackfillBudget, s: int, limit: int) -> None:
        """Add as large a chunk of a prompt as fits."""
        rows, picked = self._rows, len(batch.picked)
        self._picker.catch_up.jump(s)
        start, route = rows.planned[s], rows.route[s]
        left = rows.known[s] - start - rows.held[s]
        limit = budget.fitting(route, start, min(left, self._parts.config.chunk_size, batch.budget, limit))
        if limit > 0 and self._beside_others(batch, s, start + limit):
            self._picker.pick_chunk(batch, s, limit)
        if len(batch.picked) > picked:
            budget.add(route, start, batch.count_of(s))

    def _beside_others(self, batch: BatchBuilder, s: int, positions: int) -> bool:
        """Return whether there are pages for ``positions`` of ``s`` beside the reserve.

        Younger offline sequences may give way. The oldest one here waits for those older at other workers
        (``pipeline.py``), and for no reserve.
        """
        rows, parts = self._rows, self._parts
        pages = -(-positions // rows.page_size) - rows.paged[s]
        if pages <= 0:
            return True
        need = withheld_slots(parts)
        for span in rows.route[s].kv:
            need[span.arena] = need.get(span.arena, 0) + pages * span.layers
        while not parts.memory.fits(need):
            if rows.leaving:
                return False  # memory is being freed
            if (victim := self._victim(s, {*batch.picked})) < 0:
                return parts.queue.running[parts.queue.online] == s
            self._sequences.preempt(victim)
        return True

    def _admit(self, batch: BatchBuilder, budget: BackfillBudget) -> None:
        """Start waiting offline sequences. One without room goes back to its gateway; one without time waits."""
        parts = self._parts
        rows = self._rows
        queue = self._parts.queue
        reserve = withheld_from_starts(parts)
        self._fitting.begin(offline=True)
        while queue.offline_waiting and batch.budget > 0 and not budget.over:
            s = queue.first_offline(batch.capped)
            if s < 0 or not batch.turn.takes(parts.tier(s)):
                break
            found = self._fitting.examine(s, batch)
            if found is None:
                continue
            if rows.free_rows <= reserved_rows(parts) or not self._fitting.fits(s, found, reserve):
                if rows.is_guest(s):  # it stays: its home can do nothing with it before it has its lease
                    break
                self._sequences.preempt(s)
                continue
            if not budget.fitting(rows.route[s], len(found) * rows.page_size, 1):
                break
            parts.dequeue(s)
            self._picker.start(s, found)
            if not rows.is_guest(s):
                self._add_prompt(batch, budget, s, 1 << 30)
                self._fitting.commitments.add(rows, s)
