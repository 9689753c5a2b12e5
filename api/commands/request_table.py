"""The table of ``blockwright ps --requests``, from the body of ``GET /v1/requests``."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from typing import Any

from rich.console import Group

from .output import FittedTable
from .screen import Screenful

ASKED = 1000  # the most requests that the server returns at a time
PATH = f"/v1/requests?limit={ASKED}"
_SHOWN = 20  # most rows, unless more requests are running or waiting


def request_view(body: Mapping[str, Any]) -> dict[str, Any]:
    """Return all running and waiting requests, filled up with ended ones to ``_SHOWN`` rows."""
    found = body["data"]
    active = sum(1 for _ in itertools.takewhile(lambda one: one["state"] in ("running", "waiting"), found))
    return {**body, "data": found[: max(active, _SHOWN)]}


def request_tables(view: Mapping[str, Any]) -> Screenful:
    """Return running and waiting requests, then ended ones, with tenants if there are any. Prefill and answers in tokens."""
    tenants = any(one.get("tenant") for one in view["data"])  # servers of earlier releases do not report tenants
    rows = [
        (
            one["id"],
            *((one["tenant"] or "-",) if tenants else ()),
            one["model"],
            f"waiting, place {one['place']}" if one["state"] == "waiting" and one["place"] else one["state"],
            one["home"] or "-",
            f"{min(one['computed_tokens'], one['prompt_tokens']):,} of {one['prompt_tokens']:,}",
            f"{one['emitted_tokens']:,}",
            f"{one['age']:,.1f} s",
        )
        for one in view["data"]
    ]
    columns = ("REQUEST", *(("TENANT",) if tenants else ()), "MODEL", "STATE", "ON", "PREFILL", "TOKENS", "TIME")
    table = FittedTable(columns, rows, numbers=3, least=("PREFILL", "ON", "MODEL"))
    return Screenful(Group(_counted(view["data"]), ""), table) if rows else Screenful("no requests yet", Group())


def _counted(found: Sequence[Mapping[str, Any]]) -> str:
    """Return a summary of the rows, since the screen may be too short for all of them."""
    running, waiting = (sum(one["state"] == state for one in found) for state in ("running", "waiting"))
    most = f"; only the latest {ASKED:,} are listed" if len(found) >= ASKED else ""
    return f"{running:,} running, {waiting:,} waiting, {len(found) - running - waiting:,} ended recently{most}"
