"""A member's side of its bond with the head: whether it is led, and how it comes back to a head.

A member that loses its head (the connection breaks, or nothing is heard of it for ``silence``) is *headless*: it keeps
peers, actors and all that runs, and asks at the address where it knew the head, with the ticket that this gave it, until one
takes it back. It obeys the highest epoch that it has heard of, and refuses a head of a lower one with a sentence. Meanwhile
it acts on its own evidence: a peer whose connection breaks, or that falls silent, is over for it, and the next head hears
of it. After ``orphan_grace`` without a head the node ends. A member whose entry has not returned, or without a ticket, ends
with its head. Owns this state; sends nothing but that question.
"""

from __future__ import annotations

import asyncio
import contextvars
import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Protocol

from ...policies.cluster.head_succession import AwakeTime, SilenceCount, redial_delay
from ...transport.address import PeerId
from ...transport.clock import Clock, Timer
from ...transport.errors import HandshakeRefused, KeyRefused, TransportError
from ...transport.handshake import Admission, ReturnRequest, is_over
from ...transport.interface import Transport
from ..base.clock import first_within
from .peers import Peer, PeerTable

log = logging.getLogger("blockwright.runtime")
ALONE = "alone"
LED, HEADLESS = "led", "headless"
PATIENCE = 1.0  # seconds for the answer to one question
KEY_REFUSALS = 3  # questions that fail for this node's key until its life is over: a head that declares it down forgets that
SILENT = "silent"


@dataclass(frozen=True, slots=True)
class HeadState:
    """A node's bond with a head. state: "led", "headless", or "alone" for one that never had any. since: by its clock."""

    state: str
    since: float
    epoch: int


@dataclass(frozen=True, slots=True)
class MemberTerms:
    """The terms that a member has from its head, in seconds: see ``Admission``."""

    heartbeat: float = 0.5
    silence: float = 0.0
    orphan_grace: float = 0.0


class HeadPeering(Protocol):
    """The part of ``Peering`` that acts for a follower."""

    def suspend(self, peer: Peer, cause: str) -> None:
        """Fail what is open with a peer that may come back, and send it nothing."""

    def give_up(self, peer: Peer, cause: str) -> None:
        """Take a peer for down, by this node's own evidence."""

    def obey(self, earlier: PeerId, head: PeerId, endpoint: str, accused: Mapping[PeerId, str]) -> None:
        """Take ``head``, which may be ``earlier``, for the head, and tell it what it must know of this node."""


class HeadFollower:
    """See the module. ended: called with the reason when the node is to be stopped."""

    def __init__(
        self,
        me: PeerId,
        clock: Clock,
        table: PeerTable,
        transport: Transport | None,
        peering: HeadPeering,
        ended: Callable[[str], None],
    ) -> None:
        self._me, self._clock = me, clock
        self._table, self._transport = table, transport
        self._peering, self._ended = peering, ended
        self.head: PeerId | None = None
        self.ready = False  # the entry function has returned
        self.life_over = False  # a head has declared it down, or is lost to it
        self.on_headless: list[Callable[[], None]] = []
        self.on_adopted: list[Callable[[int], None]] = []
        self._endpoint, self._ticket = "", ""
        self._terms = MemberTerms()
        self._state, self._since = ALONE, clock.now()
        self._why = ""  # it is headless
        self._accused: dict[PeerId, str] = {}  # peers that it gave up without a head, until one has decided on them
        self._silences: dict[PeerId, SilenceCount] = {}
        self._awake = AwakeTime(clock.now(), self._terms.heartbeat / 2)
        self._timer: Timer | None = None
        self._task: asyncio.Task[None] | None = None
        self._settled: asyncio.Future[None] | None = None  # done when the head that was asked last has taken it back, or not
        self._asked = self._keyless = 0  # questions, and how many of them failed for this node's key
        self._closed = False

    @property
    def state(self) -> HeadState:
        return HeadState(self._state, self._since, self.head.incarnation if self.head is not None else 0)

    @property
    def outlives(self) -> bool:
        """This node goes on without its head."""
        return self._terms.orphan_grace > 0 and self.ready and bool(self._ticket) and not self._closed

    @property
    def silence(self) -> float:
        """Seconds without a word after which a peer counts as lost."""
        return self._terms.silence

    @property
    def headless(self) -> bool:
        return self._state == HEADLESS

    def follow(self, head: PeerId, endpoint: str, terms: MemberTerms) -> None:
        """Be a member of that head from now on."""
        self.head, self._endpoint = head, endpoint
        self._terms = terms
        self._change(LED)
        if terms.orphan_grace > 0 and self._timer is None:
            self._awake = AwakeTime(self._clock.now(), terms.heartbeat / 2)
            self._check()

    def close(self) -> None:
        """Look for no head any more."""
        self._closed = True
        if self._timer is not None:
            self._timer.cancel()
        if self._task is not None:
            self._task.cancel()

    # ---- what happens

    def lost(self, cause: str) -> bool:
        """Handle the loss of the head; return False if the node ends with it."""
        if not self.outlives or self.head is None:
            return False
        if (peer := self._table.find(self.head)) is not None:
            self._peering.suspend(peer, cause)
        self._settle()
        if self._state == HEADLESS:
            return True
        log.warning("node %s has lost its head %s (%s) and goes on without", self._me, self.head, cause)
        self._why = cause
        self._silences.clear()
        self._change(HEADLESS)
        for peer in [peer for peer in self._table.current.values() if peer.lost and peer.id != self.head]:
            self._peering.give_up(peer, "disconnected")  # there is none to say who is down
        self._task = asyncio.get_running_loop().create_task(self._redial(), context=contextvars.Context())
        for callback in list(self.on_headless):
            _guarded(callback)
        return True

    def end(self, why: str) -> None:
        """End this life: a head has declared it over, or is lost to it. Its process may enter as the next life."""
        self.life_over = True
        self.close()
        self._ended(why)

    def accuse(self, peer: PeerId, cause: str) -> None:
        """Remember to tell the next head of a peer that was given up."""
        self._accused[peer] = cause

    def acquit(self, peer: PeerId) -> None:
        """Forget a peer that the head has decided on: it is down, or cut off from this node, or reached again."""
        self._accused.pop(peer, None)

    def on_ticket(self, text: str) -> None:
        """Keep the ticket that the head gave; a member that came back is led again."""
        self._ticket = text
        peer = self._table.find(self.head) if self.head is not None else None
        if self._state != HEADLESS or peer is None or peer.lost:
            return
        log.info("node %s is led by %s", self._me, self.head)
        self._silences.clear()
        self._change(LED)
        self._settle()
        for callback in list(self.on_adopted):
            _guarded(callback, peer.incarnation)

    # ---- inside

    def _change(self, state: str) -> None:
        self._state, self._since = state, self._clock.now()

    def _settle(self) -> None:
        if self._settled is not None and not self._settled.done():
            self._settled.set_result(None)

    def _check(self) -> None:
        """Count the silence of the head while there is one, of the others while there is none."""
        now, terms = self._clock.now(), self._terms
        self._timer = self._clock.call_at(now + terms.heartbeat / 2, self._check)
        step = self._awake.step(now)
        if self._state == HEADLESS and now - self._since > terms.orphan_grace:
            self._ended(f"no head came within {terms.orphan_grace:g} s after {self.head} was lost: {self._why}")
            self.close()
            return
        watched = [peer for peer in self._table.current.values() if self._watches(peer)]
        counts = {peer.id: self._silences.get(peer.id) or SilenceCount(peer.heard) for peer in watched}
        self._silences = counts
        for peer in watched:
            if counts[peer.id].add(peer.heard, step) <= terms.silence:
                continue
            if peer.id == self.head:
                self.lost(SILENT)
            else:
                self._peering.give_up(peer, SILENT)

    def _watches(self, peer: Peer) -> bool:
        if peer.id == self.head:
            return self._state == LED and self.outlives and not peer.lost
        return self._state == HEADLESS and peer.met and not peer.lost

    async def _redial(self) -> None:
        """Ask for a head until one has taken this node back."""
        tries = 0
        while self._state == HEADLESS and not self._closed:
            await first_within(self._clock, redial_delay(tries), [])
            tries += 1
            admission = await self._ask()
            if admission is None or not self._obeys(admission):
                continue
            tries = 0
            self._settled = asyncio.get_running_loop().create_future()
            earlier, self.head = self.head, admission.head
            self._terms = MemberTerms(admission.heartbeat, admission.silence, admission.orphan_grace)
            assert earlier is not None, "it had a head"
            self._peering.obey(earlier, admission.head, self._endpoint, self._accused)
            await first_within(self._clock, self._terms.silence, [self._settled])

    async def _ask(self) -> Admission | None:
        """Ask once; return the answer, if one came."""
        assert self._transport is not None, "a member listens"
        assert self.head is not None, "it had a head"
        self._asked += 1
        request = ReturnRequest(self._me, self.head.incarnation, self._asked, self._ticket)
        asked = asyncio.ensure_future(self._transport.ask(self._endpoint, request))
        try:
            await first_within(self._clock, PATIENCE, [asked])
            return asked.result() if asked.done() else None
        except HandshakeRefused as refusal:
            if is_over(str(refusal), self._me):
                self.end(f"the head declared it down: {refusal}")
            log.debug("node %s is not taken back: %s", self._me, refusal)
        except KeyRefused:
            self._keyless += 1
            if self._keyless == KEY_REFUSALS:
                self.end("the head declared it down: it takes its key no more")
        except TransportError as error:
            log.debug("node %s finds no head: %s", self._me, error)
        finally:
            asked.cancel()
        return None

    def _obeys(self, admission: Admission) -> bool:
        """Return True if that head is this one's, or a later one, and takes this life back."""
        head = self.head
        return (
            head is not None
            and admission.own == self._me
            and admission.head.name == head.name
            and admission.head.incarnation >= head.incarnation
        )


def _guarded(callback: Callable[..., None], *args: object) -> None:
    """Run a callback of the application, whose error must not stop the node."""
    try:
        callback(*args)
    except Exception:
        log.exception("a callback failed at a change of the head")
