"""``blockwright simulate CONFIG``: what it prints, stores and refuses."""

from __future__ import annotations

import json
from pathlib import Path

import jsonschema
import pytest

from blockwright.api.commands.cli import main
from blockwright.api.commands.simulate_report import WIDTH, cumulative, plot

ROOT = Path(__file__).parents[3]
EXAMPLE = ROOT / "examples" / "simulate" / "twelve.toml"


def simulate(capsys: pytest.CaptureFixture[str], *words: object) -> tuple[int, str, str]:
    code = main(["simulate", *map(str, words)])
    said = capsys.readouterr()
    return code, said.out, said.err


def test_the_example(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    log, figures = tmp_path / "log.jsonl", tmp_path / "f.json"
    code, out, err = simulate(capsys, EXAMPLE, "--set", "workload.count=40", "--log", log, "--json", figures)
    assert (code, "40 requests answered, 0 not" in out, "times real time" in err) == (0, True, True)
    assert [line.split()[0] for line in out.splitlines()[1:7]] == ["TTFT", "latency", "until", "per", "KV", "preemptions"]
    found = json.loads(figures.read_text())
    jsonschema.validate(found, json.loads((ROOT / "docs" / "schemas" / "simulate.json").read_text()))
    assert sum(one["requests"] for one in found["instances"]) == found["requests"] == 40
    entries = [json.loads(line) for line in log.read_text().splitlines()]
    assert {"dispatched", "started", "first", "finished"} == {entry["what"] for entry in entries}
    assert len([entry for entry in entries if entry["what"] == "dispatched" and len(entry["compared"]) == 12]) == 40
    again = json.loads(simulate(capsys, EXAMPLE, "--set", "workload.count=40", "--json", "-")[1])
    assert again["digest"] == found["digest"]


DROPPING = """
workload = {rate = 12.0, count = 60, input_tokens = 40, output_tokens = 40}
links = {bandwidth = 1e6}
dispatch = {policy = "prefix-aware"}
overload = {mode = "drop", layers = 4, throttled = 0.8}
[[models]]
name = "m"
kv_bytes = 64
parameters = 6400
[[instances]]
name = "i"
count = 2
profile = "p.json"
memory = 17000
memory_chunk = 64
page_size = 4
"""


def test_parameters_that_are_dropped_are_reported(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "p.json").write_text('{"coefficients": {"base": 0.03}}')
    (tmp_path / "c.toml").write_text(DROPPING)
    code, out, _ = simulate(capsys, tmp_path / "c.toml", "--json", tmp_path / "f.json")
    found = json.loads((tmp_path / "f.json").read_text())
    jsonschema.validate(found, json.loads((ROOT / "docs" / "schemas" / "simulate.json").read_text()))
    assert (code, found["failed"], "\noverload: " in out) == (0, 0, True)
    assert [change["what"] for change in found["overload"]["changes"]][:3] == ["drop", "dropped", "exchanged"]
    assert found["overload"]["moved_bytes"] > 0
    assert {"i-0", "i-1", "i-0+i-1"} == {one["name"] for one in found["instances"]}
    assert all(one["sweeps"] for one in found["instances"])


@pytest.mark.parametrize(("mode", "what"), [("swap", "swapped-in"), ("migrate", "migrated")])
def test_kv_that_moves_is_reported(mode: str, what: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "p.json").write_text('{"coefficients": {"base": 0.03}}')
    (tmp_path / "c.toml").write_text(DROPPING.replace('"drop"', f'"{mode}"'))
    log, figures = tmp_path / "log.jsonl", tmp_path / "f.json"
    code, out, _ = simulate(capsys, tmp_path / "c.toml", "--log", log, "--json", figures)
    found = json.loads(figures.read_text())
    jsonschema.validate(found, json.loads((ROOT / "docs" / "schemas" / "simulate.json").read_text()))
    assert (code, found["failed"], f" {what}" in out) == (0, 0, True)
    moves = [entry for entry in map(json.loads, log.read_text().splitlines()) if entry["what"] == what]
    assert len(moves) == [change["what"] for change in found["overload"]["changes"]].count(what) > 0


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ("workload.trace=none.csv", "none.csv cannot be read"),
        ("workload.lengths=twelve.toml", "twelve.toml, line 1: the columns are"),
        ("instances.0.profile=none.json", "none.json, which cannot be read"),
        ("dispatch.policy=best", "dispatch.policy is 'best'; give one of"),
        ("models.0.context=", "models[0].context is ''; give a whole number"),
    ],
)
def test_mistakes_are_refused_in_a_sentence(capsys: pytest.CaptureFixture[str], change: str, says: str) -> None:
    code, out, err = simulate(capsys, EXAMPLE, "--set", change)
    assert (code, out) == (2, "")
    assert says in err


def test_a_log_that_cannot_be_written(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, _, err = simulate(capsys, EXAMPLE, "--set", "workload.count=1", "--log", tmp_path)
    assert (code, "cannot be written" in err) == (2, True)


def test_plots() -> None:
    assert plot([0.0, 4.0]) == " " * (WIDTH // 2) + "█" * (WIDTH // 2)
    assert plot([1.0] * 7, 2.0) == "▄" * WIDTH
    assert plot([0, 0]) == " " * WIDTH
    rising = cumulative([float(n) for n in range(101)])
    assert rising == sorted(rising)
    assert (len(rising), rising[-1]) == (WIDTH, pytest.approx(100 / 101))
