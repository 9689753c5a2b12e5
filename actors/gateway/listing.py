"""Views of a gateway's requests: one request with its queue position, or the latest ones as lines.

Reads records and changes none.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator

from ...policies.requests.request_ownership import Viewer
from .port import RequestLine, RequestView
from .queue_position import QueuePositions
from .state import GatewayState


def described(state: GatewayState, positions: QueuePositions, request: str, now: float) -> RequestView | None:
    """Return the view of one request, or None.

    It counts as waiting by the rule of ``RequestRecord.waits``, and has a place in the queue if it has not begun yet.
    ``starts_in`` is forecast from the rate at which requests ended lately; it is None while that rate is unknown.
    """
    view, record = state.describe(request), state.active.get(request)
    if view is None or record is None or not record.waits:
        return view
    progress = positions.progress(record, now)
    starts = state.overload.pace.starts_in(progress.place, now) if progress.place else None
    return dataclasses.replace(view, state="waiting", place=progress.place, queued=progress.queued, starts_in=starts)


def listed(state: GatewayState, positions: QueuePositions, viewer: Viewer, limit: int, now: float) -> list[RequestLine]:
    """Return the requests that the viewer may see: running and waiting ones, then ended ones; latest first in each group."""
    found: list[RequestLine] = []
    for line in _lines(state, positions, viewer, now):
        if len(found) >= limit:
            break
        found.append(line)
    return found


def _lines(state: GatewayState, positions: QueuePositions, viewer: Viewer, now: float) -> Iterator[RequestLine]:
    for record in reversed(state.active.values()):
        if viewer.may_see(record.generation.key):
            seen = record.view()
            place = positions.progress(record, now).place
            word = "waiting" if record.waits else seen.state
            yield _line(seen, word, place, now - record.arrival)
    for view in reversed(state.past.values()):
        if viewer.may_see(view.key):
            age = view.events[-1]["at"]
            yield _line(view, view.state, 0, age, max(0.0, now - view.arrival - age))


def _line(view: RequestView, state: str, place: int, age: float, ended: float | None = None) -> RequestLine:
    tokens = (view.prompt_tokens, view.computed_tokens, view.emitted_tokens)
    since = None if ended is None else round(ended, 3)
    return RequestLine(
        view.id, view.model, state, place, *tokens, view.home, view.attempt, round(age, 3), view.tenant, since
    )
