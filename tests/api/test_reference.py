"""``/openapi.json`` is true: valid, complete, and what endpoints take and answer is what it says."""

import json
import re
from typing import Any

import jsonschema
import pytest
from jsonschema import Draft202012Validator

from blockwright.actors.gateway.port import RequestView
from blockwright.api.app.openapi import Schemas, document
from blockwright.api.app.routes import ENDPOINTS
from blockwright.policies.plan.sweep_plan import TokenLogprob
from blockwright.policies.requests.refusal import Refusal, RequestRefused
from blockwright.tests.api.anthropic.events import events as message_events
from blockwright.tests.api.fake_port import events, prompt_scored, tokens_emitted
from blockwright.tests.claims import claim

API = document(ENDPOINTS, "1.0")
HELLO = [{"role": "user", "content": "hi"}]


def check(schema: Any, value: Any) -> None:
    """``value`` against a schema of the document."""
    Draft202012Validator({**schema, "components": API["components"]}).validate(value)


def operation(path: str, method: str = "post") -> Any:
    return API["paths"][path][method]


def answer_schema(path: str, method: str = "post", status: int = 200) -> Any:
    return operation(path, method)["responses"][str(status)]["content"]["application/json"]["schema"]


# A shortened meta-schema of OpenAPI 3.1: the parts that this document has, and no others.
META: dict[str, Any] = {
    "type": "object",
    "required": ["openapi", "info", "paths", "components"],
    "additionalProperties": False,
    "properties": {
        "openapi": {"const": "3.1.0"},
        "info": {"type": "object", "required": ["title", "version"]},
        "components": {
            "type": "object",
            "additionalProperties": False,
            "properties": {"schemas": {"type": "object"}, "securitySchemes": {"type": "object"}},
        },
        "paths": {
            "type": "object",
            "propertyNames": {"pattern": "^/"},
            "additionalProperties": {
                "type": "object",
                "propertyNames": {"enum": ["delete", "get", "head", "post"]},
                "additionalProperties": {
                    "type": "object",
                    "required": ["operationId", "responses", "summary", "security", "parameters"],
                    "additionalProperties": False,
                    "properties": {
                        "operationId": {"type": "string", "pattern": "^[a-z0-9_]+$"},
                        "summary": {"type": "string", "minLength": 5},
                        "security": {"type": "array"},
                        "parameters": {
                            "type": "array",
                            "items": {"type": "object", "required": ["name", "in", "required", "schema"]},
                        },
                        "requestBody": {"type": "object", "required": ["content", "required"]},
                        "responses": {
                            "type": "object",
                            "propertyNames": {"pattern": "^[1-5][0-9][0-9]$"},
                            "additionalProperties": {"type": "object", "required": ["description"]},
                        },
                    },
                },
            },
        },
    },
}


def test_the_document_is_valid() -> None:
    jsonschema.validate(API, META)
    for name, schema in API["components"]["schemas"].items():
        Draft202012Validator.check_schema(schema)
        assert schema["type"] == "object", name
    text = json.dumps(API)
    for reference in set(re.findall(r'"\$ref": "#/components/schemas/(\w+)"', text)):
        assert reference in API["components"]["schemas"]
    ids = [one["operationId"] for path in API["paths"].values() for one in path.values()]
    assert len(ids) == len(set(ids))
    for path, methods in API["paths"].items():
        for one in methods.values():
            assert [p["name"] for p in one["parameters"] if p["in"] == "path"] == re.findall(r"\{(\w+)\}", path)


@claim("Every route is in the OpenAPI document, and answers are as written there", of="http-api")
async def test_every_route_is_in_it_and_the_other_way_round(serve: Any) -> None:
    client, _ = await serve()
    routes = {
        (route.method.lower(), re.sub(r"\{(\w+):[^}]*\}", r"{\1}", route.resource.canonical))
        for route in client.app.router.routes()
    }
    written = {(method, path) for path, methods in API["paths"].items() for method in methods}
    assert routes == written


async def test_the_server_gives_it_and_a_page_without_the_internet(serve: Any) -> None:
    client, _ = await serve()
    served = await (await client.get("/openapi.json")).json()
    assert {**served, "info": {**served["info"], "version": "1.0"}} == json.loads(json.dumps(API))
    answer = await client.get("/docs")
    page = await answer.text()
    assert answer.headers["Content-Type"] == "text/html; charset=utf-8"
    assert "default-src 'none'" in answer.headers["Content-Security-Policy"]
    assert "://" not in page
    assert not re.findall(r"<(?:script|link|img)[^>]*(?:src|href)", page)
    assert 'fetch("openapi.json"' in page


async def test_what_needs_a_key_is_what_the_document_says(serve: Any) -> None:
    client, _ = await serve(settings={"api_keys": {"k": "t"}})
    assert (await client.get("/docs")).status == 401
    assert (await client.get("/openapi.json")).status == 401
    for path, methods in API["paths"].items():
        for method, one in methods.items():
            answer = await client.request(method, path.replace("{id}", "x"))
            assert (answer.status == 401) == bool(one["security"]), (method, path)


FULL = {"logprobs": True, "top_logprobs": 1, "return_token_ids": True, "service_tier": "flex"}


def script(generation: Any) -> list[Any]:
    entry = [TokenLogprob(-0.5, [(5, -0.25)], rank=1)]
    scores = entry * (len(generation.prompt) - 1) if generation.sampling.prompt_logprobs >= 0 else []
    return [prompt_scored(scores), tokens_emitted([9], entry), tokens_emitted([7], entry, "stop")]


@claim("Every route is in the OpenAPI document, and answers are as written there", of="http-api")
@pytest.mark.parametrize("full", [True, False])
async def test_answers_are_as_written(serve: Any, full: bool) -> None:
    client, _ = await serve(script)
    for path, fields, chunk in (
        ("/v1/completions", {"prompt": "on", **(FULL | {"logprobs": 1, "echo": True} if full else {})}, "CompletionChunk"),
        ("/v1/chat/completions", {"messages": HELLO, **(FULL if full else {})}, "ChatChunk"),
    ):
        fields.pop("top_logprobs", None) if path == "/v1/completions" else None
        fields["stop_token_ids"] = [7]
        more = {"prompt_logprobs": 1} if full else {}
        answer = await client.post(path, json={**fields, **more})
        assert answer.status == 200, await answer.text()
        check(answer_schema(path), await answer.json())
        options = {"stream": True, "stream_options": {"include_usage": True, "continuous_usage_stats": full}}
        streamed = events(await (await client.post(path, json={**fields, **options})).read())
        for event in streamed:
            check({"$ref": f"#/components/schemas/{chunk}"}, event)
        assert streamed[-1]["choices"] == []


@claim("Every route is in the OpenAPI document, and answers are as written there", of="http-api")
async def test_messages_are_as_written(qwen: Any) -> None:
    client, _ = await qwen('<think>a</think>b<tool_call>{"name": "f", "arguments": {"c": 1}}</tool_call>')
    tools = [{"name": "f", "input_schema": {"type": "object"}}]
    body = {"max_tokens": 100, "messages": HELLO, "tools": tools}
    check({"$ref": "#/components/schemas/PostV1MessagesBody"}, body)
    answer = await client.post("/v1/messages", json=body)
    check(answer_schema("/v1/messages"), await answer.json())
    streamed = message_events(await (await client.post("/v1/messages", json={**body, "stream": True})).read())
    schema = operation("/v1/messages")["responses"]["200"]["content"]["text/event-stream"]["x-event-schema"]
    for event in streamed:
        check(schema, event)
    counted = await client.post("/v1/messages/count_tokens", json=body)
    check(answer_schema("/v1/messages/count_tokens"), await counted.json())
    for path in ("/v1/messages", "/v1/messages/count_tokens"):
        refused = await client.post(path, json={**body, "model": "none"})
        check(answer_schema(path, status=404), await refused.json())


async def test_the_other_answers_are_as_written(serve: Any) -> None:
    client, port = await serve(script)
    port.views["r"] = RequestView(
        id="r",
        state="waiting",
        attempt=0,
        home=None,
        route=[],
        prompt_tokens=1,
        computed_tokens=0,
        emitted_tokens=0,
        events=[],
    )
    for method, path, body in (
        ("get", "/v1/models", None),
        ("get", "/v1/models/{id}", None),
        ("get", "/v1/requests/{id}", None),
        ("get", "/version", None),
        ("get", "/load", None),
        ("get", "/health/live", None),
        ("get", "/health", None),
        ("get", "/admin/cluster", None),
        ("get", "/admin/actors", None),
        ("post", "/tokenize", {"prompt": "on", "return_token_strs": True}),
        ("post", "/detokenize", {"tokens": [5, 6]}),
    ):
        target = path.replace("{id}", "tiny" if "models" in path else "r")
        answer = await client.request(method, target, json=body)
        assert answer.status == 200, path
        check(answer_schema(path, method), await answer.json())


@claim("Every route is in the OpenAPI document, and answers are as written there", of="http-api")
async def test_errors_are_as_written(serve: Any) -> None:
    client, port = await serve(script)
    for path in ("/v1/completions", "/tokenize", "/detokenize"):
        answer = await client.post(path, json={"model": "none", "prompt": "a", "tokens": []})
        assert answer.status == 404
        check(answer_schema(path, status=404), await answer.json())
        answer = await client.post(path, data=b"[")
        check(answer_schema(path, status=400), await answer.json())
    port.refuse = RequestRefused(Refusal.UNAVAILABLE, "later")
    answer = await client.post("/v1/completions", json={"prompt": "a"})
    check(answer_schema("/v1/completions", status=503), await answer.json())


def test_a_type_without_a_schema_is_an_error() -> None:
    with pytest.raises(TypeError, match="has no JSON Schema"):
        Schemas().of(set[int])
