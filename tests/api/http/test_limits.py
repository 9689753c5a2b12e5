"""Who may use what, and how much: models of a tenant, quotas, what the headers say of them, what is given back."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from blockwright.api.errors import ApiError
from blockwright.api.http.auth import ApiCaller, ServiceClasses
from blockwright.api.http.limits import TenantLimits
from blockwright.policies.requests.admission import admit
from blockwright.policies.requests.rate_limit import Limits, Quotas, Verdict
from blockwright.policies.requests.refusal import Refusal, RequestRefused
from blockwright.tests.api.fake_port import tokens_emitted
from blockwright.tests.claims import claim

KEYS = {"api_keys": {"alpha-key": "ann", "beta-key": "bob"}}
ANN, BOB = {"Authorization": "Bearer alpha-key"}, {"Authorization": "Bearer beta-key"}
ASK = {"prompt": "abc", "max_tokens": 5}
ASKED = [{"role": "user", "content": "a"}]


@claim("A tenant sees and uses only its own models", of="security")
async def test_a_tenant_sees_and_uses_its_models_alone(serve: Any, say: Any, folder: Any) -> None:
    applications = {"applications": {"tiny": str(folder), "org/other": str(folder)}}
    client, _ = await serve(
        say("x"), settings={**KEYS, **applications, "tenant_models": {"ann": "org/other, tiny", "bob": "tiny"}}
    )
    listed = [m["id"] for m in (await (await client.get("/v1/models", headers=BOB)).json())["data"]]
    assert listed == ["tiny"]
    assert len((await (await client.get("/v1/models", headers=ANN)).json())["data"]) == 2
    for path, body in (("/v1/completions", ASK), ("/v1/chat/completions", {"messages": [{"role": "user", "content": "a"}]})):
        refused = await client.post(path, json={**body, "model": "org/other"}, headers=BOB)
        error = (await refused.json())["error"]
        assert (refused.status, error["code"], error["param"]) == (403, "permission_denied", "model")
        assert "'bob' may not use model 'org/other'; it may use: tiny" in error["message"]
    assert (await client.get("/v1/models/org/other", headers=BOB)).status == 403
    assert (await client.get("/v1/models/org/other", headers=ANN)).status == 200


@claim("Headers report rate limits, times and retry advice", of="http-api")
async def test_a_spent_quota_is_a_429_with_what_to_wait_for(serve: Any, say: Any) -> None:
    client, port = await serve(say("xy"), settings=KEYS)
    port.quotas = Quotas({"ann": Limits(requests_per_minute=2, tokens_per_minute=100)})
    first = await client.post("/v1/completions", json=ASK, headers=ANN)
    assert first.status == 200
    assert first.headers["x-ratelimit-limit-requests"] == "2"
    assert first.headers["x-ratelimit-remaining-requests"] == "1"
    assert first.headers["x-ratelimit-reset-requests"] == "30s"
    assert first.headers["x-ratelimit-limit-tokens"] == "100"
    assert int(first.headers["x-ratelimit-remaining-tokens"]) < 100
    assert (await client.post("/v1/completions", json=ASK, headers=ANN)).status == 200
    refused = await client.post("/v1/completions", json=ASK, headers=ANN)
    error = (await refused.json())["error"]
    assert (refused.status, error["type"], error["code"]) == (429, "requests", "rate_limit_exceeded")
    assert "'ann' is limited to 2 requests per minute; try again in 30.0 s" in error["message"]
    assert (refused.headers["Retry-After"], refused.headers["retry-after-ms"]) == ("30", "30000")
    assert refused.headers["x-ratelimit-remaining-requests"] == "0"
    assert refused.headers["x-should-retry"] == "true"
    others = await client.post("/v1/completions", json=ASK, headers=BOB)
    assert others.status == 200
    assert "x-ratelimit-limit-requests" not in others.headers
    port.now = 30.0
    assert (await client.post("/v1/completions", json=ASK, headers=ANN)).status == 200


async def test_what_can_never_pass_is_not_to_be_sent_again(serve: Any, say: Any) -> None:
    client, port = await serve(say("x"), settings=KEYS)
    port.quotas = Quotas({"ann": Limits(tokens_per_minute=4)})
    refused = await client.post("/v1/completions", json=ASK, headers=ANN)
    error = (await refused.json())["error"]
    assert (refused.status, error["type"]) == (429, "tokens")
    assert "lower max_tokens or shorten the prompt" in error["message"]
    assert refused.headers["x-should-retry"] == "false"
    assert "Retry-After" not in refused.headers
    assert not port.streams
    newer = await client.post("/v1/responses", json={"input": "a", "max_output_tokens": 5}, headers=ANN)
    assert "lower max_output_tokens or shorten" in (await newer.json())["error"]["message"]


FORMS = [
    ("/v1/completions", {"prompt": "abc", "max_tokens": 5}, "max_tokens"),
    ("/v1/chat/completions", {"messages": ASKED, "max_tokens": 5}, "max_tokens"),
    ("/v1/chat/completions", {"messages": ASKED, "max_completion_tokens": 5}, "max_completion_tokens"),
    ("/v1/responses", {"input": "abc", "max_output_tokens": 5}, "max_output_tokens"),
    ("/v1/messages", {"messages": ASKED, "max_tokens": 5}, "max_tokens"),
]


@pytest.mark.parametrize(("url", "body", "name"), FORMS)
@pytest.mark.parametrize("stream", [False, True])
async def test_a_refusal_names_the_clients_own_field(serve: Any, url: str, body: Any, name: str, stream: bool) -> None:
    """Refusals of a gateway, before and after the first token, and of the context's length."""
    sentence = admit(9, 8)
    assert sentence is not None
    gone = RequestRefused(Refusal.TOO_LONG, sentence)
    client, port = await serve(lambda generation: [gone])
    asked = {"model": "tiny", **body, "stream": stream}
    said = await (await client.post(url, json=asked)).json()
    assert f"; lower {name}, shorten the prompt" in said["error"]["message"]
    assert said["error"].get("param", name) == name
    port._script = lambda generation: [tokens_emitted([5]), gone]
    late = await (await client.post(url, json=asked)).text()
    assert f"; lower {name}, shorten the prompt" in late
    said = await (await client.post(url, json=asked | {name: 5000})).json()
    assert f"lower {name}" in said["error"]["message"] or f"or `{name}`" in said["error"]["message"]


async def test_unused_tokens_are_given_back_whole_and_streamed_and_when_the_client_leaves(serve: Any, say: Any) -> None:
    client, port = await serve(say("xy"), settings=KEYS)
    port.quotas = Quotas({"ann": Limits(tokens_per_minute=1000)})
    whole = await (await client.post("/v1/completions", json={**ASK, "n": 2}, headers=ANN)).json()
    prompt = whole["usage"]["prompt_tokens"]
    assert port.settled == [("ann", prompt + 2 * 5, whole["usage"]["total_tokens"])]
    streamed = await client.post("/v1/completions", json={**ASK, "stream": True}, headers=ANN)
    await streamed.read()
    assert port.settled[1] == ("ann", prompt + 5, prompt + 2)

    held = asyncio.Event()
    port._script = lambda generation: [held]
    gone = asyncio.ensure_future(client.post("/v1/completions", json=ASK, headers=ANN))
    stream = await port.waiting.get()
    gone.cancel()
    await stream.cancelled.wait()
    assert port.settled[2] == ("ann", prompt + 5, prompt)


async def test_a_request_that_the_gateway_refuses_costs_nothing(serve: Any, say: Any) -> None:

    client, port = await serve(say("x"), settings=KEYS)
    port.quotas = Quotas({"ann": Limits(concurrent_requests=1)})
    port.refuse = RequestRefused(Refusal.UNAVAILABLE, "full", 7.2)
    for _ in range(3):
        refused = await client.post("/v1/completions", json=ASK, headers=ANN)
        assert (refused.status, refused.headers["Retry-After"], refused.headers["retry-after-ms"]) == (503, "8", "7200")
    assert [used for _, _, used in port.settled] == [0, 0, 0]


async def test_a_client_that_leaves_while_it_is_charged_keeps_no_place(serve: Any, say: Any) -> None:
    client, port = await serve(say("x"), settings=KEYS)
    port.quotas = Quotas({"ann": Limits(concurrent_requests=1)})
    limits = TenantLimits(port)
    asked = asyncio.Event()
    answer = asyncio.Event()
    charge = port.charge

    async def slow(tenant: str, tokens: int) -> Verdict:
        verdict: Verdict = await charge(tenant, tokens)
        asked.set()
        await answer.wait()
        return verdict

    port.charge = slow
    entering = asyncio.ensure_future(limits.enter(ApiCaller("ann"), 5))
    await asked.wait()
    entering.cancel()
    await asyncio.gather(entering, return_exceptions=True)
    answer.set()
    port.charge = charge
    await asyncio.sleep(0)  # the charge's own task comes to its end, and then what was hung on it
    await asyncio.sleep(0)
    assert port.settled == [("ann", 5, 0)]
    assert (await client.post("/v1/completions", json=ASK, headers=ANN)).status == 200


@pytest.mark.parametrize("path", ["/admin/cluster", "/admin/none"])
async def test_where_there_are_admin_keys_only_they_see_the_admin_views(serve: Any, path: str) -> None:
    client, _ = await serve(settings={**KEYS, "admin_keys": {"root-key": "ops"}})
    refused = await client.get(path, headers=ANN)
    assert (refused.status, (await refused.json())["error"]["code"]) == (403, "permission_denied")
    assert (await client.get(path)).status == 401
    allowed = await client.get(path, headers={"Authorization": "Bearer root-key"})
    assert allowed.status == (200 if path == "/admin/cluster" else 404)
    assert (await client.get("/v1/models", headers={"Authorization": "Bearer root-key"})).status == 200


async def test_a_tenant_asks_for_no_higher_class_than_its_own(serve: Any, say: Any) -> None:
    client, _ = await serve(say("x"), settings={**KEYS, "tenant_classes": {"bob": "normal"}})
    for tier, status in (("priority", 403), ("fast", 403), (None, 200), ("flex", 200)):
        answer = await client.post("/v1/completions", json={**ASK, "service_tier": tier}, headers=BOB)
        assert answer.status == status
        if status == 403:
            error = (await answer.json())["error"]
            assert (error["code"], error["param"]) == ("permission_denied", "service_tier")
            assert (
                f"'bob' may not use service_tier '{tier}'; give service_tier as one of: auto, default, flex"
                in error["message"]
            )
    answer = await client.post("/v1/completions", json={**ASK, "service_tier": "priority"}, headers=ANN)
    assert answer.status == 200
    highest = ServiceClasses({"bob": "batch"})
    with pytest.raises(ApiError, match="'bob' may not leave out service_tier; give service_tier as one of: flex"):
        highest.check(ApiCaller("bob"), None)
    unknown = await client.post("/v1/completions", json={**ASK, "service_tier": "urgent"}, headers=ANN)
    assert unknown.status == 400
    assert "priority" in (await unknown.json())["error"]["message"]
