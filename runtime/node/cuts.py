"""Nodes from which this one is cut off: the head reaches both, or there is none, and each takes the other for down.

Owns who they are and the questions whether they are reached again. Meets none: that is the head's to say, to both.
"""

from __future__ import annotations

import asyncio
import contextvars
from collections.abc import Callable

from ...transport.address import PeerId
from ...transport.clock import Clock, Timer
from ...transport.errors import HandshakeRefused, TransportError
from ...transport.handshake import ReturnRequest
from ...transport.interface import Transport
from ..base.clock import first_within
from .peers import Peer

PATIENCE = 1.0  # seconds for the answer to a question
NO_TICKET = "-"  # it asks to be taken in by none


class Cuts:
    """See the module. period: returns the seconds between two questions. healed: called with a node that has answered."""

    def __init__(
        self,
        me: PeerId,
        clock: Clock,
        transport: Transport | None,
        period: Callable[[], float],
        healed: Callable[[PeerId], None],
    ) -> None:
        self._me, self._clock = me, clock
        self._transport = transport
        self._period, self._healed = period, healed
        self._endpoints: dict[PeerId, str] = {}
        self.causes: dict[PeerId, str] = {}
        self._timer: Timer | None = None
        self._asking: set[asyncio.Task[None]] = set()

    def of(self, name: str) -> PeerId | None:
        """Return the life of a node of that name from which this one is cut off."""
        return next((peer for peer in self._endpoints if peer.name == name), None)

    def lives(self) -> dict[str, int]:
        """Return the nodes from which this one is cut off, each with its life."""
        return {peer.name: peer.incarnation for peer in self._endpoints}

    def begin(self, peer: Peer, cause: str) -> None:
        """Ask that node from now on, until it answers."""
        self._endpoints[peer.id], self.causes[peer.id] = peer.endpoint, cause
        if self._timer is None:
            self._timer = self._clock.call_at(self._clock.now() + max(self._period(), PATIENCE), self._ask_all)

    def end(self, name: str, incarnation: int | None = None) -> list[PeerId]:
        """Forget the lives of that name, up to ``incarnation``; return them."""
        found = [one for one in self._endpoints if one.name == name and one.incarnation <= (incarnation or one.incarnation)]
        for peer in found:
            del self._endpoints[peer], self.causes[peer]
        return found

    def close(self) -> None:
        """Ask none any more."""
        if self._timer is not None:
            self._timer.cancel()
        for task in self._asking:
            task.cancel()

    def _ask_all(self) -> None:
        self._timer = None
        if not self._endpoints:
            return
        self._timer = self._clock.call_at(self._clock.now() + max(self._period(), PATIENCE), self._ask_all)
        for peer, endpoint in self._endpoints.items():
            task = asyncio.get_running_loop().create_task(self._ask(peer, endpoint), context=contextvars.Context())
            self._asking.add(task)
            task.add_done_callback(self._asking.discard)

    async def _ask(self, peer: PeerId, endpoint: str) -> None:
        """Ask whether anyone answers there. A member refuses such a question of another one, which is an answer."""
        assert self._transport is not None, "a node that does not listen has met no other"
        asked = asyncio.ensure_future(self._transport.ask(endpoint, ReturnRequest(self._me, 1, 1, NO_TICKET)))
        try:
            await first_within(self._clock, PATIENCE, [asked])
            if asked.done():
                asked.result()
        except HandshakeRefused:
            if peer in self._endpoints:
                self._healed(peer)
        except TransportError:
            pass  # nothing answers
        finally:
            asked.cancel()
