"""Dispatch policies on a real cluster: the same requests for all, what is counted, and that a policy can be measured."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import fidelity
import pytest
import scheduling_live as live
import scheduling_runs as runs
from harness import OURS, Report
from models import make_model
from scheduling_live import Counts, Plan

from blockwright.tests.waiting import until


@pytest.fixture(autouse=True)
def sample(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(runs, "lengths", lambda: runs.SAMPLE)
    live.shapes.cache_clear()


def test_another_rate_brings_the_same_requests_and_another_seed_others() -> None:
    slow, fast = (live.requests(1, 50, rate) for rate in (8.0, 32.0))
    assert [one.at for one in slow] == pytest.approx([4 * one.at for one in fast])
    assert [replace(one, at=0.0) for one in slow] == [replace(one, at=0.0) for one in fast]
    assert slow[-1].at == pytest.approx(50 / 8.0, rel=0.1)
    assert live.requests(2, 50, 8.0) != slow
    assert max(one.prompt + one.tokens for one in slow) <= live.SETTINGS["max_model_len"]


def test_capacity_lies_between_the_loads_where_the_limit_is_passed() -> None:
    assert live.capacity((50, 100), (0.25, 4.0)) == pytest.approx(0.75 * live.RATE), "half way in the logarithm"
    assert live.capacity((50, 100, 200), (0.5, 2.0, 0.5)) < live.RATE, "the first time"
    assert live.capacity((50, 100), (2.0, 4.0)) == 0.5 * live.RATE
    assert live.capacity((50, 100), (0.2, 0.4)) == live.RATE


def test_what_asking_costs_is_of_the_requests_between_two_looks() -> None:
    text = 'blockwright:x{reason="a"} 2.0\nblockwright:x{reason="b"} 3.0\nblockwright:xy 9.0\nblockwright:y 4.0\n'
    assert (live.metric_value(text, "x"), live.metric_value(text, "y"), live.metric_value(text, "z")) == (5.0, 4.0, 0.0)
    before = Counts(preemptions=0, sweeps=1, sweep_seconds=1, asked=10, asked_seconds=1.0, fell_back=1)
    after = replace(before, asked=14, asked_seconds=1.2, fell_back=2)
    found = after.asking(before, 2.0)
    assert found == {"asked_ms": pytest.approx(50), "asked_share": pytest.approx(0.025), "fell_back": 0.25}


@pytest.mark.nightly  # a whole cluster; its parts are tested above
@pytest.mark.system
async def test_a_policy_is_measured_on_workers_with_little_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(live, "COSTS", costs := {"base": 0.004, "token": 0.0002})
    (pace := tmp_path / "pace.json").write_text(json.dumps(costs))
    monkeypatch.setattr(fidelity, "PAUSE", 0.01)
    monkeypatch.setattr(live, "SAMPLING", 0.05)
    report, plan = Report("scheduling_live", {}), Plan(loads=(1000,), count=40)
    async with live.serving(make_model(live.SIZE, "f32", tmp_path / "tiny"), OURS, **live.paced(pace)) as server:

        async def ready() -> bool:
            memory = (await live.workers(server))[0]["memory"]
            return (memory["parameters"], memory["free"]) == (live.PARAMETERS, live.KV)

        await until(ready, "a worker has the model, and the pages that are stated")
        tail = await live.run(report, server, OURS, plan.loads[0], 1, plan.count)
    measured = {metric: values[0] for (case, metric, _), values in report.samples.items() if case == "real4/load1000"}
    assert 0 < measured["ttft_mean_s"] <= measured["ttft_p99_s"] == tail <= measured["latency_p99_s"]
    assert 0 < measured["memory_used"] < 1
    assert 0 < (report.median(f"asking/load1000/{OURS}", "asked_share", OURS) or 0) < 1
    assert {bar.case for bar in plan.bars()} > {f"asking/load1000/{OURS}"}
