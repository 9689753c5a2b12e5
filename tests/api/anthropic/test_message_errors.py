"""Errors of Anthropic's API: their form for every refusal below ``/v1/messages``, and bad bodies by field."""

from __future__ import annotations

import asyncio
import io
import json
from typing import Any

import pytest

from blockwright.api.anthropic.bodies import parse_message
from blockwright.api.errors import ApiError
from blockwright.policies.requests.rate_limit import Limits, Quotas
from blockwright.policies.requests.refusal import Refusal, RequestRefused
from blockwright.tests.api.anthropic.events import events
from blockwright.tests.api.fake_port import one_by_one, tokens_emitted
from blockwright.tests.claims import claim
from blockwright.tests.waiting import PATIENCE

URL = "/v1/messages"
ASK = [{"role": "user", "content": "hi"}]
BODY = {"max_tokens": 9, "messages": ASK}
KEYS = {"api_keys": {"alpha-key": "ann", "beta-key": "bob"}, "admin_keys": {"root-key": "root"}}
USE = {"type": "tool_use", "id": "a", "name": "time", "input": {}}
RESULT = {"type": "tool_result", "tool_use_id": "a", "content": "noon"}


def user(*blocks: Any) -> dict[str, Any]:
    return {"role": "user", "content": [*blocks]}


def assistant(*blocks: Any) -> dict[str, Any]:
    return {"role": "assistant", "content": [*blocks]}


def text(said: Any = "a") -> dict[str, Any]:
    return {"type": "text", "text": said}


async def refusal(answer: Any) -> tuple[int, str, str]:
    """Status, type and message of an error that has Anthropic's form."""
    body = await answer.json()
    assert body.keys() == {"type", "error", "request_id"}
    assert body["error"].keys() == {"type", "message"}
    assert body["request_id"] == answer.headers["request-id"] == answer.headers["x-request-id"]
    assert body["type"] == "error"
    return answer.status, body["error"]["type"], body["error"]["message"]


@claim("Every error of the Messages API has Anthropic's form, also in the middle of a stream", of="http-api")
async def test_refusals_before_the_endpoint(serve: Any) -> None:
    client, _ = await serve(settings={**KEYS, "max_body": 2000, "tenant_models": {"bob": "tiny"}})
    ann, bob = {"x-api-key": "alpha-key"}, {"Authorization": "Bearer beta-key"}
    for path in (URL, f"{URL}/count_tokens"):
        found = await refusal(await client.post(path, json=BODY))
        assert found[:2] == (401, "authentication_error")
        assert "x-api-key: KEY" in found[2]
        found = await refusal(await client.post(path, json=BODY, headers={"x-api-key": "no"}))
        assert (found[:2], "is not valid" in found[2]) == ((401, "authentication_error"), True)
        found = await refusal(await client.post(path, json={**BODY, "model": "org/other"}, headers=bob))
        assert found[:2] == (403, "permission_error")
        found = await refusal(await client.post(path, json={**BODY, "model": "none"}, headers=ann))
        assert found[:2] == (404, "not_found_error")
        found = await refusal(await client.post(path, data=b"x" * 3000, headers=ann))
        assert found[:2] == (413, "request_too_large")
        found = await refusal(await client.post(path, data=b"{", headers=ann))
        assert (found[:2], "JSON" in found[2]) == ((400, "invalid_request_error"), True)
        found = await refusal(await client.get(path, headers=ann))
        assert (found[:2], "use POST" in found[2]) == ((405, "invalid_request_error"), True)
    found = await refusal(await client.post(f"{URL}/batches", json={}, headers=ann))
    assert (found[:2], "POST /v1/batches" in found[2]) == ((404, "not_found_error"), True)
    other = await (await client.post("/v1/messagesx", json={}, headers=ann)).json()
    assert other["error"]["code"] == "not_found"


@claim("Every error of the Messages API has Anthropic's form, also in the middle of a stream", of="http-api")
@pytest.mark.parametrize(
    ("error", "status", "kind"),
    [
        (RequestRefused(Refusal.UNAVAILABLE, "later", 2.0), 503, "overloaded_error"),
        (RequestRefused(Refusal.EXPIRED, "late"), 504, "timeout_error"),
        (RequestRefused(Refusal.CANCELLED, "gone"), 409, "invalid_request_error"),
        (RequestRefused(Refusal.POISON, "kills"), 500, "api_error"),
        (RuntimeError("a bug"), 500, "api_error"),
    ],
)
async def test_a_failure_before_and_after_the_first_token(serve: Any, error: Exception, status: int, kind: str) -> None:
    steps: list[Any] = [error]
    client, port = await serve(lambda generation: steps)
    for stream in (True, False):
        answer = await client.post(URL, json={**BODY, "stream": stream})
        assert (await refusal(answer))[:2] == (status, kind)
        assert ("retry-after" in answer.headers) == (status == 503)
    steps.insert(0, tokens_emitted([9]))
    answer = await client.post(URL, json={**BODY, "stream": True}, headers={"x-request-id": "mine"})
    found = events(await answer.read())
    assert answer.status == 200
    before = ["message_start", "ping", "content_block_start", "content_block_delta"]
    assert [event["type"] for event in found] == [*before, "error"]
    message = str(error) if isinstance(error, RequestRefused) else "internal error; the server's log has the details"
    assert found[-1] == {"type": "error", "error": {"type": kind, "message": message}, "request_id": "mine"}
    assert port.streams[-1].cancelled.is_set()


async def test_what_does_not_fit_is_said_in_words_that_agents_read(qwen: Any) -> None:
    client, _ = await qwen("a")
    body = {"messages": [user(text("a" * 4000))], "max_tokens": 2000}
    counted = (await (await client.post(f"{URL}/count_tokens", json=body)).json())["input_tokens"]
    said = (await refusal(await client.post(URL, json=body)))[2]
    assert said.startswith(f"input length and `max_tokens` exceed context limit: {counted} + 2000 > 4096, decrease")
    body["messages"] = [user(text("a" * 4096))]
    counted = (await (await client.post(f"{URL}/count_tokens", json=body)).json())["input_tokens"]
    said = (await refusal(await client.post(URL, json=body)))[2]
    assert said == f"prompt is too long: {counted} tokens > 4096 maximum; shorten it"


async def test_a_limit_of_a_tenant(serve: Any, say: Any) -> None:
    client, port = await serve(say("a"), settings=KEYS)
    port.quotas = Quotas({"ann": Limits(requests_per_minute=1)})
    headers = {"x-api-key": "alpha-key"}
    assert (await client.post(URL, json=BODY, headers=headers)).status == 200
    answer = await client.post(URL, json=BODY, headers=headers)
    assert (await refusal(answer))[:2] == (429, "rate_limit_error")


@claim("A key may come as x-api-key or as Authorization, on every path", of="security")
async def test_a_key_in_either_header(serve: Any, say: Any) -> None:
    client, port = await serve(say("a"), settings=KEYS)
    for path, body in ((URL, BODY), ("/v1/chat/completions", BODY), ("/tokenize", {"prompt": "a"})):
        for headers, tenant in (
            ({"x-api-key": "alpha-key"}, "ann"),
            ({"x-api-key": " beta-key "}, "bob"),
            ({"x-api-key": "none", "Authorization": "Bearer alpha-key"}, "ann"),
            ({"x-api-key": "beta-key", "Authorization": "Bearer none"}, "bob"),
            ({"x-api-key": "beta-key", "Authorization": "Bearer alpha-key"}, "ann"),
        ):
            assert (await client.post(path, json=body, headers=headers)).status == 200
            assert port.streams[-1].generation.tenant == tenant or path == "/tokenize"
        for headers in ({"x-api-key": ""}, {"x-api-key": "Bearer alpha-key"}, {"x-api-key": "a"}, {"api-key": "alpha-key"}):
            assert (await client.post(path, json=body, headers=headers)).status == 401
    assert (await client.get("/admin/cluster", headers={"x-api-key": "alpha-key"})).status == 403
    assert (await client.get("/admin/cluster", headers={"x-api-key": "root-key"})).status == 200
    assert "applications" in await (await client.get("/health", headers={"x-api-key": "alpha-key"})).json()


@claim("A client that leaves cancels its request", of="http-api")
@pytest.mark.parametrize("stream", [True, False])
async def test_a_client_that_goes(serve: Any, codec: Any, stream: bool) -> None:
    client, port = await serve(lambda g: [*one_by_one(codec.encode("abc", special=False), ""), asyncio.Event()])
    raw = json.dumps({**BODY, "stream": stream}).encode()
    _, writer = await asyncio.open_connection(client.server.host, client.server.port)
    writer.write(f"POST {URL} HTTP/1.1\r\nHost: localhost\r\nContent-Length: {len(raw)}\r\n\r\n".encode() + raw)
    async with asyncio.timeout(PATIENCE):
        one = await port.waiting.get()
        writer.close()
        await one.cancelled.wait()


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"max_tokens": None}, "max_tokens is missing; give it"),
        ({"max_tokens": -1}, "max_tokens is -1; give an integer from 0"),
        ({"max_tokens": "9"}, "max_tokens is '9'; give an integer"),
        ({"messages": None}, "messages is missing; give it"),
        ({"messages": []}, "messages is []; give a list of at least one message"),
        ({"messages": {}}, "messages is {}; give a list"),
        ({"messages": ["a"]}, "messages[0] is 'a'; give an object with role and content"),
        ({"messages": [{"role": "tool", "content": "a"}]}, "messages[0].role is 'tool'; give one of user, assistant"),
        ({"messages": [{"role": ["user"], "content": "a"}]}, "messages[0].role is [\"user\"]; give one of"),
        ({"messages": [{"role": "user"}]}, "messages[0].content is null or missing; give a string or a list"),
        ({"messages": [user()]}, "messages[0].content is []; give a string or a list of at least one block"),
        ({"messages": [{"role": "user", "content": 7}]}, "messages[0].content is 7; give a string"),
        ({"messages": [assistant()]}, "messages has no text; give a message of role user"),
        ({"messages": [user("a")]}, "messages[0].content[0] is 'a'; give an object with a type"),
        ({"messages": [user({})]}, "messages[0].content[0] is {}; give an object with a type"),
        ({"messages": [user({"type": "text"})]}, "messages[0].content[0].text is null; give a string"),
        ({"messages": [user(text(["a"]))]}, "messages[0].content[0].text is [\"a\"]; give a string"),
        ({"messages": [user(text("\ud800"))]}, "messages[0].content[0].text has a lone surrogate"),
        ({"messages": [{"role": "user", "content": "\ud800"}]}, "messages[0].content has a lone surrogate"),
        ({"messages": [user({"type": "image", "source": {"data": "A" * 10_000}})]},
         "messages[0].content[0] is a block of type 'image', which this server does not read here; give text or"),
        ({"messages": [user({"type": "document"})]}, "is a block of type 'document'"),
        ({"messages": [user(USE)]}, "messages[0].content[0] is a block of type 'tool_use'"),
        ({"messages": [*ASK, assistant(RESULT)]}, "messages[1].content[0] is a block of type 'tool_result'"),
        ({"messages": [{"role": "system", "content": [USE]}]}, "give text"),
        ({"messages": [user({"type": ["text"]})]}, "is a block of type [\"text\"]"),
        ({"messages": [user(RESULT)]}, "messages[0].content[0].tool_use_id is 'a', but the assistant's message before it"),
        ({"messages": [*ASK, assistant(USE), user({**RESULT, "tool_use_id": "b"})]},
         "messages[2].content[0].tool_use_id is 'b'"),
        ({"messages": [*ASK, assistant(USE), user(RESULT, RESULT)]}, "content[1].tool_use_id is 'a' a second time"),
        ({"messages": [*ASK, assistant(USE), user(text(), RESULT)]}, "[2].content[1] is a tool_result behind a text"),
        ({"messages": [*ASK, assistant(USE), *ASK]}, "messages[1].content[0] is a tool_use without a tool_result"),
        ({"messages": [*ASK, assistant(USE)]}, "messages[1].content[0] is a tool_use without a tool_result"),
        ({"messages": [*ASK, assistant(USE), {"role": "system", "content": "a"}, user(text())]}, "is a tool_use without"),
        ({"messages": [*ASK, assistant(USE, USE), user(RESULT)]}, "messages[1].content[1].id is 'a' like another block's"),
        ({"messages": [*ASK, assistant({**USE, "input": "{}"})]}, "messages[1].content[0].input is '{}'; give an object"),
        ({"messages": [*ASK, assistant({**USE, "name": ""})]}, "messages[1].content[0].name is empty"),
        ({"messages": [*ASK, assistant({**USE, "id": None})]}, "messages[1].content[0].id is null; give a string"),
        ({"messages": [*ASK, assistant(USE), user({**RESULT, "is_error": "no"})]}, "content[0].is_error is 'no'"),
        ({"messages": [*ASK, assistant(USE), user({**RESULT, "content": [{"type": "image"}]})]},
         "messages[2].content[0].content[0] is a block of type 'image'"),
        ({"messages": [*ASK, assistant(USE), user({**RESULT, "content": 3})]}, "messages[2].content[0].content is 3"),
        ({"messages": [*ASK, assistant({"type": "thinking", "thinking": "a"})]}, "which an answer cannot continue"),
        ({"messages": [*ASK, assistant({"type": "thinking"})]}, "messages[1].content[0].thinking is null"),
        ({"system": 7}, "system is 7; give a string or a list"),
        ({"system": [{"type": "image"}]}, "system[0] is a block of type 'image'"),
        ({"system": [text(3)]}, "system[0].text is 3"),
        ({"tools": {}}, "tools is {}; give a list of tools"),
        ({"tools": ["a"]}, "tools[0] is 'a'; give an object with name and input_schema"),
        ({"tools": [{"name": "a"}]}, "tools[0].input_schema is missing; give the JSON schema of an object"),
        ({"tools": [{"name": "a b", "input_schema": {}}]}, "tools[0].name is 'a b'; give 1 to 64 letters"),
        ({"tools": [{"name": "a", "input_schema": {"type": "array"}}]}, "tools[0].input_schema is"),
        ({"tools": [{"name": "a", "input_schema": {}, "description": 1}]}, "tools[0].description is no text"),
        ({"tools": [{"name": "a", "input_schema": {}, "strict": 1}]}, "tools[0].strict is 1; give true or false"),
        ({"tools": [{"name": "a", "input_schema": {}}] * 2}, "tools has two tools of the name a"),
        ({"tools": [{"name": "a", "input_schema": {"not": {}}, "strict": True}]}, "keyword not at tools[0].input_schema"),
        ({"tools": [{"type": 3}]}, "tools[0] is {\"type\": 3}"),
        ({"tool_choice": "any"}, "tool_choice is 'any'; give an object of type auto, any, tool, none"),
        ({"tool_choice": {"type": "any"}}, "tool_choice asks for a call, but there are no tools"),
        ({"tools": [{"type": "web_fetch_1", "name": "w"}], "tool_choice": {"type": "tool", "name": "w"}}, "no tools"),
        ({"tool_choice": {"type": "tool"}}, "tool_choice.name is null; give the name of a tool"),
        ({"tool_choice": {"type": "auto", "disable_parallel_tool_use": 1}}, "tool_choice.disable_parallel_tool_use is 1"),
        ({"thinking": True}, "thinking is true; give an object"),
        ({"thinking": {}}, "thinking.type is missing; give one of enabled, disabled, adaptive"),
        ({"thinking": {"type": "on"}}, "thinking.type is 'on'; give one of"),
        ({"thinking": {"type": "enabled", "budget_tokens": "a"}}, "thinking.budget_tokens is 'a'; give an integer"),
        ({"thinking": {"type": "disabled", "budget_tokens": 9}}, "thinking.budget_tokens is 9 beside type disabled"),
        ({"output_config": []}, "output_config is []; give an object"),
        ({"output_config": {"effort": "much"}}, "output_config.effort is 'much'; give one of low"),
        ({"output_config": {"format": {"type": "text"}}}, "output_config.format.type is 'text'; give json_schema"),
        ({"output_config": {"format": {"type": "json_schema"}}}, "output_config.format.schema is missing"),
        ({"output_config": {"format": {"type": "json_schema", "schema": {"not": {}}}}}, "output_config.format.schema"),
        ({"output_config": {"format": {"type": "json_schema", "schema": {}, "x": 1}}}, "output_config.format.x is not"),
        ({"output_config": {"format": {"type": "json_schema", "schema": {}}},
          "output_format": {"type": "json_schema", "schema": {}}}, "both constrain the answer"),
        ({"output_config": {"format": {"type": "json_schema", "schema": {}}}, "messages": [*ASK, assistant(text())]},
         "output_config.format.schema constrains an answer from its beginning"),
        ({"stop_sequences": "a"}, "stop_sequences is 'a'; give a list of strings"),
        ({"stop_sequences": [""]}, "a stop sequence has 0 characters"),
        ({"temperature": 3}, "temperature is 3; give a number from 0 to 2"),
        ({"top_k": 1.5}, "top_k is 1.5; give an integer"),
        ({"stream": "yes"}, "stream is 'yes'; give true or false"),
        ({"metadata": "a"}, "metadata is 'a'; give an object"),
        ({"metadata": {"user_id": 3}}, "metadata.user_id is 3; give a string"),
        ({"service_tier": "best"}, "service_tier is 'best'; give one of standard_only"),
        ({"model": 3}, "model is 3; give a string"),
        ({"stop": ["a"]}, "it is called stop_sequences here: send stop_sequences"),
        ({"response_format": {"type": "json_object"}}, "it is called output_config.format here"),
        ({"max_completion_tokens": 5}, "it is called max_tokens here"),
        ({"skip_special_tokens": False}, "skip_special_tokens (false) is not supported by this server; this endpoint takes"),
        ({"adaptive": "no"}, "adaptive is 'no'; give true or false"),
        ({"n": 2}, "n (2) is not supported by this server; this endpoint takes Anthropic's fields"),
        ({"logprobs": True}, "this endpoint takes Anthropic's fields"),
        ({"temprature": 1}, "temprature is not a field of this endpoint; did you mean temperature?"),
    ],
)  # fmt: skip
def test_a_bad_field_is_named_with_value_and_remedy(fields: dict[str, Any], said: str) -> None:
    with pytest.raises(ApiError) as raised:
        parse_message({key: value for key, value in {**BODY, **fields}.items() if value is not None}, "warn")
    assert raised.value.status == 400
    assert said in raised.value.message
    assert len(raised.value.message) < 400


def test_unknown_fields_are_refused_where_the_setting_says_so() -> None:
    with pytest.raises(ApiError, match=r"unknown fields: 'context_management', 'messages\[0\].content\[0\].x'"):
        parse_message({**BODY, "context_management": {}, "messages": [user({**text(), "x": 1})]}, "reject")


@claim("Hostile bodies of messages are refused in bounded time", of="http-api")
@pytest.mark.parametrize(
    ("body", "status", "said"),
    [
        ({"messages": [user(*[text()] * 100_000)]}, 400, "the body has more than 250000 values"),
        ({"messages": [user({"type": "image", "source": {"type": "base64", "data": "A" * 3_000_000}})]}, 400, "'image'"),
        ({"messages": [*ASK, assistant({**USE, "input": json.loads('{"a":' * 900 + "1" + "}" * 900)}), user(RESULT)]}, 400,
         "prompt is too long"),
        ({"messages": [user(*[text()] * 15_000)]}, 400, "prompt is too long: 300"),
        ({"messages": [one for i in range(4_000) for one in (user(text()), assistant(text()))]}, 400, "prompt is too long"),
    ],
)  # fmt: skip
async def test_hostile_bodies(qwen: Any, body: dict[str, Any], status: int, said: str) -> None:
    client, _ = await qwen("a")
    raw = io.BytesIO(json.dumps({"max_tokens": 9, **body}).encode())
    found = await refusal(await client.post(URL, data=raw))
    assert (found[0], said in found[2]) == (status, True), found
