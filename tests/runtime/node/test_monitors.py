"""One ``Down`` for each monitor, whatever the cause and whatever is lost; links."""

from __future__ import annotations

import asyncio

import pytest

from blockwright.runtime import ActorDied, Down, RemoteError
from blockwright.tests.claims import claim
from blockwright.tests.runtime.lives import Mortal, Placed, Spot, Witness, turns


@pytest.fixture
async def other(nodes, node):
    return await nodes.add("b")


@pytest.fixture(params=["a", "b"])
def at(request, other):
    """Where the monitored actor is; the monitoring side is always on a."""
    return request.param


def downs_of(node, ref) -> list[Down]:
    downs: list[Down] = []
    node.monitor(ref, downs.append)
    return downs


@claim("A monitor hears of an end exactly once, with its cause", of="actor-runtime")
@pytest.mark.parametrize(
    ("end", "cause"),
    [("stop", "stopped"), ("crash", "crashed: bad"), ("kill", "killed"), ("leave", "stopped")],
)
async def test_one_down_whatever_ends_it(nodes, node, at, end, cause):
    ref = await node.spawn(Mortal, name="x", on=at)
    by_life, by_name = downs_of(node, ref), downs_of(node, node.ref(f"{at}/x"))
    await turns()
    assert by_life == by_name == []
    if end == "stop":
        await node.stop_actor(ref)
    elif end == "kill":
        await node.kill_actor(ref)
    elif end == "leave":
        await ref.leave()
    else:
        ref.crash.cast("bad")
    await nodes.advance(2)
    assert by_life == by_name == [Down(at, 1, cause, "x", 1)]
    assert by_life[0].ref == f"{at}/x#1.1"
    await node.spawn(Mortal, name="x", on=at)
    await node.stop_actor(node.ref(f"{at}/x"))  # the end of its successor is none of theirs
    await nodes.advance(2)
    assert len(by_life) == len(by_name) == 1


async def test_the_end_of_a_node_ends_its_actors(nodes, node, other):
    ref = await node.spawn(Mortal, name="x", on="b")
    lost, silent = downs_of(node, ref), downs_of(node, node.ref("b/x"))
    await turns()
    node.peering.declare_down(Down("b", 1, "hung"))
    await nodes.advance(1)
    assert lost == silent == [Down("b", 1, "node down: hung", "x", 1)]
    late = downs_of(node, ref)
    await turns()
    assert late == [Down("b", 1, "node down: hung", "x", 1)]
    again = await nodes.add("b", 2)
    await again.spawn(Mortal(), name="x")
    stale = downs_of(node, ref)
    await turns()
    assert stale == late
    assert len(lost) == len(silent) == 1


async def test_a_connection_that_breaks_is_an_end_too(nodes, node, other):
    downs = downs_of(node, await node.spawn(Mortal, name="x", on="b"))
    nodes.cut(other)  # before the other side has heard of the monitor
    await turns()
    assert [down.cause for down in downs] == ["node down: disconnected"]


async def test_what_never_was_and_what_is_over(nodes, node, at):
    nobody = downs_of(node, node.ref(f"{at}/nobody"))
    future = downs_of(node, node.ref(f"{at}/nobody#1.9"))
    nowhere = downs_of(node, node.ref("mars/x"))
    gone = downs_of(node, node.ref(f"{at}/x#7"))
    ref = await node.spawn(Mortal, name="x", on=at)
    ref.crash.cast("early")
    await turns()
    over = downs_of(node, ref)
    assert nobody != []
    assert over == []
    await turns()
    assert [d.cause for d in (*nobody, *future, *over)] == ["no such actor", "no such actor", "crashed: early"]
    assert len(gone) == 1
    assert gone[0].cause.startswith("node down: ")
    assert nowhere == [Down("mars", 0, "node down: not up", "x", 0)]
    for n in (2, 3):
        await node.spawn(Mortal, name="x", on=at)
        await node.stop_actor(node.ref(f"{at}/x"))
        assert n
    oldest = downs_of(node, ref)
    await turns()
    assert [d.cause for d in oldest] == ["replaced by a later incarnation"]


async def test_a_start_that_fails_is_an_end(nodes, node, other):
    spawning = asyncio.ensure_future(node.spawn(Placed, name="x", on="b", args=(Spot(1),), kwargs={"start": "hang"}))
    await turns()
    downs = downs_of(node, node.ref("b/x"))
    await turns()
    await node.kill_actor(node.ref("b/x"))
    with pytest.raises(RemoteError, match="ActorDied"):
        await spawning
    await turns()
    assert downs == [Down("b", 1, "killed", "x", 1)]
    downs = []

    class Fails(Mortal):
        async def on_start(self) -> None:
            node.monitor(self.ref, downs.append)
            raise ValueError("no")

    with pytest.raises(ValueError, match="no"):
        await node.spawn(Fails(), name="y")
    assert [d.cause for d in downs] == ["start failed: ValueError: no"]


async def test_set_while_it_dies_and_taken_back(nodes, node, at):
    class Slow(Mortal):
        async def on_stop(self) -> None:
            await self.gate.wait()

    slow = Slow()
    on = nodes.all[at == "b"]
    ref = await on.spawn(slow, name="x")
    ref.crash.cast("slowly")
    await turns()
    dying, undone = downs_of(node, ref), []
    undo = node.monitor(ref, undone.append)
    await turns()
    assert dying == []  # it still runs
    undo()
    undo()
    slow.gate.set()
    await turns()
    assert [d.cause for d in dying] == ["crashed: slowly"]
    assert undone == []
    undo = node.monitor(ref, undone.append)  # over: the report is on its way, and is taken back
    undo()
    await nodes.advance(2)
    assert undone == []
    assert not node.parts.monitors._watches
    assert not any(node.parts.monitors._of_peer.values())
    assert not any(on.parts.monitors._watched.values())


class Lossy:
    """A transport's ``send`` that loses, or repeats, the first messages that mention an endpoint."""

    def __init__(self, node, endpoint: str, copies: int, count: int = 2) -> None:
        self.send = node._transport.send
        self.mark = endpoint.encode()
        self.copies = copies
        self.left = count
        node._transport.send = self

    def __call__(self, peer, body, buffers=()) -> None:
        copies = 1
        if self.left and self.mark in bytes(body):
            self.left -= 1
            copies = self.copies
        for _ in range(copies):
            self.send(peer, body, buffers)


@claim("A monitor hears of an end exactly once, with its cause", of="actor-runtime")
@pytest.mark.parametrize("copies", [0, 2])
@pytest.mark.parametrize("message", ["watch", "ended"])
async def test_neither_loss_nor_repetition_shows(nodes, node, other, message, copies):
    ref = await node.spawn(Mortal, name="x", on="b")
    Lossy(node if message == "watch" else other, message, copies)
    downs = downs_of(node, ref)
    if message == "ended":
        await turns()
    await other.despawn("x")
    assert await nodes.finish(waiting_for(downs)) == [Down("b", 1, "stopped", "x", 1)]
    await nodes.advance(20)
    assert len(downs) == 1
    assert not node.parts.monitors._tasks
    assert not other.parts.monitors._reports


async def waiting_for(downs: list[Down]) -> list[Down]:
    for _ in range(10_000):
        if downs:
            break
        await asyncio.sleep(0)
    return downs


async def test_reports_of_a_stopping_node_arrive(nodes, node, other):
    downs = downs_of(node, await node.spawn(Mortal, name="x", on="b"))
    await turns()
    await other.stop()
    await turns()
    assert [d.cause for d in downs] == ["stopped"]


async def test_an_actor_hears_of_ends_in_its_own_turn(nodes, node, at):
    witness = Witness()
    w = await node.spawn(witness, name="w", mailbox=1)
    refs = [await node.spawn(Mortal, name=f"x{i}", on=at) for i in range(5)]
    for ref in refs:
        await w.observe(str(ref))
    witness.undos[4]()
    for ref in refs:
        ref.crash.cast("bad")
    await turns(40)
    assert sorted(await w.heard()) == [f"{at}/x{i}#1.1 crashed: bad" for i in range(4)]  # a full mailbox loses none
    assert list(node.actors.of(witness.ref.address).held) == []
    await w.observe(str(await node.spawn(Mortal, name="late", on=at)))
    await node.despawn("w")  # its monitors go with it
    await turns()
    assert not node.parts.monitors._watches
    with pytest.raises(ActorDied):
        witness.monitor(refs[0])


async def test_a_monitor_outlives_the_deadline_of_the_message_that_set_it(nodes, node, other):
    w, x = await node.spawn(Witness, name="w"), await node.spawn(Mortal, name="x", on="b")
    Lossy(node, "watch", 0, 1)
    await w.observe(str(x), timeout=1.0)
    await nodes.advance(8)
    await node.kill_actor(x)
    await turns()
    assert await w.heard() == ["b/x#1.1 killed"]


async def test_an_actor_without_on_down_says_so(node, caplog):
    class Careless(Mortal):
        async def on_start(self) -> None:
            self.monitor(self.node.ref("a/nobody"))

    await node.spawn(Careless(), name="x")
    await turns()
    assert "monitors a/nobody#1, which ended (no such actor), and has no on_down" in caplog.text


async def test_a_crash_in_on_down_is_a_crash(node):
    class Fragile(Mortal):
        crashes_on = (KeyError,)

        async def on_start(self) -> None:
            self.monitor(self.node.ref("a/nobody"))

        async def on_down(self, down: Down) -> None:
            raise KeyError(down.cause)

    ref = await node.spawn(Fragile(), name="x")
    await turns()
    with pytest.raises(ActorDied, match="crashed: KeyError"):
        await ref.echo(1)


@pytest.mark.parametrize("first", ["w", "x"])
async def test_linked_actors_die_together(nodes, node, at, first):
    w, x = await node.spawn(Witness, name="w"), await node.spawn(Mortal, name="x", on=at)
    await w.tie(str(x))
    await w.tie(str(x))
    await turns()
    (w if first == "w" else x).crash.cast()
    await turns(40)
    cause = "linked a/w#1.1 died: crashed: witness" if first == "w" else f"linked {at}/x#1.1 died: crashed: on request"
    with pytest.raises(ActorDied, match=cause):
        await (x.echo(1) if first == "w" else w.heard())
    assert not node.parts.monitors._watches


@pytest.mark.parametrize("first", ["w", "x"])
async def test_a_stop_in_order_leaves_the_other(nodes, node, at, first):
    w, x = await node.spawn(Witness, name="w"), await node.spawn(Mortal, name="x", on=at)
    await w.tie(str(x))
    await turns()
    await node.stop_actor(w if first == "w" else x)
    await turns(40)
    assert await (x.echo(1) if first == "w" else w.heard()) in (1, [])


async def test_links_are_undone_and_break_with_the_node(nodes, node, at):
    w, x = await node.spawn(Witness, name="w"), await node.spawn(Mortal, name="x", on=at)
    await w.tie(str(x))
    await w.untie(str(x))
    await turns(40)
    x.crash.cast()
    await turns(40)
    assert await w.heard() == []
    if at == "b":
        y = await node.spawn(Mortal, name="y", on=at)
        await w.tie(str(y))
        await turns()
        nodes.all[1].peering.declare_down(Down("a", 1, "silent"))
        node.peering.declare_down(Down("b", 1, "silent"))
        await turns(40)
        with pytest.raises(ActorDied, match=r"linked a/w#1\.1 died: node down: silent"):
            await nodes.all[1].ref(str(y)).echo(1)
        with pytest.raises(ActorDied, match=r"linked b/y#1\.1 died: node down: silent"):
            await w.heard()


async def test_a_link_to_what_is_not_there_is_fatal(nodes, node, at):
    w = await node.spawn(Witness, name="w")
    await w.tie(f"{at}/nobody")
    await turns()
    with pytest.raises(ActorDied, match=r"linked .*nobody.* died: no such actor"):
        await w.heard()
