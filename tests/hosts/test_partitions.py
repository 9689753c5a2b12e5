"""Cuts between hosts: requests end with the right tokens, whatever of the network is there."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from blockwright.actors.worker.event_log_file import EventLog
from blockwright.tests.claims import claim
from blockwright.tests.hosts.cluster import SILENCE, STREAMS, Cluster, grown, loaded, opened, sweeps
from blockwright.tests.hosts.network import Hosts
from blockwright.tests.system.client import Client, check
from blockwright.tests.system.conftest import slow
from blockwright.tests.waiting import until

pytestmark = pytest.mark.system


@pytest.fixture(scope="module")
def cluster(
    hosts: Hosts | None, model: Path, pace: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Cluster | None]:
    yield from opened(hosts, model, pace, tmp_path_factory.mktemp("partitions"), orphan_grace=0)


@claim("A worker whose host is cut off stops computing, and its requests go on elsewhere and lose no token", of="faults")
@pytest.mark.parametrize("way", ["both", "from", "to"])
async def test_a_worker_is_cut_off(cluster: Cluster, way: str) -> None:
    async with Client(cluster.server) as client:
        await cluster.whole(client)

        async def gone() -> bool:
            return "far" not in await client.workers()

        with slow(cluster.server):
            answers = await loaded(cluster, client)
            stops = cluster.stops()
            cut = cluster.hosts.cut("b", "a", way=way)
            await until(gone, "the head declares it down")
            await until(lambda: cluster.stops() > stops, "it stops")
        await client.finished()
        check(answers, cluster.expected)
        life, process = cluster.life(), cluster.far
        cluster.hosts.heal("b", "a")
        await cluster.whole(client)
        swept = sweeps(life)
        assert swept[0] < cut < swept[-1] < cut + 2 * SILENCE
        assert cluster.far is process, cluster.server.said("far")
        far = (await client.workers())["far"]
        assert far["incarnation"] == EventLog(life).header.incarnation + 1
        assert far["counters"]["loaded_parameter_bytes"] == 0
        answers = client.load(STREAMS)
        await client.finished()
        check(answers, cluster.expected)


@claim("A worker that is cut off from one gateway, or from the head alone, loses no token of that gateway", of="faults")
@claim("A worker and a gateway that do not reach each other both serve on, and meet again as they are", of="faults")
@pytest.mark.nightly
@pytest.mark.parametrize("way", ["both", "from", "to"])
@pytest.mark.parametrize("other", ["c", "a"])
async def test_a_worker_is_cut_off_from_one(cluster: Cluster, other: str, way: str) -> None:
    """Requests come through a gateway at "c", and the way from the worker to it, or to the head at "a", is cut.

    The worker ends if the head misses it (without ``orphan_grace``), and serves the other gateway if that one alone does.
    """
    async with Client(cluster.server) as client, cluster.beside() as beside:
        await cluster.whole(client)
        life = (await client.workers())["far"]["incarnation"]

        async def said() -> bool:
            return "far and front do not reach each other" in (await client.get("/admin/cluster"))[1]["doubts"]

        async def together() -> bool:
            return (await client.get("/admin/cluster"))[1]["doubts"] == ""

        with slow(cluster.server):
            answers = await loaded(cluster, beside)
            cluster.hosts.cut("b", other, way=way)
            if other == "c":
                await until(said, "the head says so")
        await beside.finished()
        check(answers, cluster.expected)
        answers = client.load(STREAMS)
        await client.finished()
        check(answers, cluster.expected)
        cluster.hosts.heal("b", other)
        await until(together, "all reach each other")
        await cluster.whole(client)
        if other == "c":
            assert (await client.workers())["far"]["incarnation"] == life
            answers = beside.load(STREAMS)
            await beside.finished()
            check(answers, cluster.expected)
            front = (await client.get("/admin/cluster"))[1]["workers"]
            assert {one["id"]: one["queue"] for one in front}["far"] == {"waiting": 0, "running": 0}


@claim("Delay of 20 ms and loss of 1 % between hosts change no token", of="faults")
async def test_delay_and_loss_change_nothing(cluster: Cluster) -> None:
    async with Client(cluster.server) as client:
        await cluster.whole(client)
        cluster.hosts.shape(delay=0.02, loss=0.01)
        answers = client.load(STREAMS)
        await client.finished()
        check(answers, cluster.expected)
        cluster.hosts.shape()


@claim("A way between hosts that is cut and healed 20 times loses no token and leaves no memory owned", of="faults")
async def test_a_way_that_flaps_loses_nothing(cluster: Cluster) -> None:
    async with Client(cluster.server) as client:
        await cluster.whole(client)
        for turn in range(4):
            answers = await loaded(cluster, client)
            for flap in range(5):
                cluster.hosts.cut("b", "a", way=("both", "from", "to")[(turn + flap) % 3])
                await grown(answers, flap)
                cluster.hosts.heal("b", "a")
            await client.finished()
            check(answers, cluster.expected)
        await cluster.whole(client)
        memory = [worker["memory"] for worker in (await client.ready()).values()]
        assert [one["kv"] for one in memory] == [0, 0]
