"""Servers that tests of this folder share, and the tokens of a load that nothing disturbs."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from blockwright.tests.gpu.reference import confirm
from blockwright.tests.system.client import NEW, Client, body
from blockwright.tests.system.event_logs import embedded_logs, logs_root, pytest_runtest_makereport
from blockwright.tests.system.faulty_worker import SLOW
from blockwright.tests.system.server import Server

__all__ = ["embedded_logs", "logs_root", "pytest_runtest_makereport"]  # pytest finds them here
STREAMS = 32
PACE = 0.02  # seconds of each sweep of a served load
FAULTY = "blockwright.tests.system.faulty_worker"


@pytest.fixture(scope="session")
def model(checkpoint: Callable[..., Path]) -> Path:
    return checkpoint("llama")


@pytest.fixture(scope="session")
def pace(tmp_path_factory: pytest.TempPathFactory) -> Path:
    table = tmp_path_factory.mktemp("pace") / "pace.json"
    table.write_text(f'{{"base": {PACE}}}')
    return table


@pytest.fixture
def serve(model: Path, pace: Path) -> Iterator[Callable[..., Server]]:
    """``serve(**settings)``: a server of this test alone with levers, whose workers hold every sweep to the pace; stopped
    after it."""
    servers: list[Server] = []

    def start(checkpoint: Path = model, **settings: Any) -> Server:
        servers.append(Server(checkpoint, **{"module": FAULTY, "pace": pace, **settings}))
        return servers[-1]

    yield start
    for server in servers:
        server.destroy()
        server.event_logs.finish()


@contextmanager
def slow(server: Server, after: int = 0) -> Iterator[None]:
    """Streams that have come so far go on at a few tokens a second: time to look at them, and to kill who makes them."""
    lever = server.lever(SLOW)
    lever.write_text(str(after))
    try:
        yield
    finally:
        lever.unlink()


@pytest.fixture(scope="session")
def replicas(model: Path, pace: Path) -> Iterator[Server]:
    """Two workers, each with the whole model. Whoever kills one leaves when all are back."""
    server = Server(model, module=FAULTY, pace=pace, chunk_size=16)
    yield server.whole()
    server.stop()


@pytest.fixture(scope="session")
def pipeline(model: Path, pace: Path) -> Iterator[Server]:
    """Two workers, each with one half of the model."""
    server = Server(model, module=FAULTY, pace=pace, pipeline=2)
    yield server.whole()
    server.stop()


@pytest.fixture(scope="module")
def uncached(model: Path, pace: Path) -> Iterator[Server]:
    """Two workers that keep no pages of what has ended."""
    server = Server(model, module=FAULTY, pace=pace, prefix_cache="false")
    yield server.whole()
    server.stop()


@pytest.fixture(scope="session")
def expected(replicas: Server, model: Path) -> list[list[int]]:
    """Tokens of the load of STREAMS requests when nothing happens; the greedy half is what transformers computes."""
    import asyncio

    async def undisturbed() -> list[list[int]]:
        async with Client(replicas) as client:
            answers = client.load(STREAMS)
            await client.finished()
            return [answer.tokens for answer in answers]

    tokens = asyncio.run(undisturbed())
    assert all(confirm(model, tuple(body(index)["prompt"]), tuple(tokens[index])) for index in range(0, STREAMS, 2))
    assert all(len(found) == NEW for found in tokens)
    return tokens
