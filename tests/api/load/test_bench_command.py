"""What ``bench serve`` refuses before it sends any load."""

from __future__ import annotations

import argparse
import asyncio
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer

from blockwright.api.commands import CommandError, bench
from blockwright.api.program.client import Client

KEYS = {"api_keys": {"secret": "us"}}


def call(url: object, *words: str) -> int:
    parser = argparse.ArgumentParser()
    bench.bench_arguments(parser)
    return bench.bench(parser.parse_args(["serve", "--url", str(url), *words]))


@pytest.mark.parametrize(
    ("words", "code", "says"),
    [
        (["--model", "org/othr"], 2, "serves no model 'org/othr'; did you mean 'org/other'?"),
        (["--model", "x y?#"], 2, "serves no model 'x y?#'; there are: tiny, org/other"),
        (
            ["--model", "x", "--api-key-file"],
            2,
            "the API key is not valid; name a file that holds one: --api-key-file FILE",
        ),
    ],
)
async def test_nothing_is_sent(serve: Any, tmp_path: Path, words: list[str], code: int, says: str) -> None:
    http, port = await serve(settings=KEYS if "--api-key-file" in words else {})
    key = tmp_path / "key"
    key.write_text("wrong")
    more = [str(key)] if "--api-key-file" in words else []
    with pytest.raises(CommandError) as refused:
        await asyncio.to_thread(call, http.make_url("/"), *words, *more)
    assert refused.value.code == code
    assert says in str(refused.value)
    assert port.streams == []


async def test_a_name_that_is_served_and_not_listed() -> None:
    """As servers do that know a model by a short name too."""

    async def listed(request: web.Request) -> web.Response:
        return web.json_response({"data": [{"id": "m:latest"}]})

    async def one(request: web.Request) -> web.Response:
        return web.json_response({"id": "m"})

    app = web.Application()
    app.add_routes([web.get("/v1/models", listed), web.get("/v1/models/m", one)])
    async with TestServer(app) as server, Client(str(server.make_url("/"))) as client:
        assert await bench._model(client, "m") == ("m", 0)
        assert await bench._model(client, None) == ("m:latest", 0)
        with pytest.raises(CommandError, match="serves no model 'mm'; there are: m:latest"):
            await bench._model(client, "mm")
