"""Membership under a manual clock, on the in-process launcher."""

from __future__ import annotations

import asyncio
import os

import pytest

from blockwright.runtime import ActorDied, Child, Down, ManualClock, NodeDown, RemoteError, Supervisor
from blockwright.runtime.cluster.cluster import ClusterHead
from blockwright.runtime.cluster.inprocess import InProcessLauncher
from blockwright.runtime.cluster.launcher import LaunchError
from blockwright.tests.runtime.lives import Mortal
from blockwright.transport.address import PeerId


class Rig:
    def __init__(self) -> None:
        self.clock = ManualClock()
        self.launcher = InProcessLauncher(clock=self.clock)
        self.hub = ClusterHead("head", launcher=self.launcher, clock=self.clock, heartbeat=0.5, silence=2.5, startup=60.0)
        self.ups: list[tuple[str, int]] = []
        self.downs: list[Down] = []
        self.hub.on_up(lambda *up: self.ups.append(up))
        self.hub.on_down(self.downs.append)

    async def launch(self, name: str, start: int = 0, entry: str = "counter") -> int:
        from cluster_entries import CounterConfig

        incarnation = await self.hub.launch(name, f"cluster_entries:{entry}", CounterConfig(start, [b"x" * 1000]))
        if entry == "counter":
            await self.hub.wait_up(name)
            await turns()
        return incarnation

    async def advance(self, seconds: float, step: float = 0.25) -> None:
        for _ in range(round(seconds / step)):
            self.clock.advance(step)
            await turns()


async def turns(count: int = 15) -> None:
    for _ in range(count):
        await asyncio.sleep(0)


@pytest.fixture
async def rig():
    made = Rig()
    await made.hub.start()
    yield made
    await made.hub.stop()


async def test_a_start_that_is_cancelled_leaves_no_socket():
    """At whatever turn of the loop."""
    for count in range(50):
        launcher = InProcessLauncher(clock=ManualClock())
        hub = ClusterHead("head", launcher=launcher, heartbeat=0.5, silence=2.5, startup=60.0)
        starting = asyncio.create_task(hub.start())
        await turns(count)
        if not starting.cancel():
            await hub.stop()
            assert launcher.network.members == {}
            break
        with pytest.raises(asyncio.CancelledError):
            await starting
        assert launcher.network.members == {}
    assert 1 < count < 49, "it was cancelled, and at the end it was not"


async def test_launch_and_call(rig):
    from cluster_entries import Status

    assert await rig.launch("w0", 5) == 1
    ref = rig.hub.node.ref("w0/counter")
    assert await ref.add(1) == 6
    assert await ref.status(returns=Status) == Status(os.getpid(), 6, [1000], False)
    assert rig.ups == [("w0", 1)]


async def test_workers_meet_each_other(rig):
    await rig.launch("w0")
    await rig.launch("w1", 10)
    assert await rig.hub.node.ref("w0/counter").ask("w1/counter", 1) == 11
    assert await rig.hub.node.ref("w1/counter").ask("w0/counter", 1) == 1


async def test_a_kill_is_reported_once_and_everywhere(rig):
    await rig.launch("w0")
    await rig.launch("w1")
    calls = [asyncio.create_task(rig.hub.node.ref(f"{w}/counter").wait()) for w in ("w0", "w1")]
    relayed = asyncio.create_task(rig.hub.node.ref("w1/counter").ask("w0/counter", 1))
    await relayed
    await rig.hub.kill("w0")
    with pytest.raises(NodeDown, match="killed"):
        await calls[0]
    assert not calls[1].done()
    calls[1].cancel()
    await turns()
    await rig.advance(5)
    assert rig.downs == [Down("w0", 1, "killed")]
    assert rig.hub.members()["w0"].state == "down"
    await rig.hub.kill("w0")  # again: nothing
    assert len(rig.downs) == 1


async def test_a_restart_is_a_new_incarnation(rig):
    await rig.launch("w0", 1)
    ref = rig.hub.node.ref("w0/counter")
    pinned = rig.hub.node.ref("w0/counter#1")
    await rig.hub.kill("w0")
    with pytest.raises(NodeDown, match="killed"):
        await ref.add(1)
    assert await rig.launch("w0", 100) == 2
    assert await ref.add(1) == 101
    with pytest.raises(NodeDown):
        await pinned.add(1)
    assert rig.ups == [("w0", 1), ("w0", 2)]


async def test_silence_means_down_fenced_and_killed(rig):
    await rig.launch("w0")
    await rig.launch("w1")
    await rig.advance(10)
    assert rig.downs == []
    rig.launcher.freeze(PeerId("w0", 1))
    call = asyncio.create_task(rig.hub.node.ref("w0/counter").add(1))
    await rig.advance(2.25)
    assert rig.downs == []
    await rig.advance(1.0)
    assert rig.downs == [Down("w0", 1, "hung")]
    with pytest.raises(NodeDown, match="hung"):
        await call
    await turns()
    assert PeerId("w0", 1) not in rig.launcher.list()
    assert await rig.hub.node.ref("w1/counter").add(1) == 1
    with pytest.raises(Exception, match="w0#1 is down"):
        await rig.hub.node.ref("w1/counter").ask("w0/counter", 1)


async def test_a_stalled_head_blames_nobody(rig):
    await rig.launch("w0")
    await rig.launch("w1")
    for _ in range(3):
        rig.clock.jump(30.0)  # nothing was received meanwhile, and the check comes before what waits to be read
        await rig.advance(0.5)
    assert rig.downs == []
    rig.launcher.freeze(PeerId("w1", 1))
    await rig.advance(4.0)
    assert rig.downs == [Down("w1", 1, "hung")]


async def test_pings_that_fail_around_a_stall_of_the_head_prove_nothing(rig, monkeypatch):
    await rig.launch("w0")
    rechecked = []
    monkeypatch.setattr(rig.launcher.network.members["loop://head-1"], "recheck", rechecked.append)

    def unanswered():
        rig.hub.lost(rig.hub.node.peers()["w0"], "unreachable")

    rig.clock._now += 30.0  # the head was stopped; what the transport says comes before its own check
    unanswered()
    await rig.advance(0.25)
    unanswered()  # and after it
    assert rechecked == [PeerId("w0", 1)] * 2
    await rig.advance(2.0)
    unanswered()
    assert len(rechecked) == 3
    await rig.advance(1.0)
    assert rig.downs == []
    unanswered()
    assert rig.downs == [Down("w0", 1, "unreachable")]


@pytest.mark.parametrize(("again", "cause"), [(1.5, "unreachable"), (0.25, "hung")])
async def test_a_head_that_stalls_again_and_again_tells_a_hang_from_a_host_that_is_gone(rig, again, cause):
    """On a busy machine every failed ping may be the head's own fault, and is tried again."""
    await rig.launch("w0")
    await rig.advance(1.0)
    rig.launcher.freeze(PeerId("w0", 1))
    passed = 0.0
    while not rig.downs:
        rig.clock.jump(1.0)
        await turns()
        passed += 1.0
        if passed <= again * 4 and not rig.downs:  # pings fail all the time, or once
            rig.hub.lost(rig.hub.node.peers()["w0"], "unreachable")
    assert rig.downs == [Down("w0", 1, cause)]


async def test_a_node_that_another_cannot_reach_is_declared_down_by_the_head(rig):
    await rig.launch("w0")
    await rig.launch("w1")
    await rig.launch("w2")
    network = rig.launcher.network
    network.members["loop://w1-1"]._receiver.on_lost(PeerId("w0", 1), "disconnected")
    with pytest.raises(RemoteError, match="w0#1 is down: the connection broke"):
        await rig.hub.node.ref("w1/counter").ask("w0/counter", 1)
    assert rig.downs == []
    await rig.advance(0.5)
    assert rig.downs == [Down("w0", 1, "disconnected from w1")]
    for worker in ("w1", "w2"):
        with pytest.raises(RemoteError, match="w0#1 is down: disconnected from w1"):
            await rig.hub.node.ref(f"{worker}/counter").ask("w0/counter", 1)
    network.members["loop://w1-1"]._receiver.on_lost(PeerId("w0", 1), "disconnected")
    rig.hub.accused(rig.hub.node.peers()["w1"], PeerId("w0", 1))  # notified late, as when it saw it first
    assert await rig.launch("w0") == 2
    await rig.advance(0.5)
    assert len(rig.downs) == 1


@pytest.mark.parametrize("dies", [False, True])
async def test_a_spared_node_outlives_a_member_that_cannot_reach_it(rig, dies):
    rig.hub.spare(lambda name: name == "w0")
    await rig.launch("w0")
    await rig.launch("w1")
    network = rig.launcher.network
    network.members["loop://w1-1"]._receiver.on_lost(PeerId("w0", 1), "disconnected")
    await rig.advance(2.25)
    assert rig.downs == []
    if dies:
        rig.launcher.kill(PeerId("w0", 1))
    await rig.advance(1.0)
    assert rig.downs == [Down("w0", 1, "disconnected") if dies else Down("w1", 1, "disconnected from w0")]


async def test_an_accusation_ends_with_its_accuser(rig):
    rig.hub.spare(lambda name: name == "w0")
    for name in ("w0", "w1"):
        await rig.launch(name)
    for name, other in (("w0", "w1"), ("w1", "w0")):
        rig.launcher.network.members[f"loop://{name}-1"]._receiver.on_lost(PeerId(other, 1), "disconnected")
    await rig.advance(1.0)
    assert rig.downs == [Down("w1", 1, "disconnected from w0")]
    await rig.launch("w1")
    await rig.advance(4.0)
    assert len(rig.downs) == 1


async def test_an_entry_that_fails_is_a_down_without_an_up(rig, caplog):
    await rig.launch("w0", entry="broken")
    with pytest.raises(NodeDown, match="exited 1"):
        await rig.hub.wait_up("w0")
    assert rig.downs == [Down("w0", 1, "exited 1")]
    assert rig.ups == []
    assert "this entry always fails" in caplog.text
    for entry in ("not_async", "absent"):
        await rig.launch("w0", entry=entry)
        with pytest.raises(NodeDown):
            await rig.hub.wait_up("w0")
    assert [d.incarnation for d in rig.downs] == [1, 2, 3]


async def test_a_start_that_never_ends_is_given_up(rig):
    await rig.launch("w0", entry="never")
    await rig.advance(59)
    assert rig.downs == []
    await rig.advance(2)
    assert rig.downs == [Down("w0", 1, "not up within 60 s")]
    assert rig.ups == []


async def test_what_cannot_be_launched(rig):
    await rig.launch("w0")
    with pytest.raises(ValueError, match="lives"):
        await rig.launch("w0")
    with pytest.raises(ValueError, match="lives"):
        await rig.launch("head")
    await rig.hub.stop()
    with pytest.raises(LaunchError, match="stopping"):
        await rig.launch("w1")


async def test_stop_is_orderly_and_silent(rig):
    await rig.launch("w0")
    await rig.launch("w1", entry="never")
    await rig.hub.stop()
    await rig.hub.stop()
    assert rig.downs == []
    assert rig.launcher.list() == {}
    assert rig.launcher.network.members == {}


async def test_a_node_that_starts_while_the_head_stops_fails_for_nothing(rig, caplog):
    """It did for an actor of the head that had ended, and reported it beside the sentence of a refused start."""
    slow = Mortal()
    ref = await rig.hub.node.spawn(slow, name="slow")
    call = asyncio.create_task(ref.hold())
    await rig.hub.node.spawn(Mortal(), name="owner")
    await rig.launch("w0", entry="owned")
    await turns()
    stopping = asyncio.create_task(rig.hub.stop(drain=10.0))
    await rig.advance(5.0)
    assert not stopping.done()
    slow.gate.set()
    await call
    await stopping
    assert rig.launcher.list() == {}
    assert not caplog.text


async def test_a_callback_that_raises_does_not_stop_the_next(rig, caplog):
    seen = []
    rig.hub.on_down(lambda down: 1 / 0)
    rig.hub.on_down(seen.append)
    await rig.launch("w0")
    await rig.hub.kill("w0")
    assert len(seen) == 1
    assert "ZeroDivisionError" in caplog.text


async def test_uninvited_nodes_are_not_admitted(rig):
    from blockwright.runtime import Node

    await rig.launch("w0")
    for stranger in (PeerId("w9", 1), PeerId("w0", 7)):
        transport = rig.launcher.network.transport(stranger)
        node = Node(stranger.name, incarnation=stranger.incarnation, transport=transport, clock=rig.clock)
        await node.start()
        node.peering.join(rig.hub.node.id, rig.hub.node.endpoint)
        await turns()
        await node.stop()
    assert set(rig.hub.node.peers()) == {"w0"}
    assert rig.hub.node.peers()["w0"].incarnation == 1
    assert rig.downs == []


async def test_a_stop_ends_supervised_actors_in_order_and_survives_its_cancellation(rig):
    log: list[str] = []

    class Loud(Supervisor):
        async def on_stop(self) -> None:
            await super().on_stop()
            log.append("supervisor")

    await rig.launch("w0")
    children = [Child(name=name, actor=Mortal, args=(name,), on=on) for name, on in (("x", "w0"), ("y", ""))]
    sup = await rig.hub.node.spawn(Loud(children), name="sup")
    gone: list[Down] = []
    for name in ("w0/x", "head/y"):
        rig.hub.node.monitor(rig.hub.node.ref(name), gone.append)
    await turns()
    stopping = asyncio.create_task(rig.hub.stop())
    await asyncio.sleep(0)
    stopping.cancel()
    with pytest.raises(LaunchError, match="stopping"):
        await rig.launch("w1")
    await rig.hub.stop()
    assert stopping.cancelled()
    assert [(d.actor, d.cause) for d in gone] == [("y", "stopped"), ("x", "stopped")]
    assert log == ["supervisor"]
    with pytest.raises((ActorDied, NodeDown)):
        await sup.children()
    assert rig.downs == []


async def test_a_stop_may_drain(rig):
    actor = Mortal()
    ref = await rig.hub.node.spawn(actor, name="x")
    call = asyncio.create_task(ref.hold())
    await turns()
    stopping = asyncio.create_task(rig.hub.stop(drain=10.0))
    await turns()
    actor.gate.set()
    assert await call == 0
    await stopping


async def test_a_node_may_be_launched_again_from_the_callback_that_it_is_down(rig):
    from cluster_entries import CounterConfig

    again: list[asyncio.Task[int]] = []
    rig.hub.on_down(
        lambda down: again.append(asyncio.ensure_future(rig.hub.launch("w0", "cluster_entries:counter", CounterConfig())))
    )
    await rig.launch("w0")
    await rig.hub.kill("w0")  # returns although a later life of that name exists by then
    assert await again[0] == 2
    await rig.hub.wait_up("w0")
    assert await rig.hub.node.ref("w0/counter").add(1) == 1
