"""A whole server in one process (messages encoded) that is asked over HTTP, and the answers that transformers gives."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from aiohttp import ClientSession
from aiohttp.test_utils import TestServer

from blockwright.actors import topology
from blockwright.actors.settings.settings import Settings
from blockwright.api.app.application import make_app
from blockwright.gpu.select import open_backend
from blockwright.gpu.weights.checkpoint import Checkpoint
from blockwright.tests.cap import SERVED
from blockwright.tests.waiting import PATIENCE

CHUNK = 64 * 1024  # bytes that a worker maps at a time


@dataclass
class Served:
    """A running server."""

    running: topology.Running
    url: str
    session: ClientSession

    async def complete(self, prompt: Sequence[int], new: int, model: str = "m", **fields: Any) -> dict[str, Any]:
        """The first choice of a completion, with its token ids."""
        body = {
            "model": model, "prompt": list(prompt), "max_tokens": new, "temperature": 0, "ignore_eos": True,
            "return_token_ids": True, **fields,
        }  # fmt: skip
        async with self.session.post(f"{self.url}/v1/completions", json=body) as answer:
            content = await answer.json()
            assert answer.status == 200, content
        choice: dict[str, Any] = content["choices"][0]
        return choice

    async def cluster(self) -> dict[str, Any]:
        async with self.session.get(f"{self.url}/admin/cluster") as answer:
            view: dict[str, Any] = await answer.json()
        return view

    async def story(self, name: str) -> dict[str, Any]:
        """Return what the server tells of a request."""
        async with self.session.get(f"{self.url}/v1/requests/{name}") as answer:
            view: dict[str, Any] = await answer.json()
        return view

    async def until_seen(self, name: str) -> None:
        """A request that chose this name has come to a worker."""
        while True:
            async with self.session.get(f"{self.url}/v1/requests/{name}") as answer:
                if answer.status == 200 and any(e["event"] == "dispatched" for e in (await answer.json())["events"]):
                    return

    async def counters(self, name: str) -> float:
        """Sum of a counter over the workers."""
        return float(sum(worker["counters"].get(name, 0.0) for worker in (await self.cluster())["workers"]))


@asynccontextmanager
async def serve(applications: dict[str, Path], *, in_process: bool = True, **settings: Any) -> AsyncIterator[Served]:
    """A cluster of in-process workers behind a real HTTP server; ready when this enters, quiet and whole when it leaves.

    ``in_process`` False: each worker is a process.
    """
    values = {"memory": 32 << 20, "threads": 1, "check": True, **SERVED, **settings}
    chosen = Settings(applications={name: str(path) for name, path in applications.items()}, **values)
    running = await topology.start(chosen, in_process=in_process)
    server = TestServer(make_app(running.port, chosen))
    try:
        async with asyncio.timeout(PATIENCE):
            await running.ready(whole=True)
        await server.start_server()
        async with ClientSession() as session:
            yield Served(running, str(server.make_url("")).rstrip("/"), session)
    finally:
        await server.close()
        await running.stop()


def tight(path: Path, page: int, longest: int, backend: str = "native", dtype: str = "float32") -> int:
    """Memory of a worker for the parameters and KV of 1.3 sequences of ``longest`` tokens."""
    chosen, checkpoint = open_backend(backend, dtype, 1), Checkpoint.open(path)
    specs = checkpoint.specs(page, dtype)
    parts = {part.id: part.nbytes for spec in specs for part in chosen.parts(spec)}
    parameters = -(-sum(parts.values()) // CHUNK) * CHUNK
    layout = next(spec.component.kv for spec in specs if spec.component.kv is not None)
    sequence = -(-longest // page) * checkpoint.config.layers * chosen.slot_bytes(layout)
    return parameters + int(1.3 * sequence) + (1 << 16)
