"""What ``blockwright ps --requests`` shows, from the body of ``GET /v1/requests``."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rich.console import Group

from blockwright.api.commands.fitted_table import FittedTable


def request_view(body: Mapping[str, Any]) -> dict[str, Any]:
    """As the server tells it."""
    return dict(body)


def request_tables(view: Mapping[str, Any]) -> Group:
    """What runs and waits first, then what ended. Prefill and answers in tokens."""
    rows = [
        (
            one["id"],
            one["model"],
            f"waiting, place {one['place']}" if one["state"] == "waiting" and one["place"] else one["state"],
            one["home"] or "-",
            f"{min(one['computed_tokens'], one['prompt_tokens']):,} of {one['prompt_tokens']:,}",
            f"{one['emitted_tokens']:,}",
            f"{one['age']:,.1f} s",
        )
        for one in view["data"]
    ]
    columns = ("REQUEST", "MODEL", "STATE", "ON", "PREFILL", "TOKENS", "AGE")
    table = FittedTable(columns, rows, numbers=3, least=("PREFILL", "ON", "MODEL"))
    return Group(table) if rows else Group("no requests yet")
