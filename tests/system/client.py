"""What asks a server: streams whose tokens are kept as they come, and looks at the cluster."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import socket
import uuid
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from aiohttp import ClientSession, ClientTimeout, TCPConnector

from blockwright.tests.gpu.reference import prompt_of
from blockwright.tests.system.server import Server
from blockwright.tests.waiting import PATIENCE, until

NEW = 60  # tokens that a stream of a load brings
SAMPLED = {"temperature": 0.9, "top_p": 0.95, "presence_penalty": 0.4, "frequency_penalty": 0.3, "repetition_penalty": 1.2}


@dataclass
class Answer:
    """One stream, as far as it has come."""

    name: str
    tokens: list[int] = field(default_factory=list)
    logprobs: list[Any] = field(default_factory=list)  # of each token its own, and of the best, where they were asked for
    status: int = 0
    error: dict[str, Any] | None = None  # of an error answer, or an error event in the stream
    finish: str | None = None
    done: bool = False  # [DONE] came


def body(index: int, new: int = NEW, prompt: Sequence[int] = (), **fields: Any) -> dict[str, Any]:
    """Request ``index`` of a load: even ones greedy, odd ones sampled with a seed and all penalties."""
    chosen: dict[str, Any] = {"seed": index, **SAMPLED} if index % 2 else {"temperature": 0}
    tokens = list(prompt or prompt_of(5 + index % 23, seed=index))
    return {"prompt": tokens, "max_tokens": new, "ignore_eos": True, "return_token_ids": True, **chosen, **fields}


class Client:
    """``async with Client(server) as client``. opens: makes the sockets, by address; where None, they are this process's."""

    def __init__(self, server: Server, opens: Callable[[Any], socket.socket] | None = None) -> None:
        self.server, self._opens = server, opens
        self._tasks: list[asyncio.Task[None]] = []
        self._session: ClientSession

    async def __aenter__(self) -> Client:
        ways = TCPConnector(socket_factory=self._opens)
        self._session = ClientSession(self.server.url, connector=ways, timeout=ClientTimeout(total=PATIENCE))
        return self

    async def __aexit__(self, *_: object) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self._session.close()

    # streams

    def begin(self, request: dict[str, Any], name: str = "") -> Answer:
        """Start a stream; the answer grows by itself."""
        answer = Answer(name or f"test-{uuid.uuid4().hex}")
        self._tasks.append(asyncio.create_task(self._read(request, answer), name=answer.name))
        return answer

    def load(self, count: int, new: int = NEW) -> list[Answer]:
        return [self.begin(body(index, new)) for index in range(count)]

    async def leave(self, answer: Answer) -> None:
        """Close its connection, whatever it is doing."""
        task = next(task for task in self._tasks if task.get_name() == answer.name)
        self._tasks.remove(task)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)

    async def finished(self) -> None:
        """All streams that were begun have ended."""
        tasks, self._tasks = self._tasks, []
        async with asyncio.timeout(PATIENCE):
            await asyncio.gather(*tasks)

    async def _read(self, request: dict[str, Any], answer: Answer) -> None:
        headers = {"x-request-id": answer.name}
        async with self._session.post("/v1/completions", json={**request, "stream": True}, headers=headers) as response:
            answer.status = response.status
            if response.status != 200:
                answer.error = (await response.json())["error"]
                return
            async for line in response.content:
                if line.startswith(b"data: [DONE]"):
                    answer.done = True
                elif line.startswith(b"data: "):
                    self._take(json.loads(line[6:]), answer)

    @staticmethod
    def _take(event: dict[str, Any], answer: Answer) -> None:
        assert (answer.done, answer.finish) == (False, None), "nothing follows the end"
        if "error" in event:
            answer.error = event["error"]
            return
        choice = event["choices"][0]
        answer.finish = choice["finish_reason"]
        if choice["token_ids"]:
            answer.tokens += choice["token_ids"]
            if columns := choice["logprobs"]:
                answer.logprobs += zip(columns["token_logprobs"], columns["top_logprobs"], strict=True)

    # looks

    async def get(self, path: str) -> tuple[int, Any]:
        async with self._session.get(path) as response:
            return response.status, await response.json()

    async def post(self, request: dict[str, Any], name: str = "") -> tuple[int, Any]:
        headers = {"x-request-id": name} if name else {}
        async with self._session.post("/v1/completions", json=request, headers=headers) as response:
            return response.status, await response.json()

    async def chat(self, request: dict[str, Any]) -> tuple[int, Any]:
        async with self._session.post("/v1/chat/completions", json=request) as response:
            return response.status, await response.json()

    async def embed(self, texts: Sequence[str], **fields: Any) -> list[str]:
        """The vectors of texts, in base64, in one request."""
        body = {"input": list(texts), "encoding_format": "base64", **fields}
        async with self._session.post("/v1/embeddings", json=body) as response:
            answer = await response.json()
            assert response.status == 200, answer
            return [entry["embedding"] for entry in answer["data"]]

    async def move(self, name: str, **to: str) -> tuple[int, Any]:
        """Have a request go on on another worker."""
        async with self._session.post(f"/admin/requests/{name}/move", json=to) as response:
            return response.status, await response.json()

    async def add(self, name: str, checkpoint: Path) -> dict[str, Any]:
        """Have one more model served; what the server says of it."""
        async with self._session.post("/admin/apps", json={"name": name, "path": str(checkpoint)}) as response:
            answer: dict[str, Any] = await response.json()
            assert response.status == 200, answer
            return answer

    async def remove(self, name: str) -> None:
        """Have a model served no more."""
        async with self._session.delete(f"/admin/apps/{name}") as response:
            assert response.status == 200, await response.text()

    async def drain(self, worker: str, **options: bool) -> tuple[int, Any]:
        """Have a worker emptied, or used again."""
        async with self._session.post(f"/admin/workers/{worker}/drain", json=options) as response:
            return response.status, await response.json()

    async def empty(self, worker: str) -> bool:
        """Nothing is at a worker."""
        return (await self.workers())[worker]["queue"] == {"waiting": 0, "running": 0}

    async def request(self, name: str) -> dict[str, Any] | None:
        """``/v1/requests``; None while it is not known."""
        status, view = await self.get(f"/v1/requests/{name}")
        return view if status == 200 else None

    async def workers(self) -> dict[str, dict[str, Any]]:
        status, view = await self.get("/admin/cluster")
        assert status == 200, view
        return {worker["id"]: worker for worker in view["workers"]}

    async def ready(self) -> dict[str, dict[str, Any]]:
        """All workers, once every one of them serves and has nothing to do."""

        async def look() -> Any:
            workers = await self.workers()
            idle = all(w["state"] == "ready" and w["queue"] == {"waiting": 0, "running": 0} for w in workers.values())
            outcome = all(w["counters"] for w in workers.values())
            return workers if idle and outcome else None

        found: dict[str, dict[str, Any]] = await until(look, what="all workers ready and idle")
        return found

    async def memory(self, requests: int = 4) -> bool:
        """So many requests run, and all workers that run some hold memory for them."""
        workers = (await self.workers()).values()
        busy = [worker for worker in workers if worker["queue"]["running"]]
        return sum(w["queue"]["running"] for w in busy) == requests and all(w["memory"]["kv"] > 0 for w in busy)

    async def kill(self, worker: str, how: signal.Signals = signal.SIGKILL) -> int:
        """The pid that got the signal."""
        pid: int = (await self.workers())[worker]["pid"]
        os.kill(pid, how)
        return pid


def check(answers: Sequence[Answer], expected: Sequence[Sequence[int]]) -> None:
    """Every stream is complete, without error, and has the undisturbed tokens: none lost, repeated or reordered."""
    for index, (answer, tokens) in enumerate(zip(answers, expected, strict=True)):
        assert (answer.status, answer.error) == (200, None), (index, answer)
        assert answer.tokens == list(tokens), f"stream {index} ({answer.name})"
        assert answer.finish == "length", (index, answer)
        assert answer.done, (index, answer)
