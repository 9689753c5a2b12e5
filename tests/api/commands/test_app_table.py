"""The table of ``apps``: what counts first, and 24 models fit a terminal."""

from __future__ import annotations

import io
from typing import Any

import pytest
from rich.console import Console

from blockwright.api.commands.app_table import app_tables


def app(state: str = "on demand", base: str | None = "base", checkpoint: str = "") -> dict[str, Any]:
    return {"state": state, "base": base, "checkpoint": checkpoint}


MODELS = {
    "base": app("ready", None, "/models/base"),
    "lora00": app("ready", checkpoint="/ada/lora00"),
    **{f"lora{n:02}": app(checkpoint=f"/ada/lora{n:02}") for n in range(1, 21)},
    "latest": app(checkpoint="/ada/lora03"),
    "tuned": app("failed", None, "/models/tuned"),
}


def shown(height: int, terminal: bool = True) -> list[str]:
    console = Console(file=io.StringIO(), width=80, height=height, force_terminal=terminal, color_system=None)
    console.print(app_tables({"applications": MODELS, "default": "base"}).fitted(console))
    assert isinstance(console.file, io.StringIO)
    return [line.rstrip() for line in console.file.getvalue().splitlines()]


def test_twenty_four_models_fit_a_terminal_of_24_lines() -> None:
    lines = shown(24)
    assert lines[:2] == ["24 models: 2 ready, 21 on demand, 1 failed", "requests without a model go to base"]
    assert [line.split() for line in lines[3:8]] == [
        ["APPLICATION", "STATE", "BASE", "CHECKPOINT"],
        ["base", "ready", "-", "/models/base"],
        ["lora00", "ready", "base", "/ada/lora00"],
        ["latest", "on", "demand", "base", "/ada/lora03"],
        ["tuned", "failed", "-", "/models/tuned"],
    ]
    assert lines[8:] == ["lora01 ... lora20: 20 adapters of base; on demand; in /ada"]


@pytest.mark.parametrize(("height", "terminal"), [(40, True), (24, False)])
def test_a_long_screen_and_a_file_have_a_line_for_each(height: int, terminal: bool) -> None:
    lines = shown(height, terminal)
    assert len(lines) == 28
    assert {line.index("/") for line in lines[4:]} == {lines[3].index("CHECKPOINT")}


def test_one_model_of_a_server_whose_default_is_gone() -> None:
    head = Console(file=io.StringIO(), width=80)
    head.print(app_tables({"applications": {"a": app(base=None)}, "default": "b"}).head)
    assert isinstance(head.file, io.StringIO)
    assert head.file.getvalue().startswith("1 model: 1 on demand\nrequests without a model are refused: b is not served\n")
