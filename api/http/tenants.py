"""Tenants: the weight, usage, limits and KV memory of each, for ``/admin/cluster`` and as Prometheus measures.

A tenant is the account that requests are charged to: an API key's tenant or, without keys, a model. Pure: the counters of
the processes, the limiter's standings and the workers' memory are passed in.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from ...actors.gateway.peers import TenantUse
from ...actors.settings.network import NetworkSettings
from ...actors.settings.settings import Settings
from ...actors.settings.tenants import TenantSettings
from ...policies.measures import Measure, gauge
from ...policies.requests.account import is_offline_account
from ...policies.requests.rate_limit import EVERYBODY, LimitStatus
from ..named_models import is_named

Standings = Mapping[str, Mapping[str, LimitStatus]]  # tenant -> limit -> its standing


def key_tenants(network: NetworkSettings) -> list[str]:
    """Return the tenants that have keys, by name; without keys only "", whose limits cover all requests together."""
    return sorted(network.tenants) or [""]


def tenants_view(
    settings: Settings, cluster: Mapping[str, Any], uses: Iterable[Mapping[str, TenantUse]], standings: Standings
) -> list[dict[str, Any]]:
    """Return ``tenants`` of ``/admin/cluster``, by name: tenants with keys (without keys: the models) or with usage.

    ``cluster``: the body so far. ``uses``: one entry for each process.
    """
    used = _added(uses)
    workers = cluster.get("workers", ())
    held = _held(workers, "kv_by_tenant")
    keys = [tenant for tenant in key_tenants(settings.network) if tenant]
    known = keys or [one["model"] for one in cluster.get("applications", {}).values() if is_named(one)]
    limited = [tenant for tenant, limits in standings.items() if limits]
    hits = _held(workers, "kv_cap_hits")
    return [
        {
            "tenant": name,
            "weight": None if is_offline_account(name) or not name else _own(settings.tenants.tenant_weights, name, 1),
            "requests": {
                "running": used[name].running if name in used else 0,
                "waiting": used[name].waiting if name in used else 0,
                "started": used[name].requests if name in used else 0,
            },
            "refused": used[name].refused if name in used else {},
            "tokens": used[name].tokens if name in used else 0,
            "kv": {"bytes": held.get(name, 0), "cap": _cap(settings.tenants, name, workers), "cap_hits": hits.get(name, 0)},
            "limits": {
                limit: {"allowed": one.limit, "used": one.limit - one.remaining, "reset": round(one.reset, 3)}
                for limit, one in standings.get(name, {}).items()
            },
        }
        for name in sorted({*known, *used, *held, *limited})
    ]


def _added(uses: Iterable[Mapping[str, TenantUse]]) -> dict[str, TenantUse]:
    """Return the sums over all processes."""
    total: dict[str, TenantUse] = {}
    for process in uses:
        for name, use in process.items():
            total[name] = total[name].beside(use) if name in total else use
    return total


def _held(workers: Sequence[Mapping[str, Any]], field: str) -> dict[str, int]:
    """Return a number of each tenant, summed over all workers."""
    total: dict[str, int] = {}
    for worker in workers:
        for tenant, amount in (worker.get(field) or {}).items():
            total[tenant] = total.get(tenant, 0) + amount
    return total


def _own(values: Mapping[str, Any], tenant: str, default: Any) -> Any:
    return values.get(tenant, values.get(EVERYBODY, default))


def _cap(settings: TenantSettings, tenant: str, workers: Sequence[Mapping[str, Any]]) -> int | None:
    """Return the most bytes of KV that a tenant may hold on all workers, by the workers' own computation; None: no cap."""
    shares = settings.tenant_kv_share
    share = shares.get(tenant) if is_offline_account(tenant) else _own(shares, tenant, None)
    if share is None or not tenant:
        return None
    rooms = [worker["memory"]["budget"] - worker["memory"]["parameters"] for worker in workers]
    return sum(int(share * room) for room in rooms)


def tenant_measures(tenants: Sequence[Mapping[str, Any]]) -> Iterator[Measure]:
    """Yield the tenants' figures that ``/admin/cluster`` has and no process counts."""
    weights = {one["tenant"]: one["weight"] for one in tenants if one["weight"] is not None}
    yield gauge("blockwright:tenant_weight", "A tenant's weight in the fair share of workers.", weights, "tenant")
    caps = {one["tenant"]: one["kv"]["cap"] for one in tenants if one["kv"]["cap"] is not None}
    text = "Most KV memory that a tenant may hold, on all workers."
    yield gauge("blockwright:tenant_kv_cap_bytes", text, caps, "tenant")
    limits = {(one["tenant"], limit): standing for one in tenants for limit, standing in one["limits"].items()}
    for name, text, what in (
        ("tenant_limit", "What a tenant's limit allows.", "allowed"),
        ("tenant_limit_used", "What of it is used now.", "used"),
    ):
        yield gauge(f"blockwright:{name}", text, {key: one[what] for key, one in limits.items()}, "tenant", "limit")
