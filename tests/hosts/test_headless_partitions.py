"""Cuts between hosts where members outlive their head: who still reaches whom serves on, as the lives that they are."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from blockwright.tests.claims import claim
from blockwright.tests.hosts.cluster import SILENCE, STREAMS, Cluster, grown, loaded, opened
from blockwright.tests.hosts.network import Hosts
from blockwright.tests.system.client import Client, check
from blockwright.tests.system.conftest import slow
from blockwright.tests.waiting import until

pytestmark = [pytest.mark.system, pytest.mark.nightly]
GRACE = 300
VOUCHED = "worker far is out of reach of the head, but front reaches it"


@pytest.fixture(scope="module")
def cluster(
    hosts: Hosts | None, model: Path, pace: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Cluster | None]:
    yield from opened(hosts, model, pace, tmp_path_factory.mktemp("headless"), orphan_grace=GRACE, gateway_in_head="no")


async def lives(client: Client) -> dict[str, int]:
    return {name: worker["incarnation"] for name, worker in (await client.workers()).items()}


async def led(cluster: Cluster, client: Client) -> None:
    """The head reaches all again."""

    async def reached() -> bool:
        return (await client.get("/admin/cluster"))[1]["doubts"] == ""

    await until(reached, "the head reaches all")
    await cluster.whole(client)


@claim("A worker that only the head misses serves on while a gateway reaches it", of="faults")
@pytest.mark.parametrize("way", ["both", "from", "to"])
@pytest.mark.parametrize("network", [{}, {"delay": 0.02, "loss": 0.01}])
async def test_a_worker_is_cut_off_from_the_head_only(cluster: Cluster, way: str, network: dict[str, Any]) -> None:
    """The gateway at "c" reaches it: no token of a request through "c" is lost.

    Back in reach it serves on as the life that it is, for the gateway beside the head, too, which had lost it.
    """
    async with Client(cluster.server) as client, cluster.beside() as beside:
        await cluster.whole(client)
        before = await lives(client)

        async def doubted() -> bool:
            return VOUCHED in (await client.get("/admin/cluster"))[1]["doubts"]

        cluster.hosts.shape(**network)
        with slow(cluster.server):
            answers = await loaded(cluster, beside)
            cluster.hosts.cut("b", "a", way=way)
            await until(doubted, "the head asks the gateway")
            await grown(answers, STREAMS)
        await beside.finished()
        check(answers, cluster.expected)
        answers = beside.load(STREAMS)
        await beside.finished()
        check(answers, cluster.expected)
        process = cluster.far
        cluster.hosts.heal("b", "a")
        await asyncio.sleep(SILENCE)
        cluster.hosts.shape()
        await led(cluster, client)
        answers = client.load(STREAMS)
        await client.finished()
        check(answers, cluster.expected)
        assert cluster.far is process, cluster.server.said("far")
        assert await lives(client) == before


@claim("A worker whose host is cut off comes back with what is in its memory, and loads nothing again", of="faults")
@pytest.mark.parametrize("way", ["both", "from", "to"])
async def test_a_worker_is_cut_off_from_all(cluster: Cluster, way: str) -> None:
    """None vouches for it, so it is declared down as before; it waits without a head, and comes back as the next life."""
    async with Client(cluster.server) as client, cluster.beside() as beside:
        await cluster.whole(client)
        before = await lives(client)

        async def gone() -> bool:
            return "far" not in await client.workers()

        with slow(cluster.server):
            answers = await loaded(cluster, beside)
            cluster.hosts.cut("b", "a", "c", way=way)
            await until(gone, "the head declares it down")
        await beside.finished()
        check(answers, cluster.expected)
        await asyncio.sleep(SILENCE)
        process = cluster.far
        cluster.hosts.heal("b", "a", "c")
        await cluster.whole(client)
        assert cluster.far is process, cluster.server.said("far")
        far = (await client.workers())["far"]
        assert far["incarnation"] == before["far"] + 1
        assert far["counters"]["loaded_parameter_bytes"] == 0
        answers = beside.load(STREAMS)
        await beside.finished()
        check(answers, cluster.expected)


@claim("A head that is cut off from most of its members declares none down, and both sides serve on", of="faults")
@pytest.mark.parametrize("way", ["both", "from", "to"])
async def test_the_head_is_cut_off_from_most(cluster: Cluster, way: str) -> None:
    """The halves: the head, a gateway and a worker at "a", and a gateway and two workers at "b" and "c".

    Members of the two halves that had lost each other: the ones beyond the head's reach end once the way is healed, and the
    next lives of workers load nothing.
    """
    cluster.join_third()
    async with Client(cluster.server) as client, cluster.beside() as beside:
        await cluster.whole(client)
        before = await lives(client)

        async def doubted() -> bool:
            return "members are out of reach at once" in (await client.get("/admin/cluster"))[1]["doubts"]

        with slow(cluster.server):
            answers = await loaded(cluster, beside)
            cluster.hosts.cut("a", "b", "c", way=way)
            await until(doubted, "the head doubts itself")
        await beside.finished()
        check(answers, cluster.expected)
        for side in (client, beside):
            answers = side.load(STREAMS)
            await side.finished()
            check(answers, cluster.expected)
            assert await lives(client) == before
        processes = cluster.far, cluster.third
        cluster.hosts.heal("a", "b", "c")
        await led(cluster, client)
        await asyncio.sleep(2 * SILENCE)  # members say whom they had lost
        await led(cluster, client)
        after = await client.ready()
        assert (cluster.far, cluster.third) == processes, cluster.server.said("far")
        assert after["w0"]["incarnation"] == before["w0"]
        came_back = [name for name in before if after[name]["incarnation"] > before[name]]
        assert [after[name]["counters"]["loaded_parameter_bytes"] for name in came_back] == [0] * len(came_back)
        answers = client.load(STREAMS)
        await client.finished()
        check(answers, cluster.expected)
    cluster.end_gateway()
