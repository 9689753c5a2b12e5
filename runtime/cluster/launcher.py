"""The launcher interface: how the head gets processes (local ones, one process for tests, a command, an engine like Ray).

Owns the ``Launcher`` protocol and ``NodeSpec``, all that a new node is given. Decides nothing: which nodes start and end is
the cluster's business. An engine is asked for processes only; messages, fencing and failure detection stay ours.

A local node is given the whole spec. One elsewhere is started by the same command whatever runs it, ``blockwright worker
--join -``, and is given ``spec.join_text`` alone, on its standard input: with it the process joins as this one life
(``joins``). ``head_transport`` is then a ``SocketTransport`` on the head's address. Where an engine starts workers by
itself, nothing is spawned (``places`` is false) and the head says by ``wish`` how many there should be.
"""

from __future__ import annotations

import socket
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Protocol

from ...transport.address import PeerId
from ...transport.curve import NodeKeys
from ...transport.interface import Transport

OnExit = Callable[[PeerId, int], None]  # status: exit code, or minus the signal


@dataclass(frozen=True, slots=True, kw_only=True)
class Needs:
    """The needs of a node, for who chooses its machine; 0 or empty: whatever there is.

    bytes: of memory. devices: cards. labels: of the machine.
    """

    cores: int = 0
    bytes: int = 0
    devices: int = 0
    labels: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeSpec:
    """One life of a node, before it begins."""

    name: str
    incarnation: int
    entry: str  # "module:function", async def function(node: Node, config: SomeDataclass) -> None
    config: list[bytes]  # encoded body, then its buffers; the function's annotation names the type
    head: str  # identity, "name#incarnation"
    head_endpoint: str
    directory: str  # of the cluster's sockets
    listen: str = ""  # "tcp://HOST:PORT" instead of a socket in the directory
    keys: list[bytes] = field(default_factory=list, repr=False)  # public and secret of the cluster, or none
    heartbeat: float  # seconds between heartbeats
    silence: float = 0.0  # seconds without any after which a node is taken for lost
    orphan_grace: float = 0.0  # seconds that the node goes on without a head; 0: it ends with its head
    join_text: str = field(default="", repr=False)  # for this life alone, instead of all this; it makes its own keys
    needs: Needs = field(default_factory=Needs)

    @property
    def id(self) -> PeerId:
        return PeerId(self.name, self.incarnation)


class LaunchError(Exception):
    """A node could not be started; nothing of it exists."""


class Launcher(Protocol):
    """See the module. Who implements it inherits from it, and so starts nodes on this machine unless it says otherwise."""

    async def start(self, on_exit: OnExit) -> None:
        """Be ready to spawn. ``on_exit`` is called once for each spawned node that ended, whatever the cause; before this
        returns, also for each that an earlier head spawned and whose end no head has heard of."""

    def head_transport(self, head: PeerId, listen: str, keys: NodeKeys | None) -> Transport:
        """Return the transport on which this launcher's nodes reach the head; listen, keys: see ``ClusterHead``."""

    @property
    def directory(self) -> str:
        """The directory of the sockets; empty if there are none."""

    async def spawn(self, spec: NodeSpec) -> int:
        """Start a node; its process id (0 where it has none of its own). Raises LaunchError."""

    def kill(self, node: PeerId) -> None:
        """End it at once, also when it is stopped or hangs. Unknown or ended: nothing."""

    def list(self) -> dict[PeerId, int]:
        """Process ids of what was spawned and has not ended; once started, also of what an earlier head has left."""

    def spawned(self) -> Mapping[str, int]:
        """Return the highest incarnation of each name that was spawned, also by earlier heads, whether it lives or not.
        Without an entry for what ends with the head that spawned it.
        """
        return {}

    async def leave(self) -> None:
        """Free what the launcher holds and leave what it spawned to a later head, as far as it can outlive this one.
        Idempotent."""
        await self.stop()

    async def stop(self) -> None:
        """End everything that is left and free what the launcher holds. Idempotent."""

    async def holder(self, *, fork: bool) -> socket.socket | None:
        """Return a connection to the process that holds what other launchers start (``holder.py``), which may outlive this
        one; None if there is none and none is to be forked. Raises LaunchError."""
        raise LaunchError("nothing can be started elsewhere from here: this launcher forks no process that could hold it")

    @property
    def places(self) -> bool:
        """True if workers are started from here; false if an engine starts them, and learns from ``wish`` how many."""
        return True

    def joins(self, name: str) -> bool:
        """Return whether a node of this name is given a join text alone."""
        return False

    def wish(self, workers: int, why: str) -> None:
        """Say how many workers an engine should run, and why that changed. Nothing to do for who places nodes."""
        return  # a body, so that it is no duty of who implements it

    def last_words(self, node: PeerId) -> str:
        """Return what a process that has just ended said last, in one line, or an empty text. Once for each."""
        return ""
