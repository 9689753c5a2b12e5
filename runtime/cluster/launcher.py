"""The launcher interface: how the head gets processes (local ones, one process for tests, an engine like Ray).

Owns the ``Launcher`` protocol and ``NodeSpec``, all that a new node is given. Decides nothing: which nodes start and end is
the cluster's business.

An engine is asked for processes only; messages, fencing and failure detection stay ours. With Ray: one placement group with
a bundle for each node and one named actor in each (``num_gpus`` set on it, ``max_restarts=0``, since restarts are decided
here). ``spawn`` calls that actor with the spec as a plain value, never in an environment, as it holds the keys; the actor
starts ``node_process.run_node(spec)`` in a child process that dies with it (PR_SET_PDEATHSIG). ``kill`` kills that child,
``list`` is what this launcher spawned, ``on_exit`` follows from the actor's own reference, or from its answer when the
child ends. ``head_transport`` is a ``SocketTransport`` on the head's address (``ClusterHead(listen="tcp://HOST:PORT",
keys=...)``); since ``spec.listen`` names the head's host, the actor replaces it by its own machine's address. The test of
this module is such a launcher, of plain subprocesses.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Protocol

from ...transport.address import PeerId
from ...transport.curve import NodeKeys
from ...transport.interface import Transport

OnExit = Callable[[PeerId, int], None]  # status: exit code, or minus the signal


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

    @property
    def id(self) -> PeerId:
        return PeerId(self.name, self.incarnation)


class LaunchError(Exception):
    """A node could not be started; nothing of it exists."""


class Launcher(Protocol):
    async def start(self, on_exit: OnExit) -> None:
        """Be ready to spawn. ``on_exit`` is called once for each spawned node that ended, whatever the cause; also, soon,
        for each that an earlier head spawned and whose end no head was told of."""

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

    async def leave(self) -> None:
        """Free what the launcher holds and leave what it spawned to a later head. Idempotent."""

    async def stop(self) -> None:
        """End everything that is left and free what the launcher holds. Idempotent."""
