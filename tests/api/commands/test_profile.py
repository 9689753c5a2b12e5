"""What ``blockwright profile`` prints and refuses. That it measures and stores: docs/profiling.md, whose blocks run."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest

from blockwright.api.commands.cli import main
from blockwright.api.commands.profile import HEIGHT, TERMS, WIDTH, _show, picture, picture_beside, plot
from blockwright.policies.plan.coefficients import TERMS as KNOWN
from blockwright.policies.plan.coefficients import Coefficients


def document(**error: Any) -> dict[str, Any]:
    return {
        "device": {"cpu": "abacus", "threads": 2, "numerics": "native-beads-float32"},
        "model": {"path": "m"},
        "coefficients": asdict(Coefficients(base=1.5e-3)),
        "loading": {"bandwidth": 2.0**30, "components": 3, "seconds": 0.5},
        "links": {"tcp": {"bandwidth": 2.0**31, "latency": 4e-5}},
        "error": {"mape": 0.05, "held_out": 2, "p90": 0.08, "worst": 0.09, "spread": 0.01, "disturbed": False, **error},
        "held_out": [[1e-3, 1e-3], [1e-2, 1.1e-2]],
    }


def test_the_report(capsys: pytest.CaptureFixture[str]) -> None:
    _show(document())
    said = capsys.readouterr().out
    assert "1,500.000 us  a sweep" in said
    assert "2.0 GiB/s, 40 us" in said
    assert "mean error 5.0% of 2 sweeps that were not fitted (90 % of them below 8.0%, worst 9.0%)" in said
    assert "disturbed" not in said
    _show(document(spread=0.25, disturbed=True))
    assert "the machine was disturbed: repeats of a sweep lie 25% apart" in capsys.readouterr().out
    assert tuple(TERMS) == KNOWN


def test_the_plot_has_points_where_they_belong() -> None:
    lines = plot([[1e-3, 1e-3], [1e-1, 1e-1], [1e-1, 1e-3]])
    rows = [line.removeprefix("  |") for line in lines if line.startswith("  |")]
    assert len(rows) == HEIGHT
    assert {(y, x) for y, row in enumerate(rows) for x, mark in enumerate(row) if mark == "o"} == {
        (HEIGHT - 1, 0), (0, WIDTH - 1), (0, 0),
    }  # fmt: skip
    assert "1 ms" in lines[-1]
    assert "100 ms" in lines[-1]


def test_the_picture_of_a_profile_tells_its_error() -> None:
    svg = picture(document())
    assert "2 steps that were not fitted; mean error 5.0%" in svg
    assert svg.count("<circle") == 2
    assert [picture_beside(name) for name in ("a/p.json", "p.svg", "p")] == ["a/p.svg", "p.svg.svg", "p.svg"]


def test_repeats_are_within_bounds(capsys: pytest.CaptureFixture[str]) -> None:
    for count in (3, 1001, 10**30):
        with pytest.raises(SystemExit) as left:
            main(["profile", "m", "--repeats", str(count)])
        assert left.value.code == 2
        assert f"is {count}; give at least 4, whose middle is compared, and at most 1,000" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["nowhere/at/all"], "nowhere"),
        (["m", "-o", "no/such/folder/p.json"], "lies in no folder"),
        (["m", "-o", "."], "--output . is a folder; name a file in it"),
    ],
)
def test_what_cannot_be_profiled_is_one_sentence(
    arguments: list[str], says: str, capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["profile", *arguments]) == 2
    said = capsys.readouterr().err
    assert said.count("\n") == 1
    assert says in said
