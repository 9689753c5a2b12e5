"""The sequence table of a worker: every change to a sequence, as a change of its columns, which no other file writes.

A sequence is *home* here (this worker plans it and reports its tokens) or a *guest* (its home is another worker, and a
lease gives it a row and pages here). Only running sequences own a device row and pages. Sequences are small integers,
which are reused.
"""

from __future__ import annotations

from collections.abc import Container, Mapping, Sequence
from itertools import islice

from ..model.lineage import next_hash, root_hash
from ..model.runs import Border, LocalRoute
from ..plan.sweep_plan import TokenLogprob
from ..requests.urgency import risen_by
from .columns import COLUMNS, NEVER_DRAFTED, PURE, Columns, Place, Status
from .events import Submission, TokensEmitted


class RowTable(Columns):
    """The sequence table of one worker (see the module)."""

    # a sequence comes and goes ---------------------------------------------------------------------------------------

    def add(
        self,
        submission: Submission,
        route: LocalRoute,
        deadline: float,
        *,
        guest: bool = False,
        drafts: bool = False,
        now: float = 0.0,
    ) -> int:
        """Add a waiting sequence, which came ``now``, or with ``drafts`` the row of a draft model; return its index."""
        if self._unused:
            s = self._unused.pop()
        else:
            s = len(self.status)
            for name in COLUMNS:
                getattr(self, name).append(0)
        self.submission[s] = submission
        self.status[s], self.row[s] = Status.WAITING, -1
        self.computed[s] = self.planned[s] = self.open[s] = self.paged[s] = self.cached[s] = 0
        self.ready[s] = self.requeue[s] = self.charged[s] = self.drafted[s] = 0
        self.yielded[s] = self.held[s] = 0
        self.priority[s] = submission.priority
        self.since[s] = now - submission.waited
        self.tier[s] = route.tier
        self.plain_until[s], self.impure_from[s] = NEVER_DRAFTED, PURE
        self.length[s] = self.known[s] = len(submission.tokens)
        self.tokens[s] = submission.tokens.copy()
        self.hashes[s] = submission.page_hashes.copy() if self._prefix_cache else []
        self.hashed[s] = len(self.hashes[s])
        self.deadline[s] = deadline
        self.place[s] = Place.DRAFT if drafts else Place.GUEST if guest else Place.LOCAL
        self.reroute(s, route)
        self.pages[s] = [[] for _ in route.spans]
        self.entered[s] = []
        self._fill(s)
        if self.place[s] in (Place.LOCAL, Place.FORWARD):
            self._by_request[submission.request] = s
            self.next_deadline = min(self.next_deadline, deadline)
        return s

    def cut(self, borders: Container[Border], pieces: Mapping[int, list[int]]) -> None:
        """Replace handles after spans were cut, in all sequences, including leaving ones.

        ``pieces``: handle -> its parts.
        """
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
        """Return the borders between the spans of all sequences' routes."""
        routes = {id(self.route[s]): self.route[s] for s in self.live()}
        return {(span.layer, span.lineages[0]) for route in routes.values() for span in route.spans}

    def reroute(self, s: int, route: LocalRoute) -> None:
        """Set the newly published route of ``s``, which has the same components and spans."""
        self.route[s], self.delta[s] = route, route.delta
        if self.place[s] in (Place.LOCAL, Place.FORWARD):
            self.place[s] = Place.LOCAL if route.next_worker is None else Place.FORWARD

    def remove(self, s: int) -> None:
        """Free the index for another sequence."""
        self.unname(s)
        for name in COLUMNS:
            getattr(self, name)[s] = 0
        self._unused.append(s)

    def unname(self, s: int) -> None:
        """Forget the request's name: its gateway will not name this sequence again, or means the next one by it."""
        request = self.submission[s].request
        if self._by_request.get(request) == s:
            del self._by_request[request]

    def find(self, request: str) -> int | None:
        """Return the sequence at home that serves a request, or None."""
        return self._by_request.get(request)

    # status ----------------------------------------------------------------------------------------------------------

    def park(self, s: int) -> None:
        self.status[s] = Status.PARKED

    def lease(self, s: int) -> None:
        self.status[s] = Status.LEASING

    def wait(self, s: int) -> None:
        self.status[s] = Status.WAITING

    def start(self, s: int) -> int:
        """Make a sequence run; return its device row."""
        self.row[s] = row = self._free_rows.pop()
        self.status[s] = Status.RUNNING
        self.ready[s] = self._ready(s)
        return row

    def skip(self, s: int, positions: int) -> None:
        """Set the leading positions that were found in the prefix cache."""
        self.computed[s] = self.planned[s] = self.cached[s] = positions
        self.known[s] = self.length[s]

    def jump(self, s: int, positions: int) -> None:
        """Skip further positions found in the prefix cache, behind the planned ones."""
        self.planned[s] += positions
        self.cached[s] += positions
        if not self.open[s]:
            self.computed[s] = self.planned[s]

    def charge(self, s: int, position: int) -> int:
        """Mark positions below ``position`` as paid; return how many were not."""
        unpaid = max(0, position - self.charged[s])
        self.charged[s] += unpaid
        return unpaid

    def leave(self, s: int, *, requeue: bool) -> None:
        """Make a sequence leave: no new plan names it."""
        self.status[s] = Status.LEAVING
        self.requeue[s] = int(requeue)
        self.ready[s] = 0

    def give_up(self, s: int) -> None:
        """Cancel the return to the queue of a preempted sequence that is leaving."""
        self.requeue[s] = 0

    def clear(self, s: int) -> None:
        """Return the row of a sequence whose pages have been released."""
        self.pages[s] = [[] for _ in self.route[s].spans]
        self.paged[s] = 0
        if self.row[s] >= 0:
            self._free_rows.append(self.row[s])
            self.row[s] = -1

    def rise(self, s: int, since: float) -> None:
        """Let a waiting sequence rise by one service class. ``since``: its next rise is counted from then."""
        self.priority[s], self.since[s] = risen_by(self.priority[s]), since

    def give_row(self, s: int) -> None:
        """Count a row that it gives to an urgent sequence."""
        self.yielded[s] += 1

    def restart(self, s: int, now: float) -> None:
        """Let a preempted and cleared sequence wait to be recomputed. Its wait counts from ``now``."""
        self.status[s] = Status.WAITING
        self.requeue[s] = 0
        self.since[s] = now
        self.computed[s] = self.planned[s] = self.cached[s] = 0
        self.known[s] = self.length[s]

    def expired(self, now: float) -> list[int]:
        """Return the sequences whose deadline has passed and that are not leaving yet."""
        self.next_deadline = self.least_deadline(now)
        return [s for s in self.staying() if self.deadline[s] <= now]

    # plans -----------------------------------------------------------------------------------------------------------

    def plan(self, s: int, count: int) -> bool:
        """Plan ``count`` more positions; return whether the token after them is to be drawn."""
        self.open[s] += 1
        self.planned[s] += count
        if self.planned[s] == self.known[s] and self.known[s] < self.limit[s]:
            self.known[s] += 1
            return True
        return False

    def draft_from(self, s: int, position: int) -> None:
        """Draw the tokens after positions from ``position`` on with drafts; ``NEVER_DRAFTED``: without."""
        self.plain_until[s] = position
        self.ready[s] = self._ready(s)

    def make_private(self, s: int, position: int) -> None:
        """Keep pages with ``position`` or a later one from others: KV from there on follows a guess."""
        self.impure_from[s] = min(self.impure_from[s], position)

    def hold_back(self, s: int, *, held: bool) -> None:
        """Draw no token of ``s`` from now on, or draw them again."""
        self.held[s] = int(held)
        self.ready[s] = self._ready(s)

    def plan_draft_row(self, s: int, count: int) -> None:
        """Plan ``count`` more positions of a draft row, the last ones for drafts that it draws itself."""
        self.open[s] += 1
        self.planned[s] += count

    def end_plan(self, s: int, computed: int) -> None:
        """End an open plan of a draft row: KV is right for its first ``computed`` positions, whose tokens are known."""
        self.open[s] -= 1
        self.computed[s] = computed
        if not self.open[s]:
            self.planned[s] = computed

    def plan_drafts(self, s: int, drafts: int) -> None:
        """Plan the next position and ``drafts`` drafted ones, after each of which a token is drawn."""
        self.open[s] += 1
        self.planned[s] += drafts + 1
        self.known[s] += drafts + 1
        self.drafted[s] = drafts

    def end_drafts(self, s: int) -> None:
        """Forget the drafts that did not stand, after the tokens of their plan have been recorded."""
        self.drafted[s] = 0
        if self.status[s] == Status.RUNNING:
            self.planned[s], self.known[s] = self.computed[s], self.length[s]

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
        """Plan a token for each sequence of ``running`` from place ``at`` to ``end``, until one needs more than a place.

        Return that place; it is ``end`` if there is none, or if ``budget`` sequences were picked. Picked sequences and
        their positions are appended to ``picked`` and ``starts``; sequences with more than one position left are appended
        to ``prompts``.
        """
        planned = self.planned
        known = self.known
        ready = self.ready
        opened = self.open
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
        emit_for: set[int] | None = None,
    ) -> int:
        """Record one computed position and one drawn token for each row of ``batch`` from place ``at`` on.

        Stop at the first row for which that is not all (it ends, it leaves, or it is no decode, marked by token -1) and
        return its place. Rows whose position completes a page are appended to ``full``. ``ends[i]`` is the position after
        the computed one. ``emit_for``: the sequences to report to gateways; None: all.
        """
        size = self.page_size
        ready = self.ready
        limit = self.limit
        stop = self.stop
        computed = self.computed
        length = self.length
        lists = self.tokens
        opened = self.open
        submissions = self.submission
        entries: list[TokenLogprob] = []  # shared by all, since receivers do not change effects
        for i in range(at, len(batch)):
            s = batch[i]
            end = ends[i]
            token = tokens[i]
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
            if emit_for is not None and s not in emit_for:
                continue
            of = submissions[s]
            if logprobs:
                entry = logprobs[i]
                entries = [] if entry is None else [entry]
            emitted.append(TokensEmitted(of.gateway, of.request, of.attempt, end, [token], entries, ""))
        return len(batch)

    def commit_sweeps(
        self, batch: Sequence[int], starts: Sequence[int], sweeps: int, emitted: list[TokensEmitted], emit: bool
    ) -> list[int]:
        """Record ``sweeps`` sweeps, each with one position and one token of every row of ``batch``; the first is planned.

        Tokens are 0. Return the sequences that have ended; without ``emit`` only these are reported.
        """
        planned = self.planned
        known = self.known
        opened = self.open
        limit = self.limit
        submissions, ended = self.submission, list[int]()
        entries: list[TokenLogprob] = []
        tokens = [0] * sweeps  # shared by all, as above
        for s, start in zip(batch, starts, strict=True):
            planned[s] += sweeps - 1
            known[s] += sweeps - 1
            opened[s] -= 1
            end, finish = start + sweeps, ""
            self.reach(s, end)
            if end + 1 >= limit[s]:
                ended.append(s)
                finish = "length"
            if emit or finish:
                of = submissions[s]
                emitted.append(TokensEmitted(of.gateway, of.request, of.attempt, start + 1, tokens, entries, finish))
        return ended

    def reach(self, s: int, computed: int) -> None:
        """Set KV as written up to ``computed``, with as many tokens as stepping would have brought, each of them 0."""
        own, length = self.tokens[s], self.length[s]
        if len(own) != length:
            own = self.tokens[s] = own[:length]
        own.extend([0] * (computed + 1 - length))
        self.computed[s], self.length[s] = computed, computed + 1

    def close(self, s: int) -> None:
        """Count one open plan or flight less that names it."""
        self.open[s] -= 1

    def hold(self, s: int) -> None:
        """Count a flight that has arrived for it and that no plan has taken yet."""
        self.open[s] += 1

    def compute(self, s: int, position: int) -> None:
        """Set KV as written up to ``position``."""
        self.computed[s] = position

    def append(self, s: int, tokens: Sequence[int]) -> None:
        """Append drawn tokens."""
        own, length = self.tokens[s], self.length[s]
        if len(own) != length:
            own = self.tokens[s] = own[:length]
        own.extend(tokens)
        self.length[s] = length + len(tokens)

    def append_known(self, s: int, tokens: Sequence[int]) -> None:
        """Append tokens that another row has drawn."""
        self.append(s, tokens)
        self.known[s] = self.length[s]

    def hash_pages(self, s: int) -> int:
        """Hash the pages whose KV is written, unless they have a hash; return how many have one."""
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
        """List the next page of each sequence of ``batch``, whose routes have one span.

        A sequence listed twice gets two.
        """
        for s, handle in zip(batch, handles, strict=True):
            count, spans = self.paged[s], self.pages[s]
            listed = spans[0]
            if len(listed) != count:
                listed = spans[0] = listed[:count]
            listed.append(handle)
            self.paged[s] = count = count + 1
            if self.place[s] == Place.LOCAL and not self.held[s]:
                self.ready[s] = min(self.limit[s] - 1, count * self.page_size, self.plain_until[s])

    def enter(self, s: int, end: int, handle: int) -> None:
        """Note a page of hidden states that is read for positions up to ``end``."""
        self.entered[s] = [*self.entered[s], (end, handle)]

    def end_entries(self, s: int, computed: int) -> list[int]:
        """Forget the pages of hidden states read for positions below ``computed``; return them, the last first."""
        ended = [handle for end, handle in self.entered[s] if end <= computed]
        self.entered[s] = [(end, handle) for end, handle in self.entered[s] if end > computed]
        return ended[::-1]

    def replace_page(self, s: int, page: int, handle: int) -> None:
        """List another handle for a page on the last span. Forks read the former list."""
        listed = self.pages[s][-1][: self.paged[s]]
        listed[page] = handle
        self.pages[s] = [*self.pages[s][:-1], listed]

    def list_page(self, s: int, handles: Sequence[int]) -> None:
        """List ``handles``, one for each span, as its next page."""
        count, spans = self.paged[s], self.pages[s]
        for i, handle in enumerate(handles):
            listed = spans[i]
            if len(listed) != count:
                listed = spans[i] = listed[:count]
            listed.append(handle)
        self.paged[s] = count = count + 1
        if self.place[s] == Place.LOCAL and not self.held[s]:
            self.ready[s] = min(self.limit[s] - 1, count * self.page_size, self.plain_until[s])
