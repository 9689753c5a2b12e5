"""The benchmark of offline batches runs every order and ablation, and judges what it measures."""

from __future__ import annotations

from dataclasses import replace

import harness
import offline
import offline_runs as runs
import pytest


@pytest.mark.nightly
def test_every_order_and_ablation_is_measured_and_judged() -> None:
    one = next(run for run in offline.runs(quick=True) if run.case == "sim/trace1")
    figures = runs.measure(replace(one, count=600))
    subjects = {*(f"nanoflow-{name}" for name in runs.ORDERS.values()), runs.DFS + runs.PACED, runs.BALANCE + runs.PACED}
    assert figures.subjects.keys() == subjects | {runs.VLLM, runs.OURS, *runs.ablations()}
    for subject, metrics in figures.subjects.items():
        for overlap in runs.OVERLAPS:
            assert metrics[overlap]["tok_per_s"] > 0
            assert 0 < metrics[overlap]["optimum_share"] <= 1, subject
    report = harness.Report("offline", {}, ())
    offline.fill(report, [figures, replace(figures, case="sim/grid"), replace(figures, case="sim/seeds")])
    report.add("scanner/100000", runs.OURS, runs.scheduling(2000))
    judged = {sentence.split(":")[0] for sentence in harness.misses(report, offline.BARS) if "not measured" in sentence}
    assert judged == {f"sim/trace{n}/{overlap} sharing_share" for n in (2, 3, 4) for overlap in runs.OVERLAPS}
    gains = [report.median("sim/grid/ideal", f"{name}_gain", runs.OURS) for name in ("worst", "mean", "best")]
    assert gains == [report.median("sim/trace1/ideal", "gain", runs.OURS)] * 3
    assert report.median("sim/seeds/ideal", "draws", runs.OURS) == 2
    assert report.median("sim/seeds/ideal", "gain_spread", runs.OURS) == 0
    worst = report.median("sim/seeds/ideal", "worst_sharing", runs.OURS)
    assert worst == report.median("sim/trace1/ideal", "sharing_share", runs.OURS)


def test_all_batches_are_planned() -> None:
    planned = offline.runs(quick=False, lengths=[(100, 10)])
    grid = [(run.rho, run.sharing) for run in planned if run.case == "sim/grid"]
    assert (len(grid), len({*grid})) == (65, 65)
    assert {run.case for run in planned if run.count != 40_000} == {"sim/large"}
    seeds = [(run.rho, run.sharing, run.seed) for run in planned if run.case in ("sim/grid", "sim/seeds")]
    assert len(seeds) == len({*seeds}) == 65 + len(runs.SEEDED) * (runs.SEEDS - 1)
    cases = [run.case for run in planned if run.case not in ("sim/grid", "sim/seeds")]
    assert len(cases) == len({*cases}) == 9
    assert {bar.case.rpartition("/")[0] for bar in offline.BARS} <= {*cases, "sim/grid", "sim/seeds", "scanner"}


def test_a_step_of_the_scanner_is_timed() -> None:
    found = runs.scheduling(3000)
    assert 0 < found["p50_us"] <= found["p99_us"]


@pytest.mark.parametrize("named", ["", "x.csv"])
def test_lengths_of_a_file(tmp_path, named: str) -> None:  # type: ignore[no-untyped-def]
    if named:
        (tmp_path / named).write_text("input_tokens,output_tokens\n10,3\n7,2\n")
    assert offline.trace(tmp_path / named if named else None) == ([(10, 3), (7, 2)] if named else [])
