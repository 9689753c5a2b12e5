"""Adoption: members of an earlier head come back to this one, each as the life that it is.

Owns the terms on which a member is taken back (its ticket, its number, what is known of that life), what members tell of
others, and who is still awaited. No member is taken back before the application asks for it, so that what members then call
is there. Declares none down: one that does not come is missed, and judged as any other member.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping

from ...transport.address import PeerId
from ...transport.errors import HandshakeRefused
from ...transport.handshake import ReturnRequest, over
from .members import ClusterMembers, Member
from .tickets import MemberTicket, Tickets

LASTING, RENEWALS = 60.0, 4  # seconds of a ticket beyond twice ``orphan_grace``; how often it is renewed in its time


class Adoption:
    """See the module. unix: seconds of Unix time. grace: ``orphan_grace``."""

    def __init__(
        self, head: PeerId, members: ClusterMembers, tickets: Tickets | None, grace: float, unix: Callable[[], float]
    ) -> None:
        self._head, self._members = head, members
        self._tickets, self._grace = tickets, grace
        self._unix = unix
        self._changed: asyncio.Future[None] | None = None
        self.open = False  # members are taken back
        self.came = False  # one has

    @property
    def lasting(self) -> float:
        """Seconds for which a ticket is valid."""
        return 2 * self._grace + LASTING

    def expect(self, living: Mapping[PeerId, int]) -> list[Member]:
        """Await the processes of an earlier head that the launcher lists; return them as members."""
        return [
            self._members.add(Member(node, state="expected", adopted=True, claimed=False, pid=pid))
            for node, pid in living.items()
        ]

    def ticket(self, member: Member) -> str:
        """Return a new ticket for a member."""
        assert self._tickets is not None, "only a head whose members may outlive it gives tickets"
        expires = int(self._unix() + self.lasting) + 1
        return self._tickets.issue(MemberTicket(member.id, member.role, member.joined, member.key, expires))

    def admit(self, said: ReturnRequest, key: str) -> Member:
        """Return the member that comes back, and may connect now. Raises HandshakeRefused."""
        if self._tickets is None:
            raise HandshakeRefused(over(said.sender, f"{self._head} takes no members of other heads (orphan_grace is 0)"))
        try:
            ticket = self._tickets.check(said.ticket, key, self._unix())
        except HandshakeRefused as refusal:  # of heads of another keeper, for instance: it never becomes good
            raise HandshakeRefused(over(said.sender, str(refusal))) from None
        node = ticket.member
        if node != said.sender:
            raise HandshakeRefused(f"{said.sender} brings the ticket of {node}; start this node again")
        if self._members.over(node):
            raise HandshakeRefused(over(node, "it was declared down"))
        last = self._members.get(node.name)
        if not self.open and (last is None or last.state != "up"):
            raise HandshakeRefused(f"{self._head} is not ready to take members back; try again")
        if last is not None and last.id != node and last.state != "down":
            raise HandshakeRefused(over(node, f"{last.id} has its name now"))
        if last is None or last.id != node:  # no process of ours
            last = self._members.add(Member(node, joined=True, adopted=True, claimed=False, state="expected"))
        if said.attempt <= last.attempt:
            raise HandshakeRefused(f"{node} has asked again since")
        last.role, last.key = ticket.role, ticket.key
        last.attempt = said.attempt
        if last.state == "expected":
            last.state = "starting"
        return last

    def learn(self, node: PeerId, up: bool) -> str:
        """Learn from a member that it knows that life, and takes it for up; return why it is over, if it is."""
        if not up:
            self._members.note(node)
        elif self._members.over(node):
            return "it ended while there was no head"
        elif (last := self._members.get(node.name)) is None or (last.id != node and last.state == "down"):
            self._members.add(Member(node, joined=True, adopted=True, claimed=False, state="expected"))
        return ""

    def change(self) -> None:
        """Wake who waits for members: one is up again, or is declared down."""
        if self._changed is not None and not self._changed.done():
            self._changed.set_result(None)
        self._changed = None

    def changed(self) -> asyncio.Future[None]:
        """Return what is done at the next ``change``."""
        if self._changed is None:
            self._changed = asyncio.get_running_loop().create_future()
        return self._changed

    def settled(self, anyone: bool) -> bool:
        """Return True if no member is awaited. ``anyone``: at least one member must have come."""
        return not self._members.returning() and (self.came or not anyone)
