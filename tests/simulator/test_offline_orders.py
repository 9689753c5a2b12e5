"""One batch in several orders: equal work, and what each is good and bad at."""

from __future__ import annotations

from array import array
from dataclasses import replace

import pytest

from blockwright.simulator.offline_orders import OfflineComparison, OfflineRules, columns, llama_8b_on_a100
from blockwright.simulator.offline_workload import mixed

ENGINE = llama_8b_on_a100()


@pytest.fixture(scope="module")
def comparison() -> OfflineComparison:
    return OfflineComparison(ENGINE, mixed(1.2, 0.35, 3000, ENGINE.costs))


def test_the_papers_device() -> None:
    assert ENGINE.memory == 457763
    assert ENGINE.weights == pytest.approx(16e9 / 2.039e12)
    assert ENGINE.costs.rho(512, 256) == pytest.approx(3.76, rel=0.03)


def test_every_order_does_the_same_work_and_none_beats_the_bound(comparison: OfflineComparison) -> None:
    outcomes = {name: comparison.baseline(name) for name in comparison.orders}
    outcomes["ours"] = comparison.blended()
    assert len({outcome.tokens for outcome in outcomes.values()}) == 1
    for outcome in outcomes.values():
        assert outcome.memory == pytest.approx(comparison.whole.mem)
        assert outcome.compute >= comparison.whole.comp * (1 - 1e-9)
        assert all(outcome.optimum_share(name) <= 1.0 for name in ENGINE.clocks)
        assert outcome.seconds["ideal"] <= outcome.seconds["calibrated"] <= outcome.seconds["sequential"]
    assert outcomes["dfs"].sharing_share == pytest.approx(1.0, abs=1e-3)
    assert outcomes["ours"].sharing_share >= 0.97
    assert outcomes["ours"].rate("ideal") > outcomes["dfs"].rate("ideal")


def test_a_small_memory_forgets_prefixes_in_random_order_and_not_in_ours() -> None:
    small = OfflineComparison(replace(ENGINE, memory=80_000), mixed(1.2, 0.35, 3000, ENGINE.costs))
    assert small.blended().sharing_share >= 0.97 > small.baseline("random").sharing_share


def test_without_samples_and_with_all_lengths_known(comparison: OfflineComparison) -> None:
    for part in (0.0, 1.0):
        outcome = comparison.blended(OfflineRules(sampling=part))
        assert outcome.memory == pytest.approx(comparison.whole.mem)
    assert comparison.samples(0.0) == []
    assert not any(comparison.workload.known[one] for one in comparison.samples(0.05))


def test_rules_reach_the_scanner(comparison: OfflineComparison) -> None:
    plain = comparison.blended().seconds
    assert comparison.blended(OfflineRules(share=0.5)).seconds != plain
    assert comparison.blended(OfflineRules(target=5.0)).seconds != plain
    assert comparison.blended(OfflineRules(paced=False)).seconds != plain


def test_a_course_in_columns_keeps_its_means() -> None:
    timeline = array("d", [1, 2.0, 4.0, 3, 3.0, 0.0, 6, 12.0, 6.0])
    found = columns(timeline, 5)
    assert found[0] == (pytest.approx(1.5), pytest.approx(2.0))
    assert found[-1] == (pytest.approx(2.0), pytest.approx(1.0))
    assert sum(2 * compute for compute, _ in found) == pytest.approx(17.0)
    assert columns(array("d", [1, 1.0, 1.0]), 3)[0] == (pytest.approx(1.0), pytest.approx(1.0))
