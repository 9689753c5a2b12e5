"""Reports of workers: the news of one sweep are applied to the requests, and tokens go to their clients.

The path of a token is short: report, record, client. What news claim beyond that (an end, a return, a choice) is put down
as due, and settled before the next news. Reports of older attempts and of fenced workers are ignored, so that nothing is
lost, repeated or reordered.
"""

from __future__ import annotations

from ...sweep.events import (
    DraftsVerified,
    ExitEntered,
    GatewayNews,
    GivenBack,
    Preempted,
    Progressed,
    PromptScored,
    SatOut,
    TokensEmitted,
)
from ...sweep.page_events import Exported
from . import absences
from .delivery import settle_choices, take
from .lifecycle import LifeEvent
from .messages import CancelAt, Replay
from .parts import BookParts
from .record import RequestRecord
from .settlement import RequestClaim
from .settling import settle_due, try_start
from .sweep_report import SweepReport
from .switching import settle_moves


def accept(parts: BookParts, report: SweepReport, now: float) -> None:
    """Apply a worker's report, if it is its next one."""
    worker, seconds = report.worker, report.seconds
    accepted = parts.workers.accept(report)
    if accepted is not True:
        if isinstance(accepted, Replay):
            parts.emit(accepted)
        return
    unwanted = set[str]()
    for news in report.news:
        if not heed(parts, news, worker, seconds, now):
            unwanted.add(news.request)
        if parts.claims.due:
            settle_moves(parts, now)
        if parts.due:
            settle_due(parts, now)
        if parts.choices.pending:
            settle_choices(parts, now)
    if unwanted:  # the worker runs them for no client; the cancellation is on its way or was lost
        parts.emit(CancelAt(worker, tuple(sorted(unwanted))))
    parts.effects += parts.workers.due(worker)
    if worker in parts.table.alive and parts.offline.accept_report(worker, report.offline, sweeps=report.sweep):
        wake(parts, now)


def wake(parts: BookParts, now: float) -> None:
    """Try requests that wait for offline credit, which has grown."""
    for request in parts.offline.wakes():
        try_start(parts, parts.active[request], now)


def heed(parts: BookParts, news: GatewayNews, worker: str, seconds: float, now: float) -> bool:
    """Apply one effect of a worker's sweep machine. ``seconds``: the duration of its sweep.

    Return False if the worker runs a request that is not at home there.
    """
    if isinstance(news, Exported):
        parts.claims.accept_export(news, worker)
        absences.accept(parts, news, worker)
        return True
    record = parts.active.get(news.request)
    if record is None or record.placement.workers[:1] != (worker,):
        return not (isinstance(news, Progressed) or (isinstance(news, TokensEmitted) and not news.finish))
    if news.attempt != record.placement.attempt:
        return True
    if isinstance(news, TokensEmitted):
        if not record.progress.planned:
            record.plan_seen(now, seconds)
        if news.position > len(record.progress.tokens):
            # Reports come in order, so the home itself has lost tokens: only a rerun from ours is exact.
            record.history.note(now, "gap", expected=len(record.progress.tokens), got=news.position)
            parts.due.append(RequestClaim(record, LifeEvent.RESTART))
        elif (added := record.extend(news, now)) is not None:
            if news.request in parts.claims.open:
                parts.claims.arrive(news.request)
                settle_moves(parts, now)
            take(parts, record, added)
    else:
        _heed_other(parts, record, news, seconds, now)
    return True


def _heed_other(parts: BookParts, record: RequestRecord, news: GatewayNews, seconds: float, now: float) -> None:
    """Apply what is no token."""
    match news:
        case Preempted():
            record.preempted(news, now)
        case DraftsVerified():
            record.history.verified(news)
        case SatOut():
            record.history.sat_out(news)
        case ExitEntered():
            record.history.entered_at(news, record.progress.virtual, record.progress.begins)
        case PromptScored():
            if (complete := record.progress.score(news)) is not None:
                take(parts, record, complete)
        case GivenBack():
            parts.due.append(RequestClaim(record, LifeEvent.GIVE_BACK, news.reason))
        case Progressed():
            if news.request in parts.claims.open:
                parts.claims.accept_plan(news)
            record.progressed(news, now, seconds)
            parts.recount(record)
