"""The ladder of noise: copies differ in their layers alone, and its shares and bars are of pairs and held-out answers."""

from __future__ import annotations

from pathlib import Path

import adaptive
import adaptive_surrogates
import pytest
from adaptive import Rung
from adaptive_equal import ServedVariant
from harness import OURS, Report, misses
from safetensors.torch import load_file

from blockwright.gpu.weights.checkpoint import Checkpoint
from blockwright.policies.adaptive.equivalence import BlockPair, EquivalenceLimits, PairFigures, candidate_pairs, refusal
from blockwright.zoo.equivalence.measuring import JudgedPair
from blockwright.zoo.surrogate import row_time

LIMITS = EquivalenceLimits()


def rung(*pairs: tuple[float, float, float]) -> Rung:
    """One of pairs given as similarity, answers lost on the prompts that choose, and answers lost held out."""
    judged, lost = [], {}
    for place, (similarity, chosen, held_out) in enumerate(pairs):
        pair, figures = BlockPair(place, place + 1, place, place + 1), PairFigures(similarity, 0.5, 0.0, chosen)
        judged.append(JudgedPair(pair, figures, refusal(figures, LIMITS, swappable=True)))
        lost[pair] = held_out
    return Rung(judged, lost)


def test_shares_are_of_pairs_and_losses_held_out() -> None:
    report = Report("adaptive", {})
    rungs = [rung((0.99, 0.0, 0.5), (0.99, 5.0, 4.0)), rung((0.9, 0.0, 0.2), (0.99, 1.0, 1.5))]
    for name, damage in ((adaptive.DAMAGE, True), (adaptive.ALONE, False)):
        adaptive.add(report, f"ladder/{name}", rungs, LIMITS, damage)
    found = {(case, metric): values for (case, metric, _), values in report.samples.items()}
    assert found["ladder/damage", "accepted"] == [0.5]
    assert found["ladder/damage", "worst_lost"] == [1.5]
    assert found["ladder/damage", "recall"] == [0.5], "one of the two that lose at most 1 held out"
    assert found["ladder/alone", "accepted"] == [0.75]
    assert found["ladder/alone", "worst_lost"] == [4.0]
    assert found["ladder/alone", "recall"] == [0.5]
    assert found["ladder/alone", "most_lost"] == [4.0]


def test_the_bars_are_of_damage_and_of_equal_blocks() -> None:
    report = Report("adaptive", {})
    adaptive.add(report, "ladder/damage", [rung((0.99, 0.0, 2.5))], LIMITS, damage=True)
    adaptive.add(report, "ladder/equal", [rung((0.99, 0.0, 0.0), (0.9, 0.0, 0.0))], LIMITS, damage=True)
    adaptive.add_equal(report, "equal", [[ServedVariant(3, 3.0, 0.9, 0.9), ServedVariant(1, 1.5, 0.9, 1.0)]])
    assert len(misses(report, adaptive.BARS)) == 3
    good = Report("adaptive", {})
    for case in ("ladder/damage", "ladder/equal"):
        adaptive.add(good, case, [rung((0.99, 0.0, 0.0))], LIMITS, damage=True)
    adaptive.add_equal(good, "equal", [[ServedVariant(3, 3.0, 0.9, 0.9), ServedVariant(1, 0.5, 0.9, 1.0)], []])
    assert misses(good, adaptive.BARS) == []
    found = {metric: good.median("equal", metric, OURS) for metric in ("variants", "lost", "worst", "fullest", "agreed")}
    assert found == {"variants": 2.0, "lost": 1.75, "worst": 3.0, "fullest": 3.0, "agreed": 0.95}
    assert good.median("ladder/equal", "accepted", OURS) == 1.0


@pytest.mark.parametrize("strength", [0.1, 0.2])
def test_a_copy_differs_in_its_layers_by_the_noise_asked_for(tmp_path: Path, strength: float) -> None:
    folder = adaptive.noisy(tmp_path / "noisy", strength)
    own, other = (load_file(path / "model.safetensors") for path in (adaptive.BASE, folder))
    for name, tensor in own.items():
        if "layers" in name and tensor.ndim > 1:
            spread = (other[name].float() - tensor.float()).std() / tensor.float().std()
            assert float(spread) == pytest.approx(strength, rel=0.05)
        else:
            assert other[name].equal(tensor)
    base, noisy = (adaptive.components(Checkpoint.open(path)) for path in (adaptive.BASE, folder))
    pairs = candidate_pairs(base, noisy, same_tokens=True)
    assert len(pairs) == 6 * 3, "each layer and its two components; embedding and head are equal"


def test_surrogates_of_a_model_have_half_of_its_bytes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(row_time, "SECONDS", 0.0)
    monkeypatch.setattr(adaptive_surrogates, "BLOCKS", {"layer 1": (3, 5)})
    report = Report("adaptive", {})
    plan = adaptive_surrogates.Plan("tiny", ("f32",), 1)
    adaptive_surrogates.surrogate_times(report, plan)
    case = adaptive_surrogates.case("tiny", "f32", "layer 1")
    time, bytes, apart = (report.median(case, name, OURS) for name in ("time", "bytes", "apart"))
    assert 0.5 <= bytes < 0.7, "keys and values of one head are as they were"
    assert apart == pytest.approx(abs(time - bytes))
    assert [bar.case for bar in plan.bars()] == [case]
