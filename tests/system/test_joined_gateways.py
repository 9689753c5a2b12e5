"""A gateway that joins over TCP with keys answers as the server's own do, drains when asked, and takes nothing with it."""

from __future__ import annotations

import asyncio
import json
import os
import re
import signal
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from aiohttp import ClientError, ClientSession

from blockwright.api.commands.cli import main
from blockwright.runtime.cluster.key_folder import make_keys
from blockwright.tests.claims import claim
from blockwright.tests.system.client import body
from blockwright.tests.system.conftest import slow
from blockwright.tests.system.server import Server
from blockwright.tests.system.test_batches import LINES, create_batch, request
from blockwright.tests.waiting import PATIENCE, until, until_now

pytestmark = pytest.mark.system
KEYS = "someone team\noperator ops admin\n"
SOMEONE, OPERATOR = ({"Authorization": f"Bearer {key}"} for key in ("someone", "operator"))
FAR = "far"


class Joining:
    """A server that gateways may join, and the text with which they do."""

    def __init__(self, serve: Callable[..., Server], folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
        make_keys(folder / "keys")
        listening = ["--listen", "tcp://127.0.0.1:0", "--keys", str(folder / "keys"), "--join-file", str(folder / "w.join")]
        (folder / "api.keys").touch(0o600)
        (folder / "api.keys").write_text(KEYS)
        listening += ["--api-key-file", str(folder / "api.keys")]
        self.server = serve(arguments=listening, batch_dir=folder / "batches", chunk_size=16)
        until_now(lambda: " ready at " in self.server.out or self.server.process.poll() is not None, "ready")
        where = re.search(r"workers join at tcp://(\S+)", self.server.out)
        assert where, self.server.err
        capsys.readouterr()
        assert main(["keys", "join", str(folder / "keys"), "--address", where[1], "--role", "gateway"]) == 0
        self.text = folder / "gateway.join"
        self.text.touch(0o600)
        self.text.write_text(capsys.readouterr().out)

    def start(self, *arguments: str, name: str = FAR, port: int = 0) -> subprocess.Popen[bytes]:
        words = ["gateway", "--join", f"@{self.text}", "--name", name, "--port", str(port), "--label", "zone=b", *arguments]
        return self.server.beside(name, "-m", "blockwright", *words)

    def address(self, process: subprocess.Popen[bytes], life: int, name: str = FAR) -> str:
        """Where it answers, once it does."""

        def found() -> list[str]:
            assert process.poll() is None, self.server.said(name)
            return re.findall(rf"gateway {name}#{life} of head#\d+ is ready at (http://\S+)", self.server.said(name))

        until_now(found, "the gateway has joined")
        return found()[-1]


@pytest.fixture
def joining(serve: Callable[..., Server], tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Joining:
    return Joining(serve, tmp_path, capsys)


async def gateways(client: ClientSession) -> dict[str, Any]:
    async with client.get("/admin/cluster") as answer:
        return {one["id"]: one for one in (await answer.json())["gateways"]}


async def stream(client: ClientSession, index: int) -> tuple[str, Any]:
    """A stream that has begun, and its id."""
    answer = await client.post("/v1/completions", json={**body(index), "stream": True})
    line = (await answer.content.readline()).decode()
    assert answer.status == 200, line
    return line.split('"id":"', 1)[1].split('"', 1)[0], (line, answer)


async def tokens_of(begun: tuple[str, Any]) -> list[int]:
    line, answer = begun
    async with answer:
        text = line + (await answer.content.read()).decode()
    assert text.rstrip().endswith("data: [DONE]"), text[-300:]
    choices = [json.loads(one[6:])["choices"] for one in text.splitlines() if one.startswith("data: {")]
    return [token for one in choices if one for token in one[0]["token_ids"]]


async def runs_a_batch(client: ClientSession) -> None:
    """It is sent, looked at and read at a gateway that has no folder of batches."""
    id = await create_batch(client, [request(i) for i in range(LINES)])
    batch: dict[str, Any] = {}

    async def completed() -> bool:
        async with client.get(f"/v1/batches/{id}") as answer:
            batch.update(await answer.json())
        return bool(batch["status"] == "completed")

    await until(completed, "the batch is answered")
    async with client.get(f"/v1/files/{batch['output_file_id']}/content") as answer:
        lines = (await answer.text()).splitlines()
    assert (batch["request_counts"]["completed"], len(lines)) == (LINES, LINES)
    async with client.post("/v1/batches", json={"input_file_id": "none"}) as answer:
        assert (answer.status, (await answer.json())["error"]["param"]) == (400, "endpoint")


async def runs_once(server: Server, *clients: ClientSession) -> None:
    """Retries with one Idempotency-Key, at all gateways at once; each of the callers has a key of its own."""

    async def post(url: str, number: int) -> Any:
        headers = {**SOMEONE, "Idempotency-Key": f"key {number}".replace(" ", "-")}
        async with ClientSession(url, headers=headers) as client, client.post("/v1/completions", json=body(1)) as answer:
            return answer.status, (await answer.json())["id"]

    urls = [str(client._base_url) for client in clients]
    for number in range(4):
        found = await asyncio.gather(*(post(url, number) for url in (*urls, *urls)))
        assert len({*found}) == 1, found
        assert found[0][0] == 200


@claim("A gateway on another machine joins with a text, without a checkpoint, and serves what the server does", of="serving")
async def test_a_gateway_joins_serves_drains_and_dies(joining: Joining, expected: list[list[int]]) -> None:
    server = joining.server
    refused = joining.start(name="early", port=int(server.listening().rpartition(":")[2]))
    assert refused.wait(timeout=PATIENCE) == 2
    assert "cannot listen on 127.0.0.1" in server.said("early"), "nothing was asked of the head"
    process = joining.start()
    url = joining.address(process, 1)
    server_client = ClientSession(server.url, headers=OPERATOR)
    async with server_client as operator, ClientSession(url, headers=SOMEONE) as someone, ClientSession(url) as nobody:

        async def ready() -> bool:
            async with nobody.get("/health/ready") as answer:
                return answer.status == 200

        await until(ready, "it knows of routes")
        async with nobody.get("/v1/models") as answer:
            assert answer.status == 401, "the keys of the server are its own, too"
        async with someone.post("/tokenize", json={"prompt": "a b"}) as answer:
            assert (answer.status, (await answer.json())["count"] > 0) == (200, True), "its machine needs no tokenizer"
        with slow(server):
            begun = [await stream(someone, index) for index in range(8)]
            async with operator.get(f"/v1/requests/{begun[0][0]}") as answer:
                assert (answer.status, (await answer.json())["state"]) == (200, "running"), "any gateway finds it"
            shown = (await gateways(operator))[FAR]
            assert (shown["labels"], shown["joined"], shown["pid"]) == ({"zone": "b"}, True, process.pid)
            assert (shown["state"], shown["requests"], shown["address"]) == ("ready", 8, url)
        assert [await tokens_of(one) for _, one in begun] == expected[:8]
        await runs_a_batch(someone)
        await runs_once(server, someone, operator)
        twice = joining.start(name=FAR)
        assert twice.wait(timeout=PATIENCE) == 2
        assert f"has a node {FAR} already; choose another name" in server.said(FAR)
        with slow(server):
            begun = [await stream(someone, index) for index in range(8)]
            os.kill(process.pid, signal.SIGTERM)
            await until(lambda: "takes no more requests" in server.said(FAR), "it drains")
            async with ClientSession(url) as late:
                with pytest.raises(ClientError):
                    await late.get("/health/live")
        assert [await tokens_of(one) for _, one in begun] == expected[:8], "what runs ends"
        assert process.wait(timeout=PATIENCE) == 0

        async def gone() -> bool:
            return list(await gateways(operator)) == ["head"]

        await until(gone, "the server forgets it")
    await dies(joining, expected)
    server.stop()


async def dies(joining: Joining, expected: list[list[int]]) -> None:
    """kill -9: its connections end, its sequences are freed, and it comes again under its name."""
    server = joining.server
    process = joining.start()
    url = joining.address(process, 2)
    async with ClientSession(server.url, headers=OPERATOR) as operator, ClientSession(url, headers=SOMEONE) as someone:
        with slow(server):
            theirs, (_, ours) = await stream(someone, 0), await stream(operator, 1)
            process.kill()
            with pytest.raises(ClientError):
                await tokens_of(theirs[1])
        assert await tokens_of(ours) == expected[1]

        async def idle() -> bool:
            async with operator.get("/admin/cluster") as answer:
                view = await answer.json()
            queues = [worker["queue"] for worker in view["workers"]]
            return queues == [{"waiting": 0, "running": 0}] * 2 and [one["id"] for one in view["gateways"]] == ["head"]

        await until(idle, "nothing of it is left")
    process.wait()
    process = joining.start()
    joining.address(process, 3)
    process.terminate()
    assert process.wait(timeout=PATIENCE) == 0
