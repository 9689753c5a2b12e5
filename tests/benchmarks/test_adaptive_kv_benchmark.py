"""The comparison of modes of ``kv_dispatch``: all three see the same requests, and the ratios are to the best of them."""

from __future__ import annotations

from itertools import pairwise

import adaptive_kv
import pytest
from adaptive_kv import LOADS, MODES, Machine, conversations
from harness import OURS, Report, misses

MACHINE = Machine({"token": 1.5e-5, "read": 2e-4, "row": 1e-5}, 1536, 1e-4, 3.5e8)


def test_conversations_come_back_with_their_history() -> None:
    requests = conversations(40, 5.0, 1.0, seed=3)
    assert [one.number for one in requests] == list(range(40))
    assert sorted(one.at for one in requests) == [one.at for one in requests]
    by_first: dict[int, list[tuple[int, ...]]] = {}
    for one in requests:
        by_first.setdefault(one.tokens[0], []).append(one.tokens)
    several = [turns for turns in by_first.values() if len(turns) > 1]
    assert several
    assert all(later[: len(earlier)] == earlier for turns in several for earlier, later in pairwise(turns))
    assert {one.at for one in conversations(6, 0.0, 0.0, seed=3)} == {0.0}


def test_ratios_are_to_the_best_mode_at_each_load(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(adaptive_kv, "LOADS", LOADS[1:2])
    report = Report("adaptive_kv", {})
    adaptive_kv.compare(report, MACHINE, 60, seed=0)
    found = {mode: {name: report.median(f"load-{LOADS[1]:g}/{mode}", name, OURS) for name in ("ratio", "p95_s", "moved_mb")}
             for mode in MODES}  # fmt: skip
    least = min(one["p95_s"] for one in found.values())  # type: ignore[type-var]
    assert least is not None
    assert all(one["ratio"] == pytest.approx(one["p95_s"] / least) for one in found.values())  # type: ignore[operator]
    assert min(one["ratio"] for one in found.values()) == 1.0  # type: ignore[type-var]
    assert found["recompute"]["moved_mb"] == 0
    assert found["least-busy"]["moved_mb"] > 0  # type: ignore[operator]


def test_the_bar_is_of_the_owner() -> None:
    report = Report("adaptive_kv", {})
    for load in LOADS:
        report.add(f"load-{load:g}/owner", OURS, {"ratio": 1.2 if load == LOADS[0] else 1.0})
        report.add(f"load-{load:g}/recompute", OURS, {"ratio": 3.0})
    assert len(misses(report, adaptive_kv.BARS)) == 1
