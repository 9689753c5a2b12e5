"""The publisher of routes on real nodes: a publication that no message could hold arrives as one."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from blockwright.actors.controller.publisher import RoutePublisher
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
        self._pieces = RoutePieces()

    @endpoint(urgent=True)
    async def routes(self, update: RoutesChanged) -> None:
        self.sizes.append(len(update.routes))
        if (whole := self._pieces.take(update)) is not None:
            self.whole.append(whole)


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
