"""The head's node at rest with the controller on it, fed with the heartbeats of its workers; part of ``controller_step.py``.

Sockets are left out; ``actors.py`` measures their cost.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any, cast

from blockwright.actors.conditions import Published
from blockwright.actors.controller.actor import Controller
from blockwright.actors.controller.progress import Progress
from blockwright.policies.control.state import ControllerState
from blockwright.runtime import ManualClock, Node
from blockwright.transport.address import PeerId
from blockwright.transport.interface import Receiver
from blockwright.transport.wire import Buffer

HEAD = PeerId("head", 1)


class Wire:
    """A transport that delivers nothing: it keeps who receives here, and the last heartbeat that was sent."""

    endpoint, link_kind = "wire://here", "frames"
    pulse = b""

    def start(self, receiver: Receiver) -> None:
        self.receiver = receiver

    def know(self, peer: PeerId, endpoint: str) -> None: ...

    def connect(self, peer: PeerId, endpoint: str) -> None: ...

    def rest(self, peer: PeerId) -> None: ...

    def disconnect(self, peer: PeerId) -> None: ...

    def send(self, peer: PeerId, body: bytes, buffers: Sequence[Buffer] = (), places: bytes = b"") -> None: ...

    def send_pulse(self, peer: PeerId, body: bytes) -> None:
        self.pulse = body

    def close(self) -> None: ...


async def heartbeat(version: int) -> bytes:
    """As a worker at rest sends it."""
    wire, clock = Wire(), ManualClock()
    worker = Node("w0", transport=cast(Any, wire), clock=clock, heartbeat_interval=1.0)
    await worker.start()
    reports = {"head/gateway#1.1": 7}
    worker.heartbeat = lambda: {"sweep_age": 0.0, "waiting": 0, "running": 0, "reports": reports, "routes": version}
    worker.peering.greet(HEAD, "")
    clock.advance(1.0)
    await worker.stop()
    return wire.pulse


async def node(state: ControllerState, interval: float, seconds: float) -> float:
    """Share of a core: its own beats to all, those of all let in, read and handed on."""
    wire, clock = Wire(), ManualClock()
    head = Node("head", transport=cast(Any, wire), clock=clock, heartbeat_interval=interval)
    await head.start()
    await head.spawn(Controller(state, [], Published(Progress())), name="controller")
    peers = [PeerId(name, worker.incarnation) for name, worker in state.workers.items()]
    for peer in peers:
        head.peering.greet(peer, "")
    body = await heartbeat(state.version)
    rounds = round(seconds / interval)
    version = state.version

    def beat() -> None:
        clock.advance(interval)
        for peer in peers:
            wire.receiver.on_message(peer, body, [])

    beat()
    began = time.process_time()
    for _ in range(rounds):
        beat()
    spent = time.process_time() - began
    assert (state.version, len(head.peers())) == (version, len(peers))
    assert all(peer.payload["routes"] == version for peer in head.peers().values())
    await head.stop()
    return spent / (rounds * interval)
