"""What a browser is told: preflights without a key, and marks on answers that a listed page may read."""

from __future__ import annotations

from typing import Any

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
