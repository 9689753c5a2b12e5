"""Pipeline parallelism: the protocol for sequences whose route crosses workers, at the home and at a host.

Before a sequence starts, its home asks each host of the route for a lease (``leases.py``), one after the other. The grant
says which pages the host has already. Rows leave with a flight, the last host reports their results, and each host
publishes what it computed. While a sequence decodes, its home asks all hosts for the next page when it begins the last
one.

There is no deadlock, no circular wait, because a sequence that holds memory anywhere waits only for older sequences
(wound-wait: Rosenkrantz, Stearns and Lewis, "System Level Concurrency Control for Distributed Database Systems", 1978).
All sequences of the cluster have one order, by class, arrival and name (``preemption.py``). A sequence that needs memory
and has some already, here or elsewhere (a row that decodes, a guest that grows, a sequence that has leases and starts),
takes it from a younger one. The home preempts its own sequence; a host revokes the lease of a guest, whose home preempts
it everywhere. The guest's home cannot refuse. What it has in flight comes back first, without waiting, as all that it
needs was granted before it left. So the oldest sequence of all waits for nothing that does not come, is never preempted,
and ends; then the next is the oldest. A sequence that waits in a queue, or for a page that another one makes, has no
memory, and none waits for it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from ..plan.sweep_plan import FAILED, FlightRow, SweepPlan, SweepResult, TokenLogprob, WriteTokens
from .columns import FOREVER, Place, Status
from .events import (
    Flight,
    FlightDone,
    GrowthGranted,
    GrowthWanted,
    GuessesJudged,
    GuessesStand,
    LeaseGranted,
    LeaseReturned,
    LeaseRevoked,
    LeaseWanted,
    PeerLost,
)
from .guesses import OpenGuess, standing
from .parts import Parts
from .preemption import overdue_guest
from .sequences import Sequences, hosts

# Pages of a lease beyond the one being filled. One is enough for a row never to wait: it has as many round trips to
# come as a page has tokens, and a row makes one round trip for each token. A second page would mostly stay unused.
STEP = 1


class Pipeline:
    """The pipeline protocol of one worker (see the module). Owns nothing itself."""

    def __init__(self, parts: Parts, sequences: Sequences) -> None:
        self._parts, self._sequences = parts, sequences

    # at the home -----------------------------------------------------------------------------------------------------

    def ask(self, s: int) -> bool:
        """Ask for the leases of ``s``, if its route crosses workers; return whether it does and waits for them."""
        rows = self._parts.rows
        if rows.place[s] != Place.FORWARD:
            return False
        rows.lease(s)
        self._sequences.announce(s)
        self._ask_next(s)
        return True

    def _ask_next(self, s: int) -> None:
        parts, rows = self._parts, self._parts.rows
        asked = hosts(rows.route[s].route)
        lease = parts.leases.ask(s, self._pages(s, rows.length[s]), "+".join(asked))
        known, hashes = rows.tokens_of(s), rows.hashes_of(s)
        submission = replace(rows.submission[s], tokens=known, page_hashes=hashes, drafts=None)  # they come with flights
        held = parts.page_pins.find(submission.request) is not None
        wanted = LeaseWanted(lease.home, lease.number, submission, lease.wanted, held)
        parts.outgoing.send(asked[lease.granted], wanted)

    def _pages(self, s: int, positions: int) -> int:
        """Return the pages that hosts should have for ``positions``."""
        rows = self._parts.rows
        return min(-(-positions // rows.page_size) + STEP, -(-rows.submission[s].max_length // rows.page_size))

    def covers(self, s: int, positions: int, growing: list[int]) -> bool:
        """Return whether all hosts have pages for ``positions`` of ``s``.

        It joins ``growing`` if they are to be asked for more.
        """
        leases, rows = self._parts.leases, self._parts.rows
        if leases.want(s, self._pages(s, positions), len(rows.route[s].route.hops) - 1):
            growing.append(s)
        return leases.pages(s) * rows.page_size >= positions

    def ask_pages(self, growing: Sequence[int]) -> None:
        """Ask for more pages, with one message to each host for all sequences of a plan."""
        parts, rows = self._parts, self._parts.rows
        asked: dict[str, list[tuple[int, int]]] = {}
        for s in growing:
            if rows.status[s] == Status.RUNNING:  # else it was preempted since
                for host in hosts(rows.route[s].route):
                    asked.setdefault(host, []).append((parts.leases.number(s), parts.leases.wanted(s)))
        for host, wanted in asked.items():
            parts.outgoing.send(host, GrowthWanted(parts.config.worker, wanted))

    def extended(self, event: GrowthGranted) -> None:
        """Handle a host's grant of more pages."""
        for number in event.leases:
            if (s := self._parts.leases.find(self._parts.config.worker, number)) is not None:
                self._parts.leases.grow(s)

    def revoked(self, event: LeaseRevoked) -> None:
        """Handle a revocation: a host needs the memory for an older sequence, so this one starts anew, everywhere."""
        s = self._parts.leases.find(self._parts.config.worker, event.lease)
        if s is not None and self._parts.rows.status[s] != Status.LEAVING:
            self._sequences.preempt(s)

    def granted(self, event: LeaseGranted) -> None:
        """Handle a host's grant: ask the next host, or let the sequence start."""
        parts = self._parts
        rows = self._parts.rows
        worker = self._parts.config.worker
        s = parts.leases.find(worker, event.lease)
        if event.refused:
            if s is not None:
                self.abandon(s, event.refused)
        elif s is None:  # it has left meanwhile, or belonged to an earlier life of this worker
            parts.outgoing.send(event.host, LeaseReturned(worker, event.lease))
        elif rows.status[s] == Status.LEASING:
            if parts.leases.grant(s, event.cached) < len(rows.route[s].route.hops) - 1:
                self._ask_next(s)
            else:
                parts.leases.hold(s)

    def abandon(self, s: int, reason: str) -> None:
        """Return a sequence at home to its gateway because it cannot go on, whatever it has in flight."""
        rows = self._parts.rows
        for _ in range(self._parts.leases.recall(s)):
            rows.close(s)
        if rows.status[s] != Status.LEAVING or rows.requeue[s]:
            self._sequences.give_back(rows.submission[s], reason)
            self._sequences.drop(s)
        self._sequences.settle(s)

    def returned(self, event: FlightDone) -> None:
        """Handle rows that have passed their last stage."""
        parts = self._parts
        rows = self._parts.rows
        sequences = self._sequences
        news = iter(zip(event.tokens, event.logprobs, strict=True))
        scores = dict(event.scores)
        verified = {place: (tokens, logprobs) for place, tokens, logprobs in event.verified}
        vectors = dict(event.vectors)
        forced = dict(event.forced)
        for place, row in enumerate(event.rows):
            token, logprob = next(news) if row.sample else (None, None)
            s = parts.leases.find(parts.config.worker, row.lease)
            if s is None or not parts.leases.flying(s):
                continue
            parts.leases.bring_back(s)
            more, entries = verified.get(place, ([], []))
            tokens, logprobs = [] if token is None else [token, *more], [] if logprob is None else [logprob, *entries]
            pooled = place in vectors
            if rows.status[s] == Status.RUNNING and tokens and tokens[0] not in FAILED and not pooled:
                parts.outgoing.edit(WriteTokens(rows.row[s], rows.length[s], [max(known, 0) for known in tokens]))
            if place in scores:
                sequences.score(s, row.start, scores[place])
            if place in verified:
                sequences.verify(s, row.start, tokens, logprobs)
            else:
                sequences.advance(s, row.start, row.start + row.count, tokens, logprobs, vectors.get(place, b""))
            if place in forced:
                parts.drafts.force(s, rows.length[s], forced[place])
            rows.close(s)
            sequences.settle(s)

    # at a host -------------------------------------------------------------------------------------------------------

    def wanted(self, event: LeaseWanted, now: float) -> None:
        """Handle a home's request for a lease.

        A sequence's first request queues with our own, and its account pays here too.
        """
        parts, submission = self._parts, event.submission
        local = parts.routes.guest(submission.route)
        if local is None:
            self._refuse(event.home, event.lease, "route")
        elif reason := self._sequences.refusal(local, submission):
            self._refuse(event.home, event.lease, reason)
        else:
            s = parts.rows.add(submission, local, FOREVER, guest=True, now=now)
            behind = local.next_worker is not None  # the hosts behind have granted theirs
            urgent = behind or event.urgent or parts.page_pins.find(submission.request) is not None
            parts.leases.queue(s, event.home, event.lease, event.pages, urgent=urgent)
            if urgent:
                parts.rows.lease(s)
            else:
                parts.enqueue(s)

    def pages_wanted(self, event: GrowthWanted) -> None:
        """Handle a home's request for more pages: the next plan takes them, or makes room."""
        for number, pages in event.leases:
            if (s := self._parts.leases.find(event.home, number)) is not None:
                self._parts.leases.await_pages(s, pages)

    def grant_pages(self, guests: Sequence[int]) -> None:
        """Grant these guests the wanted pages, with one message to each home."""
        parts = self._parts
        granted: dict[str, list[int]] = {}
        for s in guests:
            granted.setdefault(parts.leases.home(s), []).append(parts.leases.extend(s))
        for home, numbers in granted.items():
            parts.outgoing.send(home, GrowthGranted(parts.config.worker, numbers))

    def revoke(self, s: int) -> None:
        """Revoke a guest's lease. Its memory returns when its home has called back the rows in flight."""
        leases = self._parts.leases
        leases.revoke(s)
        self._parts.outgoing.send(leases.home(s), LeaseRevoked(self._parts.config.worker, leases.number(s)))

    def revoke_overdue(self, s: int, now: float) -> None:
        """Make room for the start of ``s`` at the cost of a guest that should have been back."""
        leases = self._parts.leases
        lent = set() if leases.revoked else set(leases.lent())
        overdue = [guest for guest in self._parts.return_timeouts.overdue(now) if guest in lent]
        if (guest := overdue_guest(self._parts.rows, overdue, s)) is not None:
            self.revoke(guest)

    def _refuse(self, home: str, lease: int, reason: str) -> None:
        self._parts.outgoing.send(home, LeaseGranted(self._parts.config.worker, lease, 0, reason))

    def given_back(self, event: LeaseReturned) -> None:
        """Handle a lease that the home no longer needs. Published pages stay as cache."""
        s = self._parts.leases.find(event.home, event.lease)
        if s is not None:
            self._sequences.drop(s)

    def dismiss(self, s: int, reason: str = "route") -> None:
        """End a guest that cannot go on: its route is no longer in force here (``reason``), or another of its hosts is lost.

        Its home may not know that yet, or never learn it.
        """
        leases = self._parts.leases
        if self._parts.rows.status[s] != Status.LEAVING:
            self._refuse(leases.home(s), leases.number(s), reason)
            self._sequences.drop(s)

    def arrived(self, flight: Flight, now: float) -> None:
        """Handle arrived rows. If some have no lease any more the others go back, too: their states came in one flight."""
        if (guests := self._parts.leases.arrive(flight)) is None:
            for s in self._parts.leases.guests(flight):
                self.dismiss(s, "host-lost")
            return
        for s, row in zip(guests, flight.rows, strict=True):
            (self._parts.guesses.come if row.guess else self._parts.guesses.fall)(s, row.start)
        for s in guests:
            self._parts.rows.hold(s)
            self._parts.return_timeouts.come(s, now)
        if any(map(self._leaves, guests)):  # the route vanished while a chunk was in flight
            self.cancel_flights()

    # guesses -----------------------------------------------------------------------------------------------------------

    def judge(self, plan: SweepPlan, result: SweepResult, sequences: Sequence[int]) -> None:
        """Notify all later stages which guesses of a plan of this home stand, and report to the gateways how many."""
        parts, rows = self._parts, self._parts.rows
        stand = standing(plan, result)
        told: dict[str, list[tuple[int, int]]] = {}
        for guess in plan.guesses:
            for i, row in zip(guess.sent.batch, guess.sent.rows, strict=True):
                s, of = sequences[i], rows.submission[sequences[i]]
                parts.outgoing.count("guessed_states")
                parts.outgoing.count("accepted_guesses", int(i in stand))
                parts.outgoing.emit(GuessesJudged(of.gateway, of.request, of.attempt, 1, int(i in stand)))
                for host in hosts(rows.route[s].route) if i in stand else ():
                    told.setdefault(host, []).append((row.lease, row.start))
        for host, verdicts in told.items():
            parts.outgoing.send(host, GuessesStand(parts.config.worker, verdicts))

    def accept(self, event: GuessesStand) -> None:
        """Handle the verdicts on guesses for guests: what was computed on them counts, but is not shared."""
        returns = Returns(self._parts, {})
        for number, start in event.rows:
            s = self._parts.leases.find(event.home, number)
            if s is not None and (guess := self._parts.guesses.accept(s, start)) is not None:
                self.count_guess(s, guess, returns)
        returns.send()

    def suppose(self, s: int, start: int, tokens: list[int], logprobs: list[TokenLogprob], returns: Returns) -> None:
        """Handle the results of a row on a guess: they count if the guess stands already, and else wait."""
        if (guess := self._parts.guesses.compute(s, start, tokens, logprobs)) is not None:
            self.count_guess(s, guess, returns)

    def count_guess(self, s: int, guess: OpenGuess, returns: Returns) -> None:
        """Let what was computed on a guess count."""
        rows = self._parts.rows
        tokens, logprobs = guess.tokens, guess.logprobs
        rows.make_private(s, guess.start)
        if rows.route[s].next_worker is None and rows.status[s] == Status.RUNNING:
            returns.add(s, guess.start, 1, tokens, logprobs[0] if logprobs else None, None)
        self._sequences.advance(s, guess.start, guess.start + 1, tokens, logprobs)

    def _leaves(self, s: int) -> bool:
        return self._parts.rows.status[s] == Status.LEAVING

    def passed(self, s: int, now: float) -> None:
        """Start a guest's countdown after its row was computed, unless another of its rows is here."""
        if not self._parts.rows.open[s] and self._parts.rows.status[s] == Status.RUNNING:
            self._parts.return_timeouts.leave(s, self._parts.leases.home(s), now)

    def cancel_flights(self) -> None:
        """Cancel flights whose guests all leave, since the components may be gone. The device forgets them."""
        parts = self._parts
        for s in parts.leases.cancel_flights(set(parts.rows.with_status(Status.LEAVING))):
            parts.rows.close(s)
            self._sequences.settle(s)

    # both ------------------------------------------------------------------------------------------------------------

    def lost(self, event: PeerLost) -> None:
        """Handle the death of a node.

        If it was a worker, its leases here end, and sequences that need it go back, also those of other homes, which may
        reach it. If it had a gateway, its sequences are unwanted.
        """
        rows, worker = self._parts.rows, event.worker
        self._parts.return_timeouts.lose(worker)
        for s in [s for s in rows.live() if not rows.is_draft_row(s)]:  # these end with their targets
            if rows.is_guest(s):
                if self._parts.leases.home(s) == worker:
                    self._sequences.drop(s)
                elif any(hop.worker == worker for hop in rows.route[s].route.hops):
                    self.dismiss(s, "host-lost")
            elif any(hop.worker == worker for hop in rows.route[s].route.hops[1:]):
                self.abandon(s, "host-lost")
            elif rows.submission[s].gateway.partition("/")[0] == worker:
                self._sequences.drop(s)
        self.cancel_flights()


class Returns:
    """The collected results of one commit, for each home of a guest."""

    def __init__(self, parts: Parts, forced: dict[int, list[int]]) -> None:
        """Make it for a commit. ``forced``: by sequence, as in ``SweepResult``."""
        self._parts = parts
        self._forced = forced
        self._homes: dict[str, FlightDone] = {}

    def add(
        self,
        s: int,
        start: int,
        count: int,
        tokens: Sequence[int],
        logprob: TokenLogprob | None,
        scores: list[TokenLogprob] | None,
        vector: bytes = b"",
    ) -> None:
        """Add the results of a guest's row that has passed its last stage, which is here."""
        leases = self._parts.leases
        home = leases.home(s)
        done = self._homes.setdefault(home, FlightDone(self._parts.config.worker, [], [], [], []))
        if scores is not None:
            done.scores.append((len(done.rows), scores))
        if vector:
            done.vectors.append((len(done.rows), vector))
        done.rows.append(FlightRow(leases.number(s), start, count, bool(tokens)))
        if tokens:
            done.tokens.append(tokens[0])
            done.logprobs.append(logprob)
            if s in self._forced:
                done.forced.append((len(done.rows) - 1, self._forced[s]))

    def add_verified(self, s: int, start: int, count: int, tokens: list[int], logprobs: list[TokenLogprob]) -> None:
        """Add the results of a guest's row with drafts, which were verified here."""
        self.add(s, start, count, tokens[:1], logprobs[0] if logprobs else None, None)
        done = self._homes[self._parts.leases.home(s)]
        done.verified.append((len(done.rows) - 1, tokens[1:], logprobs[1:]))

    def send(self) -> None:
        for home, done in self._homes.items():
            self._parts.outgoing.send(home, done)
