"""``serve``: the HTTP application over a fake gateway port, with a client."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from aiohttp.test_utils import TestClient, TestServer
from aiohttp.web_runner import BaseRunner

from blockwright.actors.settings.settings import Settings
from blockwright.api.app.application import make_app
from blockwright.api.http.listening import make_runner
from blockwright.api.text.tokenizer import TextCodec
from blockwright.gpu.weights.checkpoint_files import CheckpointFiles
from blockwright.tests.api.fake_port import EOS, FakePort, Script, make_folder, one_by_one, with_template
from blockwright.tests.api.text.turn.chat_templates import QWEN3


@pytest.fixture(scope="session")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_folder(tmp_path_factory.mktemp("checkpoint") / "tiny")


@pytest.fixture(scope="session")
def codec(folder: Path) -> TextCodec:
    return TextCodec.load(CheckpointFiles(folder))


@pytest.fixture
def say(codec: TextCodec) -> Callable[[str], Script]:
    """``say(text)``: a script that answers with this text, a token at a time."""
    return lambda text: lambda generation: one_by_one(codec.encode(text, special=False))


class _AsServed(TestServer):
    """Listens as a server of ours does."""

    async def _make_runner(self, **options: Any) -> BaseRunner[Any]:
        return make_runner(self.app)


Serve = Callable[..., Awaitable[tuple[Any, FakePort]]]


Qwen = Callable[..., Awaitable[tuple[Any, Any]]]


@pytest.fixture
def qwen(serve: Serve, codec: TextCodec, folder: Path, tmp_path: Path) -> Qwen:
    """``client, port = await qwen(text)``: a server whose model answers with this text."""

    async def make(
        text: str = "", template: Any = QWEN3, settings: Any = None, finish: str = "stop", **more: Any
    ) -> tuple[Any, Any]:
        tokens = [*codec.encode(text, special=False), *([EOS] if finish == "stop" else [])]
        made = with_template(folder, tmp_path / "qwen", template, **more)
        client, port = await serve(lambda generation: one_by_one(tokens, finish), settings=settings, folder=made)
        port.infos = [replace(info, max_length=4096, rooms=(8192,)) for info in port.infos]
        return client, port

    return make


@pytest.fixture
async def serve(folder: Path) -> AsyncIterator[Serve]:
    """``client, port = await serve(script, settings={...}, folder=...)``"""
    clients = []

    async def make(
        script: Script = lambda generation: (), settings: dict[str, Any] | None = None, folder: Path = folder, **options: Any
    ) -> tuple[Any, FakePort]:
        port = FakePort(folder, script)
        app = make_app(port, Settings(**{"applications": {"tiny": str(folder)}, **(settings or {})}), **options)
        client = TestClient(_AsServed(app))
        await client.start_server()
        clients.append(client)
        return client, port

    yield make
    for client in clients:
        await client.close()
