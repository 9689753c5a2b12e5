"""Where figures are stored."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from blockwright.api.commands import CommandError
from blockwright.api.commands.cli import main
from blockwright.api.commands.figures_file import FiguresFile


def test_figures_are_stored(tmp_path: Path) -> None:
    FiguresFile("--json", str(tmp_path / "a.json")).store({"n": 1})
    assert json.loads((tmp_path / "a.json").read_text()) == {"n": 1}


def test_what_fails_meanwhile_is_a_sentence(tmp_path: Path) -> None:
    stored = FiguresFile("--json", str(tmp_path / "a.json"))
    (tmp_path / "a.json").mkdir()
    with pytest.raises(CommandError, match=r"a.json cannot be written \(Is a directory\); check --json"):
        stored.store({})


def test_nothing_is_measured_for_a_folder_that_is_not_there(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["bench", "serve", "--url", "http://127.0.0.1:1", "--json", str(tmp_path / "none" / "a.json")]) == 2
    assert capsys.readouterr().err.endswith(f"lies in no folder; make {tmp_path / 'none'}\n")
    (prompts := tmp_path / "prompts").write_bytes(b"\x82")
    from blockwright.api.commands.bench import _texts

    with pytest.raises(CommandError, match="prompts is no text; give lines of prompts"):
        _texts(prompts)
