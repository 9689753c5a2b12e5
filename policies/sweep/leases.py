"""Sequences that cross workers: what the home asks of its hosts, and what a host grants.

A sequence is planned by its home alone. Before it starts, the home asks each host of the route, the last hop first, for a
*lease*: a row and pages for the whole sequence. So a row in flight never waits for memory. Every sequence acquires against
the order of the workers, its home last, and hosts grant in the order of their queues, so that nobody waits in a circle as
long as all routes pass the workers in one order. The grant says which pages the host has already. Rows leave with a flight,
and the last host says what became of them. The host publishes what it computed.
"""

from __future__ import annotations

from bisect import insort
from dataclasses import replace
from typing import TYPE_CHECKING

from blockwright.policies.model.chain import Route
from blockwright.policies.plan.sweep_plan import FlightRow, TokenLogprob, WriteTokens
from blockwright.policies.requests.admission import admit
from blockwright.policies.sweep import announcements as announce
from blockwright.policies.sweep.events import (
    Flight,
    FlightDone,
    LeaseGranted,
    LeaseReturned,
    LeaseWanted,
    Send,
)
from blockwright.policies.sweep.rows import Status

if TYPE_CHECKING:
    from blockwright.policies.sweep.state import SweepState


# at the home ---------------------------------------------------------------------------------------------------------


def ask(state: SweepState, s: int) -> bool:
    """True when ``s`` needs one more host's lease: it has been asked for, and ``s`` waits for the grant."""
    rows = state.rows
    hosts = _hosts(rows.route[s].route)
    if rows.home[s] or rows.granted[s] == len(hosts):
        return False
    if not rows.lease[s]:
        rows.lease[s] = state.next_lease
        state.next_lease += 1
        state.by_lease[state.config.worker, rows.lease[s]] = s
    rows.status[s] = Status.LEASING
    announce.announce(state, s)
    submission = replace(rows.submission[s], tokens=list(rows.tokens[s]), page_hashes=list(rows.hashes[s]))
    wanted = LeaseWanted(state.config.worker, rows.lease[s], submission)
    state.effects.append(Send(hosts[rows.granted[s]], wanted))
    return True


def _hosts(route: Route) -> list[str]:
    """In the order in which they are asked."""
    return [hop.worker for hop in route.hops[:0:-1]]


def granted(state: SweepState, event: LeaseGranted) -> None:
    """A host has made room: back to the queue, for the next host or to start."""
    rows = state.rows
    s = state.by_lease.get((state.config.worker, event.lease))
    if event.refused:
        if s is not None:
            abandon(state, s, event.refused)
        return
    if s is None:  # it has left meanwhile, or was asked for by an earlier life of this worker
        state.effects.append(Send(event.host, LeaseReturned(state.config.worker, event.lease)))
        return
    if rows.status[s] is not Status.LEASING:
        return
    rows.granted[s] += 1
    rows.host_cached[s] = min(rows.host_cached[s], event.cached)
    rows.status[s] = Status.WAITING
    insort(state.waiting, rows.order(s))


def end(state: SweepState, s: int) -> None:
    """The sequence has left this worker: give leases back (home), or forget the lease (host)."""
    rows = state.rows
    if not rows.lease[s]:
        return
    if rows.home[s]:
        state.by_lease.pop((rows.home[s], rows.lease[s]), None)
        return
    del state.by_lease[state.config.worker, rows.lease[s]]
    for host in _hosts(rows.route[s].route)[: rows.granted[s] + 1]:  # the last may just have been asked
        state.effects.append(Send(host, LeaseReturned(state.config.worker, rows.lease[s])))
    rows.lease[s], rows.granted[s], rows.host_cached[s] = 0, 0, 1 << 30


def abandon(state: SweepState, s: int, reason: str) -> None:
    """A sequence at home cannot go on: back to its gateway, whatever it has in flight."""
    rows = state.rows
    _void(state, s)
    if rows.status[s] is not Status.LEAVING or rows.requeue[s]:
        state.give_back(rows.submission[s], reason)
        state.drop(s)
    state.settle(s)


def microbatch(state: SweepState) -> int:
    """How many decoding rows whose route goes on elsewhere may join this plan.

    An equal share for each stage, so that all stages have work; at most stages + 1 microbatches are in flight.
    """
    rows = state.rows
    hops = [len(route.hops) for o in state.running if len((route := rows.route[o[2]].route).hops) > 1]
    if not hops or len(state.airborne) > max(hops):
        return 0
    return -(-len(hops) // max(hops))


def _void(state: SweepState, s: int) -> None:
    """What ``s`` has in flight will not come back, or does not matter."""
    rows = state.rows
    if rows.away[s]:
        _touch_down(state, s)
        if rows.flying[s]:
            rows.flying[s] = False
            rows.open[s] -= 1


def _touch_down(state: SweepState, s: int) -> None:
    rows = state.rows
    number = rows.away[s]
    rows.away[s] = 0
    state.airborne[number] -= 1
    if not state.airborne[number]:
        del state.airborne[number]


def landed(state: SweepState, event: FlightDone) -> None:
    """Rows have passed their last stage."""
    rows = state.rows
    news = iter(zip(event.tokens, event.logprobs, strict=True))
    scores = dict(event.scores)
    for place, row in enumerate(event.rows):
        token, logprob = next(news) if row.sample else (None, None)
        s = state.by_lease.get((state.config.worker, row.lease))
        if s is None or not rows.flying[s]:
            continue
        rows.flying[s] = False
        _touch_down(state, s)
        tokens = [] if token is None else [token]
        if rows.status[s] is Status.RUNNING and tokens:
            state.edits.append(WriteTokens(rows.row[s], len(rows.tokens[s]), tokens))
        if place in scores:
            state.scored(s, row.start, scores[place])
        state.advance(s, row.start + row.count, tokens, [] if logprob is None else [logprob])
        rows.open[s] -= 1
        state.settle(s)


# at a host -----------------------------------------------------------------------------------------------------------


def want(state: SweepState, event: LeaseWanted) -> None:
    """A home asks for a lease: it queues with our own sequences, by priority and arrival."""
    submission = event.submission
    local = state.routes.get(submission.route)
    if local is None or not local.hop or submission.route not in state.in_force:
        refused = "route"
    elif reason := admit(submission.max_length, state.capacity(local)):
        refused = "refused: " + reason
    else:
        s = state.rows.add(submission, local, event.home, event.lease)
        if not state.config.prefix_cache:
            state.rows.hashes[s] = []
        state.by_lease[event.home, event.lease] = s
        insort(state.waiting, state.rows.order(s))
        return
    state.effects.append(Send(event.home, LeaseGranted(state.config.worker, event.lease, 0, refused)))


def returned(state: SweepState, event: LeaseReturned) -> None:
    """The home needs the lease no more. What was published stays as cache."""
    s = state.by_lease.get((event.home, event.lease))
    if s is not None:
        state.drop(s)


def dismiss(state: SweepState, s: int) -> None:
    """The route of a guest is no longer in force here. Its home may not know that yet, or never learn it."""
    rows = state.rows
    if rows.status[s] is not Status.LEAVING:
        state.effects.append(Send(rows.home[s], LeaseGranted(state.config.worker, rows.lease[s], 0, "route")))
        state.drop(s)


def ground(state: SweepState) -> None:
    """Flights of guests that leave are not planned: what would compute them may be gone. The device forgets them."""
    rows, kept = state.rows, []
    for flight, guests in state.flights:
        if any(rows.status[s] is not Status.LEAVING for s in guests):
            kept.append((flight, guests))
            continue
        state.grounded.append(flight.number)
        for s in guests:
            rows.open[s] -= 1
            state.settle(s)
    state.flights = kept


def arrive(state: SweepState, flight: Flight) -> bool:
    """Rows have come. False when their leases are gone (the route vanished meanwhile): the flight is void."""
    guests = [state.by_lease.get((flight.home, row.lease)) for row in flight.rows]
    known = [s for s in guests if s is not None]
    if len(known) < len(guests):
        return False
    for s in known:
        state.rows.open[s] += 1
    state.flights.append((flight, known))
    return True


class Landing:
    """Collects, during one commit, what each home must be told of its rows."""

    def __init__(self, state: SweepState) -> None:
        self._state = state
        self._homes: dict[str, FlightDone] = {}

    def add(
        self,
        s: int,
        start: int,
        count: int,
        tokens: list[int],
        logprob: TokenLogprob | None,
        scores: list[TokenLogprob] | None,
    ) -> None:
        rows = self._state.rows
        home = rows.home[s]
        done = self._homes.setdefault(home, FlightDone(self._state.config.worker, [], [], [], []))
        if scores is not None:
            done.scores.append((len(done.rows), scores))
        done.rows.append(FlightRow(rows.lease[s], start, count, bool(tokens)))
        if tokens:
            done.tokens.append(tokens[0])
            done.logprobs.append(logprob)

    def send(self) -> None:
        self._state.effects += [Send(home, done) for home, done in self._homes.items()]


# both ----------------------------------------------------------------------------------------------------------------


def lost(state: SweepState, worker: str) -> None:
    """A node died. A worker: its leases here end, sequences that need it go back. A gateway: nobody wants its sequences."""
    rows = state.rows
    for s in rows.live():
        if rows.home[s]:
            if rows.home[s] == worker:
                state.drop(s)
        elif any(hop.worker == worker for hop in rows.route[s].route.hops[1:]):
            abandon(state, s, "host-lost")
        elif rows.submission[s].gateway.partition("/")[0] == worker:
            state.drop(s)
    ground(state)
