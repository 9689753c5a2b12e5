"""A real server attacked from outside: clients that hold on to connections, foreign pages, other tenants, a full disk."""

from __future__ import annotations

import json
import os
import random
import signal
import socket
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from blockwright.tests.claims import claim
from blockwright.tests.docs.pages import free_port
from blockwright.tests.system.server import Server
from blockwright.tests.waiting import PATIENCE, until_now

pytestmark = pytest.mark.system
Serve = Callable[..., Server]
PROMPT = list(range(3, 60))


@contextmanager
def connected(server: Server, sent: bytes, count: int = 1) -> Iterator[list[socket.socket]]:
    """So many connections, each of which has said this."""
    host, _, port = server.listening().removeprefix("http://").partition(":")
    made = [socket.create_connection((host, int(port)), timeout=PATIENCE) for _ in range(count)]
    try:
        for one in made:
            one.sendall(sent)
        yield made
    finally:
        for one in made:
            one.close()


def said(one: socket.socket) -> bytes:
    """All until the server closes."""
    found = b""
    try:
        while some := one.recv(1 << 16):
            found += some
    except ConnectionError:
        pass  # bytes that came too late are answered so
    return found


def files(server: Server) -> int:
    return len(list(Path(f"/proc/{server.head()}/fd").iterdir()))


@claim("Slow clients and silent connections are closed in time", of="security")
def test_slow_and_silent_clients_garbage_and_foreign_pages(serve: Serve) -> None:
    server = serve(read_timeout=0.3, workers=1).whole()
    before = files(server)
    dice = random.Random(9)
    for sent in (b"", b"GET /hea", b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nX-Slow:"):
        with connected(server, sent, 30) as clients:
            assert [said(one) for one in clients] == [b""] * 30
    late = b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: 100\r\n\r\n{"
    with connected(server, late, 20) as clients:
        assert all(said(one).startswith(b"HTTP/1.1 408 ") for one in clients)
    for _ in range(20):
        with connected(server, dice.randbytes(dice.randrange(1, 2000))) as (one,):
            assert said(one)[:12] in (b"HTTP/1.0 400", b"")
    with connected(server, b"GET /v1/models HTTP/1.1\r\nHost: evil.example\r\nConnection: close\r\n\r\n") as (one,):
        assert said(one).startswith(b"HTTP/1.1 421 ")
    until_now(lambda: files(server) <= before + 2, "the connections are free again")
    assert server.status("/health") == 200
    server.stop()


def cached(server: Server, key: str, **fields: Any) -> int:
    """Tokens that were found in the prefix cache."""
    body = json.dumps({"prompt": PROMPT, "max_tokens": 1, **fields}).encode()
    headers = {"Authorization": f"Bearer {key}", "Content-Type": "application/json"}
    with urllib.request.urlopen(urllib.request.Request(f"{server.url}/v1/completions", body, headers)) as answer:
        return int(answer.headers["x-cached-tokens"])


@claim("Tenants share no cached prefix and learn nothing of each other's prompts", of="security")
@pytest.mark.nightly
def test_no_tenant_finds_another_ones_prompt(serve: Serve, tmp_path: Path) -> None:
    keys = tmp_path / "keys"
    keys.write_text("of-ann a\nof-amy a\nof-bob b\n")
    for shared, found in (("false", 0), ("true", 48)):
        server = serve(workers=1, arguments=["--api-key-file", str(keys)], shared_cache=shared)
        server.listening()
        until_now(lambda server=server: " ready at " in server.out, "ready")
        assert (cached(server, "of-ann"), cached(server, "of-amy")) == (0, 48)
        assert cached(server, "of-bob") == found
        assert cached(server, "of-bob", cache_salt="1 a ") == 0, "no salt leads there"
        server.stop()


@claim("A full disk does not end the server", of="faults")
@pytest.mark.nightly
def test_a_full_disk_does_not_end_the_server(model: Path) -> None:
    """Nothing that it wants to say can be written."""
    port = free_port()
    with open("/dev/full", "wb") as full:
        command = [sys.executable, "-m", "blockwright", "serve", str(model), "--port", str(port)]
        options = ["--set", "threads=1", "--set", "memory=32MiB", "--set", "log_level=debug"]
        process = subprocess.Popen(
            [*command, *options], stdout=full, stderr=full, env={**os.environ, "OMP_NUM_THREADS": "1"}
        )
    try:
        until_now(lambda: status(port) == 200 or process.poll() is not None, "ready")
        assert process.poll() is None
        process.send_signal(signal.SIGTERM)
        assert process.wait(timeout=PATIENCE) in (0, 120), "120: Python's own, for what it cannot flush"
    finally:
        process.kill()
        process.wait()


def status(port: int) -> int:
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/health") as answer:
            return int(answer.status)
    except urllib.error.HTTPError as error:
        return error.code
    except OSError:
        return 0
