"""Prometheus text: counters of requests and what the cluster says."""

from typing import Any

from prometheus_client.parser import text_string_to_metric_families

from blockwright.actors.gateway.port import Delta
from blockwright.api.metrics import Metrics

CLUSTER = {
    "workers": [
        {
            "id": "w0",
            "memory": {"budget": 100, "parameters": 40, "kv": 15, "free": 45},
            "queue": {"waiting": 1, "running": 2},
            "counters": {"preemptions": 4.0, "name": "not a number"},
        }
    ],
    "kv_pages_shared": 7,
}


def samples(text: str) -> dict[tuple[str, str], float]:
    """(name, label values in the order of the labels' names) -> value"""
    return {
        (sample.name, ",".join(value for _, value in sorted(sample.labels.items()))): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


async def test_a_request_is_counted(serve: Any, say: Any) -> None:
    client, port = await serve(say("abc"))
    port.body = CLUSTER
    await client.post("/v1/completions", json={"prompt": "ab", "n": 2, "max_tokens": 5})
    answer = await client.get("/metrics")
    assert answer.headers["Content-Type"].startswith("text/plain; version=")
    seen = samples(await answer.text())
    assert seen["vllm:prompt_tokens_total", "tiny"] == 2
    assert seen["vllm:generation_tokens_total", "tiny"] == 6
    assert seen["vllm:request_success_total", "length,tiny"] == 2
    assert seen["vllm:num_requests_running", "tiny"] == seen["vllm:num_requests_waiting", "tiny"] == 0
    assert seen["vllm:time_to_first_token_seconds_count", "tiny"] == 1
    assert seen["vllm:request_params_n_sum", "tiny"] == 2
    assert seen["vllm:request_params_max_tokens_sum", "tiny"] == 5
    assert seen["vllm:kv_cache_usage_perc", ""] == 0.25
    assert seen["blockwright:worker_memory_bytes", "parameters,w0"] == 40
    assert seen["blockwright:worker_requests", "running,w0"] == 2
    assert seen["blockwright:worker_preemptions", "w0"] == 4
    assert seen["blockwright:kv_pages_shared", ""] == 7


async def test_head_works_and_a_silent_cluster_does_not_matter(serve: Any) -> None:
    client, port = await serve()
    assert (await client.head("/metrics")).status == 200

    async def fails() -> Any:
        raise RuntimeError("no head")

    port.cluster = fails
    assert (await client.get("/metrics")).status == 200


async def test_unfinished_requests(serve: Any) -> None:
    client, _ = await serve(lambda g: [Delta([5])])
    await client.post("/v1/completions", json={"prompt": "a"})
    seen = samples(await (await client.get("/metrics")).text())
    assert seen["blockwright:requests_unfinished_total", "tiny"] == 1
    assert seen["vllm:request_success_total", "stop,tiny"] == 0


def test_times_are_per_token() -> None:
    now = [0.0]
    metrics = Metrics(clock=lambda: now[0])
    meter = metrics.begin("m", 3, 1, None)
    assert samples(metrics.render({}).decode())["vllm:num_requests_waiting", "m"] == 1
    for at, count in ((1.0, 1), (1.5, 0), (2.0, 2)):
        now[0] = at
        meter.tokens(count)
    assert samples(metrics.render({}).decode())["vllm:num_requests_running", "m"] == 1
    now[0] = 4.0
    meter.finished("stop", 3)
    meter.close(complete=True)
    seen = samples(metrics.render({}).decode())
    assert seen["vllm:time_to_first_token_seconds_sum", "m"] == 1.0
    assert seen["vllm:inter_token_latency_seconds_sum", "m"] == 1.0
    assert seen["vllm:inter_token_latency_seconds_count", "m"] == 2
    assert seen["vllm:request_time_per_output_token_seconds_sum", "m"] == 0.5
    assert seen["vllm:e2e_request_latency_seconds_sum", "m"] == 4.0
    assert seen["vllm:inter_token_latency_seconds_bucket", "0.5,m"] == 2
