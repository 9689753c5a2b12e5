"""Asyncio actors: bounded mailboxes, deadlines, cancellation that reaches the callee, no pickle.

    class Counter(Actor):
        @endpoint
        async def add(self, n: int) -> int: ...

Knows nothing of models. Importing it loads neither torch nor aiohttp nor numpy.
"""

from ..policies.cluster.restart_policy import Backoff, Restart, Strategy
from ..policies.measures import Measure
from ..transport.clock import Clock
from .actor.actor import Actor, Crash
from .actor.endpoint import endpoint
from .actor.ref import Ref
from .actor.streams import Stream
from .base.clock import LoopClock, ManualClock
from .base.down import Down
from .base.errors import (
    ActorDied,
    Away,
    CodecError,
    DeadlineExceeded,
    DecodeError,
    EncodeError,
    MailboxFull,
    NodeDown,
    NoSuchActor,
    RemoteError,
    RuntimeFault,
)
from .base.loop import run
from .base.node_view import NodeView
from .base.scope import current_traceparent, trace
from .cluster.local_cluster import LocalCluster
from .node.node import Node
from .node.peers import Peer
from .supervised import Supervised
from .supervisor import Child, ChildState, Supervisor

__all__ = [
    "Actor",
    "ActorDied",
    "Away",
    "Backoff",
    "Child",
    "ChildState",
    "Clock",
    "CodecError",
    "Crash",
    "DeadlineExceeded",
    "DecodeError",
    "Down",
    "EncodeError",
    "LocalCluster",
    "LoopClock",
    "MailboxFull",
    "ManualClock",
    "Measure",
    "NoSuchActor",
    "Node",
    "NodeDown",
    "NodeView",
    "Peer",
    "Ref",
    "RemoteError",
    "Restart",
    "RuntimeFault",
    "Strategy",
    "Stream",
    "Supervised",
    "Supervisor",
    "current_traceparent",
    "endpoint",
    "run",
    "trace",
]
