"""``apps add`` and the folder that it names."""

from __future__ import annotations

from pathlib import Path

import pytest

from blockwright.api.commands.apps import _where


def test_a_relative_path_is_resolved_where_the_server_is_here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", "/home/ann")
    for url in ("http://127.0.0.1:8000", "http://localhost:1", "http://[::1]:8000"):
        assert _where("tuned/ann", url) == str(tmp_path / "tuned" / "ann")
        assert _where("~/ann", url) == "/home/ann/ann"
        assert _where("/m/ann", url) == "/m/ann"
    assert _where("tuned/ann", "http://box:8000") == "tuned/ann", "another machine has folders of its own"
