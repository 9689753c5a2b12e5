"""A server over a fake gateway port that keeps files and runs batches: what tests of them ask, without a cluster."""

from __future__ import annotations

import asyncio
import io
import json
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import Any

from aiohttp import FormData

from blockwright.actors.batches.actor import Batches
from blockwright.api.batches.store_service import BatchStoreService
from blockwright.api.http.context import FRONT
from blockwright.runtime import ManualClock, Node
from blockwright.tests.api.fake_port import one_by_one
from blockwright.tests.waiting import until

URL = "/v1/completions"
Start = Callable[..., Awaitable[tuple["BatchRig", Any]]]
OVER = ("completed", "failed", "expired", "cancelled")


def line(custom_id: Any, url: str = URL, method: str = "POST", **body: Any) -> bytes:
    """A request, as it stands in a file."""
    body = {"model": "tiny", "prompt": "once", "max_tokens": 4, "temperature": 0, **body}
    return json.dumps({"custom_id": custom_id, "method": method, "url": url, "body": body}).encode() + b"\n"


class BatchRig:
    """``client``: of the server. ``runs``: whether batches run here."""

    def __init__(self, client: Any, key: str = "") -> None:
        self.client, self.headers = client, {"Authorization": f"Bearer {key}"} if key else {}
        self.clock, self.time = ManualClock(), 1_000_000.0
        self.node = Node("head", listen=False, clock=self.clock)

    @property
    def batch_service(self) -> BatchStoreService:
        service = self.client.app[FRONT].batch_service
        assert isinstance(service, BatchStoreService)
        return service

    async def start(self) -> None:
        """Have batches run here."""
        await self.node.start()
        self.batch_service._now = lambda: self.time
        self.ref = await self.node.spawn(Batches(self.batch_service, lambda: self.time), name="batches")

    async def stop(self) -> None:
        await self.node.stop()

    async def upload(self, data: bytes, *, purpose: str = "batch", name: str = "in.jsonl", **fields: str) -> tuple[int, Any]:
        form = FormData(quote_fields=False)
        form.add_field("purpose", purpose)
        for field, value in fields.items():
            form.add_field(field, value)
        form.add_field("file", io.BytesIO(data), filename=name, content_type="application/jsonl")
        return await self.ask("POST", "/v1/files", data=form)

    async def ask(self, method: str, path: Any, **more: Any) -> tuple[int, Any]:
        async with self.client.request(method, path, headers=self.headers, **more) as answer:
            return answer.status, await answer.json()

    async def create(self, lines: Sequence[bytes], **fields: Any) -> str:
        """The id of a new batch of these lines."""
        status, file = await self.upload(b"".join(lines))
        assert status == 200, file
        body = {"input_file_id": file["id"], "endpoint": URL, "completion_window": "24h", **fields}
        status, batch = await self.ask("POST", "/v1/batches", json=body)
        assert status == 200, batch
        return str(batch["id"])

    async def view(self, id: str) -> dict[str, Any]:
        status, batch = await self.ask("GET", f"/v1/batches/{id}")
        assert status == 200, batch
        return dict(batch)

    async def ended(self, id: str) -> dict[str, Any]:
        """The batch at its end."""

        async def look() -> dict[str, Any] | None:
            await self.ref.look()
            batch = await self.view(id)
            return batch if batch["status"] in OVER else None

        found: dict[str, Any] = await until(look, f"the end of {id}")
        return found

    async def lines(self, file: str | None) -> dict[Any, Any]:
        """Of an output or error file, by custom id; none where there is no file."""
        if file is None:
            return {}
        async with self.client.get(f"/v1/files/{file}/content", headers=self.headers) as answer:
            assert answer.status == 200
            made = [json.loads(one) for one in (await answer.text()).splitlines()]
        found = {one["custom_id"]: one for one in made}
        assert len(found) == len(made)
        return found


def parts(folder: Path) -> list[str]:
    """What lies in the folder of files."""
    return sorted(path.name for path in (folder / "files").iterdir())


def held(port_steps: list[asyncio.Event]) -> Any:
    """A script: the first sequence ends at once, every other waits for an event of its own."""

    def script(generation: Any) -> Any:
        if not port_steps:
            port_steps.append(asyncio.Event())
            return one_by_one([9, 9])
        port_steps.append(asyncio.Event())
        return [port_steps[-1], *one_by_one([9, 9])]

    return script
