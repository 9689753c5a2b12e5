"""A worker that joins over TCP with keys serves beside the head's own; its death and its leaving lose nothing."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from blockwright.runtime.cluster.key_folder import make_keys
from blockwright.tests.claims import claim
from blockwright.tests.system.client import Answer, Client, check
from blockwright.tests.system.conftest import FAULTY, STREAMS, slow
from blockwright.tests.system.server import Server
from blockwright.tests.waiting import PATIENCE, until
from blockwright.tests.zoo.served_folder import served_folder
from blockwright.zoo.add import add

pytestmark = pytest.mark.system
FAR = "far"


class Joining:
    """A server with one worker of its own that others may join, and the text with which they do."""

    def __init__(self, serve: Callable[..., Server], folder: Path, *model: Path, **settings: str) -> None:
        make_keys(folder / "keys")
        self.text = folder / "worker.join"
        listening = ["--listen", "tcp://127.0.0.1:0", "--keys", str(folder / "keys"), "--join-file", str(self.text)]
        self.server = serve(*model, workers=1, arguments=listening, **settings).whole()

    def start(self, *arguments: str, name: str = FAR) -> subprocess.Popen[bytes]:
        words = ["worker", "--join", f"@{self.text}", "--name", name, "--label", "zone=b", *arguments]
        return self.server.beside(name, "-m", FAULTY, *words)


@pytest.fixture
def joining(serve: Callable[..., Server], tmp_path: Path) -> Joining:
    return Joining(serve, tmp_path)


async def hops(client: Client) -> list[dict[str, Any]]:
    """Every worker's part of every route, as the head has published them last; none while there is no head."""
    status, view = await client.get("/admin/cluster")
    return [hop for route in view["routes"] for hop in route["hops"]] if status == 200 else []


async def homes(client: Client, answers: list[Answer]) -> set[str]:
    """The workers at which these requests ran."""
    views = [await client.request(answer.name) for answer in answers]
    routes = [event.get("route", "") for view in views if view for event in view["events"]]
    return {route.rpartition("@")[2] for route in routes if route}


@claim("A worker that joined from outside serves, and its kill -9 and its SIGTERM lose no token", of="faults")
async def test_a_worker_joins_dies_comes_again_and_leaves(joining: Joining, expected: list[list[int]]) -> None:
    server = joining.server
    async with Client(server) as client:

        async def serves() -> Any:
            routes = (await client.get("/admin/cluster"))[1]["routes"]
            return {hop["worker"] for route in routes for hop in route["hops"]} == {"w0", FAR}

        async def gone() -> bool:
            return FAR not in await client.workers()

        async def survives(end: Callable[[], None]) -> None:
            """The joined worker ends in the middle of a load, and every token is right."""
            with slow(server):
                answers = client.load(STREAMS)
                await until(lambda: all(len(answer.tokens) >= 3 for answer in answers), "all have begun")
                assert await homes(client, answers) == {"w0", FAR}
                end()
                await until(gone, "the head forgets it")
            await client.finished()
            check(answers, expected)

        process = joining.start()
        await until(serves, "it serves")
        view = (await client.workers())[FAR]
        assert (view["labels"], view["joined"], view["pid"]) == ({"zone": "b"}, True, process.pid)
        await survives(process.kill)
        process.wait(timeout=PATIENCE)

        process = joining.start()
        await until(serves, "it comes again under its name")
        refused = joining.start(name=FAR)
        assert refused.wait(timeout=PATIENCE) == 2
        assert f"has a node {FAR} already; choose another name" in server.said(FAR)
        await survives(lambda: os.kill(process.pid, signal.SIGTERM))
        assert process.wait(timeout=PATIENCE) == 0
        texts = [event["text"] for event in (await client.get("/admin/cluster"))[1]["events"]]
        assert f"worker {FAR} is drained: SIGTERM was received" in texts
        assert sum(text.startswith(f"worker {FAR} died") for text in texts) == 1
    server.stop()


@claim("Workers that join without the model get it by its hash, from other workers and the origin", of="serving")
@pytest.mark.nightly
@pytest.mark.parametrize("count", [1, 4])
async def test_workers_without_the_model(
    serve: Callable[..., Server], model: Path, tmp_path: Path, expected: list[list[int]], count: int
) -> None:
    """Its folder is gone when they come, so that the head's worker has it packed, and nobody raw but the origin."""
    here = Path(shutil.copytree(model, tmp_path / "model"))
    add(tmp_path / "zoo", str(here), "m")
    with served_folder(tmp_path / "zoo") as origin:
        joining = Joining(serve, tmp_path, here, origin=origin.address)
        async with Client(joining.server) as client:
            answers = client.load(STREAMS)
            await client.finished()
            check(answers, expected)
            shutil.rmtree(here)

            async def serving() -> set[str]:
                routes = (await client.get("/admin/cluster"))[1]["routes"]
                return {hop["worker"] for route in routes for hop in route["hops"]}

            async def counters(worker: str) -> Any:
                return (await client.workers())[worker]["counters"]

            names = [f"cold{n + 1}" for n in range(count)]
            away = [joining.start("--store", str(tmp_path / name), name=name) for name in names]

            async def all_serve() -> bool:
                return await serving() == {"w0", *names}

            await until(all_serve, "all serve")
            answers = client.load(STREAMS)
            await client.finished()
            check(answers, expected)
            assert len(await homes(client, answers)) > 1
            assert origin.sent <= 1.1 * origin.tensor_bytes
            found = [await counters(name) for name in names]
            assert all(one["fetched_parameter_bytes"] + one["origin_parameter_bytes"] > 0 for one in found)
            texts = [event["text"] for event in (await client.get("/admin/cluster"))[1]["events"]]
            assert any(text.startswith("worker cold1 has no files of") for text in texts), texts
        for process in away:
            process.kill()
            process.wait(timeout=PATIENCE)
    joining.server.stop()


@claim(
    "A head without the model serves it from the origin alone, and so does the head after it without the origin",
    of="serving",
)
async def test_a_head_without_the_model(
    serve: Callable[..., Server], model: Path, tmp_path: Path, expected: list[list[int]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    add(tmp_path / "zoo", str(model), "m")
    with served_folder(tmp_path / "zoo") as origin:
        joining = Joining(serve, tmp_path, Path("m"), origin=origin.address, orphan_grace=PATIENCE, gateway_in_head="no")
        far = joining.start("--store", str(tmp_path / "store"))
        async with Client(joining.server) as client:

            async def both_serve() -> Any:
                return {home["worker"] for home in await hops(client)} == {"w0", FAR}

            await until(both_serve, "both serve")
            answers = client.load(STREAMS)
            await client.finished()
            check(answers, expected)
            assert await homes(client, answers) == {"w0", FAR}
            assert origin.sent <= 1.1 * origin.tensor_bytes
            (view,) = (await client.get("/v1/models"))[1]["data"]
            assert view["id"] == "m"
    async with Client(joining.server) as client:
        head = joining.server.head()
        os.kill(head, signal.SIGKILL)

        async def adopted() -> Any:
            return joining.server.head() not in (0, head) and {home["worker"] for home in await hops(client)} == {"w0", FAR}

        await until(adopted, "the next head has both")
        answers = client.load(STREAMS)
        await client.finished()
        check(answers, expected)
        assert "which gives no zoo" in joining.server.err
    far.kill()
    far.wait(timeout=PATIENCE)
    joining.server.stop()
