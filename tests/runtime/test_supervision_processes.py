"""Lives, monitors and supervisors between real processes, one of which dies by SIGKILL."""

from __future__ import annotations

import os
import signal

import numpy as np
import pytest

from blockwright.runtime import Backoff, Child, ChildState, Down, NoSuchActor, Supervisor
from blockwright.runtime.cluster.cluster import ClusterHead
from blockwright.runtime.cluster.processes import ForkserverLauncher
from blockwright.tests.runtime.lives import Mortal, Placed, Spot
from blockwright.tests.waiting import PATIENCE

pytestmark = pytest.mark.system


@pytest.fixture
async def hub(tmp_path):
    from cluster_entries import CounterConfig

    made = ClusterHead("head", launcher=ForkserverLauncher(tmp_path / "s"), silence=PATIENCE)
    await made.start()
    for name in ("w0", "w1"):
        await made.launch(name, "cluster_entries:counter", CounterConfig())
    for name in ("w0", "w1"):
        await made.wait_up(name)
    yield made
    pids = [made.pid(name) for name in ("w0", "w1")]
    await made.stop()
    for pid in pids:
        with pytest.raises(ProcessLookupError):
            os.kill(pid, 0)


async def test_a_killed_process_takes_its_actors_and_nobody_else(hub, until):
    node = hub.node
    placed = await node.spawn(Placed, name="p", on="w0", args=(Spot(1, 2), np.arange(1000)))
    assert await placed.where() == "w0 Spot(x=1, y=2) None 499500"
    sup = await node.spawn(Supervisor([Child(name="x", actor=Mortal, on=["w0", "w1"])], backoff=Backoff(0.01)), name="sup")
    await node.spawn(Supervisor, name="inner", on="w0", args=([Child(name="y", actor=Mortal, on="w1")],))
    await node.register("placed", placed)
    downs: list[Down] = []
    node.monitor(placed, downs.append)
    node.monitor(node.ref("w1/y"), downs.append)
    assert await node.ref("w1/y").echo(1) == 1
    os.kill(hub.pid("w0"), signal.SIGKILL)
    await until(lambda: len(downs) == 2)
    assert {(d.ref, d.cause.partition(":")[0]) for d in downs} == {
        ("w0/p#1.1", "node down"),
        ("w1/y#1.1", "owner w0/inner#1.1 has ended"),
    }
    with pytest.raises(NoSuchActor):
        await node.lookup("placed")
    (state,) = await sup.children(returns=list[ChildState])
    while state.address != "w1/x#1.1":
        (state,) = await sup.children(returns=list[ChildState])
    assert (state.address, state.restarts) == ("w1/x#1.1", 1)
    assert await node.ref("w1/x").echo(3) == 3
    with pytest.raises(NoSuchActor):
        await node.ref("w1/y").echo(1)


async def test_actors_are_stopped_in_order_across_processes(hub):
    ref = await hub.node.spawn(Mortal, name="x", on="w1")
    await hub.node.stop_actor(ref, drain=1.0)
    again = await hub.node.spawn(Mortal, name="x", on="w1")
    assert again.life == 2
    await hub.node.kill_actor(again)
