"""DNS rebinding: a page of the web whose name leads to 127.0.0.1 gets nothing."""

from __future__ import annotations

import socket
from typing import Any

import pytest

from blockwright.tests.claims import claim

OWN = [
    "localhost",
    "LOCALHOST:8000",
    "localhost.",
    "a.localhost:80",
    "127.0.0.1",
    "127.0.0.1:8000",
    "127.1.2.3",
    "[::1]",
    "[::1]:8000",
    "192.168.1.5:8000",  # no name, so nobody's
    socket.gethostname(),
    f"{socket.gethostname().upper()}:8000",
]
FOREIGN = [
    "evil.example",
    "evil.example:8000",
    "localhost.evil.example",
    "127.0.0.1.evil.example",
    "evil.example.localhost.org",
    "notlocalhost",
    "127.0.0.1@evil.example",
    "evil.example#localhost",
    "[::1",
    "",
    "0x7f000001",
    "user:pass@",
]


async def asked(client: Any, host: str, path: str = "/") -> tuple[int, Any]:
    answer = await client.get(path, headers={"Host": host})
    return answer.status, await answer.json() if answer.content_type == "application/json" else None


@pytest.mark.parametrize("bound", ["127.0.0.1", "localhost", "::1", "127.0.0.9"])
async def test_on_loopback_only_own_names_are_answered(serve: Any, bound: str) -> None:
    client, _ = await serve(settings={"host": bound})
    for host in OWN:
        assert (await asked(client, host))[0] == 200, host
    for host in FOREIGN:
        for path in ("/", "/health", "/v1/models", "/admin/cluster", "/nothing", "/page/page.js"):
            status, body = await asked(client, host, path)
            assert (status, body["error"]["code"]) == (421, "misdirected_request"), (host, path)
            assert "--set allowed_hosts" in body["error"]["message"]


@claim("DNS rebinding and requests of foreign pages start nothing", of="security")
async def test_a_page_that_was_rebound_starts_nothing(serve: Any, say: Any) -> None:
    client, port = await serve(say("x"), settings={"cors_origins": "*"})
    headers = {"Host": "evil.example", "Origin": "http://evil.example", "Sec-Fetch-Site": "same-origin"}
    assert (await client.post("/v1/completions", json={"prompt": "a"}, headers=headers)).status == 421
    assert port.streams == []


async def test_further_names_are_set(serve: Any) -> None:
    client, _ = await serve(settings={"allowed_hosts": "box.lan, API.example.org"})
    for host in ("box.lan", "api.example.org:443", "localhost"):
        assert (await asked(client, host))[0] == 200
    assert (await asked(client, "evil.example"))[0] == 421
    client, _ = await serve(settings={"allowed_hosts": "*"})
    assert (await asked(client, "evil.example"))[0] == 200


@pytest.mark.parametrize(
    "settings", [{"host": "0.0.0.0"}, {"host": "10.0.0.1"}, {"host": "box.lan"}, {"api_keys": {"k": "t"}}]
)
async def test_proxies_and_clients_elsewhere_are_not_in_the_way(serve: Any, settings: Any) -> None:
    """Beyond loopback any name may be the server's; with keys a page lacks one."""
    client, _ = await serve(settings=settings)
    for host in (*OWN, "api.example.org"):
        assert (await asked(client, host, "/health"))[0] == 200
    client, _ = await serve(settings={**settings, "allowed_hosts": "api.example.org"})
    assert (await asked(client, "api.example.org", "/health"))[0] == 200
    assert (await asked(client, "evil.example", "/health"))[0] == 421
