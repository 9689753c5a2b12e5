"""Failure detection, on the head: which members are out of reach, since when, and whether that is their end.

Owns the counts of silence, the doubt of a head that misses most of its members at once, and its search for a later head.
Silence counts only while this loop itself runs, so a head that stalls blames no node; one that slept for longer than
``silence`` decides nothing before it has asked whether it has a successor. Declares through ``declare``; that and
``supersede`` are the head's.
"""

from __future__ import annotations

import asyncio
import contextvars
import logging
from collections.abc import Callable
from dataclasses import dataclass

from ...transport.address import PeerId
from ...transport.clock import Clock, Timer
from ...transport.errors import TransportError
from ...transport.handshake import ReturnRequest, obeyed
from ...transport.interface import UNREACHABLE, Transport
from ..base import envelope
from ..base.clock import first_within
from ..node.node import Node
from ..node.peers import Peer
from ..node.stall_watch import hung
from .address_book import AddressBook
from .members import ClusterMembers, Member
from .second_opinions import SecondOpinions
from .tickets import NONE as NO_TICKET

log = logging.getLogger("blockwright.runtime")
EXIT_GRACE = 0.2  # seconds that a broken connection waits for the exit status that explains it (calls fail at once)
STALL_FACTOR = 1.5  # a check that comes later than this many periods counts as this many


@dataclass(frozen=True, slots=True, kw_only=True)
class DetectionRules:
    """The limits of a head's patience, in seconds.

    near: no network parts it from what it launched. grace: ``orphan_grace``. directory: where a hung node leaves its note.
    """

    heartbeat: float
    silence: float
    startup: float
    grace: float
    near: bool
    directory: Callable[[], str]


class FailureDetector:
    """See the module. Made when the head's node has started; ``check`` begins."""

    def __init__(
        self,
        node: Node,
        transport: Transport,
        members: ClusterMembers,
        rules: DetectionRules,
        declare: Callable[[Member, str], None],
        supersede: Callable[[int, str], None],
        book: AddressBook,
    ) -> None:
        self._node, self._transport = node, transport
        self._members = members
        self._rules = rules
        self._declare, self._supersede = declare, supersede
        self._book = book
        self._clock: Clock = node.clock
        self._timer: Timer | None = None
        self._checked = node.clock.now()
        self._stalled_until = 0.0  # this loop stood still a short while ago: pings that were not answered prove nothing
        self._unsure_until = 0.0  # it has slept, and has to ask first whether there is a later head
        self._looked = 0.0  # when it looked for a later head
        self._asking: asyncio.Task[None] | None = None
        self.opinions = SecondOpinions(node, rules.heartbeat, rules.silence, self._judge)
        self._lost_most = ""  # why no member is declared down, while most are out of reach
        self.spares: Callable[[str], bool] = lambda name: False  # whether a node of that name is spared
        self.keep_both: Callable[[str, str], bool] = lambda one, other: False  # whether both of a pair may live on apart
        self.awaits = False  # members of earlier heads may come back, so their silence counts

    @property
    def doubts(self) -> str:
        """Why members that are out of reach are not declared down; else ""."""
        return "; ".join([*filter(None, [self._lost_most]), *self.opinions.sentences(list(self._members))])

    def close(self) -> None:
        self.opinions.close()
        if self._timer is not None:
            self._timer.cancel()
        if self._asking is not None:
            self._asking.cancel()

    # ---- what the node reports

    def lost(self, member: Member, peer: Peer, cause: str) -> None:
        """Handle the loss of the connection to a member; see ``transport.interface``."""
        now, rules = self._clock.now(), self._rules
        if (later := obeyed(cause)) is not None and later.name == self._node.name:
            self._supersede(later.incarnation, cause)
        elif member.joined and member.leaving and cause != UNREACHABLE:
            self._declare(member, "left")
        elif member.joined and cause != UNREACHABLE:
            self._miss(member, cause, EXIT_GRACE)
        elif cause != UNREACHABLE:
            self._clock.call_at(now + EXIT_GRACE, lambda: self._miss(member, cause, 0.0))
        elif now < self._stalled_until or now - self._checked > STALL_FACTOR * rules.heartbeat / 2:
            member.unanswered = now
            self._node.peering.recheck(peer)
        else:
            self._miss(member, cause, rules.heartbeat)
            if member.state != "down":
                self._node.peering.recheck(peer)

    def accused(self, reporter: Peer, peer: PeerId) -> None:
        """Two nodes that cannot reach each other make a cluster useless: if the accused has not just ended, end it. Its
        accuser ends instead if the accused is spared and is heard here for one more ``silence``. A spared accuser waits as
        long where members may outlive this head: it helps itself, and this head may be about to miss the accused, too.
        So does a pair of which both may live on.
        """
        if self._members.over(peer):
            self._node.peering.notify(reporter, [envelope.DOWN, peer.name, peer.incarnation, "it is over"])
        elif self._book.cut_off(reporter.id, peer):
            self._book.remind(reporter)
        elif (member := self._members.find(peer)) is not None:
            patient = self.keep_both(peer.name, reporter.id.name) or (
                self.spares(peer.name) != self.spares(reporter.id.name) and (self.spares(peer.name) or self._rules.grace)
            )
            wait = self._rules.silence if patient else EXIT_GRACE
            now = self._clock.now()
            self._clock.call_at(now + wait, lambda: self._convict(member, reporter.id, now))

    def _convict(self, member: Member, reporter: PeerId, since: float) -> None:
        """Declare one of the two down, unless one is by now, or both may live on. If members may outlive this head: later,
        if the accused is out of reach from here, too, or is expected back, so that its role is not known, or one of the two
        has just come back, so that this, and pairs of equals, decide first. ``since``: when it was accused.
        """
        rules, now = self._rules, self._clock.now()
        accuser = self._members.find(reporter)
        if member.state == "down" or accuser is None or accuser.state == "down":
            return
        both = self.keep_both(member.id.name, reporter.name)
        if both and self._book.decided(member.id, reporter, since):
            self._book.acquit(reporter, member.id)
            return
        near = not member.returning and not member.missed and member.silent < 2 * rules.heartbeat
        recent = not (both or self._equal(member, accuser)) and now - max(member.back, accuser.back) < rules.silence
        if (both and not near) or (rules.grace and (self._lost_most or not near or self.slept or recent)):
            self._clock.call_at(now + rules.heartbeat, lambda: self._convict(member, reporter, since))
        elif both:
            self._book.cut(member, accuser)
        elif near and self._outlasts(member, accuser):
            self._declare(accuser, f"disconnected from {member.id.name}")
        else:
            self._declare(member, f"disconnected from {reporter.name}")

    def _equal(self, one: Member, other: Member) -> bool:
        return self.spares(one.id.name) == self.spares(other.id.name)

    def _outlasts(self, one: Member, other: Member) -> bool:
        """Return whether the first of two that have lost each other goes on: it alone is spared, or it alone has been with
        this head for longer, as the other came back.
        """
        return one.back < other.back if self._equal(one, other) else self.spares(one.id.name)

    # ---- silence

    def check(self) -> None:
        """Count silence, now and from here on twice in each heartbeat. A late check counts little: while this loop stood
        still no node could be heard.
        """
        rules, now = self._rules, self._clock.now()
        period = rules.heartbeat / 2
        self._timer = self._clock.call_at(now + period, self.check)
        step = min(now - self._checked, STALL_FACTOR * period)
        if step < now - self._checked:
            self._stalled_until = now + rules.silence
        if now - self._checked > rules.silence:
            self._unsure_until, self._looked = now + rules.silence, 0.0
        self._checked = now
        for member in self._members:
            if member.state != "down" and (self.awaits or not member.returning):
                self._count(member, step, now)
        self._judge()
        if rules.grace and now - self._looked > rules.silence:
            self._looked = now
            self._ask_at(self._node.endpoint)  # another head may have taken the address, while members still obey this one

    def _count(self, member: Member, step: float, now: float) -> None:
        peer, rules = self._node.table.find(member.id), self._rules
        if member.state == "up" and peer is not None and peer.heard != member.heard and not peer.lost:
            member.heard = peer.heard
            member.back = now if member.missed else member.back
            member.found()
        member.silent += step
        if member.state == "up" and member.silent > rules.silence:
            stuck = now - member.unanswered > rules.silence  # pings that were tried again have ended long before
            self._miss(member, hung(rules.directory(), member.id) if stuck else UNREACHABLE, rules.heartbeat)
        elif member.returning and member.silent > rules.silence:
            self._miss(member, "it did not come back when its head had died", rules.heartbeat)
        elif member.state == "starting" and not member.returning and member.silent > rules.startup:
            self._declare(member, f"not up within {rules.startup:g} s")

    def _miss(self, member: Member, cause: str, wait: float) -> None:
        """Declare down a member that is out of reach. If members may outlive this head: only after ``wait`` seconds, in
        which it shows whether most others are out of reach, too.
        """
        rules, now = self._rules, self._clock.now()
        if not rules.grace:
            self._declare(member, cause)
        elif member.state != "down":
            near = rules.near and not member.joined
            member.miss(cause, now + wait, now + wait + (rules.silence if near else rules.grace))
            self._clock.call_at(now + wait, self._judge)
            self._ask_whom(member)
            if not near:
                self.opinions.seek(member)

    def _judge(self) -> None:
        """Declare missing members down, unless most are missing, or others reach them. This doubt ends when its members
        have ended by themselves (``orphan_grace``); of processes that no network parts from this head, after one more
        ``silence``. When most are back, the others have one more ``silence`` to come back in.
        """
        doubts, now = self._members.doubtful(), self._clock.now()
        if self.slept:
            return
        if doubts and not self._lost_most:
            log.warning("%s; is this head cut off?", doubts)
        if self._lost_most and not doubts:
            for member in [one for one in self._members if one.missed]:
                member.found()
        self._lost_most = doubts
        for member in self._members:
            if member.missed and member.state != "down":
                if member.vouched:
                    self.opinions.seek(member)
                waits = doubts or member.vouched or self.opinions.pending(member)
                if now >= (member.until if waits else member.due):
                    self._declare(member, member.missed)
                else:
                    self._ask_whom(member)

    # ---- a later head

    @property
    def slept(self) -> bool:
        """This loop stood still for so long, a short while ago, that members may obey a later head by now."""
        now = self._clock.now()
        return bool(self._rules.grace) and (now < self._unsure_until or now - self._checked > self._rules.silence)

    async def awake(self) -> None:
        """Wait until it would be known if there were a later head."""
        while self.slept:
            await first_within(self._clock, self._rules.heartbeat, [])

    def _ask_whom(self, member: Member) -> None:
        """Ask a member that is out of reach whom it obeys: a head that slept for long may have a successor."""
        if (peer := self._node.table.find(member.id)) is not None:
            self._ask_at(peer.endpoint)

    def _ask_at(self, endpoint: str) -> None:
        """Ask the node that listens there for a later head, unless another is being asked."""
        if self._asking is None or self._asking.done():
            asking = self._whom(endpoint)
            self._asking = asyncio.get_running_loop().create_task(asking, context=contextvars.Context())

    async def _whom(self, endpoint: str) -> None:
        question = ReturnRequest(self._node.id, self._node.incarnation, 1, NO_TICKET)
        asked = asyncio.ensure_future(self._transport.ask(endpoint, question))
        try:
            await first_within(self._clock, self._rules.silence, [asked])
            if asked.done():
                asked.result()
        except TransportError as refusal:
            if (later := obeyed(str(refusal))) is not None and later.name == self._node.name:
                self._supersede(later.incarnation, str(refusal))
        finally:
            asked.cancel()
