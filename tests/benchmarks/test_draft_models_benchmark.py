"""Costs of a round count each pass of its source, and the page has a row for each source."""

from __future__ import annotations

from collections.abc import Callable

import draft_models
import page
import pytest
from harness import OURS, Report
from models import SIZES
from stored import Result

# Seconds of any number of positions:
BELOW = 2.0
ABOVE = 6.0
HEAD = 1.0


class Kernels:
    """Kernels whose calls only say which they are."""

    def lower(self, rows: int, positions: int = 1) -> Callable[[], float]:
        return lambda: BELOW

    def upper(self, rows: int, positions: int = 1) -> Callable[[], float]:
        return lambda: ABOVE

    def head(self, rows: int) -> Callable[[], float]:
        return lambda: HEAD


@pytest.mark.parametrize(
    ("source", "cost"), [("model", 4 * (BELOW + HEAD) + BELOW + ABOVE + HEAD), ("tier", 5 * (BELOW + HEAD) + ABOVE)]
)
def test_a_round_costs_all_passes_of_its_source(source: str, cost: float, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(draft_models, "usual", lambda call, repeats: call())
    costs = draft_models.Costs(Kernels(), requests=1)  # type: ignore[arg-type]
    assert costs.speedup(source, 4, of_round=3.0) == pytest.approx(3.0 * (BELOW + ABOVE + HEAD) / cost)


def test_the_page_has_a_row_for_each_source() -> None:
    report, plan = Report("draft_models", {}), draft_models.Plan(sizes=("W",), requests=(1,), scales=(0.1,))
    for case in plan.cases():
        for subject in ("off", "g1", "g2", "g4", "g8", "policy"):
            report.add(f"{case}/{subject}", OURS, {"out_tok_per_s": 10.0, "tokens_per_round": 1.0, "of_ideal": 0.5})
    text = page.SECTIONS["draft_models"][1](Result(report.document()))
    assert "| W bf16 | 1 | model, 0.1 | 10 | 10 (0.5) |" in text
    assert "| W bf16 | 1 | tier, 0.1 |" in text


def test_the_lower_layers_of_a_target_are_as_many_as_those_of_its_draft_model() -> None:
    assert SIZES[draft_models._lower("W")].layers == draft_models.LAYERS
