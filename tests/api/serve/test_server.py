"""The head process's life, with a cluster that is a fake."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import re
import socket
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer

from blockwright.actors.conditions import Published
from blockwright.actors.gateway.peers import LocalFront
from blockwright.actors.gateway.port import Readiness, Service
from blockwright.actors.settings.errors import SettingsError
from blockwright.actors.settings.settings import Settings
from blockwright.actors.worker_processes import worker_launcher
from blockwright.api.http.catalog import Catalog
from blockwright.api.http.starting import Stages
from blockwright.api.serve import server
from blockwright.api.serve.console import Console, StartupReporter, capacity
from blockwright.api.serve.server import Server
from blockwright.gpu.weights.checkpoint import CheckpointError
from blockwright.gpu.weights.hub import PROGRESS
from blockwright.policies.measures import Measure, gauge
from blockwright.tests.api.fake_port import FakePort, make_folder
from blockwright.tests.claims import claim
from blockwright.tests.waiting import PATIENCE


class Alone:
    """The only front."""

    async def counters_elsewhere(self) -> list[Any]:
        return []


class FakeCluster:
    """``gate`` holds the start back until it is set. Without ``here`` its gateways are processes of their own."""

    def __init__(self, folder: Path, *, refuse: Exception | None = None, here: bool = True) -> None:
        self.gate = asyncio.Event()
        self.gateway = FakePort(folder, lambda generation: [asyncio.Event()])
        self.port = self.gateway if here else None
        self.answering: Published[tuple[str, ...]] = Published(())
        self.peer = Alone()
        self.stages = [("hashed", 0.1)]
        self.warnings: list[str] = []
        self.preparing: tuple[str, ...] = ()
        self.reason: asyncio.Future[Exception] = asyncio.get_running_loop().create_future()
        self.stopped = False
        self._refuse = refuse

    async def start(self, settings: Settings, front: LocalFront, port: int) -> FakeCluster:
        await self.gate.wait()
        if self._refuse is not None:
            raise self._refuse
        return self

    def measures(self) -> list[Measure]:
        return [gauge("blockwright_runtime_loop_lag_seconds", "Lag.", {"head": 0.5}, "node")]

    async def failed(self) -> Exception:
        return await self.reason

    async def service(self) -> Service:
        there = self.port is not None or self.answering.value
        return Service(self.gateway.models() if there else [], self.gateway.ready())

    async def sharing(self) -> tuple[int, int]:
        return 3 << 20, 2 << 20

    async def drain(self, seconds: float) -> None:
        await self.gateway.drain(seconds)

    async def stop(self) -> None:
        self.stopped = True


class Session:
    """A server under test, and the lines it says."""

    def __init__(self, cluster: Any, *, warnings: Sequence[str] = (), **settings: Any) -> None:
        self.lines: list[str] = []
        self.heard = asyncio.Event()
        self.server = Server(
            Settings(**{"applications": {"tiny": "x"}, "port": 0, "gateway_in_head": "yes", **settings}),
            cluster.start,
            self._say,
            warnings=warnings,
        )
        self.task = asyncio.create_task(self.server.run())

    def _say(self, line: str) -> None:
        self.lines.append(line)
        self.heard.set()

    async def until(self, text: str) -> str:
        async with asyncio.timeout(PATIENCE):
            while not any(text in line for line in self.lines):
                self.heard.clear()
                await self.heard.wait()
        return next(line for line in self.lines if text in line)

    async def status(self, path: str) -> int:
        async with aiohttp.ClientSession() as client, client.get(self.server.address + path) as answer:
            return answer.status

    async def text(self, path: str) -> str:
        async with aiohttp.ClientSession() as client, client.get(self.server.address + path) as answer:
            return await answer.text()

    async def json(self, path: str) -> Any:
        async with aiohttp.ClientSession() as client, client.get(self.server.address + path) as answer:
            return await answer.json()


@claim("Health probes answer at once and readiness follows the models", of="http-api")
async def test_alive_before_the_cluster_and_ready_after_it(folder: Path) -> None:
    cluster = FakeCluster(folder)
    cluster.gateway.readiness = Readiness(False, "loading", applications={"tiny": "loading"})
    session = Session(cluster)
    await session.until("listening on http://127.0.0.1:")
    assert [await session.status(path) for path in ("/health/live", "/health", "/v1/models")] == [200, 503, 503]
    assert (await session.json("/health/ready"))["stage"] == "listening"
    cluster.gate.set()
    await session.until("tokenizers loaded")
    body = await session.json("/health/ready")
    assert (body["status"], body["stage"]) == ("not ready", "tokenizers loaded")
    names = [stage["name"] for stage in body["stages"]]
    assert names == ["listening", "hashed", "control plane up", "tokenizers loaded"]
    cluster.gateway.readiness = Readiness(True, applications={"tiny": "ready", "org/other": "ready"})
    last = await session.until("ready at")
    room = "room for about 5 concurrent requests of 64 tokens to tiny, "
    room += "or about 20 concurrent requests of 16 tokens to org/other; more when all workers have loaded"
    assert last.endswith(f"ready at {session.server.address}/v1 with models: tiny, org/other; {room}")
    assert await session.status("/health") == 200
    assert 'blockwright_runtime_loop_lag_seconds{node="head"} 0.5' in await session.text("/metrics")
    assert any(re.fullmatch(r"\[ +[0-9.]+ s\] hashed", line) for line in session.lines)
    cluster.gateway.infos = [replace(info, rooms=(*info.rooms, 640)) for info in cluster.gateway.infos]
    cluster.stages.append(("loaded", 0.2))
    last = await session.until("now room for about 15 concurrent requests of 64 tokens to tiny, or")
    assert sum("ready at" in line for line in session.lines) == 1, "whoever comes late does not make it ready again"
    assert any("2 models in 3.0 MiB instead of 5.0 MiB (40 % saved)".replace(" %", "%") in line for line in session.lines)
    session.server.stop()
    assert await session.task == 0
    assert cluster.gateway.drained == [30.0]
    assert cluster.stopped


@claim("`serve` checks the checkpoint before the port and says once when it is ready", of="command-line")
def test_the_path_is_looked_at_before_the_port(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The server reports the mistake that takes longer to mend first, and has not listened."""
    monkeypatch.setattr(server, "set_up", lambda *_: None)  # logging is the tests' own here
    (tmp_path / "config.json").write_text('{"architectures": ["Mamba2ForCausalLM"]}')
    with socket.create_server(("127.0.0.1", 0)) as taken:
        for source, outcome in (
            (tmp_path, "Mamba2ForCausalLM, which is not supported"),
            (tmp_path / "none", "neither a folder"),
        ):
            settings = Settings(applications={"x": str(source)}, port=taken.getsockname()[1])
            assert server.run(settings, worker_launcher("")) == 2
            out, err = capsys.readouterr()
            assert (out, err.count("\n")) == ("", 1)
            assert outcome in err


async def test_how_far_a_fetch_is_is_a_stage_and_notes(folder: Path) -> None:
    class Fetching(FakeCluster):
        async def start(self, settings: Settings, front: LocalFront, port: int) -> FakeCluster:
            for sentence in ("o/m has 8.0 GiB", "o/m: 4.0 GiB fetched"):
                await asyncio.to_thread(PROGRESS.get(), sentence)
            return await super().start(settings, front, port)

    cluster = Fetching(folder)
    session = Session(cluster, applications={"tiny": str(folder), "m": "o/m"})
    await session.until("o/m: 4.0 GiB fetched")
    first = next(line for line in session.lines if "o/m" in line)
    assert first.endswith("s] asking the hub for o/m"), "before it has answered"
    assert (await session.json("/health/ready"))["stage"] == "fetching weights"
    assert any(line.endswith("s] o/m has 8.0 GiB") for line in session.lines)
    session.server.stop()
    assert await session.task == 0
    assert session.lines[-1].endswith("no request was taken; what the hub has sent stays in its cache")


async def test_models_with_equal_room_are_reported_together(folder: Path) -> None:
    first = FakeCluster(folder).gateway.infos[0]
    named = [replace(first, id=name) for name in ("a", "b", "c", "d")]
    smaller = replace(first, id="e", rooms=first.rooms[:1], max_length=16)
    outcome = capacity([*named[:2], smaller], 8).removeprefix("room for about ").split(", or about ")
    assert [text.split(" tokens to ")[-1] for text in outcome] == ["a or b", "e"]
    outcome = capacity([*named, smaller], 8).split(", or about ")
    assert [text.split(" tokens to ")[-1] for text in outcome] == ["any of 4 models", "e"]
    assert " to " not in capacity(named, 8)


@claim("`serve` checks the checkpoint before the port and says once when it is ready", of="command-line")
async def test_stages_are_reported_before_the_ready_line(folder: Path) -> None:
    """Also those that nobody had looked at when the models got ready."""
    cluster, lines = FakeCluster(folder), list[str]()
    herald = StartupReporter(cluster, Console("text", Stages(), lines.append), offset=0.0, rows=8)
    sharing = cluster.sharing

    async def slow() -> tuple[int, int]:
        cluster.stages.append(("loaded", 0.2))
        cluster.gateway.infos = [replace(info, rooms=(*info.rooms, 640)) for info in cluster.gateway.infos]
        return await sharing()

    cluster.sharing = slow  # type: ignore[method-assign]
    await herald.announce(Catalog(cluster.gateway, 100), "http://there")
    said = [line.split("] ")[1].split(" at ")[0] for line in lines]
    assert [words for words in said if words in ("hashed", "loaded", "ready")] == ["hashed", "loaded", "ready"]
    assert "; room for about 13 concurrent requests of 64 tokens to tiny" in lines[-1], "of the one that came last, too"


async def test_what_serves_badly_is_reported_once_and_before_the_ready_line(folder: Path) -> None:
    cluster = FakeCluster(folder)
    cluster.warnings.append("the torch reference computes; install gcc")
    cluster.gate.set()
    session = Session(cluster)
    await session.until("ready at")
    lines = [line for line in session.lines if line.startswith("warning: ")]
    assert lines == ["warning: the torch reference computes; install gcc"]
    assert session.lines.index(lines[0]) < len(session.lines) - 1
    session.server.stop()
    assert await session.task == 0


async def test_lines_are_objects_where_logs_are(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    cluster = FakeCluster(folder)
    cluster.gate.set()
    session = Session(cluster, log_format="json")
    line = json.loads(await session.until("ready at"))
    assert (line["stage"], line["level"], line["process"]) == ("ready", "info", "head")
    assert line["message"].startswith(f"ready at {session.server.address}/v1")
    cluster.reason.set_result(RuntimeError("a worker has 3 bytes; give 4"))
    assert await session.task == 2
    assert json.loads(capsys.readouterr().err)["message"] == "a worker has 3 bytes; give 4"


@pytest.mark.parametrize(
    ("gateways", "expected"), [(1, "no request is running"), (2, "30 s for running requests to finish")]
)
async def test_the_second_interrupt_does_not_wait(folder: Path, gateways: int, expected: str) -> None:
    cluster = FakeCluster(folder)
    cluster.gate.set()

    async def for_ever(seconds: float) -> None:
        await asyncio.Event().wait()

    cluster.gateway.drain = for_ever  # type: ignore[method-assign]
    session = Session(cluster, gateways=gateways)
    await session.until("ready at")
    session.server.interrupt()
    assert expected in await session.until("draining"), "of another gateway's requests nothing is known here"
    assert not session.task.done()
    session.server.interrupt()
    assert await session.task == 0
    assert cluster.stopped


async def test_a_signal_while_starting(folder: Path) -> None:
    cluster = FakeCluster(folder)
    session = Session(cluster)
    await session.until("listening")
    session.server.stop()
    assert await session.task == 0
    assert not cluster.stopped  # there was nothing to stop
    assert session.lines[-1].endswith("s] stopped while starting: no request was taken")


async def test_a_signal_while_models_load(folder: Path) -> None:
    cluster = FakeCluster(folder)
    cluster.gate.set()
    cluster.gateway.readiness = Readiness(False, applications={"tiny": "loading"})
    session = Session(cluster)
    await session.until("tokenizers loaded")
    session.server.stop()
    assert await session.task == 0
    assert (await session.until("draining")).endswith("draining: models were still loading, and no request is running")
    assert session.lines[-1].endswith("stopped")
    assert cluster.stopped


@pytest.mark.parametrize(("level", "expected"), [("info", 0), ("warning", 1)])
async def test_a_model_is_reported_ready_once(folder: Path, level: str, expected: int) -> None:
    """With log_level=info the log tells it."""
    cluster = FakeCluster(folder)
    cluster.gate.set()
    session = Session(cluster, log_level=level)
    await session.until("ready at")
    session.server.stop()
    assert await session.task == 0
    assert sum("tiny is ready" in line for line in session.lines) == expected


@pytest.mark.parametrize("error", [SettingsError("memory is 3; give more"), CheckpointError("no such tensor; get it")])
async def test_what_cannot_start(folder: Path, error: Exception, capsys: pytest.CaptureFixture[str]) -> None:
    cluster = FakeCluster(folder, refuse=error)
    cluster.gate.set()
    assert await Session(cluster).task == 2
    assert capsys.readouterr().err == f"blockwright: {error}\n"


@pytest.mark.parametrize("ready", [True, False])
async def test_what_fails_while_loading_or_later(folder: Path, ready: bool, capsys: pytest.CaptureFixture[str]) -> None:
    cluster = FakeCluster(folder)
    cluster.gate.set()
    if not ready:
        cluster.gateway.readiness = Readiness(False)
    session = Session(cluster)
    await session.until("ready at" if ready else "tokenizers loaded")
    cluster.reason.set_result(RuntimeError("a worker has 3 bytes; give 4"))
    assert await session.task == 2
    assert capsys.readouterr().err == "blockwright: a worker has 3 bytes; give 4\n"
    assert cluster.stopped


async def test_a_checkpoint_with_a_broken_tokenizer(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = make_folder(tmp_path / "bare")
    (folder / "tokenizer.json").write_text("{}")
    cluster = FakeCluster(folder)
    cluster.gate.set()
    assert await Session(cluster).task == 2
    assert "tokenizer.json cannot be loaded" in capsys.readouterr().err
    assert cluster.stopped


@claim("One server uses a folder of batches; a second one is refused at its start", of="offline")
async def test_one_server_uses_a_folder_of_batches(folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    cluster, batches = FakeCluster(folder), str(tmp_path / "batches")
    first = Session(cluster, batch_dir=batches)
    await first.until("listening")
    assert await Session(FakeCluster(folder), batch_dir=batches).task == 2
    error = capsys.readouterr().err
    assert f"batch_dir: {batches} is in use by another server (process {os.getpid()}); stop that one, or name" in error
    first.server.stop()
    assert await first.task == 0
    cluster.gate.set()
    again = Session(cluster, batch_dir=batches)
    await again.until("ready at")
    again.server.stop()
    assert await again.task == 0


@claim("The server listens on loopback by default and does not share the port of another server", of="command-line")
async def test_a_port_that_is_taken_and_an_open_host(
    folder: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(server, "PATIENCE", 0.01)
    cluster = FakeCluster(folder)
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        assert await Server(Settings(port=port), cluster.start, lambda line: None).run() == 2
    assert f"cannot listen on 127.0.0.1:{port} (Address already in use); choose another" in capsys.readouterr().err
    session = Session(cluster, host="0.0.0.0")
    await session.until("no key is needed")
    session.server.stop()
    await session.task


async def test_the_server_notices_clients_that_go(folder: Path) -> None:
    """The runner is made with handler cancellation, without which nothing is noticed before the next write."""
    cluster = FakeCluster(folder)
    cluster.gate.set()
    session = Session(cluster)
    await session.until("ready at")
    async with aiohttp.ClientSession() as client:
        asked = asyncio.create_task(client.post(session.server.address + "/v1/completions", json={"prompt": "a"}))
        stream = await cluster.gateway.waiting.get()
        asked.cancel()
        async with asyncio.timeout(PATIENCE):
            await stream.cancelled.wait()
    session.server.stop()
    await session.task


async def test_the_head_answers_only_while_no_gateway_does(folder: Path) -> None:
    """Where all gateways are processes: that none is up yet, or just now; and its connections do not stay."""
    cluster = FakeCluster(folder, here=False)
    session = Session(cluster, gateway_in_head="no")
    await session.until("listening")
    async with aiohttp.ClientSession() as client:
        for reason in ("the cluster is starting", "no gateway is up, one is being started"):
            async with client.get(session.server.address + "/health/ready") as answer:
                assert (answer.status, answer.headers["Connection"]) == (503, "close")
                assert (await answer.json())["reason"] == reason
            cluster.gate.set()
            await session.until("control plane up")
        with socket.socket() as gateway:  # takes connections, answers nothing
            gateway.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
            gateway.bind(("127.0.0.1", session.server.port))
            cluster.answering.publish(("g0",))
            await session.until("ready at")
            with pytest.raises(aiohttp.ClientConnectorError):
                await client.get(session.server.address + "/health/live")
        cluster.answering.publish(())
        await asyncio.sleep(0)
        while True:
            with contextlib.suppress(aiohttp.ClientConnectorError):
                async with client.get(session.server.address + "/health/live") as answer:
                    assert answer.status == 200
                    break
    session.server.stop()
    assert await session.task == 0


@claim("The server listens on loopback by default and does not share the port of another server", of="command-line")
async def test_a_port_of_another_server_is_not_shared_by_mistake(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Both would take connections, if both only asked for SO_REUSEPORT."""
    with socket.socket() as taken:
        taken.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        settings = Settings(port=taken.getsockname()[1], gateways=2, gateway_in_head="no")
        assert await Server(settings, FakeCluster(folder).start, lambda line: None).run() == 2
    assert "Address already in use" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("stages", "states", "rest"),
    [
        (("hashed",), {"tiny": "ready"}, "; more when all workers have loaded"),
        (("hashed", "loaded"), {"tiny": "ready"}, ""),
        (("hashed",), {"tiny": "ready", "org/other": "failed"}, ""),
    ],
)
async def test_less_room_is_reported_while_a_worker_loads(
    folder: Path, stages: tuple[str, ...], states: dict[str, str], rest: str
) -> None:
    """Also where the only model is there on one of two workers, so that its room alone cannot tell."""
    cluster, lines = FakeCluster(folder), list[str]()
    cluster.stages = [(name, 0.1) for name in stages]
    cluster.gateway.infos = cluster.gateway.infos[: len(states)]
    cluster.gateway.readiness = Readiness(True, applications=states)
    herald = StartupReporter(cluster, Console("text", Stages(), lines.append), offset=0.0, rows=8)
    await herald.announce(Catalog(cluster.gateway, 100), "http://there")
    head, _, message = lines[-1].partition("; room for about ")
    assert "ready at http://there/v1 with models: tiny" in head
    both = " to tiny, or about 8 concurrent requests of 16 tokens to org/other" * (len(states) > 1)
    assert message == f"5 concurrent requests of 64 tokens{both}{rest}"


OURS = [{"id": name, "object": "model", "owned_by": "blockwright"} for name in ("a", "b", "c", "d")]


def models_at(status: int, body: Any) -> TestServer:
    async def models(_: web.Request) -> web.Response:
        text = body if isinstance(body, str) else json.dumps(body)
        return web.Response(status=status, text=text, content_type="application/json")

    app = web.Application()
    app.router.add_get("/v1/models", models)
    return TestServer(app)


@pytest.mark.parametrize(
    ("status", "body", "served"),
    [
        (200, {"data": OURS}, ["a", "b", "c", "d"]),
        (200, {"data": [{"id": "x", "owned_by": "vllm"}]}, []),
        (401, {"error": {"message": "a key is needed"}}, []),
        (200, "no JSON", []),
        (200, [1], []),
    ],
)
async def test_who_answers(status: int, body: Any, served: list[str]) -> None:
    async with models_at(status, body) as other:
        assert await server.served_there("127.0.0.1", other.port or 0) == served


async def test_nobody_answers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server, "PATIENCE", 0.01)
    with socket.socket() as silent:
        silent.bind(("127.0.0.1", 0))
        silent.listen()
        assert await server.served_there("127.0.0.1", silent.getsockname()[1]) == []
    assert await server.served_there("::1", 1) == []


async def test_the_refusal_names_what_is_served(capsys: pytest.CaptureFixture[str]) -> None:
    async def never(*_: object) -> Any:
        raise AssertionError("nothing is started")

    async with models_at(200, {"data": OURS}) as other:
        assert await Server(Settings(port=other.port or 0), never, lambda line: None).run() == 2
    assert (
        "(Address already in use: a blockwright serves a, b, c and others there); choose another" in capsys.readouterr().err
    )


@claim("The kernels' first compilation is shown by serve and by the health probes", of="serving")
async def test_kernels_that_are_prepared_are_shown_with_their_progress(folder: Path) -> None:
    cluster = FakeCluster(folder)
    cluster.gateway.readiness = Readiness(False, "loading", applications={"tiny": "loading"})
    cluster.gate.set()
    session = Session(cluster)
    await session.until("control plane up")
    cluster.preparing = ("w0 prepares its kernels: mlp, 1 steps in 2 s", "w1 prepares its kernels: head, 9 steps in 3 s")
    await session.until("s] w1 prepares its kernels: head, 9 steps in 3 s")
    assert (await session.json("/health"))["stage"] == "kernels"
    cluster.preparing = ("w0 prepares its kernels: mlp, 5 steps in 4 s",)
    await session.until("s] w0 prepares its kernels: mlp, 5 steps in 4 s")
    cluster.preparing = ()
    await session.until("kernels ready")
    names = [stage["name"] for stage in (await session.json("/health"))["stages"]]
    assert [name for name in names if "kernels" in name] == ["kernels", "kernels ready"]
    session.server.stop()
    await session.task
