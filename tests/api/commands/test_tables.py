"""Tables of ps and top: groups of equal adapters, and numbers as people read them."""

from __future__ import annotations

import io
from typing import Any

from rich.console import Console

from blockwright.api.commands.screen import Scroll, screen
from blockwright.api.commands.tables import idle_groups, milliseconds, ps_tables, size, top_tables


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
        "max_length": 64,
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


def test_twenty_four_models_fit_80_columns_and_24_lines() -> None:
    worker = {
        "id": "w0", "state": "ready", "device": "cpu", "numerics": "n", "pid": 7, "restarts": 0, "blocks": 1,
        "memory": {"parameters": 9, "kv": 1, "cached": 0, "free": 3},
        "running": 1, "waiting": 0, "parameters": 9, "kv_used": 0.1, "kv_cached": 0.2, "cache_hits": 0.3,
    }  # fmt: skip
    rates = dict.fromkeys(("tokens_per_s", "prompt_tokens_per_s", "kv_used", "shared", "cache_hits"), 0.5)
    rates |= {"ttft_p50": None, "ttft_p95": 0.2, "running": 0, "waiting": 0}
    models = [model("lora07", busy=True, **rates), *(model(f"lora{n:02}", **rates) for n in range(22) if n != 7)]
    models += [model(name, adapter=False, base=None, **rates) for name in ("base", "full0", "full1")]
    view = {
        "applications": models, "workers": [worker, worker | {"id": "w1"}], "parameters": {"stored": 5, "saved": 7},
        "autoscale": {"mode": "off"}, "overload": None, "batches": [], "default": "base",
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
