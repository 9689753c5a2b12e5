"""The comparison of dispatch policies: what is run, that it can be, and what is made of the figures."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
import scheduling
import scheduling_runs as runs
from harness import OURS, Report
from scheduling import REFERENCE, SUBJECTS, Plan
from scheduling_runs import Run


@pytest.fixture(autouse=True)
def sample(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(runs, "lengths", lambda: runs.SAMPLE)


def short(subject: str, **more: float) -> Run:
    return replace(Run(changes=SUBJECTS[subject], rate=30.0, seed=1, warm=0.5, seconds=1.0), **more)  # type: ignore[arg-type]


@pytest.mark.nightly
def test_every_case_is_a_scenario_and_those_with_a_bar_exist() -> None:
    jobs = list(scheduling.jobs(Plan()))
    assert {bar.case for bar in scheduling.BARS} - {job.case for job in jobs} == {"near/oracle", "near/tagger"}
    for load in Plan().loads:
        seeds = [job.measure.args[0].seed for job in jobs if job.case == f"load/{load:.2f}" and job.subject == OURS]
        assert (1,) <= tuple(seeds) <= Plan().seeds, "a beginning of those of the reference"
    for run in {job.measure.args[0] for job in jobs}:
        if run.seed == 1:
            _, _, requests = runs.described(replace(run, rate=1.0, warm=0.0, seconds=3.0))
            assert len(requests) == 3


@pytest.mark.parametrize("subject", [REFERENCE, "po2", f"{OURS}*"])
def test_a_run_is_repeatable_and_counts_who_came_after_the_warm_up(subject: str) -> None:
    found = runs.simulate(short(subject))
    assert found == runs.simulate(short(subject))
    assert 0 < found["ttft_mean_s"] < found["latency_mean_s"] < found["latency_p99_s"]
    assert ("forecast_error" in found) == (subject == "po2")


def test_policies_meet_the_same_requests_and_estimates_are_those_asked_for() -> None:
    exact, other = (runs.described(short(subject))[2] for subject in (REFERENCE, "random"))
    assert exact == other
    assert [one.expected for one in exact] == [one.output for one in exact]
    assert {one.expected for one in runs.described(replace(short(REFERENCE), estimates="none"))[2]} == {0}
    wrong = runs.described(short(f"{OURS}*"))[2]
    assert [replace(one, expected=0) for one in wrong] == [replace(one, expected=0) for one in exact]
    assert [one.expected for one in wrong] != [one.expected for one in exact]


def test_the_best_in_hindsight_is_what_was_chosen_when_nobody_else_comes() -> None:
    assert runs.hindsight(short("block", rate=2.0, warm=0.0), 2) == {"best_share": 1.0, "rank_mean": 1.0}


def test_capacity_is_found_between_the_rates_of_a_grid(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(runs, "simulate", lambda run: {"ttft_p99_s": math.exp(run.rate - 30)})
    for start in (20.0, 30.0, 40.0):
        found = runs.capacity(short(REFERENCE, rate=start), (3.0, 10.0))
        assert found["qps_3s"] == pytest.approx(30 + math.log(3), rel=0.01)
        assert found["qps_10s"] == pytest.approx(30 + math.log(10), rel=0.01)


def test_a_capacity_lies_between_two_loads_of_a_curve() -> None:
    curve = [(20.0, 1.0), (30.0, 10.0), (40.0, 5.0), (50.0, 500.0)]
    assert runs.crossed(curve, 50.0) == pytest.approx(45.0), "after the last load that is below the limit"
    assert runs.crossed(curve, 0.5) is None
    assert runs.crossed(curve, 1000.0) is None
    report = Report("scheduling", {})
    for load, seconds in ((0.6, (0.3, 0.5)), (1.0, (30.0, 18.0)), (1.2, (60.0,))):
        for value in seconds:
            report.add(f"load/{load:.2f}", "block", {"ttft_p99_s": value})
    scheduling.curves(report, Plan())
    rates = report.samples["capacity/base", "qps_3s", "block"]
    assert rates == pytest.approx([0.8 * scheduling.CAPACITY] * 2)
    assert ("capacity/base", "qps_3s", OURS) not in report.samples


def test_what_takes_longest_comes_first() -> None:
    jobs = {(job.case, job.subject): job for job in scheduling.jobs(Plan())}
    order = [
        ("capacity/batch-24", OURS),
        ("load/1.20", OURS),
        ("load/1.00", OURS),
        ("load/1.00", "po2"),
        ("load/1.00", "random"),
    ]
    assert sorted(order, key=lambda key: -scheduling.work(jobs[key])) == order


def test_parts_below_a_peer_are_paired_by_seed() -> None:
    assert runs.paired([1.0, 4.0], [2.0, 8.0]) == pytest.approx((0.5, 0.5, 0.5))
    cut, low, high = runs.paired([1.0, 3.0, 2.0], [2.0, 4.0, 4.0])
    assert low < cut < high < 1
    report = Report("scheduling", {})
    for subject, value in ((REFERENCE, 4.0), (f"{OURS}*", 3.0), (OURS, 1.0)):
        report.add("load/1.00", subject, {"ttft_p99_s": value})
    report.add("gamma/2", OURS, {"ttft_p99_s": 2.0})
    scheduling.compare(report)
    assert report.median("near/oracle", "ttft_p99_cut", OURS) == pytest.approx(0.75)
    assert report.median("near/tagger", "ttft_p99_cut", OURS) == pytest.approx(0.25)
    assert report.median("gamma/2", "ttft_p99_cut", OURS) == pytest.approx(0.5), "to the reference of the load"


def test_a_model_trained_on_the_trace_is_measured_on_requests_that_it_has_not_seen() -> None:
    runs.trained.cache_clear()
    figures = runs.trained()[1]
    runs.trained.cache_clear()
    assert set(figures) == {"constant", "history", "trained"}
    assert all(found["relative_error"] > 0 and 0 < found["acc_50"] < found["acc_100"] < 1 for found in figures.values())
    assert runs.noise_figures(0.3)["relative_error"] == pytest.approx(0.245, abs=0.02)
