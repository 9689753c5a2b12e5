"""Drafting by another model: its draft row is opened, catches up, and draws the drafts of a round.

A round is one sweep, as with a tier: the draft model passes the tokens that it has not seen together (after a round in which
all drafts stood, two), draws a draft, passes it, draws the next, and so on; then the target passes all positions at once.
Two sweeps would be no simpler: the target would wait for the first of them, and half a round would be a state of its own.

A draft row that lacks more than ``LEAD`` positions, such as the prompt, catches up in chunks beside its target, which draws
tokens without drafts meanwhile. Only rows, tokens and memory are used for it that no sequence asks for in the plan.
"""

from __future__ import annotations

from dataclasses import replace

from ..drafts.options import LARGEST
from ..drafts.row_drafts import Offer
from ..model.runs import LocalRoute
from ..plan.sweep_plan import SetSampling, WriteTokens
from .batch_builder import BatchBuilder
from .columns import FOREVER
from .draft_rows import DraftRows
from .events import Submission
from .parts import Parts
from .row_picker import RowPicker
from .sweep_load import TURNAROUND, SweepLoad, attended

LEAD = LARGEST  # most positions that a round computes before its first draft


class ModelDrafting:
    """The draft rows of one worker in the plan being made. It keeps nothing between two plans."""

    def __init__(self, parts: Parts, picker: RowPicker, draft_rows: DraftRows) -> None:
        self._parts = parts
        self._rows = parts.rows
        self._picker = picker
        self._draft_rows = draft_rows

    def ready(self, s: int) -> int:
        """Return the draft row of ``s`` if it can draft now; -1: there is none, or it has to catch up first.

        If its model is here, it is opened, or made to catch up.
        """
        rows, drafts = self._rows, self._parts.drafts
        application = rows.route[s].route.application
        drafter = self._parts.bottlenecks.drafter(application, drafts.of(s).options.drafter)
        local = self._parts.routes.whole(drafter)
        row = drafts.draft_row(s)
        if row >= 0 and not rows.open[row] and self._parts.bottlenecks.left(application, rows.route[row].route.application):
            self._draft_rows.end(s, rest=True)
            row = -1
        if row < 0 and local is not None and self._may_open(s, local):
            row = self._open(s, local)
        if row < 0 or rows.open[row]:
            return -1
        if rows.length[s] >= rows.limit[row]:  # the context of the draft model is full
            self._draft_rows.end(s)
            return -1
        self._draft_rows.follow(s, row)
        if rows.length[s] - rows.computed[row] > LEAD:
            drafts.catch_up(s, wanted=True)
            return -1
        drafts.catch_up(s, wanted=False)
        return row

    def _may_open(self, s: int, local: LocalRoute) -> bool:
        """Return whether there is a row for the draft model, and the model can draft for ``s`` at all."""
        rows, queue = self._rows, self._parts.queue
        fits = local.width == rows.route[s].width and rows.length[s] < local.max_length  # widths at the end: vocabularies
        others_wait = queue.waiting > queue.offline_waiting
        return fits and rows.free_rows > 0 and not others_wait and not self._parts.drafts.rests(s, rows.length[s])

    def _open(self, s: int, local: LocalRoute) -> int:
        """Open the draft row of ``s``. It begins behind the pages of its own model that are there."""
        parts = self._parts
        rows = self._rows
        of = self._rows.submission[s]
        submission: Submission = replace(
            of, request=f"{of.request} drafts", gateway="", route=local.route.id, route_version=local.route.version,
            tokens=rows.tokens_of(s), page_hashes=rows.hashes_of(s), max_length=min(of.max_length, local.max_length),
            stop_tokens=[], sampling=replace(of.sampling, logprobs=-1, prompt_logprobs=-1), timeout=0.0, drafts=None,
        )  # fmt: skip
        row = rows.add(submission, local, FOREVER, drafts=True)
        device_row = rows.start(row)
        if parts.outgoing.edited:
            parts.outgoing.edit(WriteTokens(device_row, 0, rows.tokens_of(row)))
            parts.outgoing.edit(SetSampling(device_row, of.prompt_length, submission.sampling))
        rows.charge(row, rows.length[row])  # draft rows cost their account nothing, as drafts of any kind
        rows.skip(row, self._picker.list_present(row) * rows.page_size)
        parts.drafts.link(s, row)
        return row

    def offer(self, s: int, row: int, limit: int, budget: int, load: SweepLoad) -> Offer | None:
        """Return the drafts that a draft row has for a round of ``s`` with at most ``limit``, and their cost; None: none.

        ``budget``: positions that the sweep has left.
        """
        rows, start = self._rows, self._rows.planned[s]
        length = rows.length[s]
        lead = length - rows.computed[row]
        limit = min(limit, rows.limit[row] - length, (budget - lead) // 2)
        if limit <= 0:
            return None
        limit = min(limit, self._picker.grow_if_free(row, length + limit - 1) - length + 1)
        if limit <= 0:
            self._draft_rows.end(s, rest=True)
            return None
        local, own = rows.route[s], rows.route[row]

        def cost(count: int) -> int:
            near, far = attended(start, count + 1)
            seconds = load.seconds + load.price(local, count + 1, count + 1, near, far)
            seconds += load.price_drafts(own, rows.computed[row], lead, count)
            return round(seconds * 1e9) + (TURNAROUND if count else 0)

        return Offer(self._parts.drafts.of(s).options.drafter, limit, cost, [])

    def pick(self, batch: BatchBuilder, s: int, start: int, count: int) -> None:
        """Pick a round of ``s`` from position ``start`` on with ``count`` drafts, which its draft row draws."""
        rows, row = self._rows, self._parts.drafts.draft_row(s)
        first, lead = rows.computed[row], rows.length[s] - rows.computed[row]
        rows.plan_draft_row(row, lead + count - 1)
        batch.add_model_drafts(s, start, count, row, first, lead)

    def catch_up(self, batch: BatchBuilder) -> None:
        """Pick chunks of draft rows that have to catch up, with what all other rows leave of the sweep."""
        rows, drafts = self._rows, self._parts.drafts
        for s in drafts.behind:
            row = drafts.draft_row(s)
            self._draft_rows.follow(s, row)
            start = rows.planned[row]
            count = min(rows.length[row] - 1 - start, self._parts.config.chunk_size, batch.budget)
            if count > 0:
                count = min(count, self._picker.grow_if_free(row, start + count) - start)
                if count <= 0:
                    self._draft_rows.end(s, rest=True)
                    continue
                rows.plan_draft_row(row, count)
                batch.add(row, start, count, drawn=False, local=True)
            if rows.length[row] - rows.planned[row] <= LEAD:
                drafts.catch_up(s, wanted=False)
                drafts.of(s).forget_misses()
                rows.draft_from(s, min(rows.plain_until[s], rows.planned[s]))
