"""Pages are kept for requests that pause: their route has ended, and they go on when pages have been exchanged.

A hold is memory that somebody has who waits, so the rule of ``pipeline.py`` is its rule: an older sequence that needs the
memory has it given up, the youngest first, and its request, whose attempt comes with less, takes memory from younger ones.
"""

from __future__ import annotations

from collections.abc import Sequence

from ..memory import eviction
from ..requests.urgency import shared_class
from .columns import Status
from .holds import PageHold
from .page_events import HoldPages, PageTarget
from .parts import Parts
from .sequences import Sequences


class Holding:
    """See the module. Owns nothing itself."""

    def __init__(self, parts: Parts, sequences: Sequences) -> None:
        self._parts, self._sequences = parts, sequences

    def hold(self, event: HoldPages, now: float) -> None:
        """An attempt ends here, and its full pages stay. One that comes late, when a later attempt runs, changes nothing."""
        parts, rows = self._parts, self._parts.rows
        here = [s for s in rows.live() if rows.submission[s].request == event.request]
        known = parts.holds.find(event.request)
        if any(rows.submission[s].attempt > event.attempt for s in here) or (known and known.attempt > event.attempt):
            return
        for s in here:
            self._publish(s, event.hashes)
        local = parts.routes.known(event.route)
        if local is not None and parts.config.prefix_cache:
            if known is None:
                age = (shared_class(event.priority), event.arrival, event.request)
                known = PageHold(event.gateway, event.attempt, event.account, age, 0.0, [], {})
                parts.holds.open(event.request, known)
            self._keep(known, event, now)
        for s in here:
            if not rows.is_guest(s):  # a guest is returned by its home
                self._sequences.drop(s)

    def _publish(self, s: int, hashes: Sequence[bytes]) -> None:
        """Its full pages can be found: not every worker of a route knows the tokens."""
        rows, pages = self._parts.rows, self._parts.memory.pages
        if rows.status[s] == Status.RUNNING:
            for page, token_hash in enumerate(hashes[: min(rows.computed[s] // rows.page_size, rows.paged[s])]):
                for handle in rows.page(s, page):
                    pages.publish(handle, token_hash)

    def _keep(self, hold: PageHold, event: HoldPages, now: float) -> None:
        parts, held = self._parts, {*hold.handles}
        local = parts.routes.known(event.route)
        assert local is not None, "pages are held on a route that is not planned"
        hold.renew(event.attempt, now + event.seconds)
        for token_hash in event.hashes:
            for span in local.spans:
                handle = parts.memory.pages.find(token_hash, span)
                if handle is None and event.expects:
                    hold.await_slots(span.arena, span.layers)
                elif handle is not None and handle not in held:
                    parts.memory.pages.share(handle, hold.account)
                    hold.add(handle)

    def room(self, request: str) -> bool:
        """Whether what the hold of a request awaits fits, beside what older ones await and a page for everybody who runs."""
        parts, hold = self._parts, self._parts.holds.find(request)
        if hold is None:
            return False
        need = parts.holds.awaited(hold.age)
        for arena, slots in hold.awaited.items():
            need[arena] = need.get(arena, 0) + slots
        for s in parts.queue.running:
            for span in parts.rows.route[s].spans:
                need[span.arena] = need.get(span.arena, 0) + span.layers
        return eviction.shortage(parts.memory.pages, need, {}) <= 0

    def landed(self, request: str, token_hash: bytes, handle: int) -> bool:
        """A page has come from elsewhere, and is published: whether it is kept for the request for which it was sent."""
        pages, hold = self._parts.memory.pages, self._parts.holds.find(request)
        if hold is None:
            return False
        span = pages.span(handle)
        hold.came(span.arena, span.layers)
        found = pages.find(token_hash, span)
        if found is None or found in hold.handles:
            return False
        if found != handle:  # an equal one was here first
            pages.share(found, hold.account)
        hold.add(found)
        return found == handle

    def exported(self, request: str, attempt: int, targets: Sequence[PageTarget]) -> None:
        """Layers that were copied to where they are computed from now on are not kept here any more."""
        hold = self._parts.holds.find(request)
        if hold is not None and hold.attempt == attempt:
            pages = self._parts.memory.pages
            gone = [h for h in hold.handles if any(to.first <= pages.span(h).layer < to.end for to in targets)]
            hold.remove(gone)
            pages.release(gone[::-1], hold.account)

    def end(self, request: str, attempt: int) -> None:
        """An attempt after that of the hold has taken its pages, or is not to come."""
        hold = self._parts.holds.find(request)
        if hold is not None and hold.attempt <= attempt:
            self.release(request)

    def release(self, request: str) -> None:
        """Its pages are cache like any other; of a prompt the end goes first."""
        hold = self._parts.holds.close(request)
        assert hold is not None, "nothing is held for the request"
        self._parts.memory.pages.release(hold.handles[::-1], hold.account)

    def give_way(self, s: int, account: str = "") -> bool:
        """Give up the youngest hold that is younger than ``s``, of this account or of any; False: there is none."""
        request = self._parts.holds.youngest(self._parts.rows.age(s), account)
        if request is not None:
            self.release(request)
        return request is not None

    def waiting(self) -> list[int]:
        """Sequences at home that wait to start and have pages here, oldest first."""
        rows, found = self._parts.rows, list[int]()
        for request, hold in self._parts.holds.all():
            s = rows.find(request)
            if s is not None and rows.status[s] == Status.WAITING and rows.submission[s].attempt > hold.attempt:
                found.append(s)
        return sorted(found, key=rows.age)

    def expire(self, now: float) -> None:
        """Whoever has not come by now comes without."""
        if now >= self._parts.holds.next_deadline:
            for request, hold in self._parts.holds.all():
                if hold.until <= now:
                    self.release(request)

    def lost(self, worker: str) -> None:
        """A gateway's node died: nobody comes."""
        for request, hold in self._parts.holds.all():
            if hold.gateway.partition("/")[0] == worker:
                self.release(request)
