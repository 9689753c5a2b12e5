"""A cluster over three hosts, for tests that cut the ways between them."""

from __future__ import annotations

import asyncio
import re
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from blockwright.actors.worker.event_log_file import EventLog
from blockwright.policies.sweep.event_log import Planned
from blockwright.runtime.cluster.key_folder import make_keys
from blockwright.tests.gpu.reference import confirm
from blockwright.tests.hosts.network import Hosts
from blockwright.tests.system.client import Client, body
from blockwright.tests.system.conftest import FAULTY
from blockwright.tests.system.server import Server
from blockwright.tests.waiting import until, until_now

STREAMS = 8
SILENCE = 2.0
OVER = " is over ("
ALONE = "no node that sent requests is heard any more"


class Cluster:
    """A head with a worker at host "a", and a worker that joined at "b"; the tokens of a load that nothing disturbs."""

    def __init__(self, hosts: Hosts, model: Path, pace: Path, folder: Path, **settings: Any) -> None:
        self.hosts, self.folder = hosts, folder
        make_keys(folder / "keys")
        words = ["--host", hosts.address("a"), "--listen", f"tcp://{hosts.address('a')}:0"]
        words += ["--keys", str(folder / "keys"), "--join-file", str(folder / "worker.join")]
        own = {"workers": 1, "silence": SILENCE, **settings}
        self.server = Server(model, module=FAULTY, pace=pace, arguments=words, **own)
        self.server.whole()
        self.far: subprocess.Popen[bytes] | None = None
        self.third: subprocess.Popen[bytes] | None = None
        self.gateway: subprocess.Popen[bytes] | None = None
        self.expected: list[list[int]] = []

    def join(self) -> None:
        """Start the worker "far" at host "b", if it does not run."""
        if self.far is None or self.far.poll() is not None:
            self.far = self._worker("far", "b")

    def join_third(self) -> None:
        """Start a worker "third" at host "c", so that the head's host has less than half of the members."""
        if self.third is None:
            self.third = self._worker("third", "c")

    def _worker(self, name: str, host: str) -> subprocess.Popen[bytes]:
        with self.hosts.at(host):
            words = ["worker", "--join", f"@{self.folder / 'worker.join'}", "--name", name]
            return self.server.beside(name, "-m", FAULTY, *words)

    def beside(self) -> Client:
        """A client at host "c" that asks a gateway there, which is started if there is none."""

        def opens(address: Any) -> socket.socket:
            with self.hosts.at("c"):
                return socket.socket(*address[:3])

        self._join_gateway()
        where: Any = SimpleNamespace(url=self._ready()[-1])
        return Client(where, opens)

    def end_gateway(self) -> None:
        """End the gateway at host "c"; killed, it would leave its folder to the next one."""
        if self.gateway is not None:
            self.gateway.terminate()
            self.gateway.wait()
            self.gateway = None

    def _ready(self) -> list[str]:
        """The addresses of the gateways that have joined at host "c", one after another."""
        return re.findall(r" is ready at (http://\S+)", self.server.said("front"))

    def _join_gateway(self) -> None:
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
            former = len(self._ready()) if self.server.lever("front").exists() else 0
            with self.hosts.at("c"):
                self.gateway = self.server.beside("front", "-m", "blockwright", *words, "--host", self.hosts.address("c"))
            until_now(lambda: len(self._ready()) > former, "the gateway has joined")

    def life(self) -> Path:
        """The event log of the worker's current life."""
        return max(self.server.event_logs.files("far"), key=lambda path: EventLog(path).header.incarnation)

    def stops(self) -> int:
        """Return how often the worker at "b" has said that it hears no node, or that its life is over."""
        said = self.server.said("far")
        return said.count(ALONE) + said.count(OVER)

    def close(self) -> None:
        self.hosts.shape()
        self.hosts.heal("a", "b", "c")
        self.hosts.heal("b", "c")
        self.end_gateway()
        for worker in filter(None, (self.far, self.third)):
            worker.kill()
            worker.wait()
        self.server.stop()

    async def whole(self, client: Client) -> None:
        wanted = {"w0", "far", *(("third",) if self.third is not None else ())}

        async def serves() -> bool:
            self.join()
            routes = (await client.get("/admin/cluster"))[1]["routes"]
            return {hop["worker"] for route in routes for hop in route["hops"]} == wanted

        await until(serves, "both workers serve")


def opened(hosts: Hosts | None, model: Path, pace: Path, folder: Path, **settings: Any) -> Iterator[Cluster | None]:
    """A cluster whose undisturbed tokens are known and are transformers'; None where the tests themselves run elsewhere."""
    if hosts is None:
        yield None
        return
    made = Cluster(hosts, model, pace, folder, **settings)

    async def undisturbed() -> list[list[int]]:
        async with Client(made.server) as client:
            answers = client.load(STREAMS)
            await client.finished()
            return [answer.tokens for answer in answers]

    try:
        made.expected = asyncio.run(undisturbed())
        assert all(confirm(model, tuple(body(n)["prompt"]), tuple(made.expected[n])) for n in range(0, STREAMS, 2))
        yield made
    finally:
        made.close()


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
