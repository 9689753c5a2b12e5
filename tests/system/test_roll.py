"""A cluster is rolled to the next release and back, process by process, under load: no token is lost or repeated."""

from __future__ import annotations

import asyncio
import os
import re
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
from blockwright.tests.system.test_head_death import life_of, taken_over
from blockwright.tests.waiting import PATIENCE, until, until_now
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
        self.keys = folder / "keys"
        make_keys(self.keys)
        pace = folder / "pace.json"
        pace.write_text(f'{{"base": {PACE}}}')
        self.text = folder / "worker.join"
        listening = ["--listen", "tcp://127.0.0.1:0", "--keys", str(self.keys), "--join-file", str(self.text)]
        self.server = Server(model, workers=1, arguments=listening, python=python, pace=pace, event_log="", check="true")
        self.server.whole()

    def gateway(self, name: str, python: str) -> tuple[subprocess.Popen[bytes], str]:
        """A gateway that joins, and its address once it answers."""
        where = re.search(r"workers join at tcp://(\S+)", self.server.out)
        assert where, self.server.out
        made = subprocess.run(
            [
                sys.executable,
                "-m",
                "blockwright",
                "keys",
                "join",
                str(self.keys),
                "--address",
                where[1],
                "--role",
                "gateway",
            ],
            capture_output=True,
            text=True,
            check=True,
        )
        text = self.keys.parent / f"{name}.join"
        text.touch(0o600)
        text.write_text(made.stdout)
        words = ["gateway", "--join", f"@{text}", "--name", name, "--port", "0"]
        process = self.server.beside(name, "-m", "blockwright", *words, python=python)

        def found() -> list[str]:
            assert process.poll() is None, self.server.said(name)
            return re.findall(rf"gateway {name}#\d+ of \S+ is ready at (http://\S+)", self.server.said(name))

        until_now(found, "the gateway has joined")
        return process, found()[-1]

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
async def test_workers_and_a_gateway_are_rolled_forth_and_back(
    later: str,
    model: Path,
    tmp_path: Path,
    expected: list[list[int]],
    head: str,
    monkeypatch: pytest.MonkeyPatch,
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
            known = {"head": releases[own], "w0": releases[own], "far": releases[other]}
            assert {one["name"]: one["release"] for one in view["members"]} == known
            assert (view["release"], view["left"]) == (neighbour.RELEASE, ["head", "w0"] if own == here else ["far"])
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
        with monkeypatch.context() as patch:
            gateway, url = cluster.gateway("front", other)
            patch.setattr(cluster.server, "url", url)
            async with Client(cluster.server) as client:
                answers = client.load(STREAMS)
                await until(lambda: all(answer.tokens for answer in answers), "all have begun through the other release")
                members = {one["name"]: one for one in roll_view((await client.get("/admin/cluster"))[1])["members"]}
                assert (members["front"]["role"], members["front"]["release"]) == ("gateway", releases[other])
                os.kill(gateway.pid, signal.SIGTERM)
                await client.finished()
                check(answers, expected)
            assert gateway.wait(timeout=PATIENCE) == 0, cluster.server.said("front")
        said = cluster.server.said("front") + cluster.server.err + cluster.server.said("far")
        assert "dropped a message" not in said, said


class Asking:
    """A client that asks again and again for the length of a ``with``, and is never refused."""

    def __init__(self, client: Client) -> None:
        self._client, self._over = client, False

    async def __aenter__(self) -> None:
        self._task = asyncio.create_task(self._ask())

    async def __aexit__(self, *_: object) -> None:
        self._over = True
        statuses = await self._task
        assert set(statuses) == {200}, statuses

    async def _ask(self) -> list[int]:
        statuses: list[int] = []
        while not self._over or not statuses:
            statuses.append((await self._client.post({"prompt": [5, 6], "max_tokens": 2}))[0])
        return statuses


@claim("The head is rolled to the next release and back under load: no token is lost and no request refused", of="faults")
async def test_the_head_is_rolled_forth_and_back(later: str, model: Path, tmp_path: Path, expected: list[list[int]]) -> None:
    """Show that workers which the new head starts are of its release, too. Gateway processes go on as they are."""
    own = own_release()
    place = neighbour.Installation(tmp_path, later)
    pace = tmp_path / "pace.json"
    pace.write_text(f'{{"base": {PACE}}}')
    more: dict[str, Any] = {"gateways": 2, "gateway_in_head": "no", "pace": pace, "event_log": ""}
    server = Server(model, python=place.python, **more).whole()
    try:
        async with Client(server) as client:

            async def releases() -> dict[str, str]:
                members = roll_view((await client.get("/admin/cluster"))[1])["members"]
                return {one["name"]: one["release"] for one in members}

            known = dict.fromkeys(("head", "g0", "g1", "w0", "w1"), own)
            for release, restarted in ((neighbour.RELEASE, "w1"), (own, "w0")):
                assert await releases() == known
                before, former = await client.ready(), server.head()
                answers = client.load(STREAMS)
                await until(lambda now=answers: all(len(answer.tokens) >= 3 for answer in now), "all have begun")
                place.install(release)
                async with Asking(client):
                    command = [place.python, "-m", "blockwright", "upgrade", "head", "--url", server.url]
                    done = await asyncio.to_thread(subprocess.run, command, capture_output=True, text=True, check=False)
                    assert f"the head is of release {release}" in done.stdout, (done, server.err)
                    after = await taken_over(client, former)
                await client.finished()
                check(answers, expected)
                assert life_of(after) == life_of(before)
                known["head"] = release
                assert await releases() == known
                answers = client.load(STREAMS)
                await until(lambda now=answers: all(len(answer.tokens) >= 3 for answer in now), "all have begun")
                os.kill(after[restarted]["pid"], signal.SIGKILL)
                await client.finished()
                check(answers, expected)
                known[restarted] = release
                await client.ready()
        assert "dropped a message" not in server.err, server.err
        server.stop(check_logs=False)
    finally:
        server.destroy()
        server.event_logs.finish()
