"""Cluster membership, on the head: nodes launched, up and down, and failure detection.

Owns incarnation numbers and the declaration of a node's end, made exactly once for each life, with its cause:

    "exited N"      the process ended (its launcher says with which status); a broken connection is the first sign.
                    ": " and what it said last follow where it was started by a command
    "left"          it had joined by hand and stopped in order
    "disconnected"  the connection broke and no launcher explains it; "disconnected from W" if only worker W says so
    "unreachable"   pings of the transport stay unanswered: the host, the network, or a stopped process
    "hung"          pings are answered, but the node's event loop sends no heartbeats: it is stuck (in what: stall_watch.py)

Silence is counted only while this loop itself runs, so a head that stalls blames no node. A node declared down is fenced
everywhere and killed. Whether to start a node again is not decided here.
"""

from __future__ import annotations

import asyncio
import contextvars
import logging
import math
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from ...transport.address import PeerId, check_name, split_key
from ...transport.clock import Clock, Timer
from ...transport.curve import NodeKeys
from ...transport.errors import HandshakeRefused
from ...transport.handshake import Admission
from ...transport.interface import UNREACHABLE
from ..base import envelope
from ..base.clock import seconds
from ..base.down import Down, OnDown
from ..base.errors import NodeDown
from ..base.names import refuse_while_importing
from ..node.node import Node
from ..node.peers import Peer
from ..node.stall_watch import hung
from .invitations import Invitation, Invitations
from .join_text import LAUNCHED, PREFIX, JoinText, JoinTexts
from .launcher import Launcher, LaunchError, NodeSpec
from .node_process import encode_config

log = logging.getLogger("blockwright.runtime")
OnUp = Callable[[str, int], None]
OnLaunch = Callable[[str, int, str], None]
EXIT_GRACE = 0.2  # seconds that a broken connection waits for the exit status that explains it (calls fail at once)
STALL_FACTOR = 1.5  # a check that comes later than this many periods counts as this many
PING_SHARE = 0.5  # of ``silence``: pings must fail before heartbeats do, so that their failing is the cause
PAGE = 512  # nodes in a message of the address book
STOP_GRACE = 5.0  # seconds for nodes to stop in order


@dataclass(slots=True, eq=False)
class Member:
    """One life of a launched node."""

    id: PeerId
    joined: bool = False  # by hand: there is no process of ours
    role: str = ""  # of the join text that it brought, or was started with
    text: str = ""  # id of the join text that its launcher was given, for this life alone
    leaving: bool = False  # it said so
    pid: int = 0
    state: str = "starting"  # "starting" | "up" | "down"
    silent: float = 0.0  # seconds since it was heard (while it starts: since launch), as far as this head was awake
    heard: float | None = None  # what ``Peer.heard`` was at the last check
    unanswered: float = -math.inf  # when pings failed that may have been this head's own fault
    exited: asyncio.Event = field(default_factory=asyncio.Event)
    settled: asyncio.Event = field(default_factory=asyncio.Event)  # up, or down before it was


class ClusterHead:
    """See the module. Its ``node`` is the head: spawn actors on it, ask it for references.

    heartbeat: seconds between heartbeats of all nodes. silence: seconds without any after which a node is down.
    startup: seconds that a launched node may take until its entry function returns. listen: where all nodes do, see ``Node``
    ("": socket files; "tcp://HOST:PORT": the head there, the launched ones at the same HOST). keys: of the head. join_texts:
    those with which nodes may join, made with these keys; None: none.
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
        clock: Clock | None = None,
    ) -> None:
        heartbeat, silence, startup = (
            seconds(name, value) for name, value in (("heartbeat", heartbeat), ("silence", silence), ("startup", startup))
        )
        if not 0 < heartbeat < silence:
            raise ValueError(
                f"a heartbeat of {heartbeat} s and a silence of {silence} s cannot be used; give 0 < heartbeat < silence"
            )
        self._launcher, self._heartbeat = launcher, heartbeat
        self._silence, self._startup = silence, startup
        self._listen, self._keys = listen, keys
        self._invitations, self._join_texts = Invitations(), join_texts
        self._id, self._clock = PeerId(name, 1), clock
        self._node: Node | None = None
        self._members: dict[str, Member] = {}  # the last life of each name
        self._processes: dict[PeerId, Member] = {}  # lives whose process has not ended
        self._on_launch: list[OnLaunch] = []
        self._on_up: list[OnUp] = []
        self._on_down: list[OnDown] = []
        self._timer: Timer | None = None
        self._stalled_until = 0.0  # this loop stood still a short while ago: pings that were not answered prove nothing
        self.stopping = False  # no callbacks, nothing is launched
        self._stop: asyncio.Task[None] | None = None

    @property
    def node(self) -> Node:
        """The head's. Raises RuntimeError before ``start``."""
        if self._node is None:
            raise RuntimeError("the cluster was not started; use 'async with', or await its start() first")
        return self._node

    # ---- what the application calls

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
                    transport=transport,
                    clock=self._clock,
                    heartbeat_interval=self._heartbeat,
                    membership=self,
                )
                await node.start()
                self._node = node
                transport.invite(lambda: self._join_texts is not None or self._invitations.any(self.node.clock.now()))
            except BaseException:
                transport.close()
                raise
        except BaseException:
            await self._launcher.stop()
            raise
        self._checked = self.node.clock.now()
        self._check()

    def on_launch(self, callback: OnLaunch) -> None:
        """Call ``callback(name, incarnation, failure)`` at each launch; ``failure``: why there is no process, or empty."""
        self._on_launch.append(callback)

    def on_up(self, callback: OnUp) -> None:
        """Call ``callback(name, incarnation)`` once for each life whose entry function returned."""
        self._on_up.append(callback)

    def on_down(self, callback: OnDown) -> None:
        """Call ``callback(Down)`` once for each life that ended, also before it was up; not after ``stop``."""
        self._on_down.append(callback)

    async def launch(self, name: str, entry: str, config: Any) -> int:
        """Start a node; its incarnation when the process exists. Raises LaunchError, AddressError, ValueError: it lives."""
        last = self._members.get(check_name(name))
        if self.stopping:
            raise LaunchError(f"node {name} is not started: the cluster is stopping")
        if name == self._id.name or (last is not None and last.state != "down"):
            raise ValueError(f"node {name!r} lives; kill it first or choose another name")
        node = PeerId(name, last.id.incarnation + 1 if last is not None else 1)
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
            join_text=text.pack() if text is not None else "",
        )
        if keys is not None:
            self._transport.admit(node, keys.name)
        member = Member(node) if text is None else Member(node, role=text.role, text=text.id)
        self._members[name] = self._processes[node] = member
        try:
            member.pid = await self._launcher.spawn(spec)
        except BaseException as error:
            member.state = "down"
            self._processes.pop(node, None)
            member.exited.set()
            for callback in self._on_launch if isinstance(error, Exception) else []:
                _guarded(callback, name, node.incarnation, str(error))
            raise
        for callback in self._on_launch:
            _guarded(callback, name, node.incarnation, "")
        if member.state == "down":  # killed while it was being started, when there was nothing to kill yet
            self._launcher.kill(node)
        return node.incarnation

    def _text_for(self, node: PeerId) -> JoinText:
        """Return the join text with which a process joins as this life of a node, while the head waits for it."""
        if self._join_texts is None:
            raise LaunchError(f"node {node} joins from elsewhere, but this cluster has no join texts; give it join_texts")
        until = math.ceil(time.time() + self._startup)
        return self._join_texts.issue([split_key(self.node.endpoint)[0]], LAUNCHED, until)

    def wish(self, workers: int, why: str) -> None:
        """Tell the launcher how many workers an engine should run."""
        self._launcher.wish(workers, why)

    async def wait_up(self, name: str) -> None:
        """Until the node's current life is up. Raises NodeDown when it ends before."""
        member = self._members[name]
        await member.settled.wait()
        if member.state == "down":
            raise NodeDown(f"node {member.id} is down: {self.node.table.last_down[name].cause}")

    async def ended(self, name: str) -> str:
        """Until the process of the node's current life is gone; the cause of its end."""
        member = self._members[name]
        await member.exited.wait()
        down = self.node.table.last_down.get(name)
        return down.cause if down is not None and down.incarnation == member.id.incarnation else "stopped"

    async def kill(self, name: str, cause: str = "killed") -> None:
        """End the node's current life with SIGKILL; returns when it is declared down and its process is gone. One that
        joined by hand is fenced, and ends when it sees its connection closed."""
        member = self._members[name]
        if member.state != "down":
            self._declare(member, cause)
        await member.exited.wait()

    def role(self, name: str) -> str:
        """Return the role of the join text that the node brought; "" without one, or for an unknown node."""
        return self._members[name].role if name in self._members else ""

    def dismiss(self, name: str, incarnation: int) -> None:
        """Ask that life of a node to stop in order, if it is up. A node that joined by hand ends with code 0."""
        member = self._members[name]
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
        return self._members[name].pid

    def members(self) -> dict[str, Member]:
        """Return the last life of each node that was ever launched."""
        return dict(self._members)

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
        for member in self._members.values():
            if member.state == "starting":  # it would meet actors that have ended, and tell of it as of an error
                self._launcher.kill(member.id)
        await self.node.stop_actors(drain)  # nodes that hang or die meanwhile are still declared down
        self.node.peering.leaving = True
        if self._timer is not None:
            self._timer.cancel()
        living = [m for m in self._members.values() if not m.exited.is_set()]
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
        member = self._members.get(peer.name)
        return member is not None and member.id == peer and member.state == "starting"

    def ready(self, peer: Peer) -> None:
        member = self._members[peer.id.name]
        if member.id != peer.id or member.state != "starting" or self.stopping:
            return
        member.state, member.silent = "up", 0.0
        self._publish(peer)
        member.settled.set()
        for callback in self._on_up:
            _guarded(callback, member.id.name, member.id.incarnation)

    def lost(self, peer: Peer, cause: str) -> None:
        member, now = self._members[peer.id.name], self.node.clock.now()
        if member.joined and cause != UNREACHABLE:
            self._declare(member, "left" if member.leaving else cause)
        elif cause != UNREACHABLE:
            self.node.clock.call_at(now + EXIT_GRACE, lambda: self._declare(member, cause))
        elif now < self._stalled_until or now - self._checked > STALL_FACTOR * self._heartbeat / 2:
            member.unanswered = now
            self.node.peering.recheck(peer)
        else:
            self._declare(member, cause)

    def accused(self, reporter: Peer, peer: PeerId) -> None:
        """Two nodes that cannot reach each other make a cluster useless: if the accused has not just ended, end it."""
        member = self._members.get(peer.name)
        if member is not None and member.id == peer:
            cause = f"disconnected from {reporter.id.name}"
            self.node.clock.call_at(self.node.clock.now() + EXIT_GRACE, lambda: self._declare(member, cause))

    def join(self, name: str, key: str = "", secret: str = "") -> Admission:
        """Answer a node that this head did not launch with its number; it has ``startup`` seconds to come up."""
        last, now = self._members.get(name), self.node.clock.now()
        role = ""
        if self._join_texts is not None and secret.startswith(PREFIX):
            role = self._join_texts.check(secret, time.time())
            if role == LAUNCHED:
                return self._launched(JoinTexts.id_of(secret))
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
        node = PeerId(name, last.id.incarnation + 1 if last is not None else 1)
        self._members[name] = Member(node, joined=True, role=role)
        return Admission(self._id, node, self._heartbeat)

    def _launched(self, text: str) -> Admission:
        """Answer a process that the launcher started for one life of a node, and no other."""
        member = next((one for one in self._members.values() if one.text == text and one.state == "starting"), None)
        if member is None or self.stopping or self.node.table.find(member.id) is not None:
            raise HandshakeRefused(
                f"the join text {text} was for one life of a worker, which has ended or has joined; the head starts the next"
            )
        return Admission(self._id, member.id, self._heartbeat)

    def left(self, peer: Peer) -> None:
        member = self._members[peer.id.name]
        if member.joined or member.text:
            member.leaving = True
            self.node.peering.notify(peer, [envelope.STOP])  # tells it that it was heard; then its connection goes
            self.node.clock.call_at(self.node.clock.now() + EXIT_GRACE, lambda: self._declare(member, "left"))

    # ---- declarations

    def _exited(self, node: PeerId, status: int) -> None:
        # Perhaps not the last life of its name any more; none when its launch was cancelled.
        if (member := self._processes.pop(node, None)) is not None:
            words = self._launcher.last_words(node)
            self._declare(member, f"exited {status}{': ' * bool(words)}{words}")
            member.exited.set()

    def _check(self) -> None:
        """Count silence. A late check counts little: while this loop stood still no node could be heard."""
        now, period = self.node.clock.now(), self._heartbeat / 2
        self._timer = self.node.clock.call_at(now + period, self._check)
        step = min(now - self._checked, STALL_FACTOR * period)
        if step < now - self._checked:
            self._stalled_until = now + self._silence
        self._checked = now
        for member in list(self._members.values()):
            if member.state == "down":
                continue
            peer = self.node.table.find(member.id)
            if member.state == "up" and peer is not None and peer.heard != member.heard:
                member.heard = peer.heard
                member.silent = 0.0
                member.unanswered = -math.inf
            member.silent += step
            if member.state == "up" and member.silent > self._silence:
                stuck = now - member.unanswered > self._silence  # pings that were tried again have ended long before
                self._declare(member, hung(self._launcher.directory, member.id) if stuck else UNREACHABLE)
            elif member.state == "starting" and member.silent > self._startup:
                self._declare(member, f"not up within {self._startup:g} s")

    def _declare(self, member: Member, cause: str) -> None:
        if member.state == "down" or (self.node.peering.leaving and not cause.startswith("exited")):
            return
        member.state = "down"
        down = Down(member.id.name, member.id.incarnation, cause)
        log.log(logging.DEBUG if self.node.peering.stopping else logging.WARNING, "node %s is down: %s", member.id, cause)
        if member.joined:
            member.exited.set()  # as far as this head can know
        else:
            self._launcher.kill(member.id)
        self.node.peering.declare_down(down)
        self._transport.disconnect(member.id)  # its key is over, also if it never came
        for peer in self.node.peers().values():
            self.node.peering.notify(peer, [envelope.DOWN, down.node, down.incarnation, down.cause])
        member.settled.set()
        if not self.stopping:
            for callback in self._on_down:
                _guarded(callback, down)

    def _publish(self, new: Peer) -> None:
        """Tell a node that is up where all the others are, in pieces, and the others where it is."""
        known = self.node.peers()
        up = [known[m.id.name] for m in self._members.values() if m.state == "up" and m.id.name in known]
        others = [peer for peer in up if peer is not new]
        for first in range(0, len(others), PAGE):
            self.node.peering.notify(new, [envelope.BOOK, list(map(_entry, others[first : first + PAGE]))])
        for peer in others:
            self.node.peering.notify(peer, [envelope.BOOK, [_entry(new)]])


def _entry(peer: Peer) -> list[Any]:
    """Return the line of a node in the address book."""
    return [peer.id.name, peer.id.incarnation, peer.endpoint]


def _guarded(callback: Callable[..., None], *args: Any) -> None:
    """Run a callback of the application, whose error must not stop the head."""
    try:
        callback(*args)
    except Exception:
        log.exception("a membership callback raised")
