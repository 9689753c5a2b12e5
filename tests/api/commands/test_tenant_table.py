"""ps --tenants on 80 columns."""

from __future__ import annotations

import io
from typing import Any

from rich.console import Console

from blockwright.api.commands.tenant_table import tenant_tables, tenant_view
from blockwright.tests.claims import claim


def tenant(name: str, **more: Any) -> dict[str, Any]:
    requests = {"running": 0, "waiting": 0, "started": 0}
    kv = {"bytes": 0, "cap": None, "cap_hits": 0}
    return {"tenant": name, "weight": 1, "requests": requests, "refused": {}, "tokens": 0, "kv": kv, "limits": {}, **more}


def printed(tenants: list[dict[str, Any]], width: int) -> list[str]:
    paper = Console(file=io.StringIO(), width=width)
    paper.print(tenant_tables(tenant_view({"tenants": tenants})).fitted(paper))
    return [line.rstrip() for line in paper.file.getvalue().splitlines()]  # type: ignore[attr-defined]


@claim("Tenants' weights, use and limits are the same in `/admin`, metrics and commands", of="observability")
def test_use_of_what_is_allowed() -> None:
    busy = tenant(
        "team-b", weight=3, requests={"running": 2, "waiting": 1, "started": 1234}, tokens=56789, refused={"a": 4, "b": 1},
        kv={"bytes": 3 << 20, "cap": 8 << 20, "cap_hits": 0},
        limits={"requests_per_minute": {"allowed": 60, "used": 7, "reset": 1.0},
                "tokens_per_day": {"allowed": 100000, "used": 56789, "reset": 9.0}},
    )  # fmt: skip
    told = printed([tenant(":left", weight=None), tenant("team-a"), busy], 120)
    assert told[:2] == ["3 tenants; 2 running, 1 waiting", ""]
    columns = ["TENANT", "WEIGHT", "RUN", "WAIT", "STARTED", "REFUSED", "TOKENS", "KV+CACHED", "REQ/MIN", "TOK/DAY"]
    assert told[2].split() == columns
    row = "team-b 3 2 1 1,234 5 56,789 3.0 MiB of 8.0 MiB 7 of 60 56,789 of 100,000"
    assert " ".join(told[3].split()) == row, "busy ones first"
    assert told[4].split()[:2] == [":left", "-"]
    narrow = printed([tenant("team-a"), busy], 80)
    assert max(map(len, narrow)) <= 80
    assert "56,789 of 100,000" in narrow[3]


def test_limits_of_all_together_have_a_name_and_an_old_server_tells_none() -> None:
    assert printed([tenant("")], 80)[3].split()[:2] == ["all", "together"]
    assert printed([], 80) == ["no tenants: the server tells of none"]
