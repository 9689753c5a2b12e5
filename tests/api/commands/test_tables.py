"""Tables of ps and top: groups of equal adapters, requests, tenants, and numbers as people read them."""

from __future__ import annotations

import io
from typing import Any

import pytest
from rich.console import Console

from blockwright.api.commands.family_tables import chain_lines
from blockwright.api.commands.observe import ASKED, request_view, tenant_view
from blockwright.api.commands.screen import Scroll, screen
from blockwright.api.commands.tables import (
    app_tables,
    card_lines,
    idle_groups,
    milliseconds,
    ps_tables,
    request_tables,
    size,
    tenant_tables,
    top_tables,
)
from blockwright.policies.adaptive.similarity import Similarity
from blockwright.tests.claims import claim


def test_numbers_for_people() -> None:
    assert [size(amount) for amount in (0, 1023, 1536, 3 << 30, 5 << 40)] == [
        "0 B",
        "1023 B",
        "1.5 KiB",
        "3.0 GiB",
        "5.0 TiB",
    ]
    assert (milliseconds(None), milliseconds(0.0214)) == ("-", "21 ms")


def model(id: str, **more: Any) -> dict[str, Any]:
    plain = {
        "id": id, "base": "base", "adapter": True, "busy": False, "state": "ready", "replicas": [["w0"], ["w1"]],
        "memory": {"own": 1024, "shared": 9}, "kv": {"bytes": 0, "shared": 0}, "requests": {"running": 0, "waiting": 0},
        "max_length": 64, "family": "", "chains": {},
    }  # fmt: skip
    return {**plain, **more}


def test_equal_idle_adapters_are_a_group() -> None:
    adapters = [model(f"lora{n:02}", replicas=[["w1"], ["w0"]][:: 1 if n % 2 else -1]) for n in range(22)]
    others = [
        model("base", adapter=False, base=None),
        model("copy", adapter=False),
        model("busy", busy=True),
        *(model(f"odd{n}", memory={"own": n, "shared": 9}) for n in range(5)),
        *(model(f"late{n}", state="on demand", replicas=[], base=None) for n in range(4)),
    ]
    single, groups = idle_groups([*others[:4], *adapters, *others[4:]])
    assert [one["id"] for one in single] == ["base", "copy", "busy", "odd0", "odd1", "odd2", "odd3", "odd4"]
    assert groups == [
        "lora00 ... lora21: 22 idle adapters of base; ready on w0, w1; 1.0 KiB each",
        "late0 ... late3: 4 idle adapters; on demand; 1.0 KiB each",
    ]
    assert idle_groups(adapters[:3]) == (adapters[:3], []), "three are no group"


def test_a_model_that_variants_served_has_the_shares_of_its_chains() -> None:
    served = [model("a", chains={"": 3, "a~1": 1}), model("b", chains={"": 2}), model("c", chains={"c~2": 1})]
    assert chain_lines([*served, model("d")]) == [
        "chains chosen for a, 4 times with switches: its own chain 75%, a~1 25%",
        "chains chosen for c, 1 time with switches: c~2 100%",
    ]
    scored = model("a", chains={"a~1": 1}, similarity=Similarity(1, 40, 35, -20.0).view())
    assert chain_lines([scored])[1:] == [
        "of 1 answer by others 87.5% of 40 tokens are the likeliest of a, mean log-probability -0.500"
    ]


def test_twenty_four_models_fit_80_columns_and_24_lines() -> None:
    worker = {
        "id": "w0", "state": "ready", "device": "cpu", "numerics": "n", "pid": 7, "restarts": 0, "blocks": 1,
        "memory": {"parameters": 9, "kv": 1, "cached": 0, "free": 3},
        "running": 1, "waiting": 0, "parameters": 9, "kv_used": 0.1, "kv_cached": 0.2, "cache_hits": 0.3,
        "hidden": 0.0, "redundant": 0, "guesses": {"made": 0, "accepted": 0}, "on_host": 0.25,
        "links": {}, "came": {}, "store": "", "given_up": "", "reported": {},
    }  # fmt: skip
    rates = dict.fromkeys(("tokens_per_s", "prompt_tokens_per_s", "kv_used", "shared", "cache_hits"), 0.5)
    rates |= {"ttft_p50": None, "ttft_p95": 0.2, "running": 0, "waiting": 0}
    models = [model("lora07", busy=True, **rates), *(model(f"lora{n:02}", **rates) for n in range(22) if n != 7)]
    models += [model(name, adapter=False, base=None, **rates) for name in ("base", "full0", "full1")]
    view = {
        "applications": models, "workers": [worker, worker | {"id": "w1"}], "parameters": {"stored": 5, "saved": 7},
        "autoscale": {"mode": "off"}, "overload": None, "batches": [], "default": "base", "families": [], "drafts": [],
        "cards": [], "placement": {}, "doubts": "",
    }  # fmt: skip
    for tables in (ps_tables, top_tables):
        paper = Console(file=io.StringIO(), width=80, height=24, force_terminal=True, color_system=None)
        paper.print(screen(paper, "http://there", tables(view), Scroll()), end="")
        lines = [line.rstrip() for line in paper.file.getvalue().split("\n")]  # type: ignore[attr-defined]
        assert len(lines) <= 24
        assert max(map(len, lines)) <= 80
        firsts = [line.split()[0] if line else "" for line in lines]
        wanted = ["WORKER", "w0", "w1", "", "MODEL", "lora07", "base", "full0", "full1", "lora00"]
        assert firsts[firsts.index("WORKER") :] == wanted, "workers first, then busy models, then the others"
        assert lines[-1] == "lora00 ... lora21: 21 idle adapters of base; ready on w0, w1; 1.0 KiB each"


def test_a_card_is_a_line_of_what_it_says() -> None:
    """Nothing where workers compute on none."""
    card = {
        "id": "cuda:0", "name": "NVIDIA H100", "memory": {"total": 80 << 30, "free": 39 << 30}, "use": 0.83, "power": 654.3,
        "power_limit": 700.0, "throttled": ["heat"], "errors": 2,
    }  # fmt: skip
    silent = card | {"use": None, "power": None, "throttled": [], "errors": None}
    assert card_lines([card, silent, silent | {"power": 70.2, "power_limit": None}]) == [
        "",
        "cuda:0 (NVIDIA H100): 41.0 GiB of 80.0 GiB used, 83% busy, 654 of 700 W, held down by heat, "
        "2 memory errors not corrected",
        "cuda:0 (NVIDIA H100): 41.0 GiB of 80.0 GiB used",
        "cuda:0 (NVIDIA H100): 41.0 GiB of 80.0 GiB used, 70 W",
    ]
    assert card_lines([]) == []


ID = "cmpl-gw0-0123456789abcdef01234567"


def request_line(**more: Any) -> dict[str, Any]:
    plain = {"id": ID, "model": "tiny", "state": "running", "place": 0, "prompt_tokens": 9, "computed_tokens": 12}
    return {**plain, "emitted_tokens": 4, "home": "w0", "attempt": 1, "age": 1.25, **more}


def printed_requests(data: list[dict[str, Any]], width: int) -> list[str]:
    paper = Console(file=io.StringIO(), width=width)
    paper.print(request_tables({"data": data}).fitted(paper))
    return paper.file.getvalue().splitlines()  # type: ignore[attr-defined, no-any-return]


def test_ids_are_whole_and_places_are_reported() -> None:
    waiting = request_line(state="waiting", place=3, home=None, computed_tokens=0, emitted_tokens=0)
    outcome = printed_requests([request_line(), waiting], 110)
    assert outcome[:2] == ["1 running, 1 waiting, 0 ended recently", ""]
    outcome = outcome[2:]
    assert outcome[1].split() == [ID, "tiny", "running", "w0", "9", "of", "9", "4", "1.2", "s"]
    assert outcome[2].split()[1:6] == ["tiny", "waiting,", "place", "3", "-"]
    narrow = printed_requests([request_line(), waiting], 80)[2:]
    assert max(map(len, narrow)) <= 80
    assert ID in "".join(part.split()[0] for part in narrow[1:2])
    assert printed_requests([], 80) == ["no requests yet"]


def test_a_column_has_the_tenants_if_there_are_any() -> None:
    outcome = printed_requests([request_line(tenant="team-a"), request_line(tenant="")], 120)[2:]
    assert outcome[0].split()[:3] == ["REQUEST", "TENANT", "MODEL"]
    assert [row.split()[1] for row in outcome[1:]] == ["team-a", "-"]
    assert "TENANT" not in printed_requests([request_line(tenant="")], 120)[2]


def test_all_that_run_are_shown_and_few_that_ended() -> None:
    many = [request_line() for _ in range(60)] + [request_line(state="finished") for _ in range(60)]
    assert len(request_view({"data": many})["data"]) == 60
    few = request_view({"data": many[55:]})["data"]
    assert [one["state"] for one in few] == ["running"] * 5 + ["finished"] * 15
    assert printed_requests(few, 110)[0] == "5 running, 0 waiting, 15 ended recently"
    assert printed_requests([request_line()] * ASKED, 110)[0].endswith("; only the latest 1,000 are listed")


def tenant(name: str, **more: Any) -> dict[str, Any]:
    requests = {"running": 0, "waiting": 0, "started": 0}
    kv = {"bytes": 0, "cap": None, "cap_hits": 0}
    return {"tenant": name, "weight": 1, "requests": requests, "refused": {}, "tokens": 0, "kv": kv, "limits": {}, **more}


def printed_tenants(tenants: list[dict[str, Any]], width: int) -> list[str]:
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
    outcome = printed_tenants([tenant(":left", weight=None), tenant("team-a"), busy], 120)
    assert outcome[:2] == ["3 tenants; 2 running, 1 waiting", ""]
    columns = ["TENANT", "WEIGHT", "RUN", "WAIT", "STARTED", "REFUSED", "TOKENS", "KV+CACHED", "REQ/MIN", "TOK/DAY"]
    assert outcome[2].split() == columns
    row = "team-b 3 2 1 1,234 5 56,789 3.0 MiB of 8.0 MiB 7 of 60 56,789 of 100,000"
    assert " ".join(outcome[3].split()) == row, "busy ones first"
    assert outcome[4].split()[:2] == [":left", "-"]
    narrow = printed_tenants([tenant("team-a"), busy], 80)
    assert max(map(len, narrow)) <= 80
    assert "56,789 of 100,000" in narrow[3]


def test_limits_of_all_together_have_a_name_and_an_old_server_tells_none() -> None:
    assert printed_tenants([tenant("")], 80)[3].split()[:2] == ["all", "together"]
    assert printed_tenants([], 80) == ["no tenants: the server tells of none"]


def app(state: str = "on demand", base: str | None = "base", checkpoint: str = "") -> dict[str, Any]:
    return {"state": state, "base": base, "checkpoint": checkpoint}


MANY_APPS = {
    "base": app("ready", None, "/models/base"),
    "lora00": app("ready", checkpoint="/ada/lora00"),
    **{f"lora{n:02}": app(checkpoint=f"/ada/lora{n:02}") for n in range(1, 21)},
    "latest": app(checkpoint="/ada/lora03"),
    "tuned": app("failed", None, "/models/tuned"),
}


def app_lines(height: int, terminal: bool = True) -> list[str]:
    console = Console(file=io.StringIO(), width=80, height=height, force_terminal=terminal, color_system=None)
    console.print(app_tables({"applications": MANY_APPS, "default": "base"}).fitted(console))
    assert isinstance(console.file, io.StringIO)
    return [line.rstrip() for line in console.file.getvalue().splitlines()]


def test_twenty_four_models_fit_a_terminal_of_24_lines() -> None:
    lines = app_lines(24)
    assert lines[:2] == ["24 models: 2 ready, 21 on demand, 1 failed", "requests without a model go to base"]
    assert [line.split() for line in lines[3:8]] == [
        ["APPLICATION", "STATE", "BASE", "CHECKPOINT"],
        ["base", "ready", "-", "/models/base"],
        ["lora00", "ready", "base", "/ada/lora00"],
        ["latest", "on", "demand", "base", "/ada/lora03"],
        ["tuned", "failed", "-", "/models/tuned"],
    ]
    assert lines[8:] == ["lora01 ... lora20: 20 adapters of base; on demand; in /ada"]


@pytest.mark.parametrize(("height", "terminal"), [(40, True), (24, False)])
def test_a_long_screen_and_a_file_have_a_line_for_each(height: int, terminal: bool) -> None:
    lines = app_lines(height, terminal)
    assert len(lines) == 28
    assert {line.index("/") for line in lines[4:]} == {lines[3].index("CHECKPOINT")}


def test_one_model_of_a_server_whose_default_is_gone() -> None:
    head = Console(file=io.StringIO(), width=80)
    head.print(app_tables({"applications": {"a": app(base=None)}, "default": "b"}).head)
    assert isinstance(head.file, io.StringIO)
    assert head.file.getvalue().startswith("1 model: 1 on demand\nrequests without a model are refused: b is not served\n")
