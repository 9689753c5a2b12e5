"""Draft rows: the rows of models that draft for sequences of other models, each beside the sequence that it drafts for.

A draft row is a row of the sequence table with the route, KV lineage and pages of its own model, and with the tokens,
sampling parameters and account of its target. It never waits, is never preempted and reports nothing: the planner plans it
with its target (``model_drafting.py``), and it ends with it. It also ends when its model goes, or when anything else lacks
the row or the memory that it holds. The target then goes on without drafts by that model.

KV behind the tokens that stood is written again by its next plan, and only pages of known tokens are published.
"""

from __future__ import annotations

from collections.abc import Sequence

from ..plan.sweep_plan import WriteTokens
from .columns import Status
from .parts import Parts

REST = 64  # tokens that a sequence draws, after its draft row has given way, before it gets another


class DraftRows:
    """The procedures on the draft rows of one worker. Owns nothing itself: ``DraftTable`` has them by target."""

    def __init__(self, parts: Parts) -> None:
        self._parts = parts

    def follow(self, s: int, row: int) -> None:
        """Append the tokens that ``s`` has and its draft row does not know yet."""
        rows = self._parts.rows
        known = rows.length[row]
        if more := rows.tokens[s][known : rows.length[s]]:
            rows.append_known(row, more)
            self._parts.outgoing.edit(WriteTokens(rows.row[row], known, more))

    def commit(self, row: int, end: int) -> None:
        """Record that a plan which computed a draft row up to ``end`` has ended, after its target's tokens were recorded."""
        rows, pages = self._parts.rows, self._parts.memory.pages
        if rows.status[row] == Status.LEAVING:
            rows.close(row)
            self.settle(row)
            return
        s, before = self._parts.drafts.target(row), rows.computed[row]
        self.follow(s, row)
        rows.end_plan(row, min(end, rows.length[row] - 1))
        if rows.computed[row] // rows.page_size > before // rows.page_size:
            full = rows.hash_pages(row)
            for page in range(before // rows.page_size, full):
                for handles in rows.pages[row]:
                    pages.publish(handles[page], rows.hashes[row][page])

    # ends ------------------------------------------------------------------------------------------------------------

    def end(self, s: int, *, rest: bool = False) -> None:
        """End the draft row of ``s``, if it has one. ``rest``: it gets no other for a while."""
        rows, drafts = self._parts.rows, self._parts.drafts
        if drafts.draft_row(s) >= 0:
            row = drafts.unlink(s, rows.length[s] + REST if rest else 0)
            rows.leave(row, requeue=False)
            self.settle(row)

    def settle(self, row: int) -> None:
        """Give back the row and pages of a draft row that has ended, if no open plan names it any more."""
        rows = self._parts.rows
        if rows.status[row] == Status.LEAVING and not rows.open[row]:
            self._parts.memory.pages.release(rows.handles(row), rows.tenant[row])
            rows.clear(row)
            rows.remove(row)

    def give_way(self, account: str = "") -> bool | None:
        """End one draft row, of this account if one is given, since others lack its row or memory.

        It is one that no open plan names, if there is one, and of equals the one of the youngest sequence. Return whether
        its memory is free now, or will be when its plan has ended; None: there is no draft row.
        """
        rows = self._parts.rows
        found = [s for s in self._parts.drafts.targets() if not account or rows.tenant[s] == account]
        if not found:
            return None
        chosen = max(found, key=lambda s: (not rows.open[self._parts.drafts.draft_row(s)], rows.age(s)))
        free = not rows.open[self._parts.drafts.draft_row(chosen)]
        self.end(chosen, rest=True)
        return free

    def give_way_all(self) -> bool:
        """End every draft row; return whether there was any."""
        targets: Sequence[int] = self._parts.drafts.targets()
        for s in targets:
            self.end(s, rest=True)
        return bool(targets)
