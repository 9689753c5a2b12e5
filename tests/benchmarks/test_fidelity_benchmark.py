"""What the fidelity benchmark computes: equal requests for both sides, errors against all live runs, order of policies."""

from __future__ import annotations

import fidelity
import pytest
from fidelity import LIVE, OURS, Asked, Cluster
from harness import Report

COSTS = {"base": 0.02, "token": 0.001}


def test_the_trace_keeps_its_bursts_at_any_rate() -> None:
    slow, fast, burst = (fidelity.trace(50, 8, rate) for rate in (2.0, 4.0, float("inf")))
    assert [one.at for one in slow] == pytest.approx([2 * one.at for one in fast])
    assert slow[-1].at == pytest.approx(25.0, rel=0.1)
    assert {one.at for one in burst} == {0.0}
    assert [one.prompt for one in burst] == [one.prompt for one in slow]


def test_a_request_alone_takes_what_its_sweeps_cost_and_the_way_there_and_back() -> None:
    cluster = Cluster("one", "tiny", 1, COSTS)
    (first, last), _ = fidelity.simulated(cluster, [Asked(0.0, 10, 5)], "least-work", 0.003)
    assert first == pytest.approx([0.02 + 0.010 + 0.006])
    assert last == pytest.approx([0.02 + 0.010 + 4 * 0.021 + 0.006])


def test_a_model_counts_in_the_simulator_as_on_a_worker() -> None:
    """A sweep's cost with sizes: the embedding is looked up, the head is of sampled rows."""
    sizes = fidelity.paced({"read": 0.01, "token": 0.001}, "tiny")
    cluster = Cluster("four", "tiny", 1, sizes)
    (first, _), _ = fidelity.simulated(cluster, [Asked(0.0, 40, 2)], "least-work")
    nbytes = fidelity.parameters("tiny")
    head = nbytes["head"] / (nbytes["parameters"] - nbytes["embedding"])
    assert first == pytest.approx([fidelity.SLOWER * (0.01 + 0.001 * (40 * (1 - head) + head))])


def test_errors_are_against_the_mean_of_all_runs_and_the_order_counts_where_runs_agree() -> None:
    report = Report("fidelity", {})
    live = {"a": (90.0, 110.0), "b": (200.0, 220.0), "c": (210.0, 260.0)}
    said = {"a": 120.0, "b": 110.0, "c": 250.0}
    for policy, runs in live.items():
        for value in runs:
            same = {f"{name}{share}_ms": value for name in ("ttft", "latency") for share in ("", "_p99")}
            report.add(f"four/{policy}", LIVE, same)
            report.add(f"four/{policy}", OURS, dict.fromkeys(same, said[policy]))
    fidelity.judge(report, "four", tuple(live))
    assert report.median("four/a", "ttft_error", OURS) == pytest.approx(0.2)
    assert report.median("four/b", "latency_p99_error", OURS) == pytest.approx(100 / 210)
    assert report.median("four/order", "pairs_apart", OURS) == 4, "b and c cannot be distinguished in either metric"
    assert report.median("four/order", "pairs_wrong", OURS) == 2, "a and b"
