"""A line of the log for each request, and every ten seconds one of all."""

from __future__ import annotations

from typing import Any

import pytest

from blockwright.actors.gateway.port import Census, StreamProgress
from blockwright.api.http.metrics import TokenCounts
from blockwright.api.http.throughput import line
from blockwright.tests.claims import claim

LOG = "blockwright.api.http.request_log"


@claim("Each answer is one line of the log with its figures", of="observability")
async def test_an_answer_is_one_line_with_its_figures(serve: Any, say: Any, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO", logger=LOG)
    client, port = await serve(say("abcd"), settings={"api_keys": {"secret": "ann"}})
    headers = {"Authorization": "Bearer secret", "x-request-id": "mine"}
    for stream in (False, True):
        caplog.clear()
        answer = await client.post("/v1/completions", json={"prompt": "ab", "stream": stream}, headers=headers)
        await answer.read()
        (said,) = caplog.messages
        assert said.startswith(f"{port.streams[-1].generation.id} (tiny): 200 after 0.")
        assert "tenant 'ann', 2 prompt + " in said
        assert "first token after 0." in said
        assert said.endswith("x-request-id 'mine'")
        assert "secret" not in caplog.text


async def test_cached_tokens_and_preemptions_are_reported(serve: Any, say: Any, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO", logger=LOG)
    client, port = await serve(say("abcd"))
    made = port.generate

    def generate(generation: Any) -> Any:
        stream = made(generation)
        stream.now = StreamProgress(prompt=2, cached=1, preemptions=2)
        return stream

    port.generate = generate
    await client.post("/v1/completions", json={"prompt": "ab"})
    assert ", 1 cached, preempted 2 times" in caplog.messages[-1]


async def test_refusals_say_why_and_polls_are_quiet(serve: Any, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO", logger=LOG)
    client, _ = await serve()
    for path in ("/health", "/metrics", "/", "/admin/cluster", "/load", "/v1/requests?limit=12", "/v1/requests/none"):
        await client.get(path)
    assert caplog.messages == []
    await client.post("/v1/requests/none/cancel")
    assert caplog.messages[-1].startswith("POST /v1/requests/{id}/cancel: 404"), "which is no look"
    await client.post("/v1/completions", json={"prompt": "a", "model": "tyny"})
    assert caplog.messages[-1].startswith("POST /v1/completions: 404 after 0.")
    assert "model_not_found: the model 'tyny' does not exist" in caplog.messages[-1]
    await client.get("/nowhere")
    assert caplog.messages[-1].startswith("GET none: 404 after 0.")
    text = await (await client.get("/metrics")).text()
    assert 'http_requests_total{handler="/v1/completions",method="POST",status="4xx"} 1.0' in text
    assert 'http_requests_total{handler="/health",method="GET",status="2xx"} 1.0' in text


def test_throughput() -> None:
    before, after = TokenCounts(100, 50, 100, 40), TokenCounts(300, 250, 300, 90)
    busy = {"tiny": Census(2, {"capacity": 3}), "other": Census(1)}
    said = line(before, after, 10.0, busy)
    assert said == "20.0 prompt and 20.0 generated tokens/s, 3 running, 3 waiting, 25% prefix cache hits"
    assert line(after, after, 10.0, {}) == "", "nothing to tell"
    assert line(after, after, 10.0, busy).startswith("0.0 prompt and 0.0 generated tokens/s, 3 running")
