"""Families and drafts in ``ps`` and ``top``: what a tier owns, rows of segments, choices, tokens of a step with drafts."""

from __future__ import annotations

import io
import json
from pathlib import Path
from typing import Any

import jsonschema
from rich.console import Console

from blockwright.actors.gateway.port import DraftCounts, StreamProgress, TierFigures
from blockwright.api.commands.observe import Sample, ps_view, read_sample, top_view
from blockwright.api.commands.screen import Screenful
from blockwright.api.commands.tables import ps_tables, top_tables
from blockwright.api.http.metrics import Metrics

SCHEMAS = Path(__file__).parents[3] / "docs" / "schemas"
LOWER = ["m", "m:3", "m:4"]
UPPER = ["m", "m:4"]
TOP = ["m"]


def application(own: int, family: str, *segments: tuple[list[str], int]) -> dict[str, Any]:
    return {
        "base": family or None,
        "family": family,
        "kv": {"bytes": 0, "shared": 0},
        "requests": {"running": 0, "waiting": 0},
        "checkpoint": "/m",
        "state": "ready",
        "max_length": 64,
        "bytes": {"shared": 90, "own": own},
        "blocks": [],
        "segments": [{"of": of, "layers": layers, "bytes": 9, "delta": 0} for of, layers in segments],
        "refused": {},
    }


def cluster(*segments: tuple[int, int, int, int], hidden: int = 0) -> dict[str, Any]:
    """The body of ``/admin/cluster``: one worker with these segments (first layer, last layer, sweeps, rows)."""
    names = ("first", "last", "sweeps", "rows")
    return {
        "applications": {
            "m": application(40, "", (LOWER, 3), (UPPER, 1), (TOP, 2)),
            "m:4": application(0, "m", (LOWER, 3), (UPPER, 1), (["m:4"], 0)),
            "m:3": application(2048, "m", (LOWER, 3), (["m:3"], 0)),
        },
        "workers": [
            {
                "id": "w0", "pid": 7, "state": "ready", "restarts": 0, "device": "cpu", "numerics": "n", "incarnation": 1,
                "memory": {"budget": 100, "parameters": 20, "kv": 20, "cached": 20, "free": 40}, "blocks": [],
                "queue": {"waiting": 0, "running": 0}, "counters": {"hidden_bytes": hidden},
                "segments": [{"family": "m", **dict(zip(names, one, strict=True))} for one in segments],
            }
        ],
        "routes": [{"application": name, "hops": [{"worker": "w0", "first": 0, "last": 1}]} for name in LOWER],
        "parameter_bytes": 100,
        "saved_bytes": 60,
        "default": "m",
        "autoscale": {
            "mode": "off", "limit": 5.0, "least": 1, "most": 1, "decisions": {"start": 0, "drain": 0}, "last": None,
            "workers": {"wanted": 1, "active": 1, "starting": 0, "draining": 0}, "launcher": "local", "asked": 1,
        },
    }  # fmt: skip


def sample(at: float, body: dict[str, Any], rounds: int = 0, chosen: int = 0) -> Sample:
    """A sample after ``rounds`` rounds of a tier's drafts for m and ``chosen`` choices of the lowest tier."""
    metrics = Metrics(dict, tiers=lambda: TierFigures({("m", "m:3"): chosen, ("m", "m"): 1} if chosen else {}))
    drafts = {"tier": DraftCounts(rounds, 4 * rounds, 3 * rounds)}
    metrics.begin("m", 9, 1, 4).close(complete=True, sequences=[StreamProgress(drafts=drafts)])
    if chosen:
        metrics.begin("m:auto", 7, 1, 4).began(StreamProgress(prompt=7), looked=False, first=True)
    return read_sample(at, body, metrics.render({}).decode())


def shown(made: Screenful, width: int = 80) -> list[str]:
    console = Console(width=width, record=True, file=io.StringIO())
    console.print(made.head, made.body)
    return [line.rstrip() for line in console.export_text().splitlines()]


def checked(name: str, view: dict[str, Any]) -> None:
    jsonschema.validate(view, json.loads((SCHEMAS / f"{name}.json").read_text()))


def test_ps_shows_what_a_tier_owns_and_with_which_it_shares() -> None:
    view = ps_view(cluster(hidden=3072))
    checked("ps", view)
    lines = shown(ps_tables(view))
    assert "m:3   3 of 6  head, 2.0 KiB  m:4, m" in lines
    assert "m:4   4 of 6  head of m      m:3 (3), m" in lines
    assert "m     6 of 6  40 B           m:3 (3), m:4 (4)" in lines
    assert any(line.startswith("WORKER") and line.endswith("HIDDEN") for line in lines)
    assert any(line.startswith("w0") and line.endswith("3.0 KiB") for line in lines)
    assert not [line for line in lines if "REDUNDANT" in line]
    twice = cluster()
    twice["workers"][0]["counters"] = {"redundant_pages": 1234}
    view = ps_view(twice)
    checked("ps", view)
    assert any(line.startswith("w0") and line.endswith("1,234") for line in shown(ps_tables(view), 100))
    none = ps_view({**cluster(), "applications": {"m": application(40, "", (["m"], 6))}})
    assert none["families"] == []
    assert not [line for line in shown(ps_tables(none)) if "TIER" in line or "HIDDEN" in line]


def test_a_family_without_parameters_in_memory_has_no_layers_to_show() -> None:
    body = cluster()
    for one in body["applications"].values():
        one["segments"] = []
    assert "m:3   -       head, 2.0 KiB  -" in shown(ps_tables(ps_view(body)))


def test_top_shows_rows_of_segments_choices_and_drafts_of_the_time_between_two_looks() -> None:
    before = sample(0.0, cluster((1, 3, 10, 10), (4, 4, 5, 5), (5, 6, 4, 4)), rounds=2, chosen=1)
    after = sample(2.0, cluster((1, 3, 20, 40), (4, 4, 10, 15), (5, 6, 4, 4), hidden=8), rounds=6, chosen=3)
    view = top_view(before, after)
    checked("top", view)
    assert view["drafts"] == [{"model": "m", "source": "tier", "rounds": 4, "tokens_per_round": 4.0, "accepted": 0.75}]
    lines = shown(top_tables(view))
    assert "m       1 to 3  m:3         10           3.00" in lines
    assert "m       4       m:4          5           2.00" in lines
    assert "m       5 to 6  m            4           1.00" in lines, "so far, since no row passed these meanwhile"
    assert "m:auto was answered by m:3 3, m 1" in lines
    assert "m          tier        4         4.00       75%" in lines
    assert any(line.startswith("m:auto  chooses") for line in lines), "its tokens are no other model's"
    assert "3 models in 100 B instead of 160 B (38% saved)" in lines, "m:auto is no model"
    assert view["workers"][0]["hidden"] == 0.1
    assert max(map(len, lines)) <= 80


def test_top_without_families_and_drafts_shows_nothing_of_them() -> None:
    body = {**cluster(), "applications": {"m": application(40, "", (["m"], 6))}}
    lines = shown(top_tables(top_view(sample(0.0, body), sample(1.0, body))))
    assert not [line for line in lines if line.startswith(("FAMILY", "DRAFTS")) or "HIDDEN" in line or "auto" in line]
