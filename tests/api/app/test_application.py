"""What all requests pass through, and the endpoints that generate nothing."""

import asyncio
import dataclasses
import hashlib
import re
from dataclasses import replace
from typing import Any

import pytest

from blockwright.actors.gateway.port import Readiness, RequestView
from blockwright.tests.api.fake_port import events
from blockwright.tests.claims import claim

KEYS = {"api_keys": {"alpha-key": "ann", "beta-key": "bob"}}
ANN, BOB = {"Authorization": "Bearer alpha-key"}, {"Authorization": "Bearer beta-key"}
KEY_OF_ANN = hashlib.sha256(b"alpha-key").hexdigest()[:16]
VIEW = RequestView(
    id="cmpl-gw0-1",
    state="running",
    attempt=1,
    home="w0",
    route=[{"worker": "w0", "first": 0, "last": 4}],
    prompt_tokens=9,
    computed_tokens=5,
    emitted_tokens=2,
    events=[{"at": 0.0, "event": "arrived"}],
    key=KEY_OF_ANN,
)


@claim("With API keys, everything but the health probes needs a key", of="security", headline=True)
@pytest.mark.parametrize(
    "headers", [{}, {"Authorization": "Bearer nope"}, {"Authorization": "Basic alpha-key"}, {"Authorization": "alpha-key"}]
)
@pytest.mark.parametrize("path", ["/v1/models", "/v1/models/tiny", "/metrics", "/admin/cluster", "/v1/requests/x", "/none"])
async def test_without_a_key_nothing_answers(serve: Any, headers: dict[str, str], path: str) -> None:
    client, _ = await serve(settings=KEYS)
    answer = await client.get(path, headers=headers)
    error = (await answer.json())["error"]
    assert (answer.status, error["code"], error["type"]) == (401, "invalid_api_key", "invalid_request_error")
    assert answer.headers["WWW-Authenticate"] == "Bearer"
    assert "x-request-id" in answer.headers


async def test_generating_needs_a_key_before_the_body_is_read(serve: Any, say: Any) -> None:
    client, port = await serve(say("x"), settings=KEYS)
    assert (await client.post("/v1/completions", data=b"{")).status == 401
    assert (await client.post("/v1/completions", json={"prompt": "a"}, headers=ANN)).status == 200
    assert port.streams[0].generation.tenant == "ann"


@claim("With API keys, everything but the health probes needs a key", of="security", headline=True)
async def test_health_needs_no_key_and_then_names_nothing(serve: Any) -> None:
    client, port = await serve(settings=KEYS)
    for path in ("/health/live", "/health/ready", "/health", "/ping"):
        assert (await client.get(path)).status == 200
    assert (await client.post("/ping")).status == 200
    port.readiness = replace(port.readiness, doubts="3 of 4 members are out of reach")
    assert not {"applications", "doubts"} & (await (await client.get("/health")).json()).keys()
    assert (await (await client.get("/health", headers=ANN)).json())["doubts"] == "3 of 4 members are out of reach"
    assert (await (await client.get("/health", headers=ANN)).json())["applications"] == port.readiness.applications


@claim("Health probes answer at once and readiness follows the models", of="http-api")
async def test_readiness(serve: Any) -> None:
    client, port = await serve()
    port.readiness = Readiness(False, "loading", 2.2, {"tiny": "loading"})
    for path in ("/health/ready", "/health", "/ping"):
        answer = await client.get(path)
        assert (answer.status, answer.headers["Retry-After"]) == (503, "3")
        body = await answer.json()
        assert (body["reason"], body["applications"]) == ("loading", {"tiny": "loading"})
    assert (await client.get("/health/live")).status == 200


async def test_a_request_belongs_to_its_tenant(serve: Any) -> None:
    client, port = await serve(settings=KEYS)
    port.views = {VIEW.id: VIEW, f"{VIEW.id}/1": VIEW}
    for id in port.views:
        answer = await client.get(f"/v1/requests/{id}", headers=ANN)
        body = await answer.json()
        assert answer.status == 200
        assert list(body) == [
            "id",
            "state",
            "attempt",
            "home",
            "route",
            "prompt_tokens",
            "computed_tokens",
            "emitted_tokens",
            "events",
            "dispatch",
            "tenant",
            "model",
            "place",
            "queued",
            "starts_in",
            "drafts",
            "tier",
            "service",
            "parked_steps",
            "parked_seconds",
            "entered",
            "guesses",
            "variant",
            "switches",
            "chains",
            "claims",
        ]
        assert body["claims"] == [{"worker": "w0", "model": VIEW.model, "why": "it is served"}]
    assert (await client.get(f"/v1/requests/{VIEW.id}", headers=BOB)).status == 404
    assert (await client.get("/v1/requests/none", headers=ANN)).status == 404


@claim("Every variant is a model id with its parent and root", of="fine-tunes")
async def test_models(serve: Any) -> None:
    client, _ = await serve()
    body = await (await client.get("/v1/models")).json()
    assert body["object"] == "list"
    assert [(m["id"], m["object"], m["created"], m["max_model_len"], m["parent"]) for m in body["data"]] == [
        ("tiny", "model", 1700000000, 64, None),
        ("org/other", "model", 1700000001, 16, "tiny"),
    ]
    assert await (await client.get("/v1/models/org/other")).json() == body["data"][1]
    answer = await client.get("/v1/models/tinny")
    error = (await answer.json())["error"]
    assert (answer.status, error["code"], error["param"]) == (404, "model_not_found", "model")
    assert "did you mean 'tiny'?" in error["message"]


async def test_an_unknown_model_and_no_model_at_all(serve: Any, say: Any) -> None:
    client, port = await serve(say("x"))
    answer = await client.post("/v1/completions", json={"prompt": "a", "model": "zzz"})
    assert answer.status == 404
    assert "there are: tiny, org/other" in (await answer.json())["error"]["message"]
    await client.post("/v1/completions", json={"prompt": "a", "model": "org/other"})
    assert port.streams[0].generation.application == "org/other"
    port.infos = []
    assert (await client.post("/v1/completions", json={"prompt": "a"})).status == 503


async def test_wrong_paths_methods_and_bodies(serve: Any) -> None:
    client, _ = await serve(settings={"max_body": 1000})
    answer = await client.get("/v1/completions")
    error = (await answer.json())["error"]
    assert (answer.status, error["code"]) == (405, "method_not_allowed")
    assert error["message"] == "GET is not allowed on /v1/completions; use POST"
    assert answer.headers["Allow"] == "POST"
    answer = await client.get("/v1/nothing")
    assert (answer.status, (await answer.json())["error"]["code"]) == (404, "not_found")
    answer = await client.post("/v1/completions", data=b"{not json")
    assert (answer.status, (await answer.json())["error"]["code"]) == (400, "invalid_json")
    answer = await client.post("/v1/completions", data=b"not packed", headers={"Content-Encoding": "gzip"})
    error = (await answer.json())["error"]
    assert (answer.status, error["code"]) == (400, "invalid_json")
    assert "cannot be read" in error["message"]
    answer = await client.post("/v1/completions", json={"prompt": "a" * 1000})
    error = (await answer.json())["error"]
    assert (answer.status, error["code"]) == (413, "request_too_large")
    assert "1000 bytes" in error["message"]


async def test_a_client_that_waits_before_it_sends_its_body(serve: Any) -> None:
    client, _ = await serve()
    assert (await client.post("/tokenize", json={"prompt": "a b"}, expect100=True)).status == 200
    answer = await client.post("/tokenize", json={"prompt": "a b"}, headers={"Expect": "the worst"})
    error = (await answer.json())["error"]
    assert (answer.status, error["code"]) == (417, "expectation_failed")
    assert "'the worst'" in error["message"]
    assert (await client.get("/v1/models", headers={"Expect": "much"})).status == 417


async def test_request_ids(serve: Any, say: Any) -> None:
    client, _ = await serve(say("x"))
    answer = await client.get("/v1/models", headers={"x-request-id": "mine-1"})
    assert answer.headers["x-request-id"] == "mine-1"
    answer = await client.get("/v1/models", headers={"x-request-id": "no good"})
    assert re.fullmatch("req-[0-9a-f]{24}", answer.headers["x-request-id"])
    for stream in (True, False):
        answer = await client.post("/v1/completions", json={"prompt": "a", "stream": stream})
        body = events(await answer.read())[0] if stream else await answer.json()
        assert answer.headers["x-request-id"] == body["id"]


async def test_a_request_can_be_asked_about_by_the_id_its_client_chose_before_its_answer_begins(serve: Any) -> None:
    client, port = await serve(lambda generation: [asyncio.Event()])
    headers = {"x-request-id": "mine-2"}
    asking = asyncio.ensure_future(client.post("/v1/completions", json={"prompt": "a", "stream": True}, headers=headers))
    id = (await port.waiting.get()).generation.id
    port.views[id] = dataclasses.replace(VIEW, id=id, key="")
    assert (await (await client.get("/v1/requests/mine-2")).json())["id"] == id
    asking.cancel()


@claim("Harmless unknown fields are accepted and listed in a header", of="http-api")
async def test_ignored_fields_are_listed(serve: Any, say: Any) -> None:
    client, _ = await serve(say("x"))
    for stream in (True, False):
        fields = {"prompt": "a", "stream": stream, "wibble": 1, "a\r\nb: c": 2, "\ud800": 3, "user": "u"}
        answer = await client.post("/v1/completions", json=fields)
        assert answer.headers["x-ignored-fields"] == "wibble, a%0D%0Ab%3A%20c, %3F"
    answer = await client.post("/v1/completions", json={"prompt": "a"})
    assert "x-ignored-fields" not in answer.headers
    client, _ = await serve(say("x"), settings={"unknown_fields": "reject"})
    assert (await client.post("/v1/completions", json={"prompt": "a", "wibble": 1})).status == 400


async def test_the_cluster_as_it_is(serve: Any) -> None:
    client, port = await serve()
    port.body = {"workers": [{"id": "w0"}], "kv_pages_shared": 3}
    view = await (await client.get("/admin/cluster")).json()
    assert view == {**port.body, "tenants": []}


async def test_a_bug_is_a_500_without_its_text(serve: Any, caplog: pytest.LogCaptureFixture) -> None:
    def bug(generation: Any) -> Any:
        raise RuntimeError("secret")

    client, _ = await serve(bug)
    answer = await client.post("/v1/completions", json={"prompt": "a"})
    assert answer.status == 500
    assert "secret" not in await answer.text()
    assert "secret" in caplog.text


@pytest.mark.parametrize("path", ["/v1/completions", "/v1/chat/completions", "/tokenize"])
async def test_a_text_that_no_tokenizer_should_see_is_refused_with_its_number(serve: Any, say: Any, path: str) -> None:
    client, port = await serve(say("x"), settings={"max_characters": 50})
    body = {"messages": [{"role": "user", "content": "a" * 60}]} if "chat" in path else {"prompt": "a" * 60}
    answer = await client.post(path, json=body)
    error = (await answer.json())["error"]
    assert (answer.status, error["param"], error["code"]) == (400, "prompt", "context_length_exceeded")
    assert "characters, more than the limit of 50; shorten it" in error["message"]
    assert not port.streams
