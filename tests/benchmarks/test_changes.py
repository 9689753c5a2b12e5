"""What counts as changed between two results, and what may be stored."""

from __future__ import annotations

import ast
import json
import subprocess
from pathlib import Path
from typing import Any

import pytest
from changes import changes

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"


def all_benchmarks() -> Any:
    """``benchmarks/all.py``, whose name is a builtin's."""
    import importlib

    return importlib.import_module("all")


def document(*rows: tuple[str, float, float, float], **more: Any) -> dict[str, Any]:
    """A result with rows of (case, median, smallest, largest)."""
    made = [
        {"case": case, "subject": "blockwright", "metric": "per_s", "value": value, "low": low, "high": high, "runs": 3}
        for case, value, low, high in rows
    ]
    return {
        "benchmark": "x",
        "commit": "c" * 40,
        "when": "then",
        "machine": {"cpu": "A"},
        "settings": {},
        "rows": made,
        **more,
    }


@pytest.mark.parametrize(
    ("before", "now", "changed"),
    [
        ((100, 90, 110), (120, 105, 130), False),  # the runs overlap
        ((100, 90, 110), (125, 114, 130), False),  # they do not, by less than the floor
        ((100, 90, 110), (125, 116, 130), True),
        ((100, 90, 110), (80, 70, 86), False),
        ((100, 90, 110), (80, 70, 84), True),
        ((100, 100, 100), (104, 104, 104), False),  # single runs
        ((100, 100, 100), (94, 94, 94), True),
        ((0, 0, 0), (1, 1, 1), True),
    ],
)
def test_a_figure_changed_when_the_runs_of_then_and_now_lie_apart(
    before: tuple[float, float, float], now: tuple[float, float, float], changed: bool
) -> None:
    assert bool(changes(document(("call", *before)), document(("call", *now)))) is changed


def test_a_change_says_both_figures_with_their_spread_and_their_ratio() -> None:
    (line,) = changes(document(("call/ipc", 100, 90, 110)), document(("call/ipc", 50, 45, 55)))
    assert line == "x call/ipc per_s blockwright: 100 (90 to 110) -> 50 (45 to 55), 0.50 times"


def test_new_and_gone_figures_and_another_machine_are_reported() -> None:
    outcome = changes(document(("old", 1, 1, 1)), document(("new", 2, 2, 2), machine={"cpu": "B"}, settings={"rounds": 1}))
    assert outcome == [
        "x: machine differs: {'cpu': 'A'} then, {'cpu': 'B'} now",
        "x: settings differs: {} then, {'rounds': 1} now",
        "x new per_s blockwright: 2, not measured before",
        "x old per_s blockwright: 1 before, not measured now",
    ]


def test_every_new_result_is_compared_with_the_stored_one(tmp_path: Path) -> None:
    new, stored = tmp_path / "new", tmp_path / "stored"
    for folder in (new, stored):
        folder.mkdir()
        (folder / "same.json").write_text(json.dumps(document(("call", 1, 1, 1))))
    (new / "more.json").write_text(json.dumps(document(("call", 1, 1, 1))))
    found = all_benchmarks().compared(new, stored)
    assert found == ["more: not stored before", "same: no changes since then, commit cccccccccc"]


def test_all_of_one_commit_is_stored_or_nothing(tmp_path: Path) -> None:
    new, stored = tmp_path / "new", tmp_path / "stored"
    for folder in (new, stored):
        folder.mkdir()
    (new / "a.json").write_text(json.dumps(document(("call", 1, 1, 1))))
    (new / "b.json").write_text(json.dumps(document(("call", 1, 1, 1), commit="c" * 40 + "+")))
    with pytest.raises(SystemExit, match=r"b was measured on c+\+, not on"):
        all_benchmarks().store(new, stored, "c" * 40)
    assert list(stored.iterdir()) == []
    (new / "b.json").unlink()
    all_benchmarks().store(new, stored, "c" * 40)
    assert [path.name for path in stored.iterdir()] == ["a.json"]


@pytest.mark.parametrize("state", ["unknown", "c" * 40 + "+"])
def test_what_is_not_committed_is_not_stored(
    state: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    everything = all_benchmarks()
    monkeypatch.setattr(everything.harness, "commit", lambda: state)
    with pytest.raises(SystemExit):
        everything.main(["--store", "--only", "sweep"])
    assert f"only whole results of a committed state are stored; this is {state}" in capsys.readouterr().err


def test_a_benchmark_that_takes_too_long_is_ended_with_what_it_started(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    everything = all_benchmarks()
    (tmp_path / "benchmarks").mkdir()
    (tmp_path / "benchmarks" / "stuck.py").write_text("import threading; threading.Event().wait()")
    started: list[subprocess.Popen[bytes]] = []

    class Started(subprocess.Popen):  # type: ignore[type-arg]
        def __init__(self, *arguments: Any, **more: Any) -> None:
            super().__init__(*arguments, **more)
            started.append(self)

    monkeypatch.setattr(everything, "ROOT", tmp_path)
    monkeypatch.setattr(everything.subprocess, "Popen", Started)
    assert everything.run_one("stuck", tmp_path / "x.json", 0.0) == "did not finish within 0 s"
    assert started[0].returncode is not None


def test_a_benchmark_that_fails_or_stores_nothing_is_reported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    everything = all_benchmarks()
    (tmp_path / "benchmarks").mkdir()
    (tmp_path / "benchmarks" / "bad.py").write_text("raise SystemExit(3)")
    (tmp_path / "benchmarks" / "mute.py").write_text("")
    monkeypatch.setattr(everything, "ROOT", tmp_path)
    assert everything.run_one("bad", tmp_path / "x.json", 240.0) == "ended with 3"
    assert everything.run_one("mute", tmp_path / "x.json", 240.0, ["--quick"]) == "stored nothing"


def test_all_benchmarks_that_store_take_part_and_most_within_half_an_hour() -> None:
    storing = {
        path.stem
        for path in BENCHMARKS.glob("*.py")
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Call) and ast.unparse(node.func) == "harness.finish"
    }
    everything = all_benchmarks()
    assert set(everything.BUDGETS | everything.LONG) == storing
    assert sum(everything.BUDGETS.values()) <= 30 * 60
