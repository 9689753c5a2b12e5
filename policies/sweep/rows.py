"""The sequences of a worker: what happens to one, as changes of its columns, which nobody else writes.

A sequence is *home* here (this worker plans it and reports its tokens) or a *guest* (it is home elsewhere, and a lease gives
it a row and pages here). Only running sequences own a device row and pages. Sequences are small integers, used again.
"""

from __future__ import annotations

from collections.abc import Container, Mapping, Sequence
from itertools import islice

from ..model.lineage import next_hash, root_hash
from ..model.runs import Border, LocalRoute
from ..plan.sweep_plan import TokenLogprob
from .columns import COLUMNS, Columns, Place, Status
from .events import Submission, TokensEmitted


class RowTable(Columns):
    """See the module."""

    # a sequence comes and goes ---------------------------------------------------------------------------------------

    def add(self, submission: Submission, route: LocalRoute, deadline: float, *, guest: bool = False) -> int:
        """A new waiting sequence; returns its index."""
        if self._unused:
            s = self._unused.pop()
        else:
            s = len(self.status)
            for name in COLUMNS:
                getattr(self, name).append(0)
        self.submission[s] = submission
        self.status[s], self.row[s] = Status.WAITING, -1
        self.computed[s] = self.planned[s] = self.open[s] = self.paged[s] = self.cached[s] = 0
        self.ready[s] = self.requeue[s] = self.charged[s] = 0
        self.length[s] = self.known[s] = len(submission.tokens)
        self.tokens[s] = submission.tokens.copy()
        self.hashes[s] = submission.page_hashes.copy() if self._prefix_cache else []
        self.hashed[s] = len(self.hashes[s])
        self.deadline[s] = deadline
        self.place[s] = Place.GUEST if guest else Place.LOCAL
        self.reroute(s, route)
        self.pages[s] = [[] for _ in route.spans]
        self._fill(s)
        if not guest:
            self._by_request[submission.request] = s
            self.next_deadline = min(self.next_deadline, deadline)
        return s

    def cut(self, borders: Container[Border], pieces: Mapping[int, list[int]]) -> None:
        """Spans have been cut: ``pieces`` are the handles that a handle was split into. All sequences list these now, also
        those that leave."""
        for s in self.live():
            route = self.route[s].cut(borders)
            if route is not self.route[s]:
                lists = iter(self.pages[s])
                self.pages[s] = [
                    [pieces[handle][i] for handle in listed[: self.paged[s]]] if len(parts) > 1 else listed
                    for span, listed in zip(self.route[s].spans, lists, strict=True)
                    for parts in [span.cut(borders)]
                    for i in range(len(parts))
                ]
                self.route[s] = route

    def borders(self) -> set[Border]:
        """Those between the spans of all sequences' routes."""
        routes = {id(self.route[s]): self.route[s] for s in self.live()}
        return {(span.layer, span.lineages[0]) for route in routes.values() for span in route.spans}

    def reroute(self, s: int, route: LocalRoute) -> None:
        """The routes were published again; this one has the same components and spans."""
        self.route[s], self.delta[s] = route, route.delta
        if self.place[s] != Place.GUEST:
            self.place[s] = Place.LOCAL if route.next_worker is None else Place.FORWARD

    def remove(self, s: int) -> None:
        """The index is free for another sequence."""
        self.unname(s)
        for name in COLUMNS:
            getattr(self, name)[s] = 0
        self._unused.append(s)

    def unname(self, s: int) -> None:
        """Its gateway will not name the sequence any more, or means the next one by the same name."""
        request = self.submission[s].request
        if self.place[s] != Place.GUEST and self._by_request.get(request) == s:
            del self._by_request[request]

    def find(self, request: str) -> int | None:
        """The sequence at home that serves a request."""
        return self._by_request.get(request)

    # status ----------------------------------------------------------------------------------------------------------

    def park(self, s: int) -> None:
        self.status[s] = Status.PARKED

    def lease(self, s: int) -> None:
        self.status[s] = Status.LEASING

    def wait(self, s: int) -> None:
        self.status[s] = Status.WAITING

    def start(self, s: int) -> int:
        """It runs and has a device row, which is returned."""
        self.row[s] = row = self._free_rows.pop()
        self.status[s] = Status.RUNNING
        self.ready[s] = self._ready(s)
        return row

    def skip(self, s: int, positions: int) -> None:
        """So many leading positions were found in the prefix cache."""
        self.computed[s] = self.planned[s] = self.cached[s] = positions
        self.known[s] = self.length[s]

    def jump(self, s: int, positions: int) -> None:
        """So many positions more were found in the prefix cache, behind those that are planned."""
        self.planned[s] += positions
        self.cached[s] += positions
        if not self.open[s]:
            self.computed[s] = self.planned[s]

    def charge(self, s: int, position: int) -> int:
        """Positions below ``position`` are paid for now. How many of them were not."""
        unpaid = max(0, position - self.charged[s])
        self.charged[s] += unpaid
        return unpaid

    def leave(self, s: int, *, requeue: bool) -> None:
        """No new plan names it."""
        self.status[s], self.requeue[s], self.ready[s] = Status.LEAVING, int(requeue), 0

    def give_up(self, s: int) -> None:
        """It was preempted and leaves, and will not return to the queue after all."""
        self.requeue[s] = 0

    def clear(self, s: int) -> None:
        """Its pages have been released: the row returns."""
        self.pages[s] = [[] for _ in self.route[s].spans]
        self.paged[s] = 0
        if self.row[s] >= 0:
            self._free_rows.append(self.row[s])
            self.row[s] = -1

    def restart(self, s: int) -> None:
        """Preempted and cleared: it waits to be computed again."""
        self.status[s], self.requeue[s] = Status.WAITING, 0
        self.computed[s] = self.planned[s] = self.cached[s] = 0
        self.known[s] = self.length[s]

    def expired(self, now: float) -> list[int]:
        """Sequences whose deadline has passed and that do not leave yet."""
        self.next_deadline = self.least_deadline(now)
        return [s for s in self.staying() if self.deadline[s] <= now]

    # plans -----------------------------------------------------------------------------------------------------------

    def plan(self, s: int, count: int) -> bool:
        """An open plan computes ``count`` more positions. True when the token after them is to be drawn."""
        self.open[s] += 1
        self.planned[s] += count
        if self.planned[s] == self.known[s] and self.known[s] < self.limit[s]:
            self.known[s] += 1
            return True
        return False

    def plan_decodes(
        self,
        running: Sequence[int],
        at: int,
        end: int,
        budget: int,
        picked: list[int],
        starts: list[int],
        prompts: list[int],
    ) -> int:
        """Plan a token for each sequence of ``running`` from place ``at`` to ``end``, until one needs more than a place in
        the batch.

        Returns that place (``end`` when there is none, or ``budget`` sequences were picked). Picked sequences and their
        positions are appended to ``picked`` and ``starts``, those with more than one position to go to ``prompts``.
        """
        planned, known, ready, opened = self.planned, self.known, self.ready, self.open
        for s in islice(running, at, end):
            start = planned[s]
            if known[s] - start > 1:
                prompts.append(s)
            elif start >= ready[s]:
                return at
            elif not budget:
                return end
            else:
                picked.append(s)
                starts.append(start)
                planned[s] = start + 1
                known[s] = start + 2
                opened[s] += 1
                budget -= 1
            at += 1
        return at

    def commit_decodes(
        self,
        batch: Sequence[int],
        ends: Sequence[int],
        tokens: Sequence[int],
        logprobs: Sequence[TokenLogprob | None],
        at: int,
        emitted: list[TokensEmitted],
        full: list[int],
        tell: set[int] | None = None,
    ) -> int:
        """Take note of one computed position and one drawn token for each row of ``batch`` from place ``at`` on.

        Stops at the first row for which that is not all (it ends, it leaves, or it is no decode, which token -1 says) and
        returns its place. Rows with whose position a page is full are appended to ``full``. ``ends[i]`` is the position
        after the computed one. ``tell``: of these alone gateways are told; None: of all.
        """
        size, ready, limit, stop = self.page_size, self.ready, self.limit, self.stop
        computed, length, lists, opened = self.computed, self.length, self.tokens, self.open
        submissions = self.submission
        told: list[TokenLogprob] = []  # one for all: effects are not changed by whoever gets them
        for i in range(at, len(batch)):
            s, end, token = batch[i], ends[i], tokens[i]
            if token < 0 or end > ready[s] or end + 1 >= limit[s] or token in stop[s]:
                return i
            if end % size == 0:
                full.append(s)
            own = lists[s]
            if len(own) != end:
                own = lists[s] = own[:end]
            own.append(token)
            computed[s] = end
            length[s] = end + 1
            opened[s] -= 1
            if tell is not None and s not in tell:
                continue
            of = submissions[s]
            if logprobs:
                entry = logprobs[i]
                told = [] if entry is None else [entry]
            emitted.append(TokensEmitted(of.gateway, of.request, of.attempt, end, [token], told, ""))
        return len(batch)

    def commit_sweeps(
        self, batch: Sequence[int], starts: Sequence[int], sweeps: int, emitted: list[TokensEmitted], tell: bool
    ) -> list[int]:
        """Take note of so many sweeps, each with one position and one token of every row of ``batch``; the first is planned.

        Tokens are 0. Returns the sequences that are at their end; without ``tell`` only of these is told.
        """
        planned, known, opened, limit = self.planned, self.known, self.open, self.limit
        submissions, ended = self.submission, list[int]()
        told: list[TokenLogprob] = []
        tokens = [0] * sweeps  # one for all, as there
        for s, start in zip(batch, starts, strict=True):
            planned[s] += sweeps - 1
            known[s] += sweeps - 1
            opened[s] -= 1
            end, finish = start + sweeps, ""
            self.reach(s, end)
            if end + 1 >= limit[s]:
                ended.append(s)
                finish = "length"
            if tell or finish:
                of = submissions[s]
                emitted.append(TokensEmitted(of.gateway, of.request, of.attempt, start + 1, tokens, told, finish))
        return ended

    def reach(self, s: int, computed: int) -> None:
        """KV is written up to ``computed``, and as many tokens follow as stepping would have brought, each of them 0."""
        own, length = self.tokens[s], self.length[s]
        if len(own) != length:
            own = self.tokens[s] = own[:length]
        own.extend([0] * (computed + 1 - length))
        self.computed[s], self.length[s] = computed, computed + 1

    def close(self, s: int) -> None:
        """One open plan or flight less names it."""
        self.open[s] -= 1

    def hold(self, s: int) -> None:
        """A flight has come for it, which no plan has taken yet."""
        self.open[s] += 1

    def compute(self, s: int, position: int) -> None:
        """KV is written up to ``position``."""
        self.computed[s] = position

    def append(self, s: int, tokens: Sequence[int]) -> None:
        """Tokens that were drawn."""
        own, length = self.tokens[s], self.length[s]
        if len(own) != length:
            own = self.tokens[s] = own[:length]
        own.extend(tokens)
        self.length[s] = length + len(tokens)

    def hash_pages(self, s: int) -> int:
        """Pages whose KV is written get their hashes, unless they have them. How many of them have one."""
        size, hashed = self.page_size, self.hashed[s]
        full = self.computed[s] // size
        if hashed < full and self._prefix_cache:
            own, tokens = self.hashes[s], self.tokens[s]
            if len(own) != hashed:
                own = self.hashes[s] = own[:hashed]
            previous = own[-1] if own else root_hash(self.submission[s].salt)
            for page in range(hashed, full):
                previous = next_hash(previous, tokens[page * size : (page + 1) * size])
                own.append(previous)
            self.hashed[s] = hashed = full
        return min(hashed, full)

    # pages -----------------------------------------------------------------------------------------------------------

    def list_each(self, batch: list[int], handles: list[int]) -> None:
        """The next page of each sequence of ``batch``, whose routes have one span; one that is there twice gets two."""
        for s, handle in zip(batch, handles, strict=True):
            count, spans = self.paged[s], self.pages[s]
            listed = spans[0]
            if len(listed) != count:
                listed = spans[0] = listed[:count]
            listed.append(handle)
            self.paged[s] = count = count + 1
            if self.place[s] == Place.LOCAL:
                self.ready[s] = min(self.limit[s] - 1, count * self.page_size)

    def list_page(self, s: int, handles: Sequence[int]) -> None:
        """``handles``, one for each span, are its next page."""
        count, spans = self.paged[s], self.pages[s]
        for i, handle in enumerate(handles):
            listed = spans[i]
            if len(listed) != count:
                listed = spans[i] = listed[:count]
            listed.append(handle)
        self.paged[s] = count = count + 1
        if self.place[s] == Place.LOCAL:
            self.ready[s] = min(self.limit[s] - 1, count * self.page_size)
