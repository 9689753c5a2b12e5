"""The benchmark of fairness counts all work, and its page has a row for each mix and class."""

from __future__ import annotations

import page
import pytest
import tier_fairness
from harness import OURS, Report
from stored import Result


def test_jains_index_is_one_for_equal_shares_and_falls_to_one_of_n() -> None:
    assert tier_fairness.jain([3.0, 3.0, 3.0]) == pytest.approx(1.0)
    assert tier_fairness.jain([5.0, 0.0, 0.0]) == pytest.approx(1 / 3)


def test_every_request_of_a_backlog_is_computed_by_its_tier() -> None:
    worker = tier_fairness.Worker()
    for number, layers in enumerate((20, 80, 25, 80)):
        worker.submit(f"r{number}", layers, prompt=10, answer=5)
    assert worker.waiting() == {20: 1, 25: 1, 80: 2}
    computed = dict.fromkeys(tier_fairness.LAYERS, 0)
    while worker.state.parts.queue.running or any(worker.waiting().values()):
        for layers, tokens in worker.sweep().items():
            computed[layers] += tokens
    assert computed == {20: 14, 25: 14, 80: 28}  # the last token of an answer is computed by no sweep


def test_shares_follow_fairness_and_not_the_mix() -> None:
    mix = tier_fairness.MIXES["20-80"]
    fair, off = (tier_fairness.backlog(mix, setting, requests=60) for setting in (True, False))
    assert fair.jain > off.jain
    assert fair.starved <= fair.bound


def test_the_page_has_a_row_for_each_mix_and_class() -> None:
    report = Report("tier_fairness", {})
    for subject, jain in ((OURS, 0.99), (tier_fairness.OFF, 0.7)):
        report.add("equal", subject, {"jain": jain, "starved_s": 2.0, "of_bound": 0.2})
    for subject, wait in ((OURS, 10.8), (tier_fairness.NO_AGEING, 88.0)):
        report.add("class/flex", subject, {"wait_s": wait})
    text = page.SECTIONS["tier_fairness"][1](Result(report.document()))
    assert "| equal | 0.99 | 0.7 | 2 | 2 |" in text
    assert "| flex | 10.8 | 88 |" in text
