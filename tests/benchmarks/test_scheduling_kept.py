"""Simulations that are kept: an interrupted run goes on, other sources begin again."""

from __future__ import annotations

from pathlib import Path

import pytest
import scheduling_kept
from scheduling_kept import Kept, fingerprint, keep, kept


@pytest.fixture(autouse=True)
def alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scheduling_kept, "_places", [])


def test_what_ended_before_is_not_run_again(tmp_path: Path) -> None:
    ran = []

    @kept
    def measure(rate: float, seed: int) -> dict[str, float]:
        ran.append((rate, seed))
        return {"seconds": rate / 3}

    assert measure(1.0, 1) == measure(1.0, 1)
    assert len(ran) == 2, "nothing is kept before somebody says where"
    for _ in range(2):
        keep(tmp_path / "build" / "kept.jsonl", "these sources")
        assert measure(1.0, 1) == measure(1.0, 1) == {"seconds": 1 / 3}
    assert ran[2:] == [(1.0, 1)]
    measure(1.0, 2)
    keep(tmp_path / "build" / "kept.jsonl", "other sources")
    measure(1.0, 2)
    assert ran[3:] == [(1.0, 2), (1.0, 2)]


def test_a_line_that_was_cut_off_is_no_line(tmp_path: Path) -> None:
    path = tmp_path / "kept.jsonl"
    first = Kept(path, "s")
    first.of("a", lambda: {"x": 1.0})
    path.write_text(path.read_text() + '{"what": "b", "sou')
    first.of("c", lambda: {"x": 3.0})
    again = Kept(path, "s")
    assert [name in again for name in "abc"] == [True, False, True]


def test_a_fingerprint_is_of_contents(tmp_path: Path) -> None:
    (tmp_path / "room").mkdir()
    source, data = tmp_path / "room" / "a.py", tmp_path / "lengths.csv"
    source.write_text("a = 1")
    data.write_text("1,2")
    before = fingerprint((tmp_path / "room", data))
    (tmp_path / "room" / "notes.txt").write_text("not a source")
    assert fingerprint((tmp_path / "room", data)) == before
    for path in (source, data):
        path.write_text(path.read_text() + " ")
        assert fingerprint((tmp_path / "room", data)) != before
        before = fingerprint((tmp_path / "room", data))
