"""The benchmark of offline requests beside online ones: what it says of a run, and its section of the page."""

from __future__ import annotations

import harness
import offline_online
import page
import pytest
from offline_online import OURS, WITHOUT, Plan, Times, add_results
from stored import Result


@pytest.fixture
def report() -> harness.Report:
    made = harness.Report("offline_online", {}, packages=())
    both = [Times([1.0, 3.0], [0.1, 0.1]), Times([1.1, 3.1], [0.1, 0.1])]
    for case in ("online/load30", "live/load60"):
        add_results(made, case, 400.0, 100.0, 270.0, both)
    return made


def test_ratios_are_with_by_without_and_shares_of_what_is_left(report: harness.Report) -> None:
    assert report.median("online/load30", "ttft_mean_s", WITHOUT) == 2.0
    assert report.median("online/load30", "ttft_mean_ratio", OURS) == pytest.approx(1.05)
    assert report.median("online/load30", "filled_share", OURS) == pytest.approx(0.9)
    missed = harness.misses(report, Plan(loads=(30,)).bars())
    assert all("not measured" in sentence for sentence in missed if sentence.startswith("live"))
    assert not [sentence for sentence in missed if "online/load30 filled" in sentence]


@pytest.mark.nightly
def test_a_simulated_load_is_measured() -> None:
    made = harness.Report("offline_online", {}, packages=())
    offline_online.simulate(made, "online/load60", offline_online.ROOFLINE, 60, 20.0)
    share = made.median("online/load60", "filled_share", OURS)
    assert share is not None
    assert share > 0.5


@pytest.mark.nightly
def test_where_tokens_take_their_time_online_requests_lose_little_and_more_than_is_possible_is_not_had() -> None:
    """At 90 % 3 % of every sweep's seconds would make answers a quarter slower."""
    made = harness.Report("offline_online", {}, packages=())
    offline_online.simulate(made, "linear/load90", offline_online.LINEAR, 90, 60.0)
    values = {name: made.median("linear/load90", name, OURS) or 0.0 for name in ("token_mean_ratio", "ttft_mean_ratio")}
    assert all(0.95 < value < 1.05 for value in values.values()), values
    share, possible = (made.median("linear/load90", name, OURS) or 0.0 for name in ("filled_share", "possible_share"))
    assert 0 < share < possible < 0.8


def test_what_is_possible_is_bounded_by_idle_time_and_the_fixed_part() -> None:
    assert offline_online.possible(400.0, 0.0, 0.0025, 1.0) == pytest.approx(1.0)
    assert offline_online.possible(400.0, 200.0, 0.0025, 0.0) == pytest.approx(0.05 / 1.05)


def test_the_page_has_a_row_for_each_load(report: harness.Report) -> None:
    document = {"benchmark": "offline_online", "rows": report.rows(), "settings": {}}
    text = page.SECTIONS["offline_online"][1](Result(document))
    assert "| simulated | 30 % | 2 | 0.1 | 1.05 |" in text
    assert "| 2 workers | 60 % |" in text
    assert "| 90 % |" in text
