"""What ps and top show, from bodies of a server."""

from __future__ import annotations

import io
import json
from pathlib import Path
from typing import Any

import jsonschema
import pytest
from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest
from rich.console import Console, Group

from blockwright.actors.batches.actor import figures_of
from blockwright.api.commands.observe import ps_view, quantile, read_sample, reported_lines, top_view
from blockwright.api.commands.output import FittedTable
from blockwright.api.commands.tables import (
    app_tables,
    change_line,
    family_lines,
    milliseconds,
    overload_lines,
    ps_tables,
    top_tables,
    total_line,
)
from blockwright.api.http.metrics import Metrics
from blockwright.policies.offline.density import Costs
from blockwright.policies.offline.feed import OfflineFeed, OfflineRequest
from blockwright.policies.offline.prefix_tree import packed
from blockwright.tests.claims import claim


def application(blocks: list[str], own: int, shared: int, base: str | None = None) -> dict[str, Any]:
    return {
        "base": base,
        "kv": {"bytes": 20, "shared": 5},
        "requests": {"running": 1, "waiting": 2},
        "checkpoint": "/m",
        "state": "ready",
        "max_length": 64,
        "bytes": {"shared": shared, "own": own},
        "blocks": blocks,
        "refused": {},
    }


def worker(name: str, kv: int, free: int, **counters: float) -> dict[str, Any]:
    memory = {"budget": 100, "parameters": 90 - kv - free, "kv": kv, "cached": 10, "free": free}
    plain = {"id": name, "pid": 7, "state": "ready", "restarts": 0, "device": "cpu", "numerics": "n", "incarnation": 1}
    return {
        **plain,
        "cause": "",
        "memory": memory,
        "blocks": ["a"],
        "queue": {"waiting": 1, "running": 2},
        "counters": counters,
    }


def route(name: str, *workers: str) -> dict[str, Any]:
    return {"application": name, "hops": [{"worker": w, "first": 0, "last": 1} for w in workers]}


CLUSTER = {
    "applications": {
        "base": application(["a", "b"], 10, 30),
        "tuned": application(["a", "c"], 10, 30, "base"),
        "other": application(["d"], 50, 0),
    },
    "workers": [
        worker("w0", 20, 60, prompt_tokens=100, cached_tokens=25, generated_tokens=9, drawn_on_host=12),
        worker("w1", 0, 50),
    ],
    "routes": [route("base", "w0"), route("base", "w1"), route("tuned", "w0", "w1")],
    "parameter_bytes": 100,
    "saved_bytes": 60,
    "default": "base",
    "autoscale": {
        "mode": "relief", "limit": 5.0, "workers": {"wanted": 2, "active": 1, "starting": 1, "draining": 0},
        "last": {"at": 7.0, "decision": "start w1", "why": "6 s measured, the limit is 5 s"},
        "launcher": "command", "asked": 1,
    },
}  # fmt: skip


def metrics(tokens: int, times: list[float]) -> str:
    registry = CollectorRegistry()
    labels = ["model_name"]
    Gauge("vllm:num_requests_running", "x", labels, registry=registry).labels("base").set(3)
    Counter("vllm:generation_tokens", "x", labels, registry=registry).labels("base").inc(tokens)
    buckets = (0.1, 0.2, 0.4)
    Counter("vllm:prefix_cache_queries", "x", labels, registry=registry).labels("base").inc(200)
    Counter("vllm:prefix_cache_hits", "x", labels, registry=registry).labels("base").inc(30)
    histogram = Histogram("vllm:time_to_first_token_seconds", "x", labels, buckets=buckets, registry=registry).labels("base")
    for seconds in times:
        histogram.observe(seconds)
    Gauge("blockwright:worker_memory_bytes", "x", ["worker", "use"], registry=registry).labels("w0", "kv").set(1)
    return generate_latest(registry).decode()


@claim("`ps` and `top` show memory owned, shared and saved, with JSON output by schema", of="command-line")
def test_ps() -> None:
    view = ps_view(CLUSTER)
    head = ps_tables(view).head
    assert isinstance(head, Group)
    assert [line for line in head.renderables if isinstance(line, str)] == [
        "3 running, 6 waiting; 2 of 2 workers ready",
        "3 models in 100 B instead of 160 B (38% saved)",
        "in memory, as the kernels read them: 10 B to 40 B on each of 2 workers",
        "requests without a model go to base",
        "",
        "",
        "autoscale (relief, 5 s): 2 workers wanted, 1 starting",
        "  start w1: 6 s measured, the limit is 5 s",
        "launcher command: 1 further worker wanted",
        "",
    ]
    assert [(one["id"], one["base"]) for one in view["applications"]] == [("base", None), ("tuned", "base"), ("other", None)]
    assert [one["replicas"] for one in view["applications"]] == [[["w0"], ["w1"]], [["w0", "w1"]], []]
    tuned = view["applications"][1]
    assert tuned["memory"] == {"shared": 30, "own": 10}
    assert (tuned["kv"], tuned["requests"]) == ({"bytes": 20, "shared": 5}, {"running": 1, "waiting": 2})
    assert (view["workers"][0]["id"], view["workers"][0]["blocks"]) == ("w0", 1)


def test_ps_says_which_members_the_head_does_not_reach() -> None:
    said = "worker w1 is out of reach of the head, but g1 reaches it, so it serves on"
    for doubts in ("", said):
        head = ps_tables(ps_view({**CLUSTER, "doubts": doubts})).head
        assert isinstance(head, Group)
        assert (said in head.renderables) == bool(doubts)


def test_a_worker_that_is_given_up_is_shown_with_the_reason() -> None:
    lost = CLUSTER["workers"][1] | {"state": "given up", "cause": "not started: ssh cannot be run"}
    view = ps_view({**CLUSTER, "workers": [CLUSTER["workers"][0], lost]})
    assert [one["given_up"] for one in view["workers"]] == ["", "not started: ssh cannot be run"]
    said = "w1 is given up: not started: ssh cannot be run; DELETE /admin/workers/w1/drain has it tried again"
    assert said in [line for line in ps_tables(view).head.renderables if isinstance(line, str)]  # type: ignore[union-attr]


@claim("`ps`, `top` and the page show the processes of predictors, once one has joined", of="command-line")
def test_predictors_that_joined_are_a_table() -> None:
    own = {"id": "predictors", "host": "", "labels": {}, "joined": False, "state": "ready", "predicts": ["w0", "w1"]}
    far = {**own, "id": "px", "host": "10.0.0.7", "labels": {"rack": "b"}, "joined": True, "predicts": []}
    seen = []
    for predictors in ([], [own], [own, far]):
        cluster = {**CLUSTER, "predictors": predictors}
        for screen in (
            ps_tables(ps_view(cluster)),
            top_tables(top_view(*[read_sample(at, cluster, metrics(9, [])) for at in (0.0, 1.0)])),
        ):
            tables = [one for one in screen.head.renderables if isinstance(one, FittedTable)]  # type: ignore[union-attr]
            seen.append([table.rows for table in tables if table.columns[0] == "PREDICTORS"])
    table = [("predictors", "ready", "-", "-", "w0, w1"), ("px", "ready", "10.0.0.7", "rack=b", "-")]
    assert seen == [[]] * 4 + [[table]] * 2


def test_ps_shows_how_tensors_travel_once_they_do() -> None:
    found = []
    for links in ({}, {"w1": "shared-memory", "w2": "device-slot", "w3": "shared-memory"}):
        view = ps_view({**CLUSTER, "workers": [{**CLUSTER["workers"][0], "links": links}, CLUSTER["workers"][1]]})
        head = ps_tables(view).head
        assert isinstance(head, Group)
        found += [one for one in head.renderables if isinstance(one, FittedTable)]
    assert "LINKS" not in found[0].columns
    place = found[1].columns.index("LINKS")
    assert [row[place] for row in found[1].rows] == ["device-slot, shared-memory", "-"]
    assert len(found[1].rows[0]) == len(found[1].columns) == len(found[0].columns) + 1


def test_what_workers_reported_is_one_line_for_those_that_are_alike() -> None:
    speed = {"bandwidth": 12_340_000_000, "products": 23_600_000_000}
    said = {"host": "pod", "device": "cpu", "cores": 4, "threads": 2, "memory": 3 << 30, "speed": speed}
    small = {**said, "host": "nook", "cores": 1, "threads": 1, "speed": {"bandwidth": 0, "products": 0}}
    workers = [{**worker(f"w{n}", 0, 0), "reported": one} for n, one in enumerate((said, small, said, {}))]
    view = ps_view({**CLUSTER, "workers": workers})
    assert [one["reported"] for one in view["workers"]] == [said, small, said, {}]
    assert reported_lines(view["workers"]) == [
        "w0, w2 reported 2 of 4 cores, 3.0 GiB, cpu, 12.3 GB/s read, 24 G products/s on pod",
        "w1 reported 1 of 1 core, 3.0 GiB, cpu on nook",
    ]


def test_ps_and_apps_name_the_ids_that_choose_among_tiers() -> None:
    families = {"a:12": "a", "a": "", "a:4": "a", "b": "", "gone:2": "gone"}
    line = "requests to a:auto choose among a:4, a:12, a"
    assert family_lines(families) == [line]
    found = {name: {"state": "ready", "base": None, "checkpoint": "/x", "family": of} for name, of in families.items()}
    for default, says in (
        ("a:auto", "requests without a model go to a:auto"),
        ("b:auto", "requests without a model are refused: b:auto is not served"),
        ("gone:auto", "requests without a model are refused: gone:auto is not served"),
    ):
        head = app_tables({"applications": found, "default": default}).head
        assert isinstance(head, Group)
        assert says in head.renderables
    for head in (app_tables({"applications": found, "default": "a"}).head, ps_tables(ps_view(CLUSTER)).head):
        assert isinstance(head, Group)
        assert (line in head.renderables) is (head.renderables[0] != "3 running, 6 waiting; 2 of 2 workers ready")


def test_top_is_of_the_time_between_two_looks() -> None:
    before = read_sample(10.0, CLUSTER, metrics(100, [0.3] * 50))
    after = read_sample(12.0, CLUSTER, metrics(160, [0.3] * 50 + [0.05] * 10))
    base, tuned, other = top_view(before, after)["applications"]
    assert (base["running"], base["waiting"], base["tokens_per_s"]) == (1, 2, 30.0), (
        "of the workers' moment, not of /metrics"
    )
    assert (base["ttft_p50"], base["ttft_p95"]) == (0.05, 0.095)
    assert (base["kv_used"], base["shared"], base["cache_hits"]) == (round(20 / 150, 3), 0.75, 0.15)
    assert (tuned["kv_used"], tuned["cache_hits"]) == (round(20 / 150, 3), 0.0), "its own, not those of its workers"
    assert (tuned["tokens_per_s"], tuned["ttft_p50"]) == (0.0, None)
    assert (other["kv_used"], other["shared"]) == (0.0, 0.0)
    assert top_view(before, after)["workers"][0]["cache_hits"] == 0.25
    assert [one["on_host"] for one in top_view(before, after)["workers"]] == [1.0, 0.0]


def test_the_first_line_of_top_fits_80_columns() -> None:
    busy = {"running": 150, "waiting": 1200, "tokens_per_s": 12345.6, "prompt_tokens_per_s": 9876.4}
    before = read_sample(10.0, CLUSTER, metrics(100, []))
    view = top_view(before, before)
    view["applications"][0] |= busy
    assert total_line(view) == "152 running, 1,204 waiting; 12,346 tokens/s, 9,876 of prompts; 2 of 2 workers ready"
    assert [milliseconds(seconds) for seconds in (None, 0.25, 9.9994, 28.3334, 120.0)] == [
        "-",
        "250 ms",
        "9999 ms",
        "28.3 s",
        "120 s",
    ]


def test_without_news_the_times_so_far_are_reported_and_a_restart_is_no_negative_rate() -> None:
    quiet = read_sample(0.0, CLUSTER, metrics(100, [0.15] * 4))
    assert top_view(quiet, quiet)["applications"][0]["ttft_p50"] == pytest.approx(0.15)
    restarted = read_sample(1.0, CLUSTER, metrics(5, []))
    base = top_view(quiet, restarted)["applications"][0]
    assert (base["tokens_per_s"], base["ttft_p50"]) == (0.0, None)


CHANGE = {
    "at": 0.0, "what": "drop", "group": "w0+w1", "why": "w0 50 of 50 pages, 40 wait", "bytes": 3 << 29, "seconds": 0.8,
    "seconds_until_left": 0.1, "requests": 12, "copied": 12, "copied_bytes": 9, "recomputed": 7,
    "stall": 3.1, "stall_worst": 0.4,
}  # fmt: skip
STAGES = [{"worker": "w0", "first": 0, "last": 12}, {"worker": "w1", "first": 12, "last": 26}]
DROPPED = CLUSTER | {
    "overload": {
        "workers": {name: {"state": "pipeline", "group": "w0+w1"} for name in ("w0", "w1")}
        | {"w2": {"state": "normal", "group": ""}},
        "groups": {"w0+w1": {"model": "base", "state": "pipeline", "step": "pipeline", "stages": STAGES}},
        "changes": [CHANGE],
    },
    "workers": [worker("w0", 20, 60), worker("w1", 0, 50), worker("w2", 1, 2)],
}


@claim("Drops and restores are shown in `/admin/cluster`, `ps`, `top` and `explain`", of="parameter-dropping")
def test_dropped_parameters_in_ps_and_top() -> None:
    schemas = Path(__file__).parents[3] / "docs" / "schemas"
    look = read_sample(0.0, DROPPED, metrics(1, []))
    for name, view in (("ps", ps_view(DROPPED)), ("top", top_view(look, look))):
        schema = json.loads((schemas / f"{name}.json").read_text())["properties"]["overload"]
        jsonschema.validate(view["overload"], schema)
        paper = Console(file=io.StringIO(), width=80)
        paper.print(Group(*overload_lines(view["overload"])))
        first, *_, last = paper.file.getvalue().splitlines()[2:5]
        assert first.split() == ["w0", "w0+w1", "pipeline", "0", "to", "11", "10", "B", "20", "B", "100", "B"]
        assert last.split() == ["w2", "-", "normal", "all", "87", "B", "1", "B", "100", "B"]
    assert ps_view(CLUSTER)["overload"] is None


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        (
            {},
            "drop of w0+w1, 1.5 GiB freed, took 800 ms; 12 requests moved to other routes, "
            "and paused 3100 ms in all, 400 ms at worst: w0",
        ),
        ({"what": "restore", "bytes": 0, "seconds": None, "requests": 0}, "restore of w0+w1, under way: w0 50"),
    ],
)
def test_the_last_change(change: dict[str, Any], sentence: str) -> None:
    assert change_line(CHANGE | change).partition(": ")[2].startswith(sentence)


def test_what_lacks_does_not_hide_the_change_before_it() -> None:
    lacking = CHANGE | {"what": "lacking", "group": "", "bytes": 9, "seconds": 0.0, "requests": 0, "why": "w0 is alone"}
    drops = DROPPED["overload"] | {"changes": [CHANGE, lacking]}
    _, _, last, lines = overload_lines(ps_view(DROPPED | {"overload": drops})["overload"])
    assert "drop of w0+w1" in str(last)
    assert str(lines).endswith(": short of 9 B of KV memory, which no drop can free: w0 is alone"), lines
    later = ps_view(DROPPED | {"overload": drops | {"changes": [lacking, CHANGE]}})["overload"]
    assert (later["last"], later["lacking"]) == (CHANGE, None), "that was before"


def test_who_serves_a_part_of_a_model_in_a_pipeline_of_its_own_does_not_serve_all() -> None:
    hops = [{"worker": "w0", "first": 0, "last": 5}, {"worker": "w1", "first": 5, "last": 9}]
    drops = {"workers": {name: {"state": "normal", "group": ""} for name in ("w0", "w1", "w2")}, "groups": {}, "changes": []}
    view = ps_view(DROPPED | {"overload": drops, "routes": [{"application": "base", "hops": hops}]})["overload"]
    assert [(one["first"], one["last"]) for one in view["workers"]] == [(0, 5), (5, 9), (None, None)]


@pytest.mark.parametrize(
    ("counts", "share", "value"),
    [([0, 10, 10, 10], 0.5, 0.15), ([5, 10, 10, 10], 0.5, 0.1), ([0, 0, 0, 3], 0.5, 0.4), ([], 0.5, None)],
)
def test_quantiles(counts: list[int], share: float, value: float | None) -> None:
    buckets = dict(zip((0.1, 0.2, 0.4, float("inf")), map(float, counts), strict=False))
    assert quantile(buckets, share) == (None if value is None else pytest.approx(value))


def test_batches_that_run_are_reported_by_model() -> None:
    requests = [OfflineRequest(prompt=packed([1] * 30 + [n]), limit=9) for n in range(10)]
    feed = OfflineFeed(requests, Costs(token=1e-3, attend=0.0, read=1e-5), draws=[1.0] * 10)
    feed.joined("w0", 200)
    first = feed.pull("w0", 3, 100.0)
    feed.finished(first[0].request, 9, cached=30)
    metrics = Metrics(dict)
    nothing = read_sample(0.0, CLUSTER, metrics.render({}).decode())
    metrics.batches = lambda: [figures_of({"base": feed.progress(4.0)}), figures_of({"other": feed.progress(0.0)})]
    view = top_view(nothing, read_sample(1.0, CLUSTER, metrics.render({}).decode()))
    jsonschema.validate(view, json.loads((Path(__file__).parents[3] / "docs" / "schemas" / "top.json").read_text()))
    base, other = view["batches"]
    assert (base["model"], base["done"], base["running"], base["waiting"]) == ("base", 1, 2, 7)
    assert base["remaining_seconds"] == pytest.approx(7.5, rel=0.1), "half of what runs counts as done"
    assert base["sharing"] == pytest.approx(30 / 31, abs=1e-4)
    assert 0 < base["sides"]["left"]["used"] <= base["sides"]["left"]["most"] <= 200
    assert other["model"] == "other"
    assert top_view(nothing, nothing)["batches"] == []
    out = io.StringIO()
    paper = Console(file=out, width=100)
    paper.print(top_tables(view).fitted(paper))
    assert "BATCHES OF" in out.getvalue()
    assert "97%" in out.getvalue()
