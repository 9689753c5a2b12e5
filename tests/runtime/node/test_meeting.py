"""Which nodes of a cluster meet: those that have something to say, and those that listen to heartbeats."""

from __future__ import annotations

import asyncio
import contextlib
from typing import Any

import pytest

from blockwright.runtime import Actor, NodeDown, endpoint
from blockwright.runtime.base import envelope
from blockwright.runtime.node.heartbeat_sender import IDLE
from blockwright.runtime.node.node import Node
from blockwright.runtime.node.peering import SEEK_AGAIN
from blockwright.runtime.testing import Drop
from blockwright.runtime.testing.simulation import Simulation
from blockwright.transport.address import PeerId
from blockwright.transport.handshake import Lane
from blockwright.transport.wire import Traffic


class Echo(Actor):
    @endpoint
    async def echo(self, n: int) -> int:
        return n


async def setup(node: Node) -> None:
    await node.spawn(Echo(), name="echo")


def run(scenario: Any, nodes: int = 4) -> None:
    Simulation(seed=1, nodes=nodes, setup=setup).run(scenario)


def met(sim: Simulation, name: str) -> set[str]:
    return {peer.id.name for peer in sim.nodes[name].table.current.values() if peer.met}


def test_members_know_all_and_have_met_the_head_alone() -> None:
    async def scenario(sim: Simulation) -> None:
        await asyncio.sleep(IDLE + 5)
        for name in sim.names:
            assert sim.nodes[name].peers().keys() == {"head", *sim.names} - {name}
            assert met(sim, name) == {"head"}
        assert met(sim, "head") == {*sim.names}

    run(scenario)


def test_two_members_meet_when_one_has_something_to_say_and_part_when_both_are_idle() -> None:
    async def scenario(sim: Simulation) -> None:
        await asyncio.sleep(1)
        one, other, third = sim.names[:3]
        assert await sim.nodes[one].ref(f"{other}/echo").echo(1) == 1
        assert (met(sim, one), met(sim, other), met(sim, third)) == ({"head", other}, {"head", one}, {"head"})
        await asyncio.sleep(2)
        beat = sim.nodes[one].table.current[other].heartbeat_at
        assert beat is not None
        await asyncio.sleep(IDLE + 2)
        assert met(sim, one) == met(sim, other) == {"head"}
        quiet = sim.nodes[one].table.current[other].heartbeat_at
        await asyncio.sleep(5)
        assert sim.nodes[one].table.current[other].heartbeat_at == quiet
        assert await sim.nodes[other].ref(f"{one}/echo").echo(2) == 2
        assert (met(sim, one), met(sim, other)) == ({"head", other}, {"head", one})
        await asyncio.sleep(2)
        last = sim.nodes[one].table.current[other].heartbeat_at
        assert last is not None
        assert quiet is not None
        assert last > quiet

    run(scenario)


def test_a_node_that_listens_to_heartbeats_meets_all_and_stays() -> None:
    async def scenario(sim: Simulation) -> None:
        gateway = sim.nodes[sim.names[0]]
        heard: set[str] = set()
        undo = gateway.on_heartbeat(lambda peer: heard.add(peer.id.name))
        await asyncio.sleep(IDLE + 5)
        assert met(sim, gateway.name) == {"head", *sim.names} - {gateway.name}
        heard.clear()
        await asyncio.sleep(2)
        assert heard == {"head", *sim.names} - {gateway.name}
        undo()

    run(scenario)


def test_the_end_of_a_node_that_was_never_met_is_told() -> None:
    async def scenario(sim: Simulation) -> None:
        one, other = sim.names[:2]
        ended: list[str] = []
        sim.nodes[one].monitor(other, lambda down: ended.append(down.node))
        await sim.cluster.kill(other)
        await asyncio.sleep(1)
        assert ended == [other]

    run(scenario)


def test_a_node_whose_line_in_the_address_book_was_lost_is_asked_for_when_it_is_wanted() -> None:
    """The first answer is lost, too."""
    said: list[str] = []

    def choose(source: PeerId, target: PeerId, lane: Lane | Traffic, body: bytes) -> Drop | None:
        tag = body[1] if lane is Lane.CONTROL else 0
        if target.name == "w0" and tag == envelope.BOOK:
            said.append("book")
            return Drop(0.0, "", "") if said.count("book") <= 2 else None
        if source.name == "w0" and tag == envelope.WHERE:
            said.append("where")
        return None

    async def scenario(sim: Simulation) -> None:
        w0, answers = sim.nodes["w0"], list[int]()
        while not answers:
            with contextlib.suppress(NodeDown):
                answers.append(await w0.ref("w1/echo").echo(1))
            await asyncio.sleep(0.1)
        assert said == ["book", "where", "book", "where", "book"]
        assert sim.time < 2 * SEEK_AGAIN
        with pytest.raises(NodeDown, match="w9 is not known"):
            w0.link("w9")
        await asyncio.sleep(1)
        assert said.count("book") == 3, "the head knows it as little"

    sim = Simulation(seed=1, nodes=2, setup=setup)
    sim.strike(choose)
    sim.run(scenario)
