"""Rounds of drafts: a sequence's guessed tokens are verified in one sweep as rows that are drawn after each position.

A sequence is verified by one open plan at most, as what it drafts next depends on what stood. Nothing has to be undone: KV
behind the tokens that stood is written again by the next plan, and no page is published before its positions are computed.
While a row waits for its round, or to look for drafts, no plan is made ahead. Otherwise it would be in every second sweep.
"""

from __future__ import annotations

from ..drafts.length import Cost
from ..model.runs import Run
from ..plan.fit import PLAIN
from ..plan.sweep_plan import WriteTokens
from .batch_builder import BatchBuilder
from .columns import Place, Status
from .draft_rows import DraftRows
from .events import Flight
from .model_drafting import ModelDrafting
from .parts import Parts
from .row_picker import RowPicker
from .sweep_load import TURNAROUND, SweepLoad, attended


class Drafting:
    """The rounds of one worker in the plan being made. It keeps nothing between two plans."""

    def __init__(self, parts: Parts, picker: RowPicker, draft_rows: DraftRows) -> None:
        self._parts = parts
        self._rows = parts.rows
        self._picker = picker
        self._models = ModelDrafting(parts, picker, draft_rows)

    def waits(self) -> bool:
        """Return whether a row waits for the end of an open plan, to draft or to know which of its drafts stood."""
        rows = self._rows
        return any(
            rows.open[s] and rows.status[s] == Status.RUNNING and rows.place[s] == Place.LOCAL
            and rows.planned[s] >= rows.plain_until[s] and rows.known[s] - rows.planned[s] <= 1
            for s in self._parts.drafts.sequences()
        )  # fmt: skip

    def take(self, flight: Flight, guests: list[int]) -> None:
        """Write the drafts of a flight where this worker ends the route and verifies them."""
        for s, row in zip(guests, flight.rows, strict=True):
            if row.drafts and self._rows.route[s].next_worker is None:
                self._parts.outgoing.edit(WriteTokens(self._rows.row[s], row.start + 1, row.drafts))

    def leave(self, batch: BatchBuilder, s: int) -> None:
        """Pick a decoding row that goes on elsewhere, with drafts if it has some."""
        rows = self._rows
        picker = self._picker
        start = self._rows.planned[s]
        if start >= rows.plain_until[s] and picker.may_leave(batch, s):
            if not picker.covered(batch, s, start + 1) or not picker.grow(batch, s, start + 1):
                return
            if self.pick(batch, s, 0):
                picker.microbatches.take(s)
                return
        picker.leave(batch, s)

    def pick(self, batch: BatchBuilder, s: int, others: int) -> bool:
        """Pick a round of ``s``, which has a page for its next position; False: its next tokens are drawn without drafts.

        ``others``: rows of the plan after this one, for which the cost counts a token each.
        """
        rows, drafts = self._rows, self._parts.drafts.of(s)
        start = rows.planned[s]
        limit = min(batch.budget - 1, rows.limit[s] - rows.known[s] - 1)
        local = rows.place[s] == Place.LOCAL
        if not local:
            limit = min(limit, self._parts.leases.pages(s) * rows.page_size - start - 1)
        if limit > 0:
            limit = min(limit, self._picker.grow_if_free(s, start + 1 + limit) - start - 1)
        drawn, load = batch.targets + others, self._load(batch, s, others)
        heads = self._exits(s) if drafts.options.tiers and local else {}
        tiers = {tier: self._tier_cost(load, s, head, batch.passes(head)) for tier, head in heads.items()}
        cost = self._cost(load, s)
        row = self._models.ready(s) if drafts.options.drafter and local and limit > 0 else -1
        model = self._models.offer(s, row, limit, batch.budget, load) if row >= 0 else None
        found = drafts.draft(rows.tokens[s], rows.length[s], max(limit, 0), drawn, cost, tiers, model)
        if not found:
            self._parts.drafts.paces.count_plain(s, rows.length[s])
            rows.draft_from(s, start + drafts.pause)
            return False
        self._parts.drafts.paces.begin(s, rows.length[s], drafts.price)
        rows.plan_drafts(s, len(found))
        if drafts.drafter in heads:
            batch.add_tier_drafts(s, start, len(found), heads[drafts.drafter])
        elif drafts.drafter:
            self._models.pick(batch, s, start, len(found))
        else:
            self._parts.outgoing.edit(WriteTokens(rows.row[s], start + 1, found))
            batch.add_drafts(s, start, found, local)
        return True

    def catch_up(self, batch: BatchBuilder) -> None:
        """Pick what draft rows have to catch up with, where the sweep has room for it."""
        if self._parts.drafts.behind:
            self._models.catch_up(batch)

    def _exits(self, s: int) -> dict[str, Run]:
        """Return the heads of the tiers that ``s`` wants and that can draft for it here."""
        local, routes = self._rows.route[s], self._parts.routes
        found = {tier: routes.exit(local, tier) for tier in self._parts.drafts.of(s).options.tiers}
        return {tier: head for tier, head in found.items() if head is not None}

    def _load(self, batch: BatchBuilder, s: int, others: int) -> SweepLoad:
        """Return the load of the sweep beside ``s``. Other rows count as rows like it."""
        config = self._parts.config
        local = self._rows.route[s]
        start = self._rows.planned[s]
        load = SweepLoad(config.costs or PLAIN, self._parts.routes)
        taken = config.sweep_tokens - batch.budget
        if beside := taken + others:
            load.add(local, beside, beside, beside * (start + 1), 0)
        return load

    def _tier_cost(self, load: SweepLoad, s: int, head: Run, passes: int) -> Cost:
        """Return the nanoseconds of a sweep with this load by the number of drafts of ``s`` that a tier draws in it.

        ``passes``: the further passes to the exit that the sweep makes for other rows.
        """
        local, start = self._rows.route[s], self._rows.planned[s]

        def cost(count: int) -> int:
            seconds = load.seconds + load.price_round(local, head, start, count, passes)
            return round(seconds * 1e9) + (TURNAROUND if count else 0)

        return cost

    def _cost(self, load: SweepLoad, s: int) -> Cost:
        """Return the nanoseconds of a sweep with this load by the number of drafts of ``s``."""
        local, start = self._rows.route[s], self._rows.planned[s]
        here = local.next_worker is None

        def cost(count: int) -> int:
            near, far = attended(start, count + 1)
            seconds = load.seconds + load.price(local, count + 1, count + 1, near, far)
            return round(seconds * 1e9) + (TURNAROUND if count and here else 0)

        return cost
