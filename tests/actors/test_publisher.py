"""The publisher of routes on real nodes: a publication that no message could hold arrives as one, and members keep the state
for the next head.
"""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from blockwright.actors.controller.publisher import RoutePublisher
from blockwright.actors.kept_state import unpack_state
from blockwright.policies.control.adoption import KeptState
from blockwright.policies.model.chain import Hop, Route
from blockwright.policies.requests.routes_changed import PIECE, RoutePieces, RoutesChanged
from blockwright.runtime.actor.actor import Actor
from blockwright.runtime.actor.endpoint import endpoint
from blockwright.runtime.node.node import Node
from blockwright.runtime.testing.network import Network
from blockwright.tests.claims import claim
from blockwright.transport.address import PeerId
from blockwright.transport.wire import MAX_BODY

ROUTES = 84_000
ROUTE = "a-model-of-a-large-cluster@worker-{:06d}"


class Receiver(Actor):
    """Takes publications as a gateway and a worker do."""

    def __init__(self) -> None:
        self.sizes: list[int] = []
        self.whole: list[RoutesChanged] = []
        self.kept: list[KeptState] = []
        self._pieces = RoutePieces()

    @endpoint(urgent=True)
    async def routes(self, update: RoutesChanged) -> None:
        self.sizes.append(len(update.routes))
        if (whole := self._pieces.take(update)) is not None:
            self.whole.append(whole)

    @endpoint(urgent=True)
    async def keep(self, kept: KeptState) -> None:
        self.kept.append(kept)


class Table:
    """One version of routes, the same for everybody."""

    def __init__(self) -> None:
        names = [ROUTE.format(number) for number in range(ROUTES)]
        hop = (Hop("worker-000001", 0, 26),)
        self.update = RoutesChanged(1, [], [Route(name, 1, "a-model-of-a-large-cluster", hop) for name in names], [])

    def news(self, since: int = 0) -> RoutesChanged:
        return self.update

    def parts(self, taken: dict[str, int]) -> dict[str, RoutesChanged]:
        return dict.fromkeys(taken, self.update)


@claim("Routes that are larger than a message reach gateways and workers in pieces and are applied as one", of="faults")
async def test_a_publication_larger_than_a_message_arrives_as_one() -> None:
    network = Network()
    nodes = [Node(name, transport=network.transport(PeerId(name, 1))) for name in ("head", "w0", "g1")]
    receivers = [Receiver(), Receiver()]
    for node in nodes:
        await node.start()
    await nodes[1].spawn(receivers[0], name="worker")
    await nodes[2].spawn(receivers[1], name="gateway")
    for node in nodes[1:]:
        nodes[0].peering.greet(node.id, node.endpoint)
    state: Any = SimpleNamespace(
        version=1, table=Table(), workers={"w0": SimpleNamespace(alive=True, incarnation=1, routes=0)}
    )
    publisher = RoutePublisher(nodes[0], state, ["g1/gateway"])
    publisher.put_first(["w0"])
    await publisher.publish()
    await nodes[0].ref("g1/gateway").routes(RoutesChanged(0, [], [], []))  # behind the pieces
    for receiver in receivers:
        assert receiver.whole[0] == state.table.update
        pieces = [size for size in receiver.sizes if size]
        assert len(pieces) > MAX_BODY // PIECE
        assert max(pieces) < ROUTES / 3
    assert await publisher.out() == 1
    for node in nodes:
        await node.stop()


class Deciding:
    """A controller's state that counts how often it is taken apart."""

    def __init__(self) -> None:
        self.version = self.decided = self.snapshots = 0
        self.table = self
        self.workers = {name: SimpleNamespace(alive=True, incarnation=1, routes=0) for name in ("w0", "w1", "w2")}

    def news(self, since: int = 0) -> RoutesChanged:
        return RoutesChanged(self.version, [], [], [])

    def parts(self, taken: dict[str, int]) -> dict[str, RoutesChanged]:
        return dict.fromkeys(taken, self.news())

    def snapshot(self) -> dict[str, Any]:
        self.snapshots += 1
        return {"decided": self.decided}


async def test_members_keep_the_state_once_for_each_decision() -> None:
    network = Network()
    names = ("head", "g1", "w0", "w1", "w2")
    nodes = {name: Node(name, transport=network.transport(PeerId(name, 1))) for name in names}
    receivers = {name: Receiver() for name in names[1:]}
    for name, node in nodes.items():
        await node.start()
        if name != "head":
            await node.spawn(receivers[name], name="gateway" if name == "g1" else "blocks")
            nodes["head"].peering.greet(node.id, node.endpoint)
    state: Any = Deciding()
    publisher = RoutePublisher(nodes["head"], state, ["g1/gateway"], keeps=True)

    async def publish() -> dict[str, list[int]]:
        """Publish; return which decisions each member keeps, in order."""
        state.version += 1
        await publisher.publish()
        for name in receivers:
            kept = nodes["head"].ref(f"{name}/{'gateway' if name == 'g1' else 'blocks'}").keep
            await kept(KeptState(0, 0, b""))  # behind the others
        found = {name: [unpack_state(one.packed)["decided"] for one in r.kept if one.epoch] for name, r in receivers.items()}
        return {name: decisions for name, decisions in found.items() if decisions}

    assert await publish() == {"g1": [0], "w0": [0], "w1": [0]}
    for _ in range(10):
        await publish()
    assert state.snapshots == 1
    state.workers["w0"].alive = False
    assert await publish() == {"g1": [0], "w0": [0], "w1": [0], "w2": [0]}
    assert state.snapshots == 1
    state.decided = 1
    assert await publish() == {"g1": [0, 1], "w0": [0], "w1": [0, 1], "w2": [0, 1]}
    assert state.snapshots == 2
    for node in nodes.values():
        await node.stop()
