"""The table of ``blockwright ps --tenants``, from ``tenants`` of ``/admin/cluster``."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rich.console import Group

from .output import FittedTable
from .screen import Screenful, View
from .tables import size

_LIMITS = {  # limit -> column
    "requests_per_minute": "REQ/MIN",
    "tokens_per_minute": "TOK/MIN",
    "tokens_per_day": "TOK/DAY",
    "concurrent_requests": "AT ONCE",
}


def tenant_view(cluster: Mapping[str, Any]) -> dict[str, Any]:
    """Return the tenants of a cluster, busy ones first; none if the server's release does not report tenants."""

    def use(one: Mapping[str, Any]) -> tuple[int, int]:
        requests = one["requests"]
        return -requests["running"] - requests["waiting"], -requests["started"]

    return {"tenants": sorted((dict(one) for one in cluster.get("tenants", ())), key=use)}


def tenant_tables(view: View) -> Screenful:
    """Return weight, requests, tokens, KV and refusals of each tenant, and the use of its limits.

    The column of a limit is left out if no tenant has it.
    """
    tenants = view["tenants"]
    limits = [limit for limit in _LIMITS if any(limit in one["limits"] for one in tenants)]
    rows = [
        (
            one["tenant"] or "all together",
            "-" if one["weight"] is None else str(one["weight"]),
            *(f"{one['requests'][name]:,}" for name in ("running", "waiting", "started")),
            f"{sum(one['refused'].values()):,}",
            f"{one['tokens']:,}",
            size(one["kv"]["bytes"]) + (f" of {size(one['kv']['cap'])}" if one["kv"]["cap"] is not None else ""),
            *(_used(one["limits"].get(limit)) for limit in limits),
        )
        for one in tenants
    ]
    columns = (
        "TENANT",
        "WEIGHT",
        "RUN",
        "WAIT",
        "STARTED",
        "REFUSED",
        "TOKENS",
        "KV+CACHED",
        *(_LIMITS[limit] for limit in limits),
    )
    table = FittedTable(columns, rows, numbers=len(columns) - 1, least=("STARTED", "TOKENS", "WEIGHT"))
    running, waiting = (sum(one["requests"][name] for one in tenants) for name in ("running", "waiting"))
    said = f"{len(tenants)} tenant{'s' * (len(tenants) != 1)}; {running:,} running, {waiting:,} waiting"
    return Screenful(Group(said, ""), table) if rows else Screenful("no tenants: the server tells of none", Group())


def _used(standing: Mapping[str, Any] | None) -> str:
    """Return the use of a limit."""
    return "-" if standing is None else f"{standing['used']:,} of {standing['allowed']:,}"
