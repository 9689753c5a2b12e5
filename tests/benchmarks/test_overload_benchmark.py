"""The benchmark of a burst runs every system and ablation, and lookahead batches idle less than equal token counts."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import overload
import overload_runs as runs
import pytest
import scheduling_kept

SMALL = runs.Load([(300, 30), (900, 12)], 4.0, before=1.0, burst=0.5, after=0.5)
SYSTEMS = {**runs.SYSTEMS, **{name: runs.System({"mode": "drop", **said}) for name, said in overload.ABLATIONS.items()}}


@pytest.mark.parametrize("name", SYSTEMS)
def test_every_system_is_simulated(name: str) -> None:
    found = runs.simulate(SYSTEMS[name], SMALL, 2)
    assert len(found.first) == len(found.each) == len(SMALL.demands(1))
    assert 0 < found.figures["ttft_p50"] <= found.figures["ttft_p99"]
    assert 0 < found.figures["base"] < found.figures["peak"] < 0.1
    assert ("capacity" in found.figures) == (SYSTEMS[name].overload["mode"] == "drop")


@pytest.mark.nightly
def test_a_run_that_is_short_of_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    """On devices with next to no KV all that is done about it is done, and counted."""
    monkeypatch.setattr(runs, "MEMORY", runs.PARAMETERS + 2_000_000_000)
    burst = replace(SMALL, quiet=40.0, burst=2.0, after=0.0)
    preempt, drop, floor = (runs.simulate(SYSTEMS[name], burst, 2) for name in ("preempt", runs.OURS, "endless-memory"))
    assert (drop.figures["dropped"], preempt.figures["peak"]) >= (1.0, 0.9)
    assert floor.figures["ttft_p99"] < drop.figures["ttft_p99"] < preempt.figures["ttft_p99"]
    assert 0 < drop.figures["bubbles"] < 1
    assert "after_ttft_p50" not in drop.figures
    shares = overload.slo(dict.fromkeys(runs.BASELINES, preempt) | {"floor": floor})
    assert shares["preempt"]["slo_1"] >= shares["preempt"]["slo_10"] >= shares["floor"]["slo_10"]


def test_the_burst_is_twice_the_quiet_load() -> None:
    load = runs.Load([(10, 5)], 20.0, before=40.0, burst=30.0, after=10.0)
    times = [demand.at for demand in load.demands(3)]
    assert sum(40 <= at < 70 for at in times) == pytest.approx(2 * 20 * 30, rel=0.1)
    assert sum(at < 40 for at in times) == pytest.approx(20 * 40, rel=0.1)


def test_all_runs_are_planned() -> None:
    works = overload.works(quick=False)
    assert {bar.case for bar in overload.BARS} <= {work.case for work in works}
    assert len({(work.case, work.subject) for work in works}) == len(works)
    assert len({repr((work.system, work.load)) for work in works}) == len(works), "none is run twice"
    endless = next(work.load for work in works if work.load.endless).load
    assert (endless.burst, endless.after) == (120.0, 0.0)


def test_what_is_kept_is_not_simulated_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scheduling_kept, "_places", [])
    monkeypatch.setattr(runs.LoadOf, "load", SMALL)
    work = overload.Work("azure", "preempt", SYSTEMS["preempt"], runs.LoadOf("azure", 2))
    scheduling_kept.keep(tmp_path / "kept.jsonl", runs.sources())
    found = overload.run(work)
    monkeypatch.setattr(runs, "simulate", lambda *of: pytest.fail("it is known"))
    scheduling_kept.keep(tmp_path / "kept.jsonl", runs.sources())
    assert overload.run(work) == found


def test_lookahead_batches_idle_least() -> None:
    for stages in (2, 4):
        found = overload.look_ahead(stages, 12)
        assert found[overload.OURS]["seconds"] < found["token-count"]["seconds"]
        assert found[overload.OURS]["idle"] < min(found["token-count"]["idle"], found["greedy"]["idle"])
