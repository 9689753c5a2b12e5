"""The publisher of routes: sends the controller's publications to gateways and to the workers of routes.

Owns what was sent and what each gateway has taken. Publications leave one at a time, in order of their versions, and all
that pile up meanwhile leave as one. A large one leaves in pieces, with a turn of the event loop after each. Where
heads may follow one another, members get the state beside it, to keep it for the next head: only if something was decided
since, for what a publication owes to workers alone (a death, a return, a load) they tell the next head themselves. Decides
nothing.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterable

from ...policies.control.adoption import KeptState
from ...policies.control.state import ControllerState
from ...policies.requests.routes_changed import RoutesChanged
from ...runtime.actor.actor import ActorNode, PeerInfo
from ...runtime.actor.ref import Ref
from ..kept_state import pack_state
from .worker_calls import ANSWER_TIMEOUT

KEEPERS = 2  # workers that keep the state for the next head, beside gateways
log = logging.getLogger("blockwright.controller")


class RoutePublisher:
    """See the module. gateways: addresses of the gateways, as the controller keeps them. keeps: members keep the state."""

    def __init__(self, node: ActorNode, state: ControllerState, gateways: list[str], *, keeps: bool = False) -> None:
        self._keeps = keeps
        self.lock = asyncio.Lock()  # held while a publication leaves
        self.sent = 0  # last published version
        self._node, self._state = node, state
        self._gateways = gateways
        self._taken: dict[str, int] = {}  # gateway on another node -> version in its last heartbeat
        self._behind: dict[str, tuple[int, int]] = {}  # node -> its life and the version its last heartbeat lacked
        self._kept: KeptState | None = None  # the state that members keep
        self._kept_decided = 0  # decisions in it
        self._keep_it: set[str] = set()  # addresses of the members that have it
        self._first: dict[str, None] = {}  # workers that must know the next publication before gateways do

    def put_first(self, workers: Iterable[str]) -> None:
        """Let these workers know the next publication before gateways do: they have routes that are new in it."""
        self._first.update(dict.fromkeys(workers))

    def forget(self, gateway: str) -> None:
        """Forget what a gateway has taken: it ended, or another life of it began."""
        self._taken.pop(gateway, None)

    def hear(self, peer: PeerInfo) -> bool:
        """Note the version in a node's heartbeat. Return whether its last two both lacked the last publication, which was
        lost on the way then.
        """
        name = peer.id.name
        if (gateway := f"{name}/gateway") in self._gateways:
            self._taken[gateway] = peer.payload.get("routes", 0)
        known = self._behind.pop(name, None)
        if peer.payload.get("routes", self.sent) == self.sent or self.sent != self._state.version or self.lock.locked():
            return False
        if known != (peer.id.incarnation, self.sent):
            self._behind[name] = peer.id.incarnation, self.sent
            return False
        return True

    async def repeat(self, peer: PeerInfo) -> None:
        """Send the last publication again to a node that lacks it: a worker's part since what it has, a gateway's whole."""
        name, worker = peer.id.name, self._state.workers.get(peer.id.name)
        async with self.lock:
            if worker is None:
                gateway = self._node.ref(f"{name}/gateway#{peer.id.incarnation}")
                if self._kept is not None:
                    gateway.keep.cast(self._kept)
                await self._cast(gateway, self._state.table.news())
            elif worker.incarnation == peer.id.incarnation:  # an incarnation not known yet has nothing loaded
                part = self._state.table.parts({name: peer.payload.get("routes", 0)})[name]
                await self._cast(self._worker(name, worker.incarnation), part)

    async def introduce(self, gateway: str) -> None:
        """Send everything to a new gateway."""
        async with self.lock:
            if self._state.version:
                if self._kept is not None:
                    self._node.ref(gateway).keep.cast(self._kept)
                await self._cast(self._node.ref(gateway), self._state.table.news())

    async def publish(self) -> None:
        """Send what changed: to the workers of new routes first, until they have it, then to gateways, then to workers."""
        async with self.lock:
            if self.sent == self._state.version:
                return  # sent together with the previous one
            self.sent = version = self._state.version
            # bound to these incarnations: a late publication must not reach the next one, which has nothing loaded
            alive = {
                name: self._worker(name, worker.incarnation) for name, worker in self._state.workers.items() if worker.alive
            }
            first = [name for name in alive if name in self._first]
            parts = self._state.table.parts({name: self._state.workers[name].routes for name in alive})
            self._first = {}
            updates = {gateway: self._state.table.news(self._taken.get(gateway, 0)) for gateway in self._gateways}
            keepers = self._pack() if self._keeps else []
            calls = [self._call(alive[name], parts[name]) for name in first]
            for name, answer in zip(first, await asyncio.gather(*calls, return_exceptions=True), strict=True):
                if isinstance(answer, Exception):
                    log.warning("worker %s did not take routes %d: %s", name, version, answer)
            for keeper in keepers:
                keeper.keep.cast(self._kept)  # before the publication, so that who has that has this
            for gateway, update in updates.items():
                await self._cast(self._node.ref(gateway), update)
            for name in (name for name in alive if name not in first):
                await self._cast(alive[name], parts[name])

    async def out(self) -> int:
        """Return the last version once it has left."""
        async with self.lock:
            return self.sent

    def _pack(self) -> list[Ref]:
        """Pack the state if something was decided since; return the members that do not keep it yet."""
        if self._kept is None or self._kept_decided != self._state.decided:
            self._kept = KeptState(self._node.incarnation, self._state.version, pack_state(self._state))
            self._kept_decided = self._state.decided
            self._keep_it.clear()
        keepers = {str(one.address): one for one in self._keepers()}
        lacking = [one for address, one in keepers.items() if address not in self._keep_it]
        self._keep_it = {*keepers}
        return lacking

    def _keepers(self) -> list[Ref]:
        """Return the members that keep the state for the next head: all gateways on other nodes, and some workers."""
        gateways = [self._node.ref(one) for one in self._gateways if not one.startswith(f"{self._node.name}/")]
        alive = [(name, one.incarnation) for name, one in self._state.workers.items() if one.alive]
        return gateways + [self._node.ref(f"{name}/blocks#{life}") for name, life in alive[:KEEPERS]]

    def _worker(self, name: str, incarnation: int) -> Ref:
        return self._node.ref(f"{name}/worker#{incarnation}")

    async def _call(self, worker: Ref, part: RoutesChanged) -> None:
        for piece in part.split():
            await worker.routes(piece, timeout=ANSWER_TIMEOUT)

    async def _cast(self, node: Ref, update: RoutesChanged) -> None:
        pieces = update.split()
        for piece in pieces:
            node.routes.cast(piece)
            if len(pieces) > 1:
                await asyncio.sleep(0)
