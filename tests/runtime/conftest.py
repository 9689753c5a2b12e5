import asyncio
import sys
from pathlib import Path

import pytest

from blockwright.runtime import Actor, ManualClock, Node, Ref
from blockwright.tests import waiting
from blockwright.tests.runtime.lives import Nodes
from blockwright.transport.address import PeerId
from blockwright.transport.loopback import Network


@pytest.fixture(autouse=True)
def entries(monkeypatch):
    """Makes ``cluster_entries`` importable here and, since a launcher passes ``sys.path`` on, in child processes."""
    monkeypatch.setattr(sys, "path", [str(Path(__file__).parent), *sys.path])


@pytest.fixture
def until():
    return waiting.until


class Sides:
    """A caller's node and a callee's node, perhaps the same, under a manual clock."""

    def __init__(self, caller: Node, callee: Node, clock: ManualClock, network: Network | None = None) -> None:
        self.caller = caller
        self.callee = callee
        self.clock = clock
        self.network = network

    async def spawn(self, actor: Actor, name: str = "actor", **options) -> Ref:
        """Returns the caller's reference, which knows the class."""
        await self.callee.spawn(actor, name=name, **options)
        return self.caller.ref(f"{self.callee.name}/{name}", type(actor))

    async def turns(self, count: int = 30) -> None:
        for _ in range(count):
            await asyncio.sleep(0)


@pytest.fixture(params=["reference", "encoded", "remote"])
async def sides(request):
    """Calls by reference, on one node with encoding, and between two nodes: they must behave alike."""
    clock = ManualClock()
    network = None
    if request.param == "remote":
        network = Network()
        caller, callee = [Node(n, transport=network.transport(PeerId(n, 1)), clock=clock) for n in "ab"]
        await caller.start()
        await callee.start()
        callee.peering.join(caller.id, caller.endpoint)
    else:
        caller = callee = Node("a", listen=False, clock=clock, encode_local=request.param == "encoded")
        await caller.start()
    made = Sides(caller, callee, clock, network)
    await made.turns()
    yield made
    await callee.stop()
    await caller.stop()


@pytest.fixture
async def nodes():
    """An empty network of nodes under a manual clock."""
    made = Nodes()
    yield made
    await made.stop()


@pytest.fixture
async def node(nodes):
    return await nodes.add("a")
