"""References that follow a supervised child."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncIterator
from dataclasses import dataclass
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


@dataclass(frozen=True)
class Word:
    text: str


class Teller(Actor):
    @endpoint
    async def tell(self, count: int) -> AsyncIterator[Word]:
        for number in range(count):
            yield Word(str(number))

    @endpoint
    async def last(self) -> Word:
        return Word("last")

    @endpoint
    async def where(self) -> str:
        return self.node.name

    @endpoint
    async def die(self) -> None:
        raise Crash("on request")


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


@claim("A supervised reference takes its class from its supervisor", of="actor-runtime")
@pytest.mark.parametrize("actor", [Teller, f"{__name__}:Teller"])
async def test_it_knows_the_types_of_its_child_by_itself(nodes, node, other, actor):
    sup = await boss(node, Child(name="t", actor=actor, on="b"))
    child = Supervised(node, sup, "t")
    assert [word async for word in (await child.ref()).tell(2)] == [Word("0"), Word("1")]
    assert await child.last() == Word("last")


async def test_without_an_importable_class_the_types_are_given(node, other, monkeypatch):
    class Local(Teller):
        pass

    monkeypatch.setitem(sys.modules, "no_such_module", None)
    sup = await boss(node, Child(name="here", actor=Local), Child(name="t", actor=Teller, on="b"))
    assert await sup.class_of("here") == ""
    assert await Supervised(node, sup, "here").last() == Word("last")
    monkeypatch.setattr("blockwright.runtime.supervisor.import_name", lambda actor: "no_such_module:Teller")
    child = Supervised(node, sup, "t")
    assert await child.last(returns=Word) == Word("last")
    assert await child.where() == "b"


async def test_a_name_that_is_no_childs_is_reported(node):
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
