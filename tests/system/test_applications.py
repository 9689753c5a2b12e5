"""Applications that come and go while a server serves: over HTTP, with requests under way and processes killed."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from blockwright.tests.equality.test_sharing import altered
from blockwright.tests.gpu.reference import greedy, prompt_of
from blockwright.tests.system.client import Client, body
from blockwright.tests.system.server import Server
from blockwright.tests.waiting import until

pytestmark = pytest.mark.system
PROMPT = prompt_of(21, seed=3)


@pytest.fixture(scope="module")
def roots(model: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Folders of variants of ``model``: another last layer, another head."""
    root = tmp_path_factory.mktemp("roots")
    layers = ("layers.1.mlp", "layers.1.self_attn")
    altered(model, root / "tuned", layers[:1])
    altered(model, root / "other", layers)
    return root


@pytest.fixture(scope="module")
def server(model: Path, roots: Path, pace: Path) -> Iterator[Server]:
    server = Server(model, workers=2, module="blockwright.tests.system.faulty_worker", pace=pace, app_roots=roots)
    yield server.whole()
    server.stop()


async def change(client: Client, method: str, where: str, /, **fields: Any) -> tuple[int, Any]:
    async with client._session.request(method, where, json=fields or None) as response:
        return response.status, await response.json()


async def tokens(client: Client, name: str, new: int = 12) -> Any:
    status, answer = await client.post({**body(0, new, PROMPT), "model": name})
    assert status == 200, answer
    return answer["choices"][0]["token_ids"]


async def names(client: Client) -> dict[str, str | None]:
    return {one["id"]: one["parent"] for one in (await client.get("/v1/models"))[1]["data"]}


async def parameters(client: Client) -> dict[str, int]:
    return {name: worker["memory"]["parameters"] for name, worker in (await client.workers()).items()}


async def test_an_application_comes_and_goes_while_others_run(server: Server, model: Path, roots: Path) -> None:
    expected, base = greedy(roots / "tuned", tuple(PROMPT), 12), greedy(model, tuple(PROMPT), 12)
    assert expected != base
    async with Client(server) as client:
        before = await parameters(client)
        running = client.load(8)
        status, answer = await change(client, "POST", "/admin/apps", name="tuned", path=str(roots / "tuned"))
        assert (status, answer["state"]) == (200, "ready"), answer
        assert "% of its blocks, +" in answer["summary"]
        assert 0 < answer["bytes"]["own"] < answer["bytes"]["shared"]
        assert await names(client) == {model.name: None, "tuned": model.name}
        assert await tokens(client, "tuned") == list(expected)
        assert await tokens(client, model.name) == list(base)
        again, same = await change(client, "POST", "/admin/apps", name="tuned", path=str(roots / "tuned"))
        assert (again, same) == (200, answer), "asked twice, done once"
        taken, error = await change(client, "POST", "/admin/apps", name="tuned", path=str(roots / "other"))
        assert (taken, error["error"]["param"]) == (409, "name")
        ending = client.begin({**body(0, 60), "model": "tuned"})
        await until(lambda: ending.tokens, "the first token")
        removal = asyncio.create_task(change(client, "DELETE", "/admin/apps/tuned"))
        while (late := await client.post({**body(0, 4), "model": "tuned"}))[0] == 200:
            pass  # the removal has not reached the gateway yet
        assert (late[0], late[1]["error"]["code"]) == (404, "model_not_found")
        assert await removal == (200, {"name": "tuned", "state": "removed"})
        await client.finished()
        assert (ending.finish, len(ending.tokens), ending.error) == ("length", 60, None), "what ran has ended in order"
        assert all(one.finish == "length" and one.error is None for one in running)
        assert await names(client) == {model.name: None}
        assert await parameters(client) == before, "its memory is free again"
        gone, error = await change(client, "DELETE", "/admin/apps/tuned")
        assert (gone, error["error"]["param"]) == (404, "name")
