"""Cuts between hosts: requests end with the right tokens, whatever of the network is there."""

from __future__ import annotations

import asyncio
import re
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from blockwright.actors.worker.event_log_file import EventLog
from blockwright.policies.sweep.event_log import Planned
from blockwright.runtime.cluster.key_folder import make_keys
from blockwright.tests.claims import claim
from blockwright.tests.gpu.reference import confirm
from blockwright.tests.hosts.network import Hosts
from blockwright.tests.system.client import Client, body, check
from blockwright.tests.system.conftest import FAULTY, slow
from blockwright.tests.system.server import Server
from blockwright.tests.waiting import until, until_now

pytestmark = pytest.mark.system
STREAMS = 8
SILENCE = 2.0
OVER = " is over ("
ALONE = "no node that sent requests is heard any more"


class Cluster:
    """A head with a worker at host "a", and a worker that joined at "b"; the tokens of a load that nothing disturbs."""

    def __init__(self, hosts: Hosts, model: Path, pace: Path, folder: Path) -> None:
        self.hosts, self.folder = hosts, folder
        make_keys(folder / "keys")
        words = ["--host", hosts.address("a"), "--listen", f"tcp://{hosts.address('a')}:0"]
        words += ["--keys", str(folder / "keys"), "--join-file", str(folder / "worker.join")]
        self.server = Server(model, module=FAULTY, pace=pace, workers=1, arguments=words, silence=SILENCE)
        self.server.whole()
        self.far: subprocess.Popen[bytes] | None = None
        self.gateway: subprocess.Popen[bytes] | None = None
        self.expected: list[list[int]] = []

    def join(self) -> None:
        """Start the worker "far" at host "b", if it does not run."""
        if self.far is None or self.far.poll() is not None:
            with self.hosts.at("b"):
                words = ["worker", "--join", f"@{self.folder / 'worker.join'}", "--name", "far"]
                self.far = self.server.beside("far", "-m", FAULTY, *words)

    def front(self) -> Any:
        """Start a gateway at host "c", if there is none; what ``Client`` needs to ask there."""
        if self.gateway is None:
            keys = [
                "keys",
                "join",
                str(self.folder / "keys"),
                "--address",
                f"@{self.folder / 'worker.join'}",
                "--role",
                "gateway",
            ]
            text = subprocess.run([sys.executable, "-m", "blockwright", *keys], check=True, capture_output=True).stdout
            (self.folder / "gateway.join").touch(0o600)
            (self.folder / "gateway.join").write_bytes(text)
            words = ["gateway", "--join", f"@{self.folder / 'gateway.join'}", "--name", "front", "--port", "0"]
            with self.hosts.at("c"):
                self.gateway = self.server.beside("front", "-m", "blockwright", *words, "--host", self.hosts.address("c"))
            until_now(lambda: " is ready at http" in self.server.said("front"), "the gateway has joined")
        (url,) = re.findall(r" is ready at (http://\S+)", self.server.said("front"))
        return SimpleNamespace(url=url)

    def life(self) -> Path:
        """The event log of the worker's current life."""
        return max(self.server.event_logs.files("far"), key=lambda path: EventLog(path).header.incarnation)

    def stops(self) -> int:
        """How often the worker has said that nobody is heard, or that its life is over."""
        said = self.server.said("far")
        return said.count(ALONE) + said.count(OVER)

    async def whole(self, client: Client) -> None:
        async def serves() -> bool:
            self.join()
            routes = (await client.get("/admin/cluster"))[1]["routes"]
            return {hop["worker"] for route in routes for hop in route["hops"]} == {"w0", "far"}

        await until(serves, "both workers serve")


@pytest.fixture(scope="module")
def cluster(
    hosts: Hosts | None, model: Path, pace: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Cluster | None]:
    if hosts is None:
        yield None
        return
    made = Cluster(hosts, model, pace, tmp_path_factory.mktemp("partitions"))

    async def undisturbed() -> list[list[int]]:
        async with Client(made.server) as client:
            answers = client.load(STREAMS)
            await client.finished()
            return [answer.tokens for answer in answers]

    made.expected = asyncio.run(undisturbed())
    assert all(confirm(model, tuple(body(n)["prompt"]), tuple(made.expected[n])) for n in range(0, STREAMS, 2))
    yield made
    hosts.heal("a", "b", "c")
    if made.gateway is not None:
        made.gateway.terminate()  # killed, it would leave its folder to the next one
        made.gateway.wait()
    if made.far is not None:
        made.far.kill()
        made.far.wait()
    made.server.stop()


def sweeps(log: Path) -> list[float]:
    """When each sweep with rows was planned, by the monotonic clock of this machine."""
    entries = [entry for _, entry in EventLog(log) if isinstance(entry, Planned)]
    return [entry.now for entry in entries if entry.plan is not None and entry.plan.steps]


async def loaded(cluster: Cluster, client: Client) -> list[Any]:
    """Begin a load that both workers have a part of."""
    answers = client.load(STREAMS)
    await until(lambda: all(len(answer.tokens) >= 3 for answer in answers), "all have begun")
    return answers


async def grown(answers: list[Any], tokens: int) -> None:
    """So many more tokens have come, or all."""
    came = sum(len(answer.tokens) for answer in answers)
    await until(lambda: sum(len(one.tokens) for one in answers) > came + tokens or all(one.done for one in answers))


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
            cut = time.monotonic()
            cluster.hosts.cut("b", "a", way=way)
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
@pytest.mark.nightly
@pytest.mark.parametrize("way", ["both", "from", "to"])
@pytest.mark.parametrize("other", ["c", "a"])
async def test_a_worker_is_cut_off_from_one(cluster: Cluster, other: str, way: str) -> None:
    """Requests come through a gateway at "c", and the way from the worker to it, or to the head at "a", is cut."""
    front = cluster.front()
    async with Client(cluster.server) as client, Client(front) as beside:
        await cluster.whole(client)
        with slow(cluster.server):
            answers = await loaded(cluster, beside)
            cluster.hosts.cut("b", other, way=way)
        await beside.finished()
        check(answers, cluster.expected)
        answers = client.load(STREAMS)
        await client.finished()
        check(answers, cluster.expected)
        cluster.hosts.heal("b", other)
        await cluster.whole(client)


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
