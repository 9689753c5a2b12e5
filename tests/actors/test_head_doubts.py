"""The head's doubts, as its own node and others hear of them."""

from __future__ import annotations

import pytest

from blockwright.actors.head_doubts import head_doubts, tell_doubts
from blockwright.runtime import Actor, endpoint
from blockwright.runtime.cluster.cluster import ClusterHead
from blockwright.runtime.cluster.inprocess import InProcessLauncher
from blockwright.tests.claims import claim
from blockwright.tests.waiting import PATIENCE, until

SAID = "3 of 4 members are out of reach"


class Asked(Actor):
    """Hears of the doubts as a gateway does."""

    @endpoint
    async def doubts(self) -> str:
        return head_doubts(self.node)


@claim("A head that misses most members declares none down, and every gateway's `/health` says so", of="faults")
async def test_they_ride_in_the_heads_heartbeats_while_there_are_any(monkeypatch: pytest.MonkeyPatch) -> None:
    said = [""]
    monkeypatch.setattr(ClusterHead, "doubts", property(lambda _: said[0]))
    cluster = ClusterHead("head", launcher=InProcessLauncher(), heartbeat=0.01, silence=PATIENCE)
    await cluster.start()
    cluster.node.heartbeat = lambda: {"routes": 7}
    tell_doubts(cluster)
    assert (cluster.node.heartbeat(), head_doubts(cluster.node)) == ({"routes": 7}, "")
    await cluster.launch("g0", "blockwright.runtime.cluster.node_process:idle", None)
    await cluster.wait_up("g0")
    far = await cluster.node.spawn(Asked, name="asked", on="g0")
    assert await far.doubts() == ""
    said[0] = SAID
    assert head_doubts(cluster.node) == SAID

    async def heard() -> bool:
        return await far.doubts() == said[0]

    await until(heard, "the gateway has heard of them")
    said[0] = ""
    await until(heard, "and that they are over")
    await cluster.stop()
