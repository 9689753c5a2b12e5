"""Making one plan: the order in which rows are picked. Continuous batching with chunked prefill.

First comes the choice of the tiers that have rows in it (``turn_choice.py``).

Memory goes first to sequences for whose memory others may wait (``pipeline.py``). Order within the token budget: guests
whose hidden states have arrived (their memory is leased, their home waits), one token for each decoding sequence by age,
prompt chunks by age, then admissions. Among several accounts, a waiting one that was given less than those whose prompts
run goes before them (``fair_share.py``). While its rows decode, the others' prompts get only a part of the budget. Last,
offline sequences fill what is left (``backfill.py``). Before all that, an urgent sequence may take the row of another one
(``urgent_starts.py``). ``row_picker.py`` gives each row its place and memory.
"""

from __future__ import annotations

from .backfill import Backfill
from .batch_builder import BatchBuilder
from .columns import Place, Status
from .drafting import Drafting
from .fitting import Fitting
from .microbatch_scheduler import LATER, NOW
from .parts import Parts
from .pinning import Pinning
from .pipeline import Pipeline
from .row_picker import RowPicker
from .sequences import Sequences
from .tier_turns import Turn
from .turn_choice import TurnChoice
from .urgent_starts import UrgentStarts


class Planner:
    """The maker of plans. It keeps nothing between two plans."""

    def __init__(self, parts: Parts, sequences: Sequences, pipeline: Pipeline, pinning: Pinning) -> None:
        self._parts = parts
        self._sequences = sequences
        self._pipeline = pipeline
        self._pinning = pinning
        self._rows, self._fitting = parts.rows, Fitting(parts, sequences, pipeline)
        self._picker = RowPicker(parts, sequences, pipeline, pinning)
        self._drafting = Drafting(parts, self._picker, sequences.draft_rows)
        self._backfill = Backfill(parts, sequences, pipeline, self._fitting, self._picker)
        self._urgent = UrgentStarts(parts, sequences, self._fitting)
        self._turns = TurnChoice(parts)
        self._now = 0.0  # time of the plan being made

    def waits_for_open_plans(self) -> bool:
        """Return whether no plan is made while another is open: everything that could run is offline, or a row drafts."""
        return self._backfill.is_alone() or (len(self._parts.drafts) > 0 and self._drafting.waits())

    def pick(self, now: float) -> BatchBuilder:
        """Pick the rows of the next plan; the state already counts on it."""
        self._now = now
        batch = BatchBuilder(self._parts.config.sweep_tokens)
        if self._parts.queue.offline:
            self._backfill.restore_reserve()
        for turn in self._turns.turns():
            batch.turn = turn
            self._pick_online(batch)
            if self._parts.queue.offline and not turn.short:  # after the others: some may have got leases and started
                self._backfill.fill(batch)
            if batch.picked:
                self._take_turn(batch)
                break
        self._pipeline.ask_pages(batch.growing)
        return batch

    def _pick_online(self, batch: BatchBuilder) -> None:
        """Pick all rows that are not offline."""
        self._take_flights(batch)
        if len(self._parts.page_pins):
            self._start_held(batch)
        if self._parts.leases.urgent:
            self._serve_urgent(batch)
        self._urgent.rise(self._now)
        if not batch.starved:
            self._urgent.make_room(batch)
        self._picker.begin_plan()
        prompts = self._pick_decodes(batch)
        if batch.turn.short:
            return
        if prompts or (self._parts.queue.waiting and self._rows.free_rows):
            decoding = {self._rows.tenant[s]: s for s in batch.picked}
            batch.decoding = sorted((self._picker.rank(s), account) for account, s in decoding.items())[:2]
        if prompts and self._parts.queue.waiting:
            self._admit(batch, prompts)
        self._pick_prompts(batch, prompts)
        self._admit(batch, [])
        self._drafting.catch_up(batch)

    def _take_flights(self, batch: BatchBuilder) -> None:
        """Take flights in order of arrival; at least one, however long, or it would never fit."""
        leases = self._parts.leases
        while (following := leases.next_flight()) is not None:
            flight, guests = following
            tokens = sum(row.count for row in flight.rows)
            if batch.flights and (tokens > batch.budget or not batch.guests.isdisjoint(guests)):
                break  # one chunk of a prompt in a plan: each attends to what the one before has written
            leases.take_flight()
            self._drafting.take(flight, guests)
            batch.add_flight(flight, guests, tokens)

    def _take_turn(self, batch: BatchBuilder) -> None:
        """Count the sweep that is being made, and note the sequences that sit it out if it is short."""
        turn = batch.turn
        self._parts.turns.take(turn)
        if turn.short:
            batch.parked = self._turns.sitting_out(turn)
            self._parts.outgoing.count("short_sweeps")
            self._parts.outgoing.count("rows_sat_out", len(batch.parked))

    # running sequences

    def _turn_of(self, turn: Turn) -> tuple[list[int], int]:
        """Return running sequences, and the number of leading ones that are online and have a turn."""
        queue = self._parts.queue
        if turn.whole:
            return queue.running, queue.online
        some = [s for s in queue.running[: queue.online] if turn.takes(self._parts.tier(s))]
        return some, len(some)

    def _pick_decodes(self, batch: BatchBuilder) -> list[int]:
        """Pick decoding rows, oldest first; return the sequences with prompt tokens left, in their order.

        Most rows of most plans need only a place. They are picked by one loop over columns, which stops where more is to
        be decided. A preemption on the way may remove rows before or behind the one at which the loop stands.
        """
        rows, queue = self._rows, self._parts.queue
        running, end = self._turn_of(batch.turn)
        prompts: list[int] = []
        later: list[int] = []  # rows that go on elsewhere and are not in the microbatch whose turn it is
        at = 0
        while True:
            before = len(batch.picked)
            at = rows.plan_decodes(running, at, end, max(batch.budget, 0), batch.picked, batch.starts, prompts)
            batch.budget -= len(batch.picked) - before
            if at >= end:
                break
            s = running[at]
            start = rows.planned[running[at]]
            size = len(queue.running)
            # it waits for its last token, or for its grammar
            waits = start >= rows.known[s] or start >= rows.limit[s] - 1 or rows.held[s] > 0
            if rows.place[s] == Place.LOCAL:
                drafts = start >= rows.plain_until[s]
                waits = waits or (drafts and rows.open[s] > 0)  # for the end of its round
                paged = not waits and batch.budget > 0 and self._picker.grow(batch, s, start + 1)
                if len(queue.running) != size:  # a preemption
                    running, end = self._turn_of(batch.turn)
                    at = running.index(s)
                # with its page and no drafts, the loop picks it
                at += not paged or (drafts and self._drafting.pick(batch, s, end - at - 1))
                continue
            if not waits and not self._parts.leases.is_away(s):
                if (turn := self._picker.microbatches.of(s)) == NOW:
                    self._drafting.leave(batch, s)
                elif turn == LATER:
                    later.append(s)
            if len(queue.running) != size:
                running, end = self._turn_of(batch.turn)
                at = running.index(s)
            at += 1
        for s in later:
            self._drafting.leave(batch, s)
        batch.decodes = len(batch.picked)
        if len({rows.tenant[s] for s in prompts}) > 1:
            prompts.sort(key=self._picker.rank)
        return prompts

    def _pick_prompts(self, batch: BatchBuilder, prompts: list[int]) -> None:
        rows = self._rows
        running = [s for s in prompts if rows.status[s] == Status.RUNNING]  # the others were preempted
        shares = self._picker.microbatches.chunks(running)
        for s in prompts:
            if batch.budget <= 0:
                break
            if rows.status[s] == Status.RUNNING and (rows.place[s] == Place.LOCAL or s in shares):
                self._picker.pick_chunk(batch, s, shares.get(s, 1 << 30))

    # sequences that others wait for

    def _serve_urgent(self, batch: BatchBuilder) -> None:
        """Serve sequences that hold memory elsewhere and need some here, oldest first; a waiting one is not overtaken."""
        rows, leases = self._rows, self._parts.leases
        grown: list[int] = []
        for s in sorted(leases.urgent, key=rows.age):
            if rows.status[s] == Status.LEASING:
                self._start_urgent(batch, s)
            elif rows.status[s] == Status.RUNNING and self._picker.grow(batch, s, leases.wanted(s) * rows.page_size):
                grown.append(s)
            if batch.starved:
                break
        self._pipeline.grant_pages(grown)

    def _start_urgent(self, batch: BatchBuilder, s: int) -> None:
        """Start ``s``, for which all hosts have made room, or all behind this one.

        It takes memory here from younger sequences.
        """
        while True:
            self._fitting.begin()
            found = self._sequences.look_up(s)
            capped = not self._fitting.within_cap(s, found)
            if self._rows.free_rows and not capped and self._fitting.fits(s, found, {}):
                self._picker.start(s, found)
                return
            if not self._picker.make_room(batch, s, at_cap=capped):
                return

    def _start_held(self, batch: BatchBuilder) -> None:
        """Start sequences with held pages, oldest first. They do not queue, since others wait for that memory."""
        parts, rows = self._parts, self._rows
        for s in self._pinning.waiting():
            parts.dequeue(s)
            if not self._pipeline.ask(s):
                self._start_urgent(batch, s)
                if rows.status[s] == Status.WAITING:
                    parts.enqueue(s)
                    break

    # admissions ------------------------------------------------------------------------------------------------------

    def _admit(self, batch: BatchBuilder, prompts: list[int]) -> None:
        """Start waiting sequences in order, until one does not fit.

        With ``prompts``, only sequences that go before all of these.

        None overtakes one that does not fit, however small: otherwise a long prompt would wait as long as short ones come.
        One that its account's cap keeps out holds up no other account.
        """
        parts = self._parts
        rows = self._rows
        queue = self._parts.queue
        self._fitting.begin()
        if queue.waiting > queue.offline_waiting and not rows.free_rows:
            self._sequences.draft_rows.give_way()
        while queue.waiting and rows.free_rows and not batch.starved and batch.budget > 0:
            s = queue.first(batch.capped)
            if (
                s < 0
                or rows.is_offline(s)
                or not batch.turn.takes(self._parts.tier(s))
                or (prompts and not self._overtakes(s, prompts[0]))
                or (batch.spare <= 0 and self._picker.delays(batch, s))
            ):
                break
            found = self._fitting.examine(s, batch)
            if found is None:
                if rows.tenant[s] in batch.capped and self._sequences.draft_rows.give_way(rows.tenant[s]):
                    batch.capped.discard(rows.tenant[s])
                continue
            awaited = parts.page_pins.awaited(rows.age(s)) if len(parts.page_pins) else {}
            if not self._fitting.fits(s, found, awaited):
                if (free := self._sequences.draft_rows.give_way()) is not None:
                    if free:
                        continue
                    break
                if self._backfill.give_way(s, found, awaited) or self._pinning.give_way(s):
                    continue
                self._pipeline.revoke_overdue(s, self._now)
                break
            parts.dequeue(s)
            self._picker.start(s, found)
            if not rows.is_guest(s):
                self._picker.pick_chunk(batch, s)
                self._fitting.commitments.add(rows, s)

    def _overtakes(self, s: int, running: int) -> bool:
        """Return whether ``s`` starts before the prompt of ``running`` continues: its account was given less."""
        return self._rows.tenant[s] != self._rows.tenant[running] and self._picker.rank(s) < self._picker.rank(running)
