"""Page pins: procedures that keep the pages of paused requests until their next attempts start.

A paused request's route has ended, and it continues when its pages have been exchanged. A pin (here: a hold) is memory
owned by a request that waits, so the rule of ``pipeline.py`` applies: an older sequence that needs the memory gets it,
from the youngest hold first. The request then continues with fewer pages, and takes memory from younger sequences.
"""

from __future__ import annotations

from collections.abc import Sequence

from ..memory import eviction
from ..requests.urgency import shared_class
from .columns import Status
from .page_events import HoldPages, PageTarget
from .page_pins import PagePin
from .parts import Parts
from .sequences import Sequences


class Pinning:
    """The procedures on holds (see the module). Owns nothing itself."""

    def __init__(self, parts: Parts, sequences: Sequences) -> None:
        self._parts, self._sequences = parts, sequences

    def hold(self, event: HoldPages, now: float) -> None:
        """End an attempt here and keep its full pages. An order that arrives while a later attempt runs changes nothing."""
        parts, rows = self._parts, self._parts.rows
        here = [s for s in rows.live() if rows.submission[s].request == event.request]
        known = parts.page_pins.find(event.request)
        if any(rows.submission[s].attempt > event.attempt for s in here) or (known and known.attempt > event.attempt):
            return
        for s in here:
            self._publish(s, event.hashes)
        local = parts.routes.known(event.route)
        if local is not None and parts.config.prefix_cache:
            if known is None:
                age = (shared_class(event.priority), event.arrival, event.request)
                known = PagePin(event.gateway, event.attempt, event.account, age, 0.0, [], {})
                parts.page_pins.open(event.request, known)
            self._keep(known, event, now)
        for s in here:
            if not rows.is_guest(s):  # its home returns a guest
                self._sequences.drop(s)

    def _publish(self, s: int, hashes: Sequence[bytes]) -> None:
        """Publish its full pages, since not every worker of a route knows the tokens."""
        rows, pages = self._parts.rows, self._parts.memory.pages
        if rows.status[s] == Status.RUNNING:
            for page, token_hash in enumerate(hashes[: min(rows.computed[s] // rows.page_size, rows.paged[s])]):
                for handle in rows.page(s, page):
                    pages.publish(handle, token_hash)

    def _keep(self, hold: PagePin, event: HoldPages, now: float) -> None:
        parts, held = self._parts, {*hold.handles}
        local = parts.routes.known(event.route)
        assert local is not None, "pages are held on a route that is not planned"
        hold.renew(event.attempt, now + event.seconds)
        for token_hash in event.hashes:
            for number, span in enumerate(local.spans):
                handle = parts.memory.pages.find(token_hash, span)
                if handle is None and event.expects and number < local.kv_spans:
                    hold.await_slots(span.arena, span.layers)
                elif handle is not None and handle not in held:
                    parts.memory.pages.share(handle, hold.account)
                    hold.add(handle)

    def room(self, request: str) -> bool:
        """Return whether the pages awaited by a request's hold fit.

        Pages awaited by older holds, and one page for each running row, are set aside.
        """
        parts, hold = self._parts, self._parts.page_pins.find(request)
        if hold is None:
            return False
        need = parts.page_pins.awaited(hold.age)
        for arena, slots in hold.awaited.items():
            need[arena] = need.get(arena, 0) + slots
        for s in parts.queue.running:
            for span in parts.rows.route[s].kv:
                need[span.arena] = need.get(span.arena, 0) + span.layers
        return eviction.shortage(parts.memory.pages, need, {}) <= 0

    def written(self, request: str, token_hash: bytes, handle: int) -> bool:
        """Note that a page from elsewhere is published; return whether it is kept for the request that it was sent for."""
        pages, hold = self._parts.memory.pages, self._parts.page_pins.find(request)
        if hold is None:
            return False
        span = pages.span(handle)
        hold.came(span.arena, span.layers)
        found = pages.find(token_hash, span)
        if found is None or found in hold.handles:
            return False
        if found != handle:  # an equal page was here first
            pages.share(found, hold.account)
        hold.add(found)
        return found == handle

    def exported(self, request: str, attempt: int, targets: Sequence[PageTarget]) -> None:
        """Drop layers from a hold that were copied to the workers that compute them from now on."""
        hold = self._parts.page_pins.find(request)
        if hold is not None and hold.attempt == attempt:
            pages = self._parts.memory.pages
            gone = [h for h in hold.handles if any(to.first <= pages.span(h).kv_layer < to.end for to in targets)]
            hold.remove(gone)
            pages.release(gone[::-1], hold.account)

    def end(self, request: str, attempt: int) -> None:
        """End a hold, since a later attempt has taken its pages or will not come."""
        hold = self._parts.page_pins.find(request)
        if hold is not None and hold.attempt <= attempt:
            self.release(request)

    def release(self, request: str) -> None:
        """Release a hold: its pages become ordinary cache. The end of a prompt is released first."""
        hold = self._parts.page_pins.close(request)
        assert hold is not None, "nothing is held for the request"
        self._parts.memory.pages.release(hold.handles[::-1], hold.account)

    def give_way(self, s: int, account: str = "") -> bool:
        """Release the youngest hold that is younger than ``s``, of this account or of any; return False if there is none."""
        request = self._parts.page_pins.youngest(self._parts.rows.age(s), account)
        if request is not None:
            self.release(request)
        return request is not None

    def waiting(self) -> list[int]:
        """Return the sequences at home that wait to start and have held pages here, oldest first."""
        rows, found = self._parts.rows, list[int]()
        for request, hold in self._parts.page_pins.all():
            s = rows.find(request)
            if s is not None and rows.status[s] == Status.WAITING and rows.submission[s].attempt > hold.attempt:
                found.append(s)
        return sorted(found, key=rows.age)

    def expire(self, now: float) -> None:
        """Release the holds whose time is over; their requests will start without pages."""
        if now >= self._parts.page_pins.next_deadline:
            for request, hold in self._parts.page_pins.all():
                if hold.until <= now:
                    self.release(request)

    def lost(self, worker: str) -> None:
        """Release the holds of a gateway whose node died: their requests will not come."""
        for request, hold in self._parts.page_pins.all():
            if hold.gateway.partition("/")[0] == worker:
                self.release(request)
