"""A cluster is rolled to the next release and back, process by process, under load: no token is lost or repeated."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from blockwright.api.commands.upgrade import roll_view
from blockwright.runtime.cluster.key_folder import make_keys
from blockwright.tests.claims import claim
from blockwright.tests.system import neighbour
from blockwright.tests.system.client import Client, check
from blockwright.tests.system.conftest import STREAMS
from blockwright.tests.system.server import Server
from blockwright.tests.waiting import PATIENCE, until
from blockwright.transport.handshake import own_release

pytestmark = [pytest.mark.system, pytest.mark.nightly]
PACE = 0.1  # seconds of each sweep: a roll takes a while


@pytest.fixture(scope="module")
def later(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The interpreter of an environment with the next release."""
    return str(neighbour.build(tmp_path_factory.mktemp("neighbour")))


class Mixed:
    """A server of one release, and members of any that join it."""

    def __init__(self, model: Path, folder: Path, python: str) -> None:
        make_keys(folder / "keys")
        pace = folder / "pace.json"
        pace.write_text(f'{{"base": {PACE}}}')
        self.text = folder / "worker.join"
        listening = ["--listen", "tcp://127.0.0.1:0", "--keys", str(folder / "keys"), "--join-file", str(self.text)]
        self.server = Server(model, workers=1, arguments=listening, python=python, pace=pace, event_log="", check="true")
        self.server.whole()

    def join(self, name: str, python: str) -> subprocess.Popen[bytes]:
        words = ["worker", "--join", f"@{self.text}", "--name", name, "--memory", "32MiB"]
        return self.server.beside(name, "-m", "blockwright", *words, python=python)


@contextmanager
def mixed(model: Path, folder: Path, python: str) -> Iterator[Mixed]:
    made = Mixed(model, folder, python)
    try:
        yield made
        made.server.stop(check_logs=False)
    finally:
        made.server.destroy()
        made.server.event_logs.finish()


@claim("A cluster is rolled to the next release and back under load, and no token is lost or repeated", of="faults")
@pytest.mark.parametrize("head", ["this", "next"])
async def test_workers_are_rolled_forth_and_back(
    later: str, model: Path, tmp_path: Path, expected: list[list[int]], head: str
) -> None:
    here = sys.executable
    releases = {here: own_release(), later: neighbour.RELEASE}
    own, other = (here, later) if head == "this" else (later, here)
    with mixed(model, tmp_path, own) as cluster:
        async with Client(cluster.server) as client:

            def serving(*names: str) -> Callable[[], Any]:
                async def look() -> Any:
                    routes = (await client.get("/admin/cluster"))[1]["routes"]
                    return {hop["worker"] for route in routes for hop in route["hops"]} == set(names)

                return look

            def running(*names: str) -> Callable[[], Any]:
                async def look() -> Any:
                    found = await client.workers()
                    return {name for name, one in found.items() if one["queue"]["running"]} == set(names)

                return look

            process = cluster.join("far", other)
            await until(serving("w0", "far"), f"it serves: {cluster.server.said('far')}")
            view = roll_view((await client.get("/admin/cluster"))[1])
            assert {one["name"]: one["release"] for one in view["members"]} == {
                "head": releases[own], "w0": releases[own], "far": releases[other],
            }  # fmt: skip
            assert (view["release"], view["left"]) == (
                neighbour.RELEASE,
                ["head", "w0"] if own == here else ["far"],
            )
            answers = client.load(STREAMS)
            await until(running("w0", "far"), "both releases have work")
            await until(lambda: all(len(answer.tokens) >= 3 for answer in answers), "all have begun")
            assert (await client.drain("w0"))[0] == 202
            await until(running("far"), "all go on at the other release")
            assert (await client.drain("w0", drain=False))[0] == 200
            await until(serving("w0", "far"), "it is used again")
            os.kill(process.pid, signal.SIGTERM)
            await client.finished()
            check(answers, expected)
            assert process.wait(timeout=PATIENCE) == 0, cluster.server.said("far")
            assert await serving("w0")()
        said = cluster.server.err + cluster.server.said("far")
        assert "dropped a message" not in said, said
