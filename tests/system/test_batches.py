"""Batches in processes of their own: the openai package's files and batches, and kill -9 of everything while one runs.

A worker, then the gateway that runs the batch, then the head, and with it the whole server: another one goes on. No answer
is lost, none is there twice, none that was stored is computed again, and all are what the server says alone.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
from aiohttp import ClientError, ClientSession, FormData, TCPConnector

from blockwright.api.batches.store import BatchStore
from blockwright.tests.claims import claim
from blockwright.tests.system.client import Client, body
from blockwright.tests.system.client_checks import run_checks
from blockwright.tests.system.server import Server
from blockwright.tests.system.test_gateways import pid_of
from blockwright.tests.waiting import until

pytestmark = pytest.mark.system
CHECKS = Path(__file__).parents[1] / "compat" / "check_batches.py"
LINES, NEW = 60, 12


def request(index: int) -> dict[str, Any]:
    """Even ones greedy, odd ones sampled with a seed: equal wherever and however often they run."""
    return body(index, NEW, prompt=[5 + index % 7, 6, 7, *range(8, 8 + index % 11)])


async def send(client: ClientSession) -> str:
    """A batch of the lines."""
    return await create_batch(client, [request(i) for i in range(LINES)])


async def create_batch(client: ClientSession, bodies: Sequence[dict[str, Any]]) -> str:
    """One of completions; its id."""
    lines = [{"custom_id": str(i), "method": "POST", "url": "/v1/completions", "body": one} for i, one in enumerate(bodies)]
    form = FormData({"purpose": "batch"})
    form.add_field("file", "".join(json.dumps(line) + "\n" for line in lines).encode(), filename="in.jsonl")
    async with client.post("/v1/files", data=form) as answer:
        file = await answer.json()
        assert answer.status == 200, file
    create = {"input_file_id": file["id"], "endpoint": "/v1/completions", "completion_window": "24h"}
    async with client.post("/v1/batches", json=create) as answer:
        batch = await answer.json()
        assert answer.status == 200, batch
    return str(batch["id"])


async def alone(client: ClientSession, index: int) -> list[int]:
    """Tokens of the same request over HTTP."""
    async with client.post("/v1/completions", json=request(index)) as answer:
        tokens: list[int] = (await answer.json())["choices"][0]["token_ids"]
        return tokens


async def view(client: ClientSession, path: str) -> Any:
    """None while nobody answers."""
    try:
        async with client.get(path) as answer:
            return await answer.json() if answer.status == 200 else None
    except ClientError:
        return None


def fresh(server: Server) -> ClientSession:
    return ClientSession(server.url, connector=TCPConnector(force_close=True))


def runner(folder: Path, server: Server) -> int:
    """The process that holds the lock."""
    inode = (folder / "runner.lock").stat().st_ino
    for line in Path("/proc/locks").read_text().splitlines():
        words = line.split()
        if words[1] == "FLOCK" and words[5].endswith(f":{inode}") and int(words[4]) in server.processes():
            return int(words[4])
    return 0


@claim("Files and batches of the OpenAI API work with the official client", of="offline", headline=True)
@claim(
    "A batch survives kill -9 of worker, gateway and head; no answer is lost, doubled or computed again",
    of="offline",
    headline=True,
)
async def test_kill_9_of_worker_gateway_and_head(serve: Callable[..., Server], tmp_path: Path) -> None:
    folder = tmp_path / "batches"
    server = serve(workers=1, gateways=2, gateway_in_head="no", chunk_size=16, max_rows=16, batch_dir=folder).whole()
    store = BatchStore(folder)
    async with fresh(server) as client:
        expected = await asyncio.gather(*[alone(client, index) for index in range(LINES)])
        id = await send(client)

        async def stored(least: int) -> bool:
            return len(store.answered(id)) >= least

        await until(lambda: stored(4), "the first answers")
        async with Client(server) as looker:
            await looker.kill("w0")
        await until(lambda: stored(14), "further answers")
        first = runner(folder, server)
        assert first in (pid_of(server, "bw-g0"), pid_of(server, "bw-g1"))
        os.kill(first, signal.SIGKILL)
        await until(lambda: runner(folder, server) not in (0, first), "another runner")
        await until(lambda: stored(24), "its answers")
        os.kill(server.process.pid, signal.SIGKILL)
        await asyncio.to_thread(server.stop, -signal.SIGKILL, check_logs=False)
    kept = store.answered(id)
    assert 24 <= len(kept) < LINES
    again = serve(workers=1, gateway_in_head="yes", pace="", chunk_size=16, batch_dir=folder).whole()
    async with fresh(again) as client:

        async def completed() -> Any:
            batch = await view(client, f"/v1/batches/{id}")
            return batch if batch and batch["status"] == "completed" else None

        batch = await until(completed, "the end of the batch")
        assert batch["request_counts"] == {"total": LINES, "completed": LINES, "failed": 0}
        async with client.get(f"/v1/files/{batch['output_file_id']}/content") as answer:
            lines = [json.loads(line) for line in (await answer.text()).splitlines()]
        assert sorted(int(line["custom_id"]) for line in lines) == list(range(LINES))
        for line in lines:
            tokens = line["response"]["body"]["choices"][0]["token_ids"]
            assert tokens == expected[int(line["custom_id"])], line["custom_id"]
        async with Client(again) as looker:
            workers = await looker.ready()
        generated = sum(worker["counters"]["generated_tokens"] for worker in workers.values())
        assert generated == NEW * (LINES - len(kept)), "what was stored is not computed again"
        assert await run_checks(CHECKS, again.url, again.path.name) >= 20
    store.close()
    again.stop()
