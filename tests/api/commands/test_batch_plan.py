"""What ``blockwright batch plan`` (docs/offline.md) says of a file before anything runs, and what it refuses."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from blockwright.api.commands.cli import main
from blockwright.tests.claims import claim


def line(n: int, model: str, url: str = "/v1/completions", **body: Any) -> str:
    asked = {**({"model": model} if model else {}), "max_tokens": 4, **body}
    return json.dumps({"custom_id": f"r{n}", "method": "POST", "url": url, "body": asked})


@pytest.fixture
def batch(checkpoint: Callable[..., Path], tmp_path: Path) -> tuple[Path, Path]:
    """A checkpoint, and a file of two sources and four lines that are no requests."""
    model = checkpoint()
    name = model.name
    shared = list(range(10, 110))
    lines = [line(n, name, prompt=[*shared, 200 + n], max_tokens=2) for n in range(20)]
    lines += [line(n, name, prompt=[3 + n], max_tokens=300) for n in range(20, 30)]
    lines += [line(n, "", "/v1/chat/completions", messages=[{"role": "user", "content": "on the"}]) for n in range(30, 34)]
    lines += [
        "{",
        line(40, "other", prompt="in"),
        line(41, name, prompt=[1] * 600),
        "",
        line(42, name, prompt="in", stream=True),
    ]
    file = tmp_path / "in.jsonl"
    file.write_text("\n".join(lines) + "\n")
    return model, file


@claim("`batch plan` shows compute and memory for each order before anything runs", of="offline")
def test_a_plan(batch: tuple[Path, Path], capsys: pytest.CaptureFixture[str]) -> None:
    model, file = batch
    assert main(["batch", "plan", str(file), "--model", str(model), "--set", "memory=8MB"]) == 0
    said = capsys.readouterr().out
    assert f"{file} with {model.name}: 34 requests\n" in said
    assert "4 lines would be refused" in said
    assert "line 35: " in said
    assert "line 36: the model 'other' does not exist" in said
    assert "line 37: " in said
    assert "line 39" not in said, "three are printed"
    chat = len("<user>on the\n<assistant>") // 2  # tokens at least: a merge joins two characters, or three
    found = next(row for row in said.splitlines() if "prompt tokens, " in row)
    tokens, distinct = (int(word.replace(",", "")) for word in (found.split()[0], found.split()[3]))
    assert 20 * 101 + 10 + 4 * chat // 2 <= tokens <= 20 * 101 + 10 + 4 * 30
    assert tokens - distinct >= 19 * 100
    assert "units of density" in said
    assert "a guess; --profile" in said
    for order in ("density", "depth first", "longest prefix", "random"):
        row = next(row for row in said.splitlines() if row.startswith(order))
        assert row.split()[-1] == "s"
        assert f"  {order:14} computes " in said


def test_a_profile_says_what_takes_how_long(
    batch: tuple[Path, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """With a thousandth of a second for a token, and as much for a position that is read."""
    model, file = batch
    profile = tmp_path / "profile.json"
    profile.write_text(json.dumps({"coefficients": {"token": 1e-3, "context": 1e-3}}))
    assert main(["batch", "plan", str(file), "--model", str(model), "--profile", str(profile), "--set", "memory=8MB"]) == 0
    said = capsys.readouterr().out
    assert f"measured by {profile}" in said
    read = 20 * (2 * 101 + 3) + sum(300 * 1 + 300 * 301 // 2 for _ in range(10))
    row = next(row for row in said.splitlines() if row.startswith("computing takes"))
    assert float(row.split("reading KV ")[1].split()[0].replace(",", "")) == pytest.approx(read * 1e-3, rel=0.02)


@pytest.mark.parametrize(
    ("content", "more", "says"),
    [
        (None, [], "in.jsonl cannot be read (No such file or directory)"),
        ("\n\n", [], "in.jsonl has no line"),
        ("[]\n", [], "in.jsonl is no JSONL (line 1: "),
        ('{"custom_id": "a"}\n', [], "in.jsonl has no request that could run; line 1: method is"),
        ('{"custom_id": "a"}\n', ["--set", "memory=1KB"], "give more (--set memory=...)"),
        ('{"custom_id": "a"}\n', ["--profile", "nowhere.json"], "profile: nowhere.json cannot be used"),
        ('{"custom_id": "a"}\n', ["--set", "memoryy=1"], "memoryy"),
    ],
)
def test_what_cannot_be_planned_is_one_sentence(
    content: str | None,
    more: list[str],
    says: str,
    checkpoint: Callable[..., Path],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    if content is not None:
        Path("in.jsonl").write_text(content)
    assert main(["batch", "plan", "in.jsonl", "--model", str(checkpoint()), "--set", "memory=8MB", *more]) == 2
    said = capsys.readouterr().err
    assert said.count("\n") == 1
    assert says in said
