"""The benchmark of a thousand workers: the same requests go to all, cells get their keys, and what happens is counted."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import cells
import cells_messages as messages
import cells_runs as runs
import pytest
from cells import EXACT, KNOWN, OURS, UNDISTURBED, Plan
from cells_distribution import Distribution
from cells_runs import Traffic
from harness import Options, Report, misses

SHAPES = [(200, 20), (400, 40)]
SMALL = Plan(workers=16, cells=14.0, outages=16.0, away=(0.0, 2.0), alive=4.0)


def test_requests_are_the_same_for_all_and_a_burst_doubles_them() -> None:
    calm = Traffic(workers=400, seconds=40.0, seed=1)
    busy = Traffic(workers=400, seconds=40.0, seed=1, burst=10.0)
    assert runs.requests(calm, SHAPES) == runs.requests(calm, SHAPES)
    assert len(calm.times()) == pytest.approx(4000, rel=0.05)
    assert sum(busy.at <= at < busy.at + 10 for at in busy.times()) == pytest.approx(2000, rel=0.07)


def test_lengths_come_from_a_file_or_the_committed_sample(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "t.csv"
    path.write_text("input_tokens,output_tokens\n5000,7\n30,9\n")
    assert runs.lengths(path) == [(2048, 7), (30, 9)]
    monkeypatch.setattr(runs, "ROOT", tmp_path)
    assert len(runs.lengths.__wrapped__(None)) == 400


def test_every_key_has_one_cell_and_every_request_is_in_one() -> None:
    traffic = Traffic(workers=200, seconds=20.0, seed=2)
    demands = runs.requests(traffic, SHAPES)
    for by, few in (("session", 2000), ("model", runs.MODELS)):
        seen = runs.keys(traffic, len(demands), by)
        assert len({*seen}) <= few
        parts = runs.split(demands, seen, 8)
        assert sorted(one.at for part in parts for one in part) == [one.at for one in demands]
        assert all([one.number for one in part] == [*range(len(part))] for part in parts)
        places = {key: runs.cell_of(key, 8) for key in seen}
        assert Counter(places[key] for key in seen) == {n: len(part) for n, part in enumerate(parts) if part}


def test_cells_and_outages_lose_nothing_and_read_what_is_gone(tmp_path: Path) -> None:
    found, trace = {}, tmp_path / "t.csv"
    trace.write_text("input_tokens,output_tokens\n200,20\n400,40\n")
    for case, subject, measure in [*cells.cell_jobs(SMALL, trace), *cells.outage_jobs(SMALL, trace)]:
        if case.startswith("outage/") or (case.split("/")[2] in (EXACT, "alone") and subject == OURS):
            found[case, subject] = measure()
    assert all(one["lost"] == 0 for one in found.values())
    of = {case.removeprefix("outage/"): one for (case, _), one in found.items() if case.startswith("outage/")}
    assert {*of} == {"undisturbed", "head-0s", "head-2s", "cut-warm", "cut-cold", "roll-again", "roll-grace"}
    assert all(one["doubled"] == 0 for one in of.values())
    assert {name: one["read_models"] for name, one in of.items()} == {
        "undisturbed": 0, "head-0s": 1, "head-2s": 1, "cut-warm": 0, "cut-cold": 1, "roll-again": 17, "roll-grace": 17,
    }  # fmt: skip
    assert of["roll-grace"]["restarts"] == 0


def test_reports_are_one_for_each_sweep_and_gateway_that_has_tokens_in_it() -> None:
    demands = runs.requests(Traffic(workers=2, seconds=10.0, seed=1, rate=1.0), SHAPES)
    one, eight = [messages.per_worker(2, demands, gateways, 2.0, 8.0) for gateways in (1, 8)]
    assert one["sweeps"] == eight["sweeps"] > 0
    assert 0 < eight["reports"] < one["reports"] <= one["sweeps"]
    assert one["joined"] <= one["reports"]
    assert messages.heartbeats(1000, 0) == 4000


def test_a_distribution_by_the_live_controller_takes_each_component_once_from_the_origin() -> None:
    for workers in (1, 2, 37):
        found = Distribution(workers)
        found.run()
        assert found.rounds <= found.bound
        assert found.origin_share == 1.0
        assert found.most_given <= 2


def test_all_cases_are_reported_and_judged(monkeypatch: pytest.MonkeyPatch, capsys: Any) -> None:
    jobs = [(UNDISTURBED, OURS, dict), ("outage/head-0s", OURS, dict)]
    monkeypatch.setattr(cells, "outage_jobs", lambda plan, trace: jobs)
    monkeypatch.setattr(cells, "cell_jobs", lambda plan, trace: [])
    answer = {"ttft_p99_s": 2.0, "lost": 0.0, "doubled": 0.0}
    monkeypatch.setattr(cells, "measured", lambda job: answer)
    monkeypatch.setattr(cells.multiprocessing, "Pool", InThisProcess)
    monkeypatch.setattr(cells, "add_messages", lambda *those: None)
    cells.main(Options(quick=True, json=None), SMALL)
    shown = capsys.readouterr().out
    assert all(name in shown for name in ("choice/16", "distribution", "rest ", "ratio"))
    report = Report("cells", {})
    report.add("outage/cut-warm", OURS, {"read_models": 1.0, "lost": 2.0, "doubled": 0.0})
    said = misses(report, [bar for bar in cells.BARS if bar.case == "outage/cut-warm"])
    assert len(said) == 2
    assert {*KNOWN} == {EXACT, "500ms", "2000ms", "alone"}


class InThisProcess:
    """A pool of this process alone."""

    def __init__(self, *those: object, **named: object) -> None: ...

    def __enter__(self) -> InThisProcess:
        return self

    def __exit__(self, *those: object) -> None: ...

    def imap(self, work: Any, jobs: Any, chunksize: int) -> Any:
        return map(work, jobs)
