"""The life of a sequence across the sub-states: it is submitted, runs, produces tokens, publishes pages, and leaves.

Its resources (a row, pages, a lease) return when it has left and no open plan or flight names it any more.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from ..drafts.options import GRAMMAR
from ..model.chain import Route
from ..model.runs import LocalRoute, Span
from ..model.tier_work import FamilyTier
from ..plan.grammar import Grammar
from ..plan.sweep_plan import FAILED, OFF_GRAMMAR, TokenLogprob
from ..requests.admission import BROKEN, CROWDED, REFUSED, UNHELD, YIELDED, admit
from .columns import FOREVER, Status
from .draft_rows import DraftRows
from .events import (
    DraftsVerified,
    GivenBack,
    GrammarReady,
    GrammarUnused,
    GrammarWanted,
    LeaseGranted,
    LeaseReturned,
    Preempted,
    Progressed,
    PromptScored,
    SatOut,
    Submission,
    TokensEmitted,
)
from .parts import Parts

Found = list[list[int | None]]  # for each leading page, the published handle of each span or None


def hosts(route: Route) -> list[str]:
    """Return the workers that a home asks for leases, in this order: the last hop first."""
    return [hop.worker for hop in route.hops[:0:-1]]


class Sequences:
    """The procedures on one worker's sequences (see the module).

    Owns nothing itself: it calls the sub-states in the right order.
    """

    def __init__(self, parts: Parts) -> None:
        self._parts, self.draft_rows = parts, DraftRows(parts)

    # in --------------------------------------------------------------------------------------------------------------

    def submit(self, submission: Submission, now: float) -> None:
        """Add a sequence that a gateway wants to run here, or give it back."""
        parts = self._parts
        if (old := parts.rows.find(submission.request)) is not None:
            self.drop(old)
        local = parts.routes.home(submission.route)
        if local is None:
            self.give_back(submission, "route")
        elif reason := self.refusal(local, submission):
            parts.outgoing.count("refused", reason.startswith(REFUSED))
            self.give_back(submission, reason)
        else:
            deadline = now + submission.timeout if submission.timeout > 0 else FOREVER
            s = parts.rows.add(submission, local, deadline, now=now)
            if parts.drafts.takes(submission):
                parts.drafts.add(s, submission, local.route.application)
                parts.rows.draft_from(s, 0)
            parts.outgoing.count("prompt_tokens", submission.prompt_length)
            parts.enqueue(s)

    def refusal(self, local: LocalRoute, submission: Submission) -> str:
        """Return why it cannot run here, as in ``GivenBack``; "" if it can."""
        tokens, account = submission.max_length, submission.tenant
        grammar = submission.sampling.grammar if local.next_worker is None else None
        beside = 0 if grammar is None else grammar.nbytes + grammar.vocabulary.nbytes
        if not (now := admit(tokens, self.capacity(local, account, grammar=grammar), beside)):
            return ""
        alone = local.route.application if self._parts.config.on_demand else ""
        ever = admit(tokens, self.capacity(local, account, alone, grammar), beside)
        return REFUSED + ever if ever else CROWDED + now

    def capacity(self, local: LocalRoute, account: str, alone: str = "", grammar: Grammar | None = None) -> int:
        """Return the tokens of one sequence of this account on this route that fit with nothing else here.

        ``alone``, ``grammar``: as in ``WorkerMemory.pages_of``.
        """
        if not local.spans:
            return local.max_length
        pages = self._parts.memory.pages_of(local.kv, account, alone, grammar)
        return min(pages * self._parts.config.page_size, local.max_length)

    def expire(self, now: float) -> None:
        """Return sequences at home whose deadline has passed to their gateways."""
        rows = self._parts.rows
        if now < rows.next_deadline:
            return
        for s in rows.expired(now):
            self._parts.outgoing.count("expired")
            self.give_back(rows.submission[s], "deadline")
            self.drop(s)

    def give_back(self, submission: Submission, reason: str) -> None:
        self._parts.outgoing.emit(GivenBack(submission.gateway, submission.request, submission.attempt, reason))

    # out -------------------------------------------------------------------------------------------------------------

    def drop(self, s: int) -> None:
        """End a sequence, wherever it is: no later plan names it."""
        rows = self._parts.rows
        rows.unname(s)
        if rows.status[s] == Status.LEAVING:
            rows.give_up(s)
            return
        if rows.status[s] == Status.WAITING:
            self._parts.dequeue(s)
        elif rows.status[s] == Status.PARKED:
            self._parts.pending_pages.unpark(s)
        self.leave(s, requeue=False)

    def leave(self, s: int, *, requeue: bool) -> None:
        """Take a sequence out of all new plans.

        Row and pages return now, or at the end of the last open plan or flight with it.
        """
        rows = self._parts.rows
        self.draft_rows.end(s)
        if not rows.is_guest(s):
            if rows.status[s] == Status.RUNNING:
                self._parts.queue.stop(rows.key(s))
            spans = rows.route[s].spans
            if spans and not self._parts.pending_pages.empty:
                self.made(s, [(token_hash, spans[-1].lineage) for token_hash in rows.hashes_of(s)])
        rows.leave(s, requeue=requeue)
        self.settle(s)

    def preempt(self, s: int, *, urgent: bool = False) -> None:
        """Preempt a sequence: it gives up all its memory, here and at its hosts, and returns to its place in the queue.

        An offline one returns to its gateway, which keeps it until there is room again. ``urgent``: it is preempted for the
        start of an urgent sequence.
        """
        rows, outgoing = self._parts.rows, self._parts.outgoing
        of = rows.submission[s]
        if rows.is_offline(s):
            outgoing.count("offline_yielded")
            self.give_back(of, YIELDED)
            self.drop(s)
            return
        if rows.status[s] == Status.RUNNING:  # else it loses nothing but leases
            outgoing.count("preemptions")
            outgoing.emit(Preempted(of.gateway, of.request, of.attempt, urgent))
        self.leave(s, requeue=True)

    def settle(self, s: int) -> None:
        """Finish leaving if nothing names the sequence any more."""
        parts, rows = self._parts, self._parts.rows
        if rows.status[s] != Status.LEAVING or rows.open[s]:
            return
        self.charge(s, max(rows.length[s], rows.computed[s]))
        if rows.entered[s]:
            parts.memory.pages.release(rows.end_entries(s, 1 << 60), rows.tenant[s])
        parts.memory.pages.release(rows.handles(s), rows.tenant[s])
        rows.clear(s)
        self._unconstrain(s)
        lease = parts.leases.end(s)
        parts.return_timeouts.end(s)
        parts.guesses.end(s)
        if lease is not None and not rows.is_guest(s):
            for host in hosts(rows.route[s].route)[: lease.granted + 1]:  # the last one may have been asked only
                parts.outgoing.send(host, LeaseReturned(lease.home, lease.number))
        if rows.requeue[s]:
            rows.restart(s, parts.now)
            parts.enqueue(s)
        else:
            parts.drafts.remove(s)
            rows.remove(s)

    def made(self, s: int, keys: Iterable[tuple[bytes, bytes]]) -> None:
        """Wake the sequences that wait for these pages, since ``s`` has published them, or leaves."""
        parts = self._parts
        for sleeper in parts.pending_pages.clear(keys, s):
            parts.rows.wait(sleeper)
            parts.enqueue(sleeper)

    def sitting_out(self, parked: Iterable[int]) -> list[SatOut]:
        """Return the report on a sweep that these sequences sit out. Its seconds are not known yet."""
        named = [self._parts.rows.submission[s] for s in parked]
        return [SatOut(of.gateway, of.request, of.attempt, 1, 0.0) for of in named]

    # grammars --------------------------------------------------------------------------------------------------------

    def grammar(self, s: int) -> Grammar | None:
        """Return the grammar of a sequence whose tokens are drawn here."""
        rows = self._parts.rows
        return None if rows.route[s].next_worker is not None else rows.submission[s].sampling.grammar

    def constrain(self, s: int) -> None:
        """Take memory for the grammar of a sequence that starts; no token of it is drawn before that is compiled."""
        parts = self._parts
        if (grammar := self.grammar(s)) is None:
            return
        new = parts.memory.grammars.pin(grammar)
        self.tell_evicted()
        if parts.grammars.add(s, grammar.key, new=new):
            parts.outgoing.order(GrammarWanted(grammar, parts.rows.tenant[s]))
        parts.rows.hold_back(s, held=parts.grammars.waits(s))
        if not parts.outgoing.edited:
            self.draw_all()

    def _unconstrain(self, s: int) -> None:
        """Unpin the grammar of a sequence that has left. One that is not compiled yet, or could not be, is not kept."""
        parts = self._parts
        if (key := parts.grammars.key(s)) is None:
            return
        compiled = parts.grammars.remove(s)
        parts.rows.hold_back(s, held=False)
        parts.memory.grammars.unpin(key, keep=compiled)

    def tell_evicted(self) -> None:
        """Emit the effects of grammars whose memory was taken."""
        for key in self._parts.memory.grammars.take_evicted():
            self._parts.outgoing.order(GrammarUnused(key))

    def begin_drawing(self, event: GrammarReady) -> None:
        """Let the sequences with a grammar draw tokens, or fail if it cannot be compiled here."""
        parts, rows = self._parts, self._parts.rows
        if event.fault:
            for s in parts.grammars.failed(event.key):
                if rows.is_guest(s):
                    refusal = LeaseGranted(parts.config.worker, parts.leases.number(s), 0, UNHELD + event.fault)
                    parts.outgoing.send(parts.leases.home(s), refusal)
                else:
                    self.give_back(rows.submission[s], UNHELD + event.fault)
                self.drop(s)
            return
        for s, owed in parts.grammars.ready(event.key):
            rows.hold_back(s, held=False)
            if owed >= 0 and rows.status[s] == Status.RUNNING:
                number = parts.leases.number(s)
                parts.outgoing.send(parts.leases.home(s), LeaseGranted(parts.config.worker, number, owed))

    def draw_all(self) -> None:
        """Let all sequences draw, as no device waits for grammars."""
        for key in self._parts.grammars.compiling():
            self.begin_drawing(GrammarReady(key))

    # on --------------------------------------------------------------------------------------------------------------

    def advance(
        self,
        s: int,
        start: int,
        computed: int,
        tokens: Sequence[int],
        logprobs: list[TokenLogprob],
        vector: bytes = b"",
    ) -> None:
        """Record that KV of ``s`` is computed from ``start`` to ``computed``, followed by ``tokens`` or a ``vector``.

        It reports them, publishes pages, and perhaps finishes the sequence. KV before ``start`` is unchanged.
        """
        rows = self._parts.rows
        if rows.status[s] == Status.LEAVING and not rows.requeue[s]:
            return
        position = rows.length[s]
        if not rows.is_guest(s) and tokens and tokens[-1] in FAILED:
            if len(tokens) > 1:
                self.advance(s, start, start + len(tokens) - 1, tokens[:-1], logprobs)
                position = rows.length[s]
            self.break_off(s, position, tokens[-1])
            return
        self.compute(s, start, computed, tokens)
        if not rows.is_guest(s):
            self.emit(s, position, tokens, logprobs, vector)

    def verify(self, s: int, start: int, tokens: list[int], logprobs: list[TokenLogprob]) -> None:
        """Record a round of a sequence at home: its ``tokens`` up to the first that ends it.

        All but the last are drafts that stood.
        """
        parts, rows = self._parts, self._parts.rows
        drafted, accepted = rows.drafted[s], len(tokens) - 1
        last = next((n for n, token in enumerate(tokens, 1) if token in rows.stop[s]), len(tokens))
        tokens = tokens[:last]
        logprobs = logprobs[:last]
        counting = min(accepted, last)
        if parts.drafts.wanted and (rows.status[s] != Status.LEAVING or rows.requeue[s]):
            drafts, of = parts.drafts.of(s), rows.submission[s]
            drafts.record(drafted, accepted)
            parts.drafts.paces.end(s, len(tokens))
            if drafts.source == GRAMMAR:
                parts.outgoing.count("forced_tokens", counting)
            else:
                parts.outgoing.count("draft_rounds", 1)
                parts.outgoing.count("drafted_tokens", drafted)
                parts.outgoing.count("accepted_tokens", counting)
                parts.outgoing.emit(DraftsVerified(of.gateway, of.request, of.attempt, drafts.source, drafted, counting))
        self.advance(s, start, start + len(tokens), tokens, logprobs)
        rows.end_drafts(s)

    def break_off(self, s: int, position: int, failed: int) -> None:
        """End a sequence without a next token: the model's result for this position is not a number, or has no mask."""
        if failed == OFF_GRAMMAR:
            why = f"the mask of the grammar at token {position + 1:,} of the sequence costs more than the limits allow; "
            self.give_back(self._parts.rows.submission[s], UNHELD + why + "send a simpler schema or grammar")
            self.drop(s)
            return
        why = (
            f"the activations of the model overflow, or are no numbers, at token {position + 1:,} of the sequence; "
            "check its weights and adapters, or try --set dtype=float32"
        )
        self.give_back(self._parts.rows.submission[s], BROKEN + why)
        self.drop(s)

    def compute(self, s: int, start: int, computed: int, tokens: Sequence[int]) -> None:
        """Update the sequence itself, as a part of ``advance``."""
        rows = self._parts.rows
        before = rows.computed[s]
        self._parts.outgoing.count("computed_tokens", computed - max(before, start))
        rows.compute(s, computed)
        rows.append(s, tokens)
        if rows.entered[s]:
            self._parts.memory.pages.release(rows.end_entries(s, computed), rows.tenant[s])
        if computed // rows.page_size > before // rows.page_size and rows.status[s] == Status.RUNNING:
            self.publish(s, before)

    def decoded(self, rows: int, emitted: list[TokensEmitted], full: list[int]) -> None:
        """Do the rest of ``advance`` for ``rows`` rows that computed one position and drew one token each.

        ``full``: the rows whose position completed a page.
        """
        outgoing = self._parts.outgoing
        outgoing.count("computed_tokens", rows)
        outgoing.count("generated_tokens", rows)
        outgoing.emit_all(emitted)
        for s in full:
            self.publish(s, self._parts.rows.computed[s] - 1)

    def emit(self, s: int, position: int, tokens: Sequence[int], logprobs: list[TokenLogprob], vector: bytes = b"") -> None:
        """Report tokens from ``position`` on to the gateway, or progress without any. The last token ends the sequence."""
        outgoing, rows = self._parts.outgoing, self._parts.rows
        of = rows.submission[s]
        if not tokens:
            outgoing.emit(Progressed(of.gateway, of.request, of.attempt, rows.computed[s], rows.cached[s]))
            return
        pooled = of.sampling.pooling is not None
        outgoing.count("generated_tokens", 0 if pooled else len(tokens))
        finish = "length" if rows.length[s] >= of.limit else ""
        if pooled or tokens[-1] in of.stop_tokens:
            finish = "stop"
        outgoing.emit(TokensEmitted(of.gateway, of.request, of.attempt, position, list(tokens), logprobs, finish, vector))
        if finish:
            self.drop(s)

    def score(self, s: int, start: int, entries: list[TokenLogprob]) -> None:
        """Report the log-probabilities of the prompt tokens behind position ``start`` of ``s``."""
        of = self._parts.rows.submission[s]
        if entries:  # none if their states are pooled on the device
            self._parts.outgoing.emit(PromptScored(of.gateway, of.request, of.attempt, start + 1, entries))

    def charge(self, s: int, position: int) -> None:
        """Charge the account of a started sequence for what it has computed up to ``position``.

        Called page by page and at the end. In between, counters lack less than a page of each running sequence, and a
        sweep of decoding rows costs nothing.
        """
        rows = self._parts.rows
        if rows.charged[s] and (tokens := rows.charge(s, position)):
            self._parts.queue.charge_answer(rows.key(s), rows.tenant[s], tokens, rows.tier[s])

    def charge_all(self, batch: Sequence[int], computed: Sequence[int]) -> None:
        """Charge accounts for the pages of their rows that are full once positions below ``computed`` are."""
        rows = self._parts.rows
        costs: dict[tuple[int, str, FamilyTier | None], int] = {}
        for s, end in zip(batch, computed, strict=True):
            full = end - end % rows.page_size
            if full > rows.computed[s] and rows.charged[s]:
                of = (rows.priority[s], rows.tenant[s], rows.tier[s])
                costs[of] = costs.get(of, 0) + rows.charge(s, full)
        for (priority, account, tier), tokens in costs.items():
            self._parts.queue.charge_answer((priority, 0.0, 0), account, tokens, tier)

    def publish(self, s: int, before: int) -> None:
        """Charge for the full pages computed since position ``before``, and publish them for others."""
        rows, pages = self._parts.rows, self._parts.memory.pages
        self.charge(s, rows.computed[s])
        if not rows.route[s].spans:
            return
        lineage = rows.route[s].spans[-1].lineage
        full = min(rows.hash_pages(s), rows.impure_from[s] // rows.page_size)
        hashes, lists = rows.hashes[s], rows.pages[s]
        for page in range(before // rows.page_size, full):
            token_hash = hashes[page]
            for handles in lists:
                pages.publish(handles[page], token_hash)
            if not self._parts.pending_pages.empty:
                self.made(s, [(token_hash, lineage)])

    def announce(self, s: int) -> None:
        """Announce the full prompt pages that ``s`` will make, so that others can wait for them."""
        rows, pages = self._parts.rows, self._parts.memory.pages
        spans = rows.route[s].spans
        if not spans or rows.is_guest(s):
            return
        for token_hash in rows.hashes_of(s)[rows.computed[s] // rows.page_size :]:
            if any(pages.find(token_hash, span) is None for span in spans):
                key = (token_hash, spans[-1].lineage)
                if (maker := self._parts.pending_pages.maker(key)) is None or not self._waits_for(s, maker):
                    self._parts.pending_pages.announce(key, s)

    def look_up(self, s: int) -> Found:
        """Return the published pages of the prompt that may be skipped; trimmed at the end."""
        rows, pages = self._parts.rows, self._parts.memory.pages
        found: Found = []
        if rows.submission[s].scored:
            return found
        for token_hash in rows.hashes_of(s)[: (rows.known[s] - 1) // rows.page_size]:
            handles = [pages.find(token_hash, span) for span in rows.route[s].spans]
            if all(handle is None for handle in handles[: rows.route[s].kv_spans]):
                break
            found.append(handles)
        return found

    def _waits_for(self, s: int, maker: int) -> bool:
        """Return whether ``s`` leaves a page to its maker.

        Offline makers come last, so only offline sequences wait for them.
        """
        return self._parts.rows.is_offline(s) or not self._parts.rows.is_offline(maker)

    def park(self, s: int) -> bool:
        """Park ``s``, the first of the queue, if it can then skip pages of another sequence; return whether it waits."""
        rows = self._parts.rows
        pages = self._parts.memory.pages
        pending_pages = self._parts.pending_pages
        local = rows.route[s]
        if not local.spans or pending_pages.empty or rows.is_guest(s) or rows.submission[s].scored:
            return False
        whole = local.spans[: local.kv_spans]
        last = b""
        awaited = local.spans[-1]
        for token_hash in rows.hashes_of(s)[: (rows.known[s] - 1) // rows.page_size]:
            if self._awaits(s, token_hash, local.spans[-1]):
                last, awaited = token_hash, local.spans[-1]
            elif any(pages.find(token_hash, span) is None for span in whole):
                entry = next((exit for exit in local.entries if self._awaits(s, token_hash, exit.span)), None)
                if entry is not None:
                    last, awaited = token_hash, entry.span
                elif all(pages.find(token_hash, exit.span) is None for exit in local.entries):
                    break
        needed = whole if awaited is local.spans[-1] else (awaited,)
        if not last or all(pages.find(last, span) is not None for span in needed):
            return False
        rows.park(s)
        pending_pages.park((last, awaited.lineage), s)
        return True

    def _awaits(self, s: int, token_hash: bytes, span: Span) -> bool:
        """Return whether another sequence has announced a page up to ``span``, and ``s`` leaves it to its maker."""
        maker = self._parts.pending_pages.maker((token_hash, span.lineage))
        return maker is not None and maker != s and self._waits_for(s, maker)
