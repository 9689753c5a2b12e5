"""References that follow a supervised child."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from blockwright.policies.cluster.restart_policy import Backoff
from blockwright.runtime import (
    Actor,
    ActorDied,
    Away,
    Child,
    Crash,
    DeadlineExceeded,
    Node,
    NodeDown,
    NoSuchActor,
    RemoteError,
    Supervised,
    Supervisor,
    endpoint,
)
from blockwright.runtime.base.errors import RuntimeFault
from blockwright.tests.claims import claim
from blockwright.tests.runtime.lives import turns


class Teller(Actor):
    @endpoint
    async def where(self) -> str:
        return self.node.name

    @endpoint
    async def die(self) -> None:
        raise Crash("as told")


async def boss(node: Node, *children: Child) -> Supervisor:
    made: Supervisor = await node.spawn(Supervisor([*children], backoff=Backoff(initial=0.0)), name="boss")
    return made


@pytest.fixture
async def other(nodes, node):
    return await nodes.add("b")


@claim("A supervised reference follows its actor through restarts and moves", of="actor-runtime")
async def test_it_follows_a_restart(nodes, node, other):
    sup = await boss(node, Child(name="t", actor=Teller, on="b"))
    child = Supervised(node, sup, "t", Teller)
    assert (await child.where(), str(await child.ref())) == ("b", "b/t#1.1")
    (await child.ref()).die.cast()
    await nodes.advance(0.5)
    with pytest.raises(Away):
        await child.where()
    assert (await child.where(), str(await child.ref())) == ("b", "b/t#1.2")


async def test_a_reference_that_is_asked_for_is_of_the_life_of_now(nodes, node, other):
    """Whoever calls only what ``ref`` gives, as for streams, never tells that a call failed."""
    sup = await boss(node, Child(name="t", actor=Teller, on="b"))
    child = Supervised(node, sup, "t", Teller)
    (await child.ref()).die.cast()
    await nodes.advance(0.5)
    assert str(await child.ref()) == "b/t#1.2"
    assert await (await child.ref()).where() == "b"


async def test_a_name_that_is_no_childs_is_told(node):
    sup = await boss(node, Child(name="t", actor=Teller))
    with pytest.raises(RemoteError, match="there is no child 'u'; there are: t"):
        await Supervised(node, sup, "u").where()


async def test_a_child_that_does_not_come_ends_the_wait(nodes, node):
    sup = await boss(node, Child(name="t", actor=Teller, dormant=True))
    late = asyncio.create_task(Supervised(node, sup, "t", wait=0.5).where())
    await turns()
    await nodes.advance(1.0)
    assert isinstance(late.exception(), DeadlineExceeded)


async def test_whoever_waits_hears_of_a_start_at_once(node):
    sup = await boss(node, Child(name="t", actor=Teller, dormant=True))
    waits = asyncio.create_task(Supervised(node, sup, "t").where())
    await turns()
    assert not waits.done()
    await sup.start_child("t")
    assert await waits == node.name


def test_away_is_above_what_means_that_nobody_is_there():
    assert {kind for kind in RuntimeFault.__subclasses__() if kind is Away} == {Away}
    assert set(Away.__subclasses__()) == {NodeDown, ActorDied, NoSuchActor}


@claim("A supervised reference follows its actor through restarts and moves", of="actor-runtime")
async def test_it_follows_a_move_to_another_node(nodes, node, other):
    await nodes.add("c")
    sup = await boss(node, Child(name="t", actor=Teller, on=["b", "c"]))
    child = Supervised(node, sup, "t", Teller)
    assert await child.where() == "b"
    nodes.cut(other)
    await nodes.advance(0.5)
    with pytest.raises(Away):
        await child.where()
    assert (await child.where(), str(await child.ref())) == ("c", "c/t#1.1")


async def test_a_message_log_is_named_by_a_text(tmp_path: Path):
    node = Node("logged", message_log=str(tmp_path / "messages.jsonl"))
    await node.start()
    teller = await node.spawn(Teller(), name="t")
    assert await teller.where() == "logged"
    await node.stop()
    assert "where" in (tmp_path / "messages.jsonl").read_text()
