"""Settling of claims: ``settle`` alone ends attempts and waits, and decides where a request is next.

Clients, workers, moves, pauses, switches and limits only claim (``settlement.py``); this file carries claims out, in one
order. Attempts start here, too: an attempt is prompt plus emitted tokens on a route. A request whose worker died resumes in
another attempt (failover).
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from ...adaptive.similarity import OWNER
from ...model.chain import Route
from ...sweep.events import Submission
from ...sweep.page_events import Unhold
from ..dispatch import dispatch, lacking_room, open_routes, waits_for_load, workers_of
from ..poison import outnumbered
from ..refusal import RequestRefused
from .absences import leave
from .copying import ask_for_copies, find_copies
from .decision import Decision
from .dispatch_queries import Advice
from .drafts import no_drafter_here
from .lifecycle import LifeEvent, LifeStage
from .messages import CancelAt, Closed, Fail, Submit, UnholdAt
from .parts import BookParts
from .record import RequestRecord
from .request_view import view_of
from .route_claims import RouteClaim
from .scoring import score_later
from .settlement import RULES, Frees, RequestClaim, Then
from .variants import GONE, note_pages, query, reason, standings, vary

KEEP = 1024  # ended requests that can still be looked up


def settle(parts: BookParts, claim: RequestClaim, now: float) -> Submit | None:
    """Carry out a claim; return the attempt that it starts on the claim's route, which is not sent yet.

    The order: the home forgets the attempt, the client hears of it, others may start, a move is void, the request leaves its
    workers and its waits, its life goes on, its tokens are counted again, and it goes where the rule says.
    """
    record, event = claim.record, claim.event
    rule = RULES[event]
    if rule.cancels:
        cancel(parts, record)
    if claim.refused is not None:
        parts.emit(Fail(record.id, claim.refused))
    elif event in (LifeEvent.STOP, LifeEvent.CANCEL):
        parts.emit(Closed(record.id))
    if rule.frees is not Frees.NOTHING:
        parts.freed |= record.placement.alone or (rule.frees is Frees.RESERVED and record.id in parts.quarantine.routes)
    if rule.withdraws:
        withdraw(parts, record)
    _leave(parts, record)
    if rule.then is Then.END:
        _end(parts, claim, now)
        return None
    home = record.placement.route.home if record.placement.route is not None else ""
    record.apply(event)
    if rule.then is Then.KEEP:
        record.park()
    elif rule.then is Then.ANEW:
        record.go_up(now)
    else:
        record.wait(now)
    parts.recount(record)
    if rule.then is Then.PLACE:
        assert claim.route is not None, "who goes on has a route"
        return _place(parts, record, claim.route, _draft(parts, record, now), now)
    if rule.then is Then.ANEW and (route := _open_at(parts, record, home, now)) is not None:
        record.apply(LifeEvent.SEND)
        parts.emit(_place(parts, record, route, _draft(parts, record, now), now))
    elif rule.then is not Then.KEEP:
        wait_here(parts, record, now)
        if rule.then is not Then.QUEUE:
            try_start(parts, record, now)
    return None


def settle_due(parts: BookParts, now: float) -> None:
    """Carry out what a report has claimed, in order."""
    while parts.due:
        claim = parts.due.pop(0)
        if claim.event is LifeEvent.GIVE_BACK:
            give_back(parts, claim.record, claim.reason, now)
        else:
            settle(parts, claim, now)


def fail(parts: BookParts, record: RequestRecord, refused: RequestRefused, now: float) -> None:
    """Fail a request that is too late, poison, or cut off."""
    settle(parts, RequestClaim(record, LifeEvent.FAIL, refused.message, refused), now)


def give_back(parts: BookParts, record: RequestRecord, reason: str, now: float) -> None:
    """Settle that its home has returned a request, or was not reached: it fails, or waits here and is tried again."""
    why = record.given_back(reason, now, parts.table).hopeless
    refused = None if why is None else RequestRefused(why, reason.partition(": ")[2])
    if refused is None and reason == "deadline":
        refused = parts.timeouts.expired()
    if refused is not None:
        settle(parts, RequestClaim(record, LifeEvent.REFUSE, refused.message, refused), now)
    elif reason == "host-lost":
        parts.freed |= record.placement.alone
        fail_over(parts, record, now, unsure=record.placement.workers)
        if record.waiting:
            try_start(parts, record, now)
    else:
        settle(parts, RequestClaim(record, LifeEvent.GIVE_BACK), now)


def fail_over(parts: BookParts, record: RequestRecord, now: float, unsure: Iterable[str] = ()) -> None:
    """Fail a request over after the death of a worker of its route: it resumes elsewhere from the tokens it has.

    A request that has killed too many workers is refused instead. If the request ran alone, no other can be to blame: it
    counts even without a report that it was planned. ``unsure``: one of these workers may have died, or is out of reach.
    """
    deaths = record.deaths
    deaths.count(record.progress.planned or record.placement.alone, unsure)
    if deaths.poison:
        fail(parts, record, deaths.refusal(), now)
    else:
        settle(parts, RequestClaim(record, LifeEvent.LOSE), now)


def wait_here(parts: BookParts, record: RequestRecord, now: float) -> None:
    """Queue a request for a route. One whose variant has no route any more goes back to its own application."""
    if record.variant and not parts.table.routes.get(record.variant):
        vary(parts, record, record.generation.application, now, GONE)
    parts.queue.add(record.id, record.application, record.key, now)
    parts.offline.waits(record)
    parts.capacity_waits.arrived(record, parts.table)


def try_start(parts: BookParts, record: RequestRecord, now: float, advice: Advice | None = None) -> None:
    """Start an attempt of a waiting request if there is a route; if there are several, ask a dispatcher first."""
    table, quarantine = parts.table, parts.quarantine
    asking = parts.asking
    if record.id in asking.open:
        return
    wanted, by_credit = query(parts, record, now), record.by_credit
    if parts.capacity_waits.tick(wanted, table, now):
        return
    others = outnumbered(record.deaths, (other.deaths for other in parts.active.values()))
    kept = _open_at(parts, record, record.generation.home, now) if record.continues else None
    if by_credit:
        route = parts.offline.route(record, open_routes(wanted, table, quarantine))
    elif kept is not None:
        route = kept
    else:
        route = dispatch(wanted, table, quarantine, others)
    if route is None or (route.application in wanted.variants and waits_for_load(wanted, route, table)):
        return
    decision = None
    draft = advice.question.submission if advice else _draft(parts, record, now)
    if asking.wanted and not wanted.suspect and not by_credit and kept is None:
        routes = open_routes(wanted, table, quarantine)
        if advice is not None:
            route, decision = asking.decide(advice, routes, route, now)
        elif len(routes) > 1 or asking.alone:
            record.apply(LifeEvent.ASK)
            parts.emit(asking.ask(draft, routes, now, standings(wanted, routes, table)))
            return
    parts.queue.remove(record.id, record.application)
    if route.application != record.application:
        vary(parts, record, route.application, now, reason(wanted, route, table, quarantine))
    elif not record.placement.attempt and record.application in table.variants and record.generation.key != OWNER:
        parts.choices.figures.served(record.model, "")
    draft = replace(draft, timeout=parts.timeouts.left(record, now), waited=record.history.waiting_time(now))
    copies = find_copies(parts, record, route)  # before the route counts as having the pages itself
    record.apply(LifeEvent.SEND)
    parts.emit(_place(parts, record, route, draft, now, decision))
    if copies is not None:
        ask_for_copies(parts, record, copies, now)


def advised(parts: BookParts, advice: Advice, now: float) -> None:
    """Start a request whose dispatcher has answered, if there still is a route."""
    record = parts.active[advice.chosen.request]
    try_start(parts, record, now, advice)
    if record.stage is LifeStage.ASKED:
        record.apply(LifeEvent.PASS)


def cancel(parts: BookParts, record: RequestRecord) -> None:
    """Free what the current attempt holds at its home."""
    workers = record.placement.workers
    if workers and workers[0] in parts.table.alive:
        parts.emit(CancelAt(workers[0], (record.id,)))


def withdraw(parts: BookParts, record: RequestRecord) -> None:
    """Make a request's claim on another route void, if it has one: pages are kept for it no longer."""
    claim = parts.claims.withdraw(record.id)
    if claim is None:
        return
    parts.switches.over(claim)
    if claim.left is not None and claim.submit is not None:
        parts.pauses.order.done(record.id)
        unhold(parts, claim, {*workers_of(claim.source), *workers_of(claim.move.route)})


def unhold(parts: BookParts, claim: RouteClaim, workers: set[str]) -> None:
    """Tell workers to keep no pages for a claim any more."""
    if living := tuple(sorted(workers & parts.table.alive)):
        parts.emit(UnholdAt(living, Unhold(claim.move.request, claim.move.attempt)))


def refresh_drafter(parts: BookParts, record: RequestRecord) -> None:
    """Find the reason against drafts of a running request again, since a model may have come or gone."""
    placement = record.placement
    if record.state == "running" and placement.route is not None:
        placement.no_drafter = no_drafter_here(record.generation.drafts, placement.route, parts.table)


def _leave(parts: BookParts, record: RequestRecord) -> None:
    """Remove a request from its workers' counts and from all waits: its attempt or its wait is over."""
    placement = record.placement
    parts.asking.drop(record.id)
    parts.capacity_waits.drop(record.id)
    parts.offline.left(record)
    parts.quarantine.release(record.id)
    parts.table.remove(record.id, placement.workers, placement.counted)
    parts.queue.remove(record.id, record.application)


def _end(parts: BookParts, claim: RequestClaim, now: float) -> None:
    """Take a request out of the book; its view stays for a while."""
    record = claim.record
    del parts.active[record.id]
    refresh_drafter(parts, record)
    if claim.event in (LifeEvent.FINISH, LifeEvent.STOP):
        note_pages(parts, record)
        score_later(parts, record)
        leave(parts, record, now)
    record.apply(claim.event)
    record.end(claim.event, now, claim.reason)
    if not record.offline:
        parts.overload.end(record.account, record.placement.counted, now)
    for name in record.applications:
        parts.usage.change(name, -1, now)
    parts.choices.leave(record)
    parts.lengths.ended(record, claim.reason)
    parts.asking.ended(record, now)
    parts.past[record.id] = view_of(record)
    if len(parts.past) > KEEP:
        parts.past.popitem(last=False)
    parts.freed |= bool(parts.quarantine.routes)


def _open_at(parts: BookParts, record: RequestRecord, home: str, now: float) -> Route | None:
    """Return the open route from a home, where a request has KV from before, if it may go there at once."""
    wanted = record.wanted(now)
    if record.by_credit or wanted.suspect or lacking_room(wanted, parts.table) > 0:
        return None
    return next((one for one in open_routes(wanted, parts.table, parts.quarantine) if one.home == home), None)


def _draft(parts: BookParts, record: RequestRecord, now: float) -> Submission:
    """Return the next attempt of a request, without its route."""
    return record.submission(parts.address, parts.page_size, parts.timeouts.left(record, now), now)


def _place(
    parts: BookParts, record: RequestRecord, route: Route, draft: Submission, now: float, by: Decision | None = None
) -> Submit:
    """Start an attempt on a route; return the effect that sends it."""
    record.start(route, now, by, parts.table.numerics_of(route))
    placement = record.placement
    placement.no_drafter = no_drafter_here(draft.drafts, route, parts.table)
    parts.table.place(record.id, placement.workers, placement.counted)
    note_pages(parts, record)
    parts.offline.sent(record, route.home)
    if record.variant and parts.table.absent(record.generation.application):
        parts.capacity_waits.bridge(record)
    return Submit(route.home, replace(draft, route=route.id, route_version=route.version))
