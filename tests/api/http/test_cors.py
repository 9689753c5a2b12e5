"""CORS, the answers to a browser: preflights without a key, and marks on answers that a listed page may read."""

from __future__ import annotations

import json
from base64 import b64encode
from typing import Any

import pytest

from blockwright.tests.claims import claim

KEYS = {"api_keys": {"alpha-key": "ann"}}
PAGE = "https://page.example"
ASK = {"Access-Control-Request-Method": "POST", "Access-Control-Request-Headers": "authorization,content-type"}


async def test_off_by_default(serve: Any) -> None:
    client, _ = await serve()
    answer = await client.options("/v1/completions", headers={"Origin": PAGE, **ASK})
    assert answer.status == 405
    assert "Access-Control-Allow-Origin" not in answer.headers


async def test_a_listed_page_may_ask_without_a_key_and_read_the_answer(serve: Any) -> None:
    client, _ = await serve(settings={**KEYS, "cors_origins": f"{PAGE}, https://other.example/"})
    preflight = await client.options("/v1/completions", headers={"Origin": PAGE, **ASK})
    assert preflight.status == 204
    assert preflight.headers["Access-Control-Allow-Origin"] == PAGE
    assert preflight.headers["Access-Control-Allow-Headers"] == "authorization,content-type"
    assert "POST" in preflight.headers["Access-Control-Allow-Methods"]
    assert preflight.headers["Vary"] == "Origin"
    answer = await client.get("/v1/models", headers={"Origin": "https://other.example"})
    assert answer.status == 401  # the question itself needs its key as ever, and the page can read why
    assert answer.headers["Access-Control-Allow-Origin"] == "https://other.example"
    exposed = set(answer.headers["Access-Control-Expose-Headers"].split(", "))
    assert {"x-request-id", "x-should-retry", "x-queue-ms", "x-cached-tokens", "retry-after-ms"} <= exposed


async def test_a_page_that_is_not_listed_gets_nothing_and_a_bare_options_needs_a_key(serve: Any) -> None:
    client, _ = await serve(settings={**KEYS, "cors_origins": PAGE})
    stranger = await client.options("/v1/completions", headers={"Origin": "https://evil.example", **ASK})
    assert stranger.status == 401
    assert "Access-Control-Allow-Origin" not in stranger.headers
    assert stranger.headers["Vary"] == "Origin"  # a cache must not give this answer to the listed page
    assert (await client.options("/v1/completions", headers={"Origin": PAGE})).status == 401


async def test_any_page(serve: Any) -> None:
    client, _ = await serve(settings={"cors_origins": "*"})
    answer = await client.get("/v1/models", headers={"Origin": PAGE})
    assert answer.headers["Access-Control-Allow-Origin"] == "*"
    assert "Vary" not in answer.headers


ASKED = {"prompt": "a"}
FOREIGN = [
    {"Origin": "https://evil.example"},
    {"Origin": "https://evil.example", "Content-Type": "text/plain"},  # what a page may send without a preflight
    {"Origin": "https://evil.example", "Content-Type": "application/x-www-form-urlencoded"},
    {"Origin": "null", "Sec-Fetch-Site": "cross-site"},
    {"Origin": "http://localhost:3000", "Sec-Fetch-Site": "same-site"},
    {"Origin": "http://["},
    {"Sec-Fetch-Site": "cross-site"},
]


@claim("DNS rebinding and requests of foreign pages start nothing", of="security")
@pytest.mark.parametrize("headers", FOREIGN, ids=str)
@pytest.mark.parametrize(
    ("method", "path"), [("POST", "/v1/completions"), ("POST", "/admin/undeploy"), ("DELETE", "/v1/requests/r1")]
)
async def test_without_keys_a_page_of_another_site_starts_nothing(
    serve: Any, say: Any, headers: dict[str, str], method: str, path: str
) -> None:
    client, port = await serve(say("x"))
    answer = await client.request(method, path, data=json.dumps(ASKED), headers=headers)
    error = (await answer.json())["error"]
    assert (answer.status, error["code"]) == (403, "permission_denied")
    assert "--set cors_origins" in error["message"]
    assert port.streams == []
    assert (await client.get("/v1/models", headers=headers)).status == 200, "what it may send it cannot read"


async def test_programs_own_pages_and_listed_pages_are_served_as_ever(serve: Any, say: Any) -> None:
    client, _ = await serve(say("x"), settings={"cors_origins": PAGE})
    own = f"http://127.0.0.1:{client.port}"
    proxied = {"Origin": "https://chat.example", "Sec-Fetch-Site": "same-origin"}  # the proxy has changed the host
    for headers in ({}, {"Origin": own}, {"Origin": own.upper()}, {"Origin": PAGE}, proxied, {"Sec-Fetch-Site": "none"}):
        answer = await client.post("/v1/completions", json=ASKED, headers=headers)
        assert answer.status == 200, headers
    form = {"Content-Type": "application/x-www-form-urlencoded"}  # curl -d without more
    assert (await client.post("/v1/completions", data=json.dumps(ASKED), headers=form)).status == 200
    client, _ = await serve(say("x"), settings={"cors_origins": "*"})
    assert (await client.post("/v1/completions", json=ASKED, headers=FOREIGN[0])).status == 200


async def test_with_keys_the_key_decides(serve: Any, say: Any) -> None:
    client, _ = await serve(say("x"), settings=KEYS)
    for key, status in (("alpha-key", 200), ("wrong", 401)):
        headers = {**FOREIGN[0], "Authorization": f"Bearer {key}"}
        assert (await client.post("/v1/completions", json=ASKED, headers=headers)).status == status


async def test_a_key_that_the_browser_remembers_is_nobodys_will(serve: Any, say: Any) -> None:
    """Basic credentials go with whatever any page asks; browsers say whose page it is."""
    client, _ = await serve(say("x"), settings=KEYS)
    basic = {"Authorization": "Basic " + b64encode(b"me:alpha-key").decode()}
    foreign = {**FOREIGN[0], **basic}
    assert (await client.post("/v1/completions", json=ASKED, headers=foreign)).status == 403
    assert (await client.get("/v1/models", headers=foreign)).status == 200
    assert (await client.post("/v1/completions", json=ASKED, headers=basic)).status == 200
