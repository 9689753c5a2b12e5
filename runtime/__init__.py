"""Asyncio actors: bounded mailboxes, deadlines, cancellation that reaches the callee, no pickle.

    class Counter(Actor):
        @endpoint
        async def add(self, n: int) -> int: ...

Knows nothing of models. Importing it loads neither torch nor aiohttp nor numpy.
"""

from blockwright.policies.cluster.restart_policy import Backoff, Restart, Strategy
from blockwright.runtime.actor.actor import Actor, Crash
from blockwright.runtime.actor.endpoint import endpoint
from blockwright.runtime.actor.ref import Ref
from blockwright.runtime.actor.streams import Stream
from blockwright.runtime.base.clock import LoopClock, ManualClock
from blockwright.runtime.base.down import Down
from blockwright.runtime.base.errors import (
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
from blockwright.runtime.base.loop import run
from blockwright.runtime.base.node_view import Measure, NodeView
from blockwright.runtime.base.scope import current_traceparent, trace
from blockwright.runtime.cluster.local_cluster import LocalCluster
from blockwright.runtime.node.node import Node
from blockwright.runtime.node.peers import Peer
from blockwright.runtime.supervised import Supervised
from blockwright.runtime.supervisor import Child, ChildState, Supervisor
from blockwright.transport.clock import Clock

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
