"""The small client of commands says of every failure what the large one says."""

from __future__ import annotations

import asyncio
import re
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer

from blockwright.api.program.client import Client
from blockwright.api.program.results import RequestError
from blockwright.api.program.stdlib_client import StdlibSession

TLS = Path(__file__).parents[1] / "tls"
Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]
Answering = Callable[[Handler], Awaitable[str]]


@pytest.fixture
async def answering() -> AsyncIterator[Answering]:
    """``url = await answering(handler)``: a server that answers everything with ``handler``."""
    servers: list[TestServer] = []

    async def make(handler: Handler) -> str:
        app = web.Application()
        app.router.add_route("*", "/{path:.*}", handler)
        servers.append(server := TestServer(app))
        await server.start_server()
        return str(server.make_url("")).rstrip("/")

    yield make
    for server in servers:
        await server.close()


async def asked(url: str, path: str = "/admin/apps", key: str = "", holds: str = "") -> Any:
    return await asyncio.to_thread(StdlibSession(url, key).get, path, holds)


async def both_refuse(url: str, holds: str = "") -> RequestError:
    """Return the error of the small client, which is the large one's."""
    with pytest.raises(RequestError) as small:
        await asked(url, holds=holds)
    async with Client(url) as client:
        with pytest.raises(RequestError) as large:
            await client.get("/admin/apps", holds)
    here, there = small.value, large.value
    assert (here.message, here.status, here.code) == (there.message, there.status, there.code)
    return here


async def echo(request: web.Request) -> web.StreamResponse:
    body = await request.json() if request.can_read_body else None
    found = {"method": request.method, "path": request.path_qs, "auth": request.headers.get("Authorization"), "body": body}
    return web.json_response(found, status=202)


async def test_addresses_methods_and_keys(answering: Answering) -> None:
    base = await answering(echo)
    for url in (base, f"{base}/", f"{base}/v1", f"{base}/v1/"):
        assert StdlibSession(url).url == base
        assert (await asked(url, "/v1/requests?limit=1"))["path"] == "/v1/requests?limit=1"
    assert (await asked(f"{base}/behind", "/v1/a%2Fb"))["path"] == "/behind/v1/a%2Fb"
    assert (await asked(base, key="k"))["auth"] == "Bearer k"
    assert (await asked(base.replace("//", "//ann:p%40ss@")))["auth"] == "Basic YW5uOnBAc3M="
    with StdlibSession(base) as session:
        posted = await asyncio.to_thread(session.post, "/x", {"name": "é"})
        assert (posted["method"], posted["body"]) == ("POST", {"name": "é"})
        assert (await asyncio.to_thread(session.delete, "/x"))["method"] == "DELETE"
        assert '"method": "GET"' in await asyncio.to_thread(session.get_text, "/metrics")


async def test_a_key_is_not_carried_to_another_server(answering: Answering) -> None:
    other = await answering(echo)

    async def away(request: web.Request) -> web.StreamResponse:
        if request.path == "/here":
            return await echo(request)
        raise web.HTTPTemporaryRedirect("/here" if request.path == "/near" else f"{other}/there")

    base = await answering(away)
    assert await asked(base, "/near", "k") | {"body": 0} == {"method": "GET", "path": "/here", "auth": "Bearer k", "body": 0}
    assert (await asked(base, "/far", "k"))["auth"] is None


@pytest.mark.parametrize(
    ("status", "kind", "text", "says"),
    [
        (404, "application/json", '{"error": {"message": "no such", "code": "model_not_found"}}', "^no such$"),
        (502, "text/html", "<html>bad gateway", "^[0-9.:]+ answered /admin/apps with 502, like a proxy whose"),
        (500, "text/html", "<html>", "is not a Blockwright server .*gave 500 and text/html.*; give the address of one"),
        (200, "text/html", "<html>", "is not a Blockwright server .*gave 200 and text/html"),
        (404, "application/json", "[]", "is not a Blockwright server .*gave 404 and application/json"),
    ],
)
async def test_refusals_and_strangers(answering: Answering, status: int, kind: str, text: str, says: str) -> None:
    async def answer(request: web.Request) -> web.StreamResponse:
        return web.Response(status=status, text=text, content_type=kind)

    error = await both_refuse(await answering(answer))
    assert re.search(says, error.message)


HTML = b"<html>\n<body>\n</html>"
HEAD = b"HTTP/1.1 %s\r\nContent-Type: %s\r\nContent-Length: %d\r\nConnection: close\r\n\r\n"


@pytest.mark.parametrize(
    ("sent", "says"),
    [
        (b"SSH-2.0-OpenSSH_9.6\r\n", "HERE is not a Blockwright server (it says 'SSH-2.0-OpenSSH_9.6'); give the"),
        (b"-ERR unknown command\r\n", "(it says '-ERR unknown command')"),
        (b"", "the connection to HERE ended before an answer (it was closed); is the server still there, and is its"),
        (bytes(range(128, 256)) * 4 + b"\r\n\n", "HERE is not a Blockwright server (it sends no text of HTTP); give the"),
        (b"\x15\x03\x01\x00\x02\x02\x46", "what answers at HERE speaks https; write https://HERE"),
        (HEAD % (b"200 OK", b"text/html", len(HTML)) + HTML, "gave 200 and text/html); give the address of one"),
        (
            HEAD % (b"502 No", b"text/html", len(HTML)) + HTML,
            "HERE answered PATH with 502, like a proxy whose server",
        ),
        (HEAD % (b"503 No", b"text/plain", 9) + b"no\nserver", "with 503 (no server), like a proxy"),
        (HEAD % (b"200 OK", b"application/json", 2) + b"{}", "gave 200 and application/json"),
        (HEAD % (b"200 OK", b"application/json; charset=x", 2) + b"\xff\xfe", "gave 200 and application/json); give"),
        (HEAD % (b"404 No", b"application/json", 9) + b"{}", "broke within an answer (it is not complete); is the server"),
    ],
)
async def test_a_port_where_something_else_speaks(sent: bytes, says: str) -> None:
    """Whole answers, by both clients, and streams: one sentence with the origin, what it said, and a remedy."""

    async def speak(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read(1 << 16)
        writer.write(sent)
        writer.close()

    server = await asyncio.start_server(speak, "127.0.0.1", 0)
    here = "{}:{}".format(*server.sockets[0].getsockname())
    async with server:
        seen = [(await both_refuse(f"http://{here}", "applications"), "/admin/apps")]
        async with Client(f"http://{here}") as client:
            streamed, whole = client.generate("a").__aiter__(), client.generate("a")
            works: list[Callable[[], Awaitable[object]]] = [streamed.__anext__, whole.whole, client.models]
            for work in works:
                with pytest.raises(RequestError) as raised:
                    await work()
                seen.append((raised.value, "/v1/models" if work == client.models else "/v1/completions"))
    for error, path in seen:
        assert says.replace("HERE", here).replace("PATH", path) in error.message
        assert error.message.isprintable()


async def test_connections_that_end(answering: Answering) -> None:
    async def gone(request: web.Request) -> web.StreamResponse:
        assert request.transport is not None
        request.transport.abort()
        return web.Response()

    async def half(request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse(headers={"Content-Length": "100"})
        await response.prepare(request)
        await response.write(b"{")
        assert request.transport is not None
        request.transport.close()
        return response

    with pytest.raises(RequestError, match=r"the connection to \S+ ended before an answer \(it was closed\); is the server"):
        await asked(await answering(gone))
    with pytest.raises(RequestError, match=r"the connection to \S+ broke within an answer \(it is not complete\); is the"):
        await asked(await answering(half))


async def test_where_nothing_answers() -> None:
    error = await both_refuse("http://127.0.0.1:9")
    assert error.message.startswith("nothing answers at 127.0.0.1:9 (Connection refused); start a server")


async def test_certificates(monkeypatch: pytest.MonkeyPatch) -> None:
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(TLS / "cert.pem", TLS / "key.pem")
    app = web.Application()
    app.router.add_get("/{path:.*}", echo)
    server = TestServer(app, scheme="https")
    await server.start_server(ssl=context)
    try:
        error = await both_refuse(f"https://127.0.0.1:{server.port}")
        assert error.message.startswith(f"no secure connection to 127.0.0.1:{server.port} (self")
        monkeypatch.setenv("SSL_CERT_FILE", str(TLS / "cert.pem"))
        assert (await asked(f"https://localhost:{server.port}"))["method"] == "GET"
        with pytest.raises(RequestError, match=r"ended before an answer .*; is the server still there, and"):
            await asked(f"http://127.0.0.1:{server.port}")
    finally:
        await server.close()
