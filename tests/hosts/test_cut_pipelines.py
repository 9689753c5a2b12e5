"""A way that is cut between two workers of a route, while the head and all gateways reach both."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from blockwright.tests.claims import claim
from blockwright.tests.hosts.cluster import STREAMS, Cluster, grown, opened
from blockwright.tests.hosts.network import Hosts
from blockwright.tests.system.client import Answer, Client, body, check
from blockwright.tests.system.conftest import slow
from blockwright.tests.waiting import until

pytestmark = [pytest.mark.system, pytest.mark.nightly]
SPREAD = "spread"  # the model whose stages are on the workers of two hosts


@pytest.fixture(scope="module")
def cluster(
    hosts: Hosts | None, model: Path, pace: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Cluster | None]:
    folder = tmp_path_factory.mktemp("pipelines")
    yield from opened(hosts, model, pace, folder, orphan_grace=0, workers=2, pipeline=2, app_roots=model.parent)


def load(client: Client) -> list[Answer]:
    return [client.begin(body(number, model=SPREAD)) for number in range(STREAMS)]


async def routes(client: Client) -> list[list[str]]:
    view: dict[str, Any] = (await client.get("/admin/cluster"))[1]
    return [[hop["worker"] for hop in route["hops"]] for route in view["routes"] if route["application"] == SPREAD]


@claim("A worker that is cut off from the next worker of a route alone loses no token", of="faults")
@pytest.mark.parametrize("way", ["both", "from", "to"])
async def test_a_worker_is_cut_off_from_the_next_of_a_route(cluster: Cluster, way: str) -> None:
    """Both live on: the route is over none while they do not reach each other, and requests go over others."""
    async with Client(cluster.server) as client:
        cluster.join()
        cluster.join_third()

        async def serve() -> bool:
            workers = await client.workers()
            return {"far", "third"} <= {name for name, worker in workers.items() if worker["state"] == "ready"}

        async def spread() -> bool:
            return {"far", "third"} in [{*route} for route in await routes(client)]

        await until(serve, "both workers have joined")
        await client.add(SPREAD, cluster.server.path)
        await until(spread, "a route over both")
        lives = {name: worker["incarnation"] for name, worker in (await client.workers()).items()}
        with slow(cluster.server):
            answers = load(client)
            await until(lambda: all(len(answer.tokens) >= 3 for answer in answers), "all have begun")
            cluster.hosts.cut("b", "c", way=way)
            await grown(answers, STREAMS)
        await client.finished()
        check(answers, cluster.expected)
        answers = load(client)
        await client.finished()
        check(answers, cluster.expected)
        cluster.hosts.heal("b", "c")

        async def together() -> bool:
            return (await client.get("/admin/cluster"))[1]["doubts"] == ""

        await until(together, "they reach each other again")
        answers = load(client)
        await client.finished()
        check(answers, cluster.expected)
        assert {name: worker["incarnation"] for name, worker in (await client.workers()).items()} == lives
        await client.remove(SPREAD)
