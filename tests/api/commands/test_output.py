"""Tables on narrow terminals, and files of figures."""

from __future__ import annotations

import io
import json
from pathlib import Path

import pytest
from rich.console import Console

from blockwright.api.commands import CommandError
from blockwright.api.commands.cli import main
from blockwright.api.commands.output import FiguresFile, FittedTable

LONG = "organisation/a-fine-tune-with-a-long-name-v12"
TABLE = FittedTable(
    ("MODEL", "STATE", "OWNS", "WAIT"),
    [(LONG, "ready", "10.5 MiB", "12"), ("short", "loading", "1.0 KiB", "0")],
    numbers=2,
    least=("STATE",),
)


def printed(table: FittedTable, width: int) -> list[str]:
    paper = Console(file=io.StringIO(), width=width)
    paper.print(table)
    return paper.file.getvalue().splitlines()  # type: ignore[attr-defined, no-any-return]


def test_a_wide_terminal_shows_all_on_a_line_each() -> None:
    head, first, second = printed(TABLE, 120)
    assert head.split() == ["MODEL", "STATE", "OWNS", "WAIT"]
    assert first.split() == [LONG, "ready", "10.5", "MiB", "12"]
    assert second.split() == ["short", "loading", "1.0", "KiB", "0"]


@pytest.mark.parametrize("width", range(28, 90, 3))
def test_whatever_the_width_names_are_whole_and_numbers_are_not_cut(width: int) -> None:
    head, *lines = printed(TABLE, width)
    assert max(map(len, (head, *lines))) <= width
    room = head.index("STATE") if "STATE" in head else head.index(" ", len("MODEL")) + 1
    name = "".join(line[: max(room, 14)].strip() if "10.5" in line or not line[14:].strip() else "" for line in lines)
    assert name.startswith(LONG[:14]), "folded, not cut"
    messages = " ".join(lines)
    assert "10.5 MiB" in messages
    assert "short" in messages
    assert "…" not in messages


def test_what_matters_least_goes_where_there_is_no_room() -> None:
    assert TABLE.shown(120) == [0, 1, 2, 3]
    assert TABLE.shown(30) == [0, 2, 3]
    assert TABLE.shown(5) == [0, 2, 3], "but nothing else does"


def test_a_narrow_column_comes_back_where_a_wide_one_makes_room() -> None:
    row = ("x" * 20, "y" * 30, "w0", "z" * 8)
    table = FittedTable(("REQUEST", "MODEL", "ON", "PREFILL"), [row], numbers=0, least=("PREFILL", "ON", "MODEL"))
    assert table.shown(66) == [0, 1, 2, 3]
    assert table.shown(56) == [0, 1, 2]
    assert table.shown(34) == [0, 2, 3], "without the model there is room for both"


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
