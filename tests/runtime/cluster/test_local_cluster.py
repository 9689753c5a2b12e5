"""The nodes there should be, and their restarts: in one process, under a manual clock."""

from __future__ import annotations

import asyncio

import pytest

from blockwright.runtime import Backoff, LocalCluster, ManualClock, Node, NodeDown
from blockwright.runtime.base.names import import_name
from blockwright.runtime.cluster.inprocess import InProcessLauncher
from blockwright.runtime.cluster.launcher import LaunchError
from blockwright.transport.address import PeerId
from blockwright.transport.errors import AddressError


class Rig:
    def __init__(self, **options: object) -> None:
        from cluster_entries import CounterConfig, counter

        self.clock = ManualClock()
        self.launcher = InProcessLauncher(clock=self.clock)
        options = {"entry": counter, "config": CounterConfig(5), **options}
        self.cluster = LocalCluster(2, launcher=self.launcher, clock=self.clock, **options)

    async def crash(self, name: str) -> None:
        self.launcher.kill(self.cluster.hub.members()[name].id)
        await turns()

    async def advance(self, seconds: float) -> None:
        until = self.clock.now() + seconds
        while (left := until - self.clock.now()) > 1e-9:
            self.clock.advance(min(left, 0.25))  # longer steps would look like a stall
            await turns()


async def turns(count: int = 40) -> None:
    for _ in range(count):
        await asyncio.sleep(0)


async def test_nodes_run_their_entry_and_restart():
    rig = Rig()
    async with rig.cluster as cluster:
        assert cluster.nodes == ("w0", "w1")
        assert set(cluster.node.peers()) == {"w0", "w1"}
        ref = cluster.node.ref("w1/counter")
        assert await ref.add(1) == 6
        assert await cluster.restart("w1") == 2
        assert await ref.add(1) == 6
        await cluster.kill("w0")
        assert set(cluster.node.peers()) == {"w1"}
        assert await cluster.restart("w0") == 2
        with pytest.raises(KeyError):
            await cluster.kill("w9")
    assert rig.launcher.list() == {}


async def test_what_crashes_stays_down_unless_restarts_were_asked_for():
    rig = Rig()
    async with rig.cluster as cluster:
        await rig.crash("w0")
        await rig.advance(60)
        assert set(cluster.node.peers()) == {"w1"}


async def test_restarts_by_itself_with_a_pause_and_within_limits():
    rig = Rig(restarts=2, period=10.0, backoff=Backoff(initial=1.0, factor=2.0, jitter=0.0))
    async with rig.cluster as cluster:
        await rig.crash("w0")
        await rig.advance(0.9)
        assert set(cluster.node.peers()) == {"w1"}
        await rig.advance(0.2)
        assert cluster.node.peers()["w0"].incarnation == 2
        await rig.crash("w0")
        await rig.advance(1.5)
        assert set(cluster.node.peers()) == {"w1"}, "the second pause is longer"
        await rig.advance(0.6)
        assert cluster.node.peers()["w0"].incarnation == 3
        await rig.advance(20)
        await rig.crash("w1")
        await rig.advance(1.1)
        assert set(cluster.node.peers()) == {"w0", "w1"}, "what lies long back does not count"
        await rig.crash("w1")
        await rig.crash("w0")
        assert cluster.gave_up == "3 restarts within 10 s, 2 allowed; last: w0"
        await rig.advance(60)
        assert cluster.node.peers() == {}
        assert await cluster.restart("w0") == 4, "by hand it goes on"


async def test_what_was_killed_by_hand_is_left_alone():
    rig = Rig(restarts=2)
    async with rig.cluster as cluster:
        await cluster.kill("w0")
        await rig.advance(60)
        assert set(cluster.node.peers()) == {"w1"}
        await cluster.restart("w0")
        await rig.crash("w0")
        await rig.advance(60)
        assert cluster.node.peers()["w0"].incarnation == 3, "it is looked after again"


async def test_a_launch_that_fails_counts_as_a_restart(monkeypatch, caplog):
    rig = Rig(restarts=2, backoff=Backoff(initial=1.0, factor=1.0, jitter=0.0))
    async with rig.cluster as cluster:
        monkeypatch.setattr(rig.launcher, "spawn", fails)
        await rig.crash("w0")
        await rig.advance(1.1)
        assert "w0 was not restarted: no room" in caplog.text
        monkeypatch.undo()
        await rig.advance(1.1)
        assert set(cluster.node.peers()) == {"w0", "w1"}


async def fails(spec):
    raise LaunchError("no room")


async def test_a_start_that_fails_leaves_nothing():
    rig = Rig(entry="cluster_entries:broken")
    with pytest.raises(NodeDown, match="w0#1 is down: exited 1"):
        await rig.cluster.start()
    assert rig.launcher.list() == {}
    assert rig.launcher.network.members == {}


async def test_stopping_while_restarts_are_due():
    rig = Rig(restarts=5)
    async with rig.cluster:
        await rig.crash("w0")
    await rig.advance(60)
    assert rig.launcher.list() == {}


async def test_empty_nodes():
    rig = Rig(entry="blockwright.runtime.cluster.node_process:idle", config=None)
    async with rig.cluster as cluster:
        assert set(cluster.node.peers()) == {"w0", "w1"}
        assert cluster.invitation == "blockwright node --join loop://head"


async def test_what_was_not_started_or_was_before_is_reported():
    cluster = LocalCluster(1, launcher=InProcessLauncher())
    with pytest.raises(RuntimeError, match="the cluster was not started"):
        _ = cluster.node
    await cluster.stop()  # nothing to do
    async with cluster:
        with pytest.raises(RuntimeError, match="has been started before"):
            await cluster.start()
        assert set(cluster.node.peers()) == {"w0"}, "and it goes on"
    with pytest.raises(RuntimeError, match="has been started before"):
        await cluster.start()
    node = Node("alone", listen=False)
    for use in (node.inspect, lambda: node.ref("alone/x").f.cast(), lambda: node.dead_letters, lambda: node.clock):
        with pytest.raises(RuntimeError, match="node alone#1 was not started"):
            use()
    assert not hasattr(node, "nothing")
    await node.start()
    with pytest.raises(RuntimeError, match="node alone#1 was started before"):
        await node.start()
    with pytest.raises(NodeDown, match="does not listen"):
        node.link("alone")
    await node.stop()


def test_clusters_that_cannot_be():
    with pytest.raises(ValueError, match="-1 nodes"):
        LocalCluster(-1)
    for wrong in ("w0", 2.5, None):
        with pytest.raises(TypeError, match=f"nodes={wrong!r} is neither a number nor a list of names"):
            LocalCluster(wrong)
    with pytest.raises(ValueError, match="are not named apart"):
        LocalCluster(["a", "b", "a"])
    with pytest.raises(ValueError, match="3 is neither a class nor a function"):
        LocalCluster(1, entry=3)
    for heartbeat, silence in ((0, 2.5), (0.5, 0.5)):
        with pytest.raises(ValueError, match="0 < heartbeat < silence"):
            LocalCluster(1, heartbeat=heartbeat, silence=silence)
    for name in ("heartbeat", "silence", "startup"):
        for wrong in (-1, float("nan"), None, "1"):
            with pytest.raises((ValueError, TypeError), match=f"{name}={wrong!r} .*give seconds, 0 or more"):
                LocalCluster(1, **{name: wrong})


async def test_a_name_that_no_node_can_have_is_refused_before_anything_runs():
    launcher = InProcessLauncher()
    with pytest.raises(AddressError, match="'a/b' cannot be used"):
        await LocalCluster(["a/b"], launcher=launcher).start()
    assert launcher.list() == {}


def test_entries_that_no_process_can_import():
    async def local(node, config):
        pass

    with pytest.raises(ValueError, match="move it to the top of a module"):
        import_name(local)
    rig = Rig()
    assert rig.cluster.hub.members() == {}
    assert PeerId("w0", 1) not in rig.launcher.list()
