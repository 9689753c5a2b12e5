"""Asyncio actors over ZeroMQ: bounded mailboxes, deadlines, cancellation that reaches the callee, no pickle.

    class Counter(Actor):
        @endpoint
        async def add(self, n: int) -> int: ...

Knows nothing of models. Importing it loads neither torch nor aiohttp nor numpy.
"""

from blockwright.runtime.actor import Actor, Crash, endpoint
from blockwright.runtime.clock import Clock, LoopClock, ManualClock
from blockwright.runtime.errors import (
    ActorDied,
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
from blockwright.runtime.loop import run
from blockwright.runtime.node import Node
from blockwright.runtime.peers import Down, Peer
from blockwright.runtime.ref import Ref
from blockwright.runtime.streams import Stream

__all__ = [
    "Actor",
    "ActorDied",
    "Clock",
    "CodecError",
    "Crash",
    "DeadlineExceeded",
    "DecodeError",
    "Down",
    "EncodeError",
    "LoopClock",
    "MailboxFull",
    "ManualClock",
    "NoSuchActor",
    "Node",
    "NodeDown",
    "Peer",
    "Ref",
    "RemoteError",
    "RuntimeFault",
    "Stream",
    "endpoint",
    "run",
]
