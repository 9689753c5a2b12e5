"""Second opinions: a head that misses a member asks others whether they reach it, before it declares it down.

Owns the questions under way and when each was asked. The application names whom to ask (none: nothing is asked), and
``policies/cluster/reach.py`` says what the answers mean. A member that is vouched for is asked about again after each
``silence``.
"""

from __future__ import annotations

import asyncio
import contextvars
import logging
from collections.abc import Callable, Sequence

from ...policies.cluster.reach import Sight, doubt, who_reaches
from ...transport.address import PeerId
from ..base.clock import first_within
from ..base.errors import RuntimeFault
from ..node.node import Node
from .members import Member

log = logging.getLogger("blockwright.runtime")
BEATS = 2.0  # heartbeats in which others must have heard a member, counted from the question


class SecondOpinions:
    """See the module. silence, heartbeat: as of the head. settled: called when a question is answered."""

    def __init__(self, node: Node, heartbeat: float, silence: float, settled: Callable[[], None]) -> None:
        self._node, self._settled = node, settled
        self._waits, self._again = BEATS * heartbeat, silence
        self._asking: dict[PeerId, asyncio.Task[None]] = {}
        self.whom: Callable[[str], Sequence[str]] = lambda name: ()

    def close(self) -> None:
        for task in self._asking.values():
            task.cancel()

    def seek(self, member: Member) -> None:
        """Ask about a member that is missed, unless it was asked about a short while ago."""
        now = self._node.clock.now()
        if member.id in self._asking or now - member.asked < self._again:
            return
        if asked := [name for name in self.whom(member.id.name) if name in self._node.peers()]:
            member.asked = now
            work = self._ask(member, asked)
            self._asking[member.id] = asyncio.get_running_loop().create_task(work, context=contextvars.Context())

    def pending(self, member: Member) -> bool:
        """Return True while a question about a member is not answered."""
        return member.id in self._asking

    def sentences(self, members: Sequence[Member]) -> list[str]:
        """Return what is said of the members that others vouch for."""
        now = self._node.clock.now()
        return [doubt(one.id.name, one.vouched, one.until - now) for one in members if one.vouched]

    async def _ask(self, member: Member, asked: Sequence[str]) -> None:
        """Let others listen for a while, then ask them for what they have heard."""
        try:
            await first_within(self._node.clock, self._waits, [])
            sights = await self._sights(asked, member.id.name)
        finally:
            del self._asking[member.id]
        known, member.vouched = member.vouched, ()
        if member.missed and member.state != "down":
            member.vouched = who_reaches(sights, member.id.incarnation, 2 * self._waits)
        if member.vouched and not known:
            log.warning("%s", self.sentences([member])[0])
        self._settled()

    async def _sights(self, asked: Sequence[str], name: str) -> dict[str, Sight | None]:
        """Ask several nodes at once about a member, and return what each answered in time."""
        answers = [asyncio.ensure_future(self._sight(other, name)) for other in asked]
        try:
            await first_within(self._node.clock, self._waits, [asyncio.gather(*answers, return_exceptions=True)])
            return {other: one.result() if one.done() else None for other, one in zip(asked, answers, strict=True)}
        finally:
            for one in answers:
                one.cancel()

    async def _sight(self, other: str, name: str) -> Sight | None:
        """Return what another node knows of a member, or None if it does not answer."""
        try:
            view = await self._node.inspect_peer(other)
        except RuntimeFault:
            return None
        return next((Sight(peer.incarnation, peer.silent, peer.lost) for peer in view.peers if peer.name == name), None)
