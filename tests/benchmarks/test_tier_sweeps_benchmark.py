"""The page shows a row for each number of streams; bars follow the ideals; both halves compute the whole."""

from __future__ import annotations

from dataclasses import replace

import page
import pytest
import tier_sweeps
import torch
from harness import OURS, Report
from models import SIZES
from stored import Result

PLAN = tier_sweeps.Plan(sizes=("S",), streams=(1, 8))


def measured(ideal: float) -> Report:
    report = Report("tier_sweeps", {})
    for n in PLAN.streams:
        saved = {"ms_per_token": 1.0, "saving": 0.2, "ideal": ideal, "of_ideal": 0.2 / ideal}
        report.add(f"S/n{n}/together", OURS, {**saved, "of_apart": 0.8})
        report.add(f"S/n{n}/decoupled", OURS, {**saved, "top_price": 1.5})
    return report


def test_the_page_has_a_row_for_each_number_of_streams() -> None:
    text = page.SECTIONS["tier_sweeps"][1](Result(measured(0.25).document()))
    assert "| S | 1 | 20 % (25 %) | 20 % (25 %) | 1.5 |" in text
    assert "| S | 8 |" in text


@pytest.mark.parametrize(("ideal", "metric"), [(0.25, "of_ideal"), (0.05, "of_apart")])
def test_little_to_save_is_judged_by_what_is_lost(ideal: float, metric: str) -> None:
    bars = tier_sweeps.bars(measured(ideal), PLAN)
    assert [bar.metric for bar in bars if bar.case.endswith("together")] == [metric] * 2


def test_the_two_halves_compute_what_the_whole_computes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(SIZES, "S", replace(SIZES["tiny"], layers=4))
    kernels = tier_sweeps.Segments("S", "f32", 1, 2)
    kernels.sweep([(row, tier_sweeps.CACHED, 1) for row in range(3)])
    whole_TD = kernels.hidden(3).clone()
    kernels.lower(3)()
    assert not torch.equal(kernels.hidden(3), whole_TD)
    kernels.upper(3)()
    assert torch.equal(kernels.hidden(3), whole_TD)
