"""Every panel of Grafana finds its series: those of the dashboard that is shipped, and those of vLLM's own.

The second are a list of what each panel of vLLM's dashboard asks for, by its title. Its source: vllm-project/vllm, commit
4b5c627c23e6690b8987100d1cbf78e34ac14bf9, examples/observability/prometheus_grafana/grafana.json. All ask with the label
model_name.
"""

from __future__ import annotations

import json
import re
from importlib.resources import files
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families

from blockwright.api.http.metrics import Metrics
from blockwright.tests.claims import claim
from blockwright.tests.docs.metrics_page import PAGE

LATENCIES = ("_bucket", "_sum", "_count")
VLLM_PANELS = {
    "E2E Request Latency": [f"vllm:e2e_request_latency_seconds{end}" for end in LATENCIES],
    "Token Throughput": ["vllm:prompt_tokens_total", "vllm:generation_tokens_total"],
    "Inter Token Latency": [f"vllm:inter_token_latency_seconds{end}" for end in LATENCIES],
    "Scheduler State": ["vllm:num_requests_running", "vllm:num_requests_waiting"],
    "Time To First Token Latency": [f"vllm:time_to_first_token_seconds{end}" for end in LATENCIES],
    "Cache Utilization": ["vllm:kv_cache_usage_perc"],
    "Request Prompt Length": ["vllm:request_prompt_tokens_bucket"],
    "Request Generation Length": ["vllm:request_generation_tokens_bucket"],
    "Finish Reason": ["vllm:request_success_total"],
    "Queue Time": ["vllm:request_queue_time_seconds_sum"],
    "Requests Prefill and Decode Time": ["vllm:request_prefill_time_seconds_sum", "vllm:request_decode_time_seconds_sum"],
    "Max Generation Token in Sequence Group": ["vllm:request_max_num_generation_tokens_sum"],
}
CLUSTER = {
    "workers": [{"id": "w0", "memory": {"budget": 100, "parameters": 40, "kv": 0, "cached": 60, "free": 0}}],
    "routes": [{"application": "tiny", "hops": [{"worker": "w0"}]}],
    "parameter_bytes": 40,
    "saved_bytes": 2,
}
SERIES = re.compile(r"[a-zA-Z_][\w:]*(?=[{\[)])|(?<![\w:])blockwright:\w+")
FUNCTIONS = {
    "rate",
    "sum",
    "max",
    "by",
    "histogram_quantile",
    "le",
    "model_name",
    "engine",
    "use",
    "reason",
    "outcome",
    "source",
}


def scrape() -> dict[str, list[dict[str, str]]]:
    """Name of a series -> the labels of its samples, of a server that nobody has asked for anything."""
    metrics = Metrics(dict, models=lambda: ["tiny"])
    families = text_string_to_metric_families(metrics.render(CLUSTER).decode())
    found: dict[str, list[dict[str, str]]] = {}
    for sample in (sample for family in families for sample in family.samples):
        found.setdefault(sample.name, []).append(sample.labels)
    return found


def dashboard() -> dict[str, Any]:
    body: dict[str, Any] = json.loads(files("blockwright.api.http").joinpath("grafana.json").read_text())
    return body


@claim("The Grafana panels of vLLM find their series", of="observability")
@pytest.mark.parametrize("title", VLLM_PANELS)
def test_a_panel_of_vllm_finds_its_series(title: str) -> None:
    seen = scrape()
    for name in VLLM_PANELS[title]:
        assert any(labels.get("model_name") == "tiny" for labels in seen.get(name, ())), name


@claim("Every panel of the shipped Grafana file finds its series", of="observability")
@pytest.mark.parametrize("panel", dashboard()["panels"], ids=lambda panel: panel["title"])
def test_a_panel_of_ours_finds_its_series(panel: dict[str, Any]) -> None:
    """docs/metrics.md lists the ones that a server without requests does not have yet; it is as exported."""
    seen, page = scrape(), PAGE.read_text()
    assert panel["description"]
    assert panel["targets"]
    for target in panel["targets"]:
        names = {name for name in SERIES.findall(target["expr"]) if name not in FUNCTIONS}
        assert names, target["expr"]
        for name in names:
            plain = re.sub("_(bucket|sum|count)$", "", name)
            assert name in seen or f"| `{plain}` |" in page, name
            if "model_name" in target["expr"] and name in seen:
                assert any("model_name" in labels for labels in seen[name]), name


def test_a_panel_that_asks_for_nothing_that_is_there_is_found_out() -> None:
    panel = {"description": "x", "targets": [{"expr": 'rate(vllm:no_such_series_total{model_name="m"}[1m])'}]}
    with pytest.raises(AssertionError, match="no_such_series"):
        test_a_panel_of_ours_finds_its_series(panel)


async def test_the_server_gives_it(serve: Any) -> None:
    client, _ = await serve()
    answer = await client.get("/grafana.json")
    assert (answer.status, (await answer.json())["title"]) == (200, "Blockwright")


def test_cached_pages_count_as_free() -> None:
    text = Metrics(dict, models=lambda: ["tiny"]).render(CLUSTER).decode()
    assert 'vllm:kv_cache_usage_perc{engine="w0",model_name="tiny"} 0.0' in text
