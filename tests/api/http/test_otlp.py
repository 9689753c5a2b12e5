"""Spans of requests, as a collector gets them."""

from __future__ import annotations

import builtins
import tomllib
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer

from blockwright.actors.settings.errors import SettingsError
from blockwright.actors.settings.logs import LogSettings
from blockwright.actors.settings.settings import Settings
from blockwright.api.app.application import _spans
from blockwright.policies.requests.refusal import Refusal, RequestRefused
from blockwright.tests.claims import claim

pytest.importorskip("opentelemetry.sdk", reason="the extra otlp is not installed")
ROOT = Path(__file__).parents[3]
TRACE, PARENT = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"
TRACEPARENT = f"00-{TRACE}-{PARENT}-01"


class Collector:
    """``spans``: of all that came."""

    def __init__(self) -> None:
        self.spans: list[Any] = []
        self.resources: list[dict[str, str]] = []
        app = web.Application()
        app.router.add_post("/v1/traces", self._take)
        self.server = TestServer(app)

    async def _take(self, request: web.Request) -> web.Response:
        from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

        body = ExportTraceServiceRequest.FromString(await request.read())
        for resource in body.resource_spans:
            self.resources.append({one.key: one.value.string_value for one in resource.resource.attributes})
            self.spans += [span for scope in resource.scope_spans for span in scope.spans]
        return web.Response(body=b"", content_type="application/x-protobuf")


@pytest.fixture
async def collector() -> AsyncIterator[Collector]:
    made = Collector()
    await made.server.start_server()
    yield made
    await made.server.close()


def attributes(span: Any) -> dict[str, Any]:
    def value(one: Any) -> Any:
        kind = one.WhichOneof("value")
        return [value(v) for v in one.array_value.values] if kind == "array_value" else getattr(one, kind)

    return {one.key: value(one.value) for one in span.attributes}


@claim("Requests are exported as OTLP spans of the client's trace", of="observability")
async def test_a_request_is_a_span_of_its_clients_trace(serve: Any, say: Any, collector: Collector) -> None:
    endpoint = str(collector.server.make_url("/v1/traces"))
    client, port = await serve(say("abcd"), settings={"otlp_traces_endpoint": endpoint, "api_keys": {"secret": "ann"}})
    headers = {"Authorization": "Bearer secret"}
    asked = {"prompt": "ab", "max_tokens": 4, "temperature": 0.5, "stream": True}
    answer = await client.post("/v1/completions", json=asked, headers={**headers, "traceparent": TRACEPARENT})
    await answer.read()
    chat = {"messages": [{"role": "user", "content": "hi"}]}
    assert (await client.post("/v1/chat/completions", json=chat, headers=headers)).status == 200
    port.refuse = RequestRefused(Refusal.UNAVAILABLE, "no worker is up")
    assert (await client.post("/v1/completions", json={"prompt": "ab"}, headers=headers)).status == 503
    assert (await client.get("/v1/models", headers=headers)).status == 200
    await client.close()  # sends what waits

    first, second, third = collector.spans
    assert collector.resources[0]["service.name"] == "blockwright"
    assert (first.name, first.kind) == ("llm_request", 2)  # of a server
    assert (first.trace_id.hex(), first.parent_span_id.hex()) == (TRACE, PARENT)
    outcome = attributes(first)
    assert outcome["gen_ai.operation.name"] == "text_completion"
    assert outcome["gen_ai.request.model"] == outcome["gen_ai.response.model"] == "tiny"
    assert outcome["gen_ai.response.id"] == outcome["gen_ai.request.id"]
    assert (outcome["gen_ai.request.max_tokens"], outcome["gen_ai.request.temperature"]) == (4, 0.5)
    assert (outcome["gen_ai.usage.input_tokens"], outcome["gen_ai.usage.prompt_tokens"]) == (2, 2)
    assert outcome["gen_ai.usage.output_tokens"] == outcome["gen_ai.usage.completion_tokens"] > 0
    assert outcome["gen_ai.response.finish_reasons"] == ["length"]
    assert 0 < outcome["gen_ai.latency.time_to_first_token"] <= outcome["gen_ai.latency.e2e"]
    assert outcome["gen_ai.latency.time_in_queue"] >= 0
    assert (outcome["http.response.status_code"], outcome["blockwright.tenant"]) == (200, "ann")
    assert "gen_ai.request.top_p" not in outcome, "the request did not name it"
    (event,) = first.events
    assert event.name == "first_token"
    assert first.start_time_unix_nano < event.time_unix_nano <= first.end_time_unix_nano

    assert attributes(second)["gen_ai.operation.name"] == "chat"
    assert not second.parent_span_id
    refused = attributes(third)
    assert (refused["http.response.status_code"], refused["error.type"]) == (503, "unavailable")
    assert (third.status.code, third.status.message) == (2, "unavailable: no worker is up")
    assert "gen_ai.usage.output_tokens" not in refused


async def test_a_span_has_the_id_that_its_work_had(serve: Any, say: Any, collector: Collector) -> None:
    """So that logs of messages and the tracing system tell of the same; one that its client does not sample is not sent."""
    endpoint = str(collector.server.make_url("/v1/traces"))
    client, _ = await serve(say("abcd"), settings={"otlp_traces_endpoint": endpoint})
    answer = await client.post("/v1/completions", json={"prompt": "ab"}, headers={"traceparent": TRACEPARENT})
    unsampled = TRACEPARENT[:-1] + "0"
    assert (await client.post("/v1/completions", json={"prompt": "ab"}, headers={"traceparent": unsampled})).status == 200
    await client.close()
    (span,) = collector.spans
    assert answer.headers["traceparent"].split("-")[1:3] == [TRACE, span.span_id.hex()]


def test_without_the_packages_it_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    real = builtins.__import__

    def lacking(name: str, *args: Any, **kwargs: Any) -> Any:
        if name.endswith("http.otlp"):
            raise ImportError("no", name="opentelemetry")
        return real(name, *args, **kwargs)

    monkeypatch.setattr(builtins, "__import__", lacking)
    settings = Settings(applications={"m": "x"}, otlp_traces_endpoint="http://localhost:4318/v1/traces")
    extra = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]["otlp"]
    packages = " ".join(one.partition(">")[0] for one in extra)
    with pytest.raises(SettingsError, match=rf"not installed \(opentelemetry\); pip install {packages}$"):
        _spans(settings.logs)
    assert _spans(LogSettings()) is None


def test_an_endpoint_is_a_url() -> None:
    with pytest.raises(SettingsError, match="otlp_traces_endpoint is 'localhost:4318'; give a URL like"):
        Settings(applications={"m": "x"}, otlp_traces_endpoint="localhost:4318")
