"""Tenants in ``/admin/cluster``: weight, use, limits, KV of the cap; the same numbers as in ``/metrics``."""

from __future__ import annotations

from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families

from blockwright.actors.gateway.peers import TenantUse
from blockwright.actors.gateway.port import Census
from blockwright.actors.settings.settings import Settings
from blockwright.api.http.tenants import tenants_view
from blockwright.policies.requests.rate_limit import Limits, Quotas
from blockwright.tests.claims import claim

ROOT = {"Authorization": "Bearer of-root"}
SETTINGS = {
    "api_keys": {"of-ann": "team-a", "of-bob": "team-b"},
    "admin_keys": {"of-root": "operators"},
    "tenant_weights": {"team-a": 3},
    "tenant_kv_share": {"*": 0.5, ":left": 0.25},
}
WORKER = {
    "memory": {"budget": 1000, "parameters": 400, "kv": 300, "cached": 100, "free": 200},
    "kv_by_tenant": {"team-a": 250, ":left": 40},
    "kv_cap_hits": {"team-a": 2},
}


def samples(text: str) -> dict[tuple[str, ...], float]:
    found = {}
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            if "tenant" in sample.labels:
                rest = [value for label, value in sorted(sample.labels.items()) if label != "tenant"]
                found[sample.name, sample.labels["tenant"], *rest] = sample.value
    return found


@claim("Tenants' weights, use and limits are the same in `/admin`, metrics and commands", of="observability")
async def test_admin_cluster_and_metrics_tell_the_same_of_each_tenant(serve: Any, say: Any) -> None:
    client, port = await serve(say("xy"), settings=SETTINGS)
    port.body = {"workers": [{"id": "w0", **WORKER}, {"id": "w1", **WORKER}], "applications": {"tiny": {"model": "tiny"}}}
    port.quotas = Quotas({"team-a": Limits(requests_per_minute=2, tokens_per_day=1000), "*": Limits(concurrent_requests=4)})
    port.accounts = {"team-b": Census(2, {"capacity": 1, "no_worker": 1})}
    statuses = []
    for _ in range(4):
        headers = {"Authorization": "Bearer of-ann"}
        answer = await client.post("/v1/completions", json={"prompt": "abc", "max_tokens": 5}, headers=headers)
        statuses.append(answer.status)
    assert statuses == [200, 200, 429, 429]
    view = (await (await client.get("/admin/cluster", headers=ROOT)).json())["tenants"]
    by_name = {one["tenant"]: one for one in view}
    assert list(by_name) == [":left", "operators", "team-a", "team-b"]
    ann = by_name["team-a"]
    assert (ann["weight"], ann["refused"]) == (3, {"rate_limit_exceeded": 2})
    assert ann["requests"] == {"running": 0, "waiting": 0, "started": 2}
    assert ann["tokens"] == 2 * (3 + 2)
    assert ann["kv"] == {"bytes": 500, "cap": 600, "cap_hits": 4}
    assert (ann["limits"]["requests_per_minute"]["allowed"], ann["limits"]["requests_per_minute"]["used"]) == (2, 2)
    assert (ann["limits"]["tokens_per_day"]["allowed"], ann["limits"]["tokens_per_day"]["used"]) == (1000, 10)
    assert by_name["team-b"]["requests"] == {"running": 2, "waiting": 2, "started": 0}
    assert by_name["team-b"]["limits"] == {"concurrent_requests": {"allowed": 4, "used": 0, "reset": 0.0}}
    assert (by_name[":left"]["weight"], by_name[":left"]["kv"]["cap"]) == (None, 300)
    seen = samples(await (await client.get("/metrics", headers=ROOT)).text())
    for name, one in by_name.items():
        assert seen.get(("blockwright:tenant_weight", name)) == one["weight"]
        assert seen["blockwright:tenant_kv_cap_bytes", name] == one["kv"]["cap"]
        held = sum(seen.get(("blockwright:worker_tenant_kv_bytes", name, worker), 0) for worker in ("w0", "w1"))
        assert held == one["kv"]["bytes"]
        assert seen.get(("blockwright:tenant_requests_total", name), 0) == one["requests"]["started"]
        assert seen.get(("blockwright:tenant_tokens_total", name), 0) == one["tokens"]
        for state in ("running", "waiting"):
            assert seen.get(("blockwright:tenant_sequences", name, state), 0) == one["requests"][state]
        refused = {key[2]: n for key, n in seen.items() if key[:2] == ("blockwright:tenant_refused_total", name)}
        assert refused == one["refused"]
        for limit, standing in one["limits"].items():
            assert seen["blockwright:tenant_limit", name, limit] == standing["allowed"]
            assert seen["blockwright:tenant_limit_used", name, limit] == standing["used"]


async def test_without_keys_the_models_are_the_tenants(serve: Any, say: Any) -> None:
    client, port = await serve(say("xy"), settings={"tenant_weights": {"tiny": 2}})
    port.body = {"workers": [], "applications": {"tiny": {"model": "tiny"}, "tiny (#1)": {"model": "tiny"}}}
    assert (await client.post("/v1/completions", json={"prompt": "abc", "max_tokens": 5})).status == 200
    (one,) = (await (await client.get("/admin/cluster")).json())["tenants"]
    assert (one["tenant"], one["weight"], one["requests"]["started"], one["tokens"], one["limits"]) == ("tiny", 2, 1, 5, {})


async def test_limits_of_an_open_server_are_those_of_all_together(serve: Any, say: Any) -> None:
    client, port = await serve(say("xy"))
    port.body = {"workers": [], "applications": {"tiny": {"model": "tiny"}}}
    port.quotas = Quotas({"*": Limits(requests_per_minute=1)})
    statuses = [(await client.post("/v1/completions", json={"prompt": "a", "max_tokens": 2})).status for _ in range(2)]
    assert statuses == [200, 429]
    view = {one["tenant"]: one for one in (await (await client.get("/admin/cluster")).json())["tenants"]}
    assert view[""]["limits"]["requests_per_minute"]["used"] == 1
    assert view["tiny"]["refused"] == {"rate_limit_exceeded": 1}


@pytest.mark.parametrize("processes", [1, 3])
def test_what_all_processes_have_counted_is_added(processes: int) -> None:
    use = TenantUse(1, 2, 3, 4, {"queue_full": 5})
    settings = Settings(api_keys={"k": "acme"})
    (one,) = tenants_view(settings, {"workers": []}, [{"acme": use}] * processes, {"acme": {}})
    assert one["requests"] == {"running": processes, "waiting": 2 * processes, "started": 3 * processes}
    assert (one["tokens"], one["refused"]) == (4 * processes, {"queue_full": 5 * processes})
