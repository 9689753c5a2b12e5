"""Prometheus text: counters of requests and what the cluster says."""

from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families

from blockwright.actors.gateway.port import Census, DraftCounts, StreamProgress
from blockwright.actors.worker.sweep_figures import SweepFigures
from blockwright.api.http.gateway_metrics import REASONS
from blockwright.api.http.metrics import KEEP, Metrics
from blockwright.policies.plan.sweep_plan import SweepPlan, SweepResult
from blockwright.policies.requests.refusal import Refusal, RequestRefused
from blockwright.policies.sweep.config import SweepConfig
from blockwright.policies.sweep.state import SweepState
from blockwright.runtime import Actor, Node, RemoteError, endpoint
from blockwright.tests.api.fake_port import tokens_emitted

CACHE = ("prompt_tokens_cached", "prefix_cache_queries", "prefix_cache_hits")
CLUSTER = {
    "workers": [
        {
            "id": "w0",
            "memory": {"budget": 100, "parameters": 40, "kv": 15, "cached": 5, "free": 40},
            "queue": {"waiting": 1, "running": 2},
            "counters": {"preemptions": 4.0, "name": "not a number"},
        }
    ],
    "routes": [{"application": "tiny", "hops": [{"worker": "w0"}]}],
    "kv_pages_shared": 7,
    "autoscale": {"workers": {"wanted": 2, "draining": 1}, "decisions": {"start": 3}, "last": None, "asked": 2},
    "overload": {
        "groups": {"w0+w1": {"state": "pipeline"}, "w2+w3": {"state": "restoring"}, "w4+w5": {"state": "pipeline"}},
        "counts": {"drop": 3, "break off": 1},
        "failures": {"worker_died": 0, "lacking": 2},
        "totals": {"dropped_bytes": 600, "stall_seconds": 0.5},
    },
}


def samples(text: str) -> dict[tuple[str, str], float]:
    """(name, label values in the order of the labels' names) -> value"""
    return {
        (sample.name, ",".join(value for _, value in sorted(sample.labels.items()))): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


@pytest.mark.parametrize("tenant", ["acme", ""])
def test_lines_of_batches_are_a_tenants_use_and_none_of_its_waiting(tenant: str) -> None:
    metrics = Metrics(dict)
    for offline, prompt in ((False, 10), (True, 20), (True, 30)):
        meter = metrics.begin("tiny", prompt, 1, None, tenant, offline=offline)
        meter.began(StreamProgress(prompt=prompt, queue_seconds=4.0), looked=True, first=True)
        meter.tokens(5)
    account = tenant or "tiny"
    use = metrics.tenant_uses()[account]
    assert (use.requests, use.tokens) == (3, 10 + 20 + 30 + 3 * 5)
    seen = samples(metrics.render({}).decode())
    names = ("requests", "queue_seconds", "batch_requests", "tokens")
    assert [seen[f"blockwright:tenant_{name}_total", account] for name in names] == [1, 4.0, 2, 75]


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
    assert seen["vllm:kv_cache_usage_perc", "w0,tiny"] == 0.25
    assert seen["blockwright:worker_memory_bytes", "parameters,w0"] == 40
    assert seen["blockwright:worker_requests", "running,w0"] == 2
    assert seen["blockwright:worker_preemptions", "w0"] == 4
    assert seen["blockwright:kv_pages_shared", ""] == 7
    assert [seen["blockwright:autoscale_workers", stage] for stage in ("wanted", "draining")] == [2, 1]
    assert seen["blockwright:autoscale_decisions", "start"] == 3
    assert seen["blockwright:workers_wanted", ""] == 2
    assert [seen["blockwright:overload_groups", state] for state in ("dropping", "pipeline", "restoring")] == [0, 2, 1]
    assert [seen["blockwright:overload_changes_total", change] for change in ("drop", "break_off")] == [3, 1]
    assert [seen["blockwright:overload_failures_total", reason] for reason in ("worker_died", "lacking")] == [0, 2]
    assert [seen[f"blockwright:overload_{name}_total", ""] for name in ("dropped_bytes", "stall_seconds")] == [600, 0.5]


async def test_a_card_is_shown_as_far_as_it_says(serve: Any) -> None:
    client, port = await serve()
    memory = {"total": 80, "free": 30}
    limits = {"power_limit": 700.0, "clock": 1410, "clock_limit": 1980}
    busy = {"id": "cuda:1", "memory": memory, "use": 0.83, "power": 654.3, "throttled": ["heat"], "errors": 2, **limits}
    silent = {"id": "cuda:0", "memory": memory, "throttled": [], "use": None, "power": None}
    port.body = {"cards": [busy, silent]}
    seen = samples(await (await client.get("/metrics")).text())
    assert {name.removeprefix("blockwright:card_"): value for (name, card), value in seen.items() if card == "cuda:1"} == {
        "use": 0.83, "power_watts": 654.3, "power_limit_watts": 700.0, "clock_mhz": 1410, "clock_limit_mhz": 1980,
        "errors": 2, "throttled": 1,
    }  # fmt: skip
    assert [seen["blockwright:card_memory_bytes", f"cuda:1,{use}"] for use in ("used", "free")] == [50, 30]
    assert {name for name, card in seen if card == "cuda:0"} == {"blockwright:card_throttled"}
    port.body = {"cards": []}
    assert "blockwright:card_" not in await (await client.get("/metrics")).text()


async def test_head_works_and_a_silent_cluster_does_not_matter(serve: Any) -> None:
    client, port = await serve()
    assert (await client.head("/metrics")).status == 200

    async def fails() -> Any:
        raise RuntimeError("no head")

    port.cluster = fails
    assert (await client.get("/metrics")).status == 200


async def test_unfinished_requests(serve: Any) -> None:
    client, _ = await serve(lambda g: [tokens_emitted([5])])
    await client.post("/v1/completions", json={"prompt": "a"})
    seen = samples(await (await client.get("/metrics")).text())
    assert seen["blockwright:requests_unfinished_total", "tiny"] == 1
    assert seen["vllm:request_success_total", "stop,tiny"] == 0


def test_times_are_per_token() -> None:
    now = [0.0]
    metrics = Metrics(dict, clock=lambda: now[0])
    meter = metrics.begin("m", 3, 1, None)
    assert metrics.active == 1
    for at, count in ((1.0, 1), (1.5, 0), (2.0, 2)):
        now[0] = at
        if not at - 1.0:
            meter.began(StreamProgress(prompt=3, cached=2, queue_seconds=0.25), looked=True, first=True)
        meter.tokens(count)
    now[0] = 4.0
    meter.finished("stop", 3)
    drafts = {"prompt": DraftCounts(rounds=2, drafted=9, accepted=4)}
    meter.close(complete=True, sequences=[StreamProgress(preemptions=1, drafts=drafts)] * 2)
    assert metrics.active == 0
    seen = samples(metrics.render({}).decode())
    assert seen["vllm:request_queue_time_seconds_sum", "m"] == 0.25
    assert seen["vllm:request_prefill_time_seconds_sum", "m"] == 0.75
    assert seen["vllm:request_decode_time_seconds_sum", "m"] == 1.0
    assert seen["vllm:request_inference_time_seconds_sum", "m"] == 1.75
    assert seen["vllm:num_preemptions_total", "m"] == 2
    drafted = ("num_drafts", "num_draft_tokens", "num_accepted_tokens")
    assert [seen[f"vllm:spec_decode_{name}_total", "m,prompt"] for name in drafted] == [4, 18, 8]
    assert [seen[f"vllm:{name}_total", "m"] for name in CACHE] == [2, 3, 2]
    assert seen["vllm:time_to_first_token_seconds_sum", "m"] == 1.0
    assert seen["vllm:inter_token_latency_seconds_sum", "m"] == 1.0
    assert seen["vllm:inter_token_latency_seconds_count", "m"] == 2
    assert seen["vllm:request_time_per_output_token_seconds_sum", "m"] == 0.5
    assert seen["vllm:e2e_request_latency_seconds_sum", "m"] == 4.0
    assert seen["vllm:inter_token_latency_seconds_bucket", "0.5,m"] == 2


def test_sequences_now_and_why_they_wait() -> None:
    metrics = Metrics(lambda: {"m": Census(2, {"capacity": 3, "no_worker": 1})})
    seen = samples(metrics.render({}).decode())
    assert (seen["vllm:num_requests_running", "m"], seen["vllm:num_requests_waiting", "m"]) == (2, 4)
    reasons = {reason: seen["vllm:num_requests_waiting_by_reason", f"m,{reason}"] for reason in REASONS}
    assert reasons == {"capacity": 3, "no_worker": 1, "isolated": 0}


def test_a_sequence_that_did_not_look_into_the_cache_does_not_count_there() -> None:
    metrics = Metrics(dict)
    meter = metrics.begin("m", 9, 2, None)
    meter.began(StreamProgress(prompt=9), looked=False, first=True)
    meter.began(StreamProgress(prompt=9, cached=8), looked=True, first=False)
    seen = samples(metrics.render({}).decode())
    assert [seen[f"vllm:{name}_total", "m"] for name in CACHE] == [0, 9, 8]


async def test_refusals_for_want_of_room_are_counted(serve: Any, say: Any) -> None:
    client, port = await serve(say("x"))
    port.refuse = RequestRefused(Refusal.OVERLOADED, "full")
    await client.post("/v1/completions", json={"prompt": "a"})
    port.refuse = RequestRefused(Refusal.INVALID, "wrong")
    await client.post("/v1/completions", json={"prompt": "a"})
    seen = samples(await (await client.get("/metrics")).text())
    assert {key: value for key, value in seen.items() if "rejections_total" in key[0]} == {
        ("vllm:admission_rejections_total", "tiny,unavailable"): 1
    }


def test_sizes_of_sweeps_are_a_histogram_of_the_worker() -> None:
    figures, idle = SweepFigures(), SweepState(SweepConfig(worker="w0", numerics="", budget=0))
    for tokens in (1, 1, 9, 100_000):
        figures.swept(SweepPlan(1, row=[0], start=[0], count=[tokens]), SweepResult(1), idle)
    counters = {**figures.counters(), "preemptions": 1.0}
    routes = [{"application": name, "hops": [{"worker": at}]} for name, at in (("b", "w0"), ("a", "w0"), ("a", "w1"))]
    cluster = {"workers": [{"id": "w0", "counters": counters}], "routes": routes}
    seen = samples(Metrics(dict).render(cluster).decode())
    for model in ("a", "b"):  # whose sweeps they are
        assert seen["vllm:iteration_tokens_total_bucket", f"w0,1.0,{model}"] == 2
        assert seen["vllm:iteration_tokens_total_bucket", f"w0,16.0,{model}"] == 3
        assert seen["vllm:iteration_tokens_total_count", f"w0,{model}"] == 4
        assert seen["vllm:iteration_tokens_total_sum", f"w0,{model}"] == 100_011
    assert not any("sweeps_up_to" in name for name, _ in seen)


async def test_what_the_actor_runtime_counts() -> None:
    class Fails(Actor):
        @endpoint
        async def fail(self) -> None:
            raise ValueError("x")

    node = Node("head", listen=False)
    await node.start()
    ref = await node.spawn(Fails(), name="fails")
    metrics = Metrics(dict)
    metrics.runtime = node.metrics
    before = samples(metrics.render({}).decode())
    assert before["blockwright_runtime_messages_failed_total", "fails,head"] == 0
    assert before["blockwright_runtime_mailbox_depth", "fails,urgent,head"] == 0
    with pytest.raises(RemoteError):
        await ref.fail()
    node.ref("head/fails").nothing.cast()
    after = samples(metrics.render({}).decode())
    assert after["blockwright_runtime_messages_handled_total", "fails,head"] == 1
    assert after["blockwright_runtime_messages_failed_total", "fails,head"] == 1
    assert after["blockwright_runtime_dead_letters_total", "NoSuchActor,head"] == 1
    await node.stop()


def test_models_that_come_and_go_leave_nothing_for_ever() -> None:
    """The last numbers of each can be read for a while; requests under way are never lost."""
    now = [0.0]
    served = {"base"}
    sizes = []
    metrics = Metrics(dict, clock=lambda: now[0], models=lambda: served)
    metrics.begin("base", 1, 1, 1)
    running = metrics.begin("long", 1, 1, 1)
    for number in range(26):
        name = f"app{number:03}"
        served.add(name)
        metrics.begin(name, 1, 1, 1).close(complete=True)
        metrics.rejected(name, "queue_full")
        served.discard(name)
        text = metrics.render({}).decode()
        assert f'model_name="{name}"' in text
        sizes.append(len(text))
        now[0] += KEEP / 10
    assert max(sizes) <= sizes[15]
    assert 'model_name="app010"' not in text
    assert 'model_name="long"' in text
    running.close(complete=True)
    assert metrics.active == 1
