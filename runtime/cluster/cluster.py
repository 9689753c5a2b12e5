"""Cluster membership, on the head: nodes launched, up and down, and failure detection.

Owns incarnation numbers and the declaration of a node's end, made exactly once for each life, with its cause:

    "exited N"      the process ended (its launcher says with which status); a broken connection is the first sign.
                    ": " and what it said last follow where it was started by a command
    "left"          it had joined by hand and stopped in order
    "disconnected"  the connection broke and no launcher explains it; "disconnected from W" if only worker W says so
    "unreachable"   pings of the transport stay unanswered: the host, the network, or a stopped process
    "hung"          pings are answered, but the node's event loop sends no heartbeats: it is stuck (in what: stall_watch.py)

A node declared down is fenced everywhere and killed. Which members are out of reach is ``failure_detector``'s to find, which
of an earlier head's come back ``adoption``'s. Whether to start a node again is not decided here.
"""

from __future__ import annotations

import asyncio
import contextvars
import logging
import math
import time
from collections.abc import Callable, Sequence
from typing import Any

from ...transport.address import PeerId, check_name, split_key
from ...transport.clock import Clock, Timer
from ...transport.curve import NodeKeys
from ...transport.errors import ExpectedRefusal, HandshakeRefused
from ...transport.handshake import Admission, ReturnRequest, obeys, succeeds
from ..base import envelope
from ..base.clock import first_within, seconds
from ..base.down import Down, OnDown
from ..base.errors import NodeDown
from ..base.names import refuse_while_importing
from ..node.node import Node
from ..node.peers import Peer
from . import failure_detector
from .address_book import AddressBook
from .adoption import RENEWALS, Adoption
from .failure_detector import DetectionRules, FailureDetector
from .invitations import Invitation, Invitations
from .join_text import LAUNCHED, PREFIX, JoinText, JoinTexts
from .launcher import Launcher, LaunchError, NodeSpec
from .members import ClusterMembers, Member, MemberCallbacks, OnLaunch, OnSuperseded, OnUp
from .node_process import encode_config
from .tickets import Tickets

log = logging.getLogger("blockwright.runtime")
PING_SHARE = 0.5  # of ``silence``: pings must fail before heartbeats do, so that their failing is the cause
STOP_GRACE = 5.0  # seconds for nodes to stop in order


class ClusterHead:
    """See the module. Its ``node`` is the head: spawn actors on it, ask it for references.

    heartbeat: seconds between heartbeats of all nodes. silence: seconds without any after which a node is down.
    startup: seconds that a launched node may take until its entry function returns. listen: where all nodes do, see ``Node``
    ("": socket files; "tcp://HOST:PORT": the head there, the launched ones at the same HOST). keys: of the head. join_texts:
    those with which nodes may join, made with these keys; None: none.

    orphan_grace: seconds that members go on without a head, and may be adopted by the next one; 0: they end with this one.
    The next head needs the same address (port or launcher's directory), a higher ``epoch`` (``next_epoch``), and the same
    keys or, without keys, the same ``secret``. unix: the clock of expiry.
    """

    def __init__(
        self,
        name: str,
        *,
        launcher: Launcher,
        heartbeat: float = 0.5,
        silence: float = 2.5,
        startup: float = 120.0,
        listen: str = "",
        keys: NodeKeys | None = None,
        join_texts: JoinTexts | None = None,
        epoch: int = 1,
        orphan_grace: float = 0.0,
        secret: bytes = b"",
        clock: Clock | None = None,
        unix: Callable[[], float] = time.time,
    ) -> None:
        heartbeat, silence = seconds("heartbeat", heartbeat), seconds("silence", silence)
        startup, orphan_grace = seconds("startup", startup), seconds("orphan_grace", orphan_grace)
        if not 0 < heartbeat < silence:
            raise ValueError(
                f"a heartbeat of {heartbeat} s and a silence of {silence} s cannot be used; give 0 < heartbeat < silence"
            )
        if orphan_grace and keys is None and not secret:
            raise ValueError(
                f"orphan_grace is {orphan_grace:g} s, but no later head could know its members; give keys or a secret"
            )
        self._launcher, self._heartbeat = launcher, heartbeat
        self._silence, self._startup = silence, startup
        self._grace = orphan_grace
        self._listen, self._keys = listen, keys
        self._invitations, self._join_texts = Invitations(), join_texts
        self._id = PeerId(name, epoch)
        self._clock, self._unix = clock, unix
        self._node: Node | None = None
        self._members = ClusterMembers()
        tickets = Tickets(secret or (keys.secret if keys is not None else b"")) if orphan_grace else None
        self._adoption = Adoption(self._id, self._members, tickets, orphan_grace, unix)
        self._processes: dict[PeerId, Member] = {}  # lives whose process has not ended
        self._callbacks = MemberCallbacks()
        self._spares: Callable[[str], bool] = lambda name: False
        self._timer: Timer | None = None
        self.superseded = 0  # the epoch of the later head that a member obeys: this one is over
        self.stopping = False  # no callbacks, nothing is launched
        self._stop: asyncio.Task[None] | None = None

    @property
    def node(self) -> Node:
        """The head's. Raises RuntimeError before ``start``."""
        if self._node is None:
            raise RuntimeError("the cluster was not started; use 'async with', or await its start() first")
        return self._node

    @property
    def epoch(self) -> int:
        return self._id.incarnation

    @property
    def doubts(self) -> str:
        """Why members that are out of reach, of this head or of each other, are not declared down; else ""."""
        return "; ".join(filter(None, [self._detector.doubts, *self._book.sentences]))

    @property
    def cuts(self) -> list[tuple[str, str]]:
        """The pairs of members that do not reach each other now, and both live on (see ``keep_both``)."""
        return self._book.pairs

    # ---- what the application calls

    def spare(self, spares: Callable[[str], bool]) -> None:
        """Spare nodes of these names when one other member alone cannot reach them: that member ends, and not they."""
        self._spares = spares

    def keep_both(self, may: Callable[[str, str], bool]) -> None:
        """Let both of two members live on that do not reach each other while the head reaches both, if ``may`` says so of
        their names. Until they do again, each takes the other for down. Call it after ``start``, as ``on_cut``.
        """
        self._detector.keep_both = may

    def on_cut(self, callback: Callable[[], None]) -> None:
        """Call ``callback()`` whenever ``cuts`` has changed."""
        self._callbacks.on_cut.append(callback)

    def ask(self, whom: Callable[[str], Sequence[str]]) -> None:
        """Ask the nodes that ``whom(name)`` returns about a member of that name that is out of reach, before it is declared
        down. Where one of them reaches it, it is down only after ``orphan_grace``. Call it after ``start``.
        """
        self._detector.opinions.whom = whom

    async def start(self) -> None:
        """Start the head. Raises LaunchError, AddressError, KeysError, RuntimeError (a script is only imported); then
        nothing is left.
        """
        refuse_while_importing()
        try:
            await self._launcher.start(self._exited)
            self._transport = transport = self._launcher.head_transport(self._id, self._listen, self._keys)
            try:
                transport.watch(PING_SHARE * self._silence)
                node = Node(
                    self._id.name,
                    incarnation=self._id.incarnation,
                    transport=transport,
                    clock=self._clock,
                    heartbeat_interval=self._heartbeat,
                    membership=self,
                )
                await node.start()
                self._node = node
                transport.invite(self._invites)
                for name, incarnation in self._launcher.spawned().items():
                    self._members.note(PeerId(name, incarnation))
                for member in self._adoption.expect(self._launcher.list()):
                    self._processes[member.id] = member
            except BaseException:
                transport.close()
                raise
        except BaseException:
            await self._launcher.stop()
            raise
        rules = DetectionRules(
            heartbeat=self._heartbeat,
            silence=self._silence,
            startup=self._startup,
            grace=self._grace,
            near=not self._listen,
            directory=lambda: self._launcher.directory,
        )
        book = self._book = AddressBook(self.node, self._members, self._callbacks.cut)
        self._detector = FailureDetector(node, transport, self._members, rules, self._declare, self._supersede, book)
        self._detector.spares = lambda name: self._spares(name)
        self._detector.check()
        if self._grace:
            self._renew()

    def _open(self) -> None:
        """Take members of earlier heads back from now on."""
        self._adoption.open = self._detector.awaits = True

    def on_launch(self, callback: OnLaunch) -> None:
        """Call ``callback(name, incarnation, failure)`` at each launch; ``failure``: why there is no process, or empty."""
        self._callbacks.on_launch.append(callback)

    def on_up(self, callback: OnUp) -> None:
        """Call ``callback(name, incarnation)`` once for each life whose entry function returned."""
        self._callbacks.on_up.append(callback)

    def on_adopt(self, callback: OnUp) -> None:
        """Call ``callback(name, incarnation)`` each time that a member of an earlier head is up here (instead of ``on_up``),
        or one of this head has come back after it had lost its way here."""
        self._callbacks.on_adopt.append(callback)

    def on_superseded(self, callback: OnSuperseded) -> None:
        """Call ``callback(epoch, sentence)`` once if a member obeys a later head; ``stop`` leaves all members to it."""
        self._callbacks.on_superseded.append(callback)

    def on_down(self, callback: OnDown) -> None:
        """Call ``callback(Down)`` once for each life that ended, also before it was up; not after ``stop``."""
        self._callbacks.on_down.append(callback)

    async def adopting(self, patience: float = 1.0, *, anyone: bool = False) -> tuple[str, ...]:
        """Take members of earlier heads back from now on; until all that are known of have come, or ``patience`` seconds
        have passed. Returns the names of all that came.

        anyone: wait for the first one also if none is known of, as when none is a process of this machine. Who does not
        come within ``silence`` is declared down, unless most do not.
        """
        clock = self.node.clock
        until = clock.now() + seconds("patience", patience)
        self._open()
        while not self._adoption.settled(anyone) and (left := until - clock.now()) > 0:
            await first_within(clock, left, [self._adoption.changed()])
        return tuple(member.id.name for member in self._members if member.adopted and member.state == "up")

    async def launch(self, name: str, entry: str, config: Any) -> int:
        """Start a node; its incarnation when the process exists. Raises LaunchError, AddressError, ValueError: it lives.

        A member of an earlier head that has come back, or is awaited, is taken as it is, once, and no process is started.
        """
        last = self._members.get(check_name(name))
        if last is not None and not last.claimed:
            self._open()
            last.claimed = True
            await last.settled.wait()
            if last.state == "up":
                self._claim(last)
                return last.id.incarnation
        await self._detector.awake()  # a later head may have started it
        if self.stopping:
            raise LaunchError(f"node {name} is not started: the cluster is stopping")
        if name == self._id.name or (last is not None and last.state != "down"):
            raise ValueError(f"node {name!r} lives; kill it first or choose another name")
        node = self._members.next(name)
        text = self._text_for(node) if self._launcher.joins(name) else None
        keys = NodeKeys.generate() if self._keys is not None and text is None else None  # its own, in each life
        spec = NodeSpec(
            name=name,
            incarnation=node.incarnation,
            entry=entry,
            config=encode_config(config),
            head=str(self._id),
            head_endpoint=self.node.endpoint,
            directory=self._launcher.directory,
            listen=f"{self._listen.rpartition(':')[0]}:0" if self._listen else "",
            keys=[keys.public, keys.secret] if keys is not None else [],
            heartbeat=self._heartbeat,
            silence=self._silence,
            orphan_grace=self._grace,
            join_text=text.pack() if text is not None else "",
        )
        if keys is not None:
            self._transport.admit(node, keys.name)
        member = Member(node, key=keys.name) if keys is not None else Member(node)
        if text is not None:
            member.role, member.text = text.role, text.id
        self._processes[node] = self._members.add(member)
        try:
            member.pid = await self._launcher.spawn(spec)
        except BaseException as error:
            member.state = "down"
            self._processes.pop(node, None)
            member.exited.set()
            if isinstance(error, Exception):
                self._callbacks.launched(node, str(error))
            raise
        self._callbacks.launched(node, "")
        if member.state == "down":  # killed while it was being started, when there was nothing to kill yet
            self._launcher.kill(node)
        return node.incarnation

    def _text_for(self, node: PeerId) -> JoinText:
        """Return the join text with which a process joins as this life of a node, while the head waits for it."""
        if self._join_texts is None:
            raise LaunchError(f"node {node} joins from elsewhere, but this cluster has no join texts; give it join_texts")
        until = math.ceil(self._unix() + self._startup)
        return self._join_texts.issue([split_key(self.node.endpoint)[0]], LAUNCHED, until)

    def wish(self, workers: int, why: str) -> None:
        """Tell the launcher how many workers an engine should run."""
        self._launcher.wish(workers, why)

    async def wait_up(self, name: str) -> None:
        """Until the node's current life is up. Raises NodeDown when it ends before."""
        member = self._members.last[name]
        await member.settled.wait()
        if member.state == "down":
            raise NodeDown(f"node {member.id} is down: {self.node.table.last_down[name].cause}")

    async def ended(self, name: str) -> str:
        """Until the process of the node's current life is gone; the cause of its end."""
        member = self._members.last[name]
        await member.exited.wait()
        down = self.node.table.last_down.get(name)
        return down.cause if down is not None and down.incarnation == member.id.incarnation else "stopped"

    async def kill(self, name: str, cause: str = "killed") -> None:
        """End the node's current life with SIGKILL; returns when it is declared down and its process is gone. One that
        joined by hand is fenced, and ends when it sees its connection closed."""
        member = self._members.last[name]
        if member.state != "down":
            self._declare(member, cause)
        await member.exited.wait()

    def role(self, name: str) -> str:
        """Return the role of the join text that the node brought; "" without one, or for an unknown node."""
        member = self._members.get(name)
        return member.role if member is not None else ""

    def dismiss(self, name: str, incarnation: int) -> None:
        """Ask that life of a node to stop in order, if it is up. A node that joined by hand ends with code 0."""
        member = self._members.last[name]
        up = member.state == "up" and member.id.incarnation == incarnation
        if up and (peer := self.node.table.find(member.id)) is not None:
            member.leaving = True
            self.node.peering.notify(peer, [envelope.STOP])

    async def remove(self, name: str) -> None:
        """Kill a member for good: its key is refused everywhere from now on and its connections end.

        A node of that name can come again only with a new invitation and a new key.
        """
        await self.kill(name, "removed")

    def invite(self, lasting: float = 600.0) -> str:
        """Return a text with which one node can join, once, within ``lasting`` seconds: ``blockwright node --join TEXT``.
        It is as good as a key until then. ValueError for a cluster without keys, to which its address is enough.
        """
        if self._keys is None:
            raise ValueError(f"this cluster has no keys; join it at {self.node.endpoint}")
        until = self.node.clock.now() + seconds("lasting", lasting)
        return Invitation(self.node.endpoint, self._invitations.issue(until)).pack()

    def pid(self, name: str) -> int:
        """Return the process number of the current or last life."""
        return self._members.last[name].pid

    def members(self) -> dict[str, Member]:
        """Return the last life of each node that was ever launched."""
        return dict(self._members.last)

    async def stop(self, drain: float = 0.0) -> None:
        """Stop the head's actors (so that supervisors stop their children, wherever they are), ask all nodes to stop, kill
        those left, then stop the head. No callbacks from here on. Idempotent; the waiting task may be cancelled.

        drain: seconds for what waits at each of the head's actors.
        """
        if self._stop is None:
            drain = seconds("drain", drain)
            self.stopping = True
            self._stop = asyncio.get_running_loop().create_task(self._stopped(drain), context=contextvars.Context())
        await asyncio.shield(self._stop)

    async def _stopped(self, drain: float) -> None:
        self.node.peering.stopping = True
        if self.superseded:
            self.node.peering.leaving = True
        for member in self._members:
            if member.state == "starting" and not self.superseded:
                self._launcher.kill(member.id)  # it would meet actors that have ended, and tell of it as of an error
        await self.node.stop_actors(drain)  # nodes that hang or die meanwhile are still declared down
        self.node.peering.leaving = True
        if self._timer is not None:
            self._timer.cancel()
        self._detector.close()
        if self.superseded:
            await self.node.stop()
            await self._launcher.leave()
            return
        living = [m for m in self._members if not m.exited.is_set()]
        for member in living:
            if member.state == "up" and (peer := self.node.table.find(member.id)) is not None:
                self.node.peering.notify(peer, [envelope.STOP])
            else:
                self._launcher.kill(member.id)
        # A node without a process yet cannot be killed and ends with the launcher: nothing to wait for.
        there = self._launcher.list()
        waits = [asyncio.ensure_future(m.exited.wait()) for m in living if m.id in there]
        if waits:
            await asyncio.wait(waits, timeout=STOP_GRACE)
            for wait in waits:
                wait.cancel()
        await self.node.stop()
        await self._launcher.stop()

    # ---- what the node reports (Membership)

    def admits(self, peer: PeerId) -> bool:
        member = self._members.find(peer)
        return member is not None and member.state in ("starting", "up")

    def ready(self, peer: Peer) -> None:
        member = self._members.find(peer.id)
        if member is None or member.state not in ("starting", "up") or self.stopping:
            return
        known, member.state = member.state, "up"
        member.found()
        self._book.publish(peer)
        self._book.remind(peer)
        if self._grace:
            self.node.peering.notify(peer, [envelope.TICKET, self._adoption.ticket(member)])
        member.settled.set()
        if known == "up" or member.adopted:
            log.info("node %s is back at head %s", member.id, self._id)
            self._adoption.came = True
            self._adoption.change()
            if member.claimed:
                self._claim(member)
            self._callbacks.adopted(member.id)
        else:
            self._callbacks.up(member.id)

    def lost(self, peer: Peer, cause: str) -> None:
        self._detector.lost(self._members.last[peer.id.name], peer, cause)

    def accused(self, reporter: Peer, peer: PeerId) -> None:
        self._detector.accused(reporter, peer)

    def join(self, name: str, key: str = "", secret: str = "") -> Admission:
        """Answer a node that this head did not launch with its number; it has ``startup`` seconds to come up."""
        last, now = self._members.get(name), self.node.clock.now()
        role = ""
        if self._join_texts is not None and secret.startswith(PREFIX):
            role = self._join_texts.check(secret, self._unix())
            if role == LAUNCHED:
                return self._launched(JoinTexts.id_of(secret), key)
        elif key:
            self._invitations.check(secret, now)  # who has none learns nothing, and a name that is taken uses none up
        if self.stopping:
            raise HandshakeRefused(f"the cluster of {self._id} is stopping")
        if last is not None and last.joined and last.state == "starting" and self.node.table.find(last.id) is None:
            self._declare(last, "asked for another number")
        elif name == self._id.name or (last is not None and last.state != "down"):
            raise HandshakeRefused(f"the cluster of {self._id} has a node {name} already; choose another name")
        if key and not role:
            self._invitations.redeem(secret, now)
        return self._terms(self._members.add(Member(self._members.next(name), joined=True, role=role, key=key)))

    def returned(self, said: ReturnRequest, key: str) -> Admission:
        """Take a member of an earlier head back, or one of this head that had lost it; refuse an earlier head."""
        if said.sender == self._id:
            raise ExpectedRefusal(f"here listens {self._id} itself, and no later head")
        if said.sender.name == self._id.name and said.sender < self._id:
            raise HandshakeRefused(succeeds(self._id, said.sender))
        if self.stopping:
            raise HandshakeRefused(f"the cluster of {self._id} is stopping")
        member = self._adoption.admit(said, key)
        if said.epoch > self._id.incarnation:
            self._supersede(said.epoch, obeys(said.sender, PeerId(self._id.name, said.epoch), self._id))
            raise HandshakeRefused(f"{self._id} is over, because {said.sender} obeys a later head")
        member.back = self.node.clock.now()
        if (peer := self.node.table.find(member.id)) is not None:
            self.node.peering.part(peer, "it has lost its head and comes back")
        return self._terms(member)

    def told(self, peer: Peer, nodes: list[tuple[str, int, bool]]) -> None:
        """Learn from a member that comes back which lives it knows, and tell it which of them are over."""
        for name, incarnation, up in nodes:
            node = PeerId(check_name(name), incarnation)
            if name != self._id.name and (why := self._adoption.learn(node, up)):
                self.node.peering.notify(peer, [envelope.DOWN, name, incarnation, why])

    def sought(self, peer: Peer, name: str) -> None:
        self._book.tell(peer, name)

    def healed(self, peer: Peer, other: PeerId) -> None:
        self._book.healed(peer, other)

    def _launched(self, text: str, key: str) -> Admission:
        """Answer a process that the launcher started for one life of a node, and no other."""
        member = next((one for one in self._members if one.text == text and one.state == "starting"), None)
        if member is None or self.stopping or self.node.table.find(member.id) is not None:
            raise HandshakeRefused(
                f"the join text {text} was for one life of a worker, which has ended or has joined; the head starts the next"
            )
        member.key = key
        return self._terms(member)

    def left(self, peer: Peer) -> None:
        member = self._members.last[peer.id.name]
        if member.joined or member.role:
            member.leaving = True
            self.node.peering.notify(peer, [envelope.STOP])  # tells it that it was heard; then its connection goes
            self.node.clock.call_at(
                self.node.clock.now() + failure_detector.EXIT_GRACE, lambda: self._declare(member, "left")
            )

    def _terms(self, member: Member) -> Admission:
        return Admission(self._id, member.id, self._heartbeat, self._silence, self._grace)

    def _invites(self) -> bool:
        """Return True if a node with an unknown key may ask to be let in."""
        return self._join_texts is not None or self._grace > 0 or self._invitations.any(self.node.clock.now())

    def claim(self, name: str, incarnation: int) -> None:
        """Answer for a member of an earlier head from now on: what it was to that head's actor of its name, it is to this
        head's. Does nothing for another life, or for one that is not of an earlier head."""
        member = self._members.find(PeerId(name, incarnation))
        if member is not None and member.adopted:
            member.claimed = True
            self._claim(member)

    def _claim(self, member: Member) -> None:
        if (peer := self.node.table.find(member.id)) is not None:
            self.node.peering.notify(peer, [envelope.CLAIMED])

    # ---- declarations

    def _exited(self, node: PeerId, status: int) -> None:
        self._members.note(node)  # perhaps of an earlier head
        # Perhaps not the last life of its name any more; none when its launch was cancelled.
        if (member := self._processes.pop(node, None)) is not None:
            words = self._launcher.last_words(node)
            self._declare(member, f"exited {status}{': ' * bool(words)}{words}")
            member.exited.set()

    def _renew(self) -> None:
        """Give all members new tickets, now and from here on several times before they expire."""
        self._timer = self.node.clock.call_at(self.node.clock.now() + self._adoption.lasting / RENEWALS, self._renew)
        for member in self._members:
            if member.state == "up" and (peer := self.node.table.find(member.id)) is not None:
                self.node.peering.notify(peer, [envelope.TICKET, self._adoption.ticket(member)])

    def _supersede(self, epoch: int, why: str) -> None:
        """End, because a later head is obeyed: declare none down, start and stop nothing any more."""
        if self.superseded:
            return
        self.superseded, self.stopping = epoch, True
        self.node.peering.leaving = True
        sentence = f"head {self._id} ends itself: {why.removeprefix('refused: ')}"
        log.error("%s", sentence)
        self._callbacks.superseded(epoch, sentence)
        self.node.close(sentence)

    def _declare(self, member: Member, cause: str) -> None:
        if member.state == "down" or (self.node.peering.leaving and not cause.startswith("exited")) or self.superseded:
            return
        member.state = "down"
        member.found()
        down = Down(member.id.name, member.id.incarnation, cause)
        level = logging.INFO if cause == "left" else logging.WARNING
        log.log(logging.DEBUG if self.node.peering.stopping else level, "node %s is down: %s", member.id, cause)
        if member.joined:
            member.exited.set()  # as far as this head can know
        else:
            self._launcher.kill(member.id)
        self.node.peering.declare_down(down)
        self._transport.disconnect(member.id)  # its key is over, also if it never came
        for peer in self.node.peers().values():
            self.node.peering.notify(peer, [envelope.DOWN, down.node, down.incarnation, down.cause])
        member.settled.set()
        self._book.ended(member.id)
        self._adoption.change()
        if not self.stopping:
            self._callbacks.down(down)
