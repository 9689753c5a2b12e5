"""Views of a gateway's requests for people: one request with its queue position, the latest ones, and recoveries.

A recovery is reported after a worker has died: where its requests went on, and after how long. Each gateway reports on its
own requests, once all of them run again or have ended. The module reads records and changes none.
"""

from __future__ import annotations

import dataclasses
import itertools
import logging
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from ...policies.requests.book.book import RequestBook
from ...policies.requests.book.queue_position import QueuePositions
from ...policies.requests.book.record import RequestRecord
from ...policies.requests.book.request_view import view_of
from ...policies.requests.request_ownership import Viewer, choice_of, request_of, sequence_id
from .port import RequestLine, RequestView

log = logging.getLogger(__name__)


def described(book: RequestBook, positions: QueuePositions, request: str, now: float) -> RequestView | None:
    """Return the view of one request, or None.

    It counts as waiting by the rule of ``TokenProgress.waits``, and has a place in the queue if it has not begun yet.
    ``starts_in`` is forecast from the rate at which requests ended lately; it is None while that rate is unknown.
    ``chains``, ``variant`` and ``switches`` are of all choices; ``chains`` names the models whose components stand in.
    """
    view, record = book.describe(request), book.parts.active.get(request)
    if view is None:
        return None
    numbers = itertools.count(choice_of(request) + 1)
    others = (book.describe(sequence_id(request_of(request), number)) for number in numbers)
    view = _of_choices([view, *filter(None, itertools.takewhile(bool, others))], book.parts.table.donors)
    if record is None or not record.progress.waits:
        return view
    progress = positions.progress(record, now)
    starts = book.parts.overload.pace.starts_in(progress.place, now) if progress.place else None
    return dataclasses.replace(view, state="waiting", place=progress.place, queued=progress.queued, starts_in=starts)


def _of_choices(views: Sequence[RequestView], donors: Callable[[str], list[str]]) -> RequestView:
    """Return the view of the first choice, with the chains of all."""
    variants = dict.fromkeys(name for one in views for name in one.variant.split(", ") if name)
    return dataclasses.replace(
        views[0],
        chains=[{**chain, "donors": donors(chain["used"])} for one in views for chain in one.chains],
        variant=", ".join(variants),
        switches=[{"choice": choice_of(one.id), **switch} for one in views for switch in one.switches],
    )


def listed(book: RequestBook, positions: QueuePositions, viewer: Viewer, limit: int, now: float) -> list[RequestLine]:
    """Return the requests that the viewer may see: running and waiting ones, then ended ones; latest first in each group."""
    found: list[RequestLine] = []
    for line in _lines(book, positions, viewer, now):
        if len(found) >= limit:
            break
        found.append(line)
    return found


def _lines(book: RequestBook, positions: QueuePositions, viewer: Viewer, now: float) -> Iterator[RequestLine]:
    for record in reversed(book.parts.active.values()):
        if viewer.may_see(record.generation.key):
            seen = view_of(record)
            place = positions.progress(record, now).place
            word = "waiting" if record.progress.waits else seen.state
            yield _line(seen, word, place, now - record.arrival)
    for view in reversed(book.parts.past.values()):
        if viewer.may_see(view.key):
            age = view.events[-1]["at"]
            yield _line(view, view.state, 0, age, max(0.0, now - view.arrival - age))


def _line(view: RequestView, state: str, place: int, age: float, ended: float | None = None) -> RequestLine:
    tokens = (view.prompt_tokens, view.computed_tokens, view.emitted_tokens)
    since = None if ended is None else round(ended, 3)
    return RequestLine(
        view.id, view.model, state, place, *tokens, view.home, view.attempt, round(age, 3), view.tenant, since
    )


@dataclass(frozen=True, slots=True)
class _Loss:
    worker: str
    at: float
    requests: tuple[tuple[RequestRecord, int], ...]  # requests that ran there, each with the lost attempt


class Recoveries:
    """The worker deaths whose requests have not all recovered. ``active``: the gateway's requests, by id."""

    def __init__(self, active: Mapping[str, RequestRecord]) -> None:
        self._active = active
        self._open: list[_Loss] = []

    def lost(self, worker: str, cause: str, now: float) -> None:
        """Note that a worker has died. Call it before its requests are changed."""
        ran = tuple(
            (record, record.placement.attempt) for record in self._active.values() if worker in record.placement.workers
        )
        if ran:
            log.info("%s died (%s); requests that ran there: %d", worker, cause, len(ran))
            self._open.append(_Loss(worker, now, ran))

    def tick(self) -> list[tuple[str, str]]:
        """Return the workers whose requests have all settled since the last call, each with a report.

        Call it periodically.
        """
        settled = [loss for loss in self._open if all(map(_settled, *zip(*loss.requests, strict=True)))]
        for loss in settled:
            self._open.remove(loss)
        return [(loss.worker, _outcome(loss)) for loss in settled]


def _settled(record: RequestRecord, attempt: int) -> bool:
    """Return whether the request has ended or a later attempt runs."""
    return record.state not in ("waiting", "running") or (record.placement.attempt > attempt and record.progress.planned)


def _outcome(loss: _Loss) -> str:
    homes = Counter[str]()
    worst = 0.0
    ended = 0
    for record, attempt in loss.requests:
        again = [at for at, event, detail in record.history.events if event == "resumed" and detail["attempt"] > attempt]
        if not again or record.placement.route is None:
            ended += 1
            continue
        homes[record.placement.route.home] += 1
        worst = max(worst, min(again) - loss.at)
    moved = ", ".join(f"{count} request{'s' * (count != 1)} moved to {home}" for home, count in sorted(homes.items()))
    said = [f"{moved}, the last after {worst:.2f} s"] if homes else []
    said += [f"{ended} ended before {'they' if ended > 1 else 'it'} ran again"] if ended else []
    return f"after the death of {loss.worker}: {'; '.join(said)}"
