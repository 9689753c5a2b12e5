"""The habit of the benchmarks: turns, medians, ratios, misses, and a document that the schema accepts."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any

import harness
import jsonschema
import pytest
from harness import OURS, Bar, Options, Report

from blockwright.tests.claims import claim

RESULTS = Path(__file__).parents[2] / "benchmarks" / "results"
SCHEMA = json.loads((RESULTS / "schema.json").read_text())


def report() -> Report:
    made = Report("serving", {"new_tokens": 8})
    for ours, theirs in ((30.0, 10.0), (50.0, 12.0), (20.0, 8.0)):
        made.add("S/f32/c8", OURS, {"out_tok_per_s": ours})
        made.add("S/f32/c8", "transformers", {"out_tok_per_s": theirs})
    made.add("startup/ready", OURS, {"start_s": 2.5})
    return made


def test_rows_have_median_minimum_and_maximum() -> None:
    first = report().rows()[0]
    assert first == {
        "case": "S/f32/c8",
        "subject": OURS,
        "metric": "out_tok_per_s",
        "value": 30.0,
        "low": 20.0,
        "high": 50.0,
        "runs": 3,
    }


def test_the_table_has_the_ratio_beside_the_peer_and_names_the_absent() -> None:
    made = report()
    made.miss("S/f32/c8", "vllm", "not installed")
    lines = [line.split() for line in harness.table(made).splitlines()]
    assert lines[1] == ["S/f32/c8", "out_tok_per_s", OURS, "30", "20", "50", "3"]
    assert lines[2] == ["S/f32/c8", "out_tok_per_s", "transformers", "10", "8", "12", "3", "3.00"]
    assert lines[-1] == ["S/f32/c8", "-", "vllm", "not", "installed"]


@claim("A missed bar is printed and listed as a miss", of="speed")
@pytest.mark.parametrize(
    ("bar", "sentence"),
    [
        (Bar("S/f32/c8", "out_tok_per_s", "transformers", at_least=3.0), None),
        (Bar("S/f32/c8", "out_tok_per_s", "transformers", at_least=3.1), "3 times transformers, the bar is at least 3.1"),
        (Bar("startup/ready", "start_s", at_most=2.5), None),
        (Bar("startup/ready", "start_s", at_most=2.4), "2.5, the bar is at most 2.4"),
        (Bar("S/f32/c8", "out_tok_per_s", "vllm", at_least=1.0), "not measured"),
        (Bar("M/f32/c8", "out_tok_per_s", at_most=1.0), "not measured"),
    ],
)
def test_a_missed_bar_is_a_sentence(bar: Bar, sentence: str | None) -> None:
    found = harness.misses(report(), [bar])
    assert bool(found) == bool(sentence)
    assert not sentence or sentence in found[0]


def test_finish_prints_misses_and_stores_what_the_schema_accepts(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "out.json"
    harness.finish(report(), Options(quick=True, json=path), [Bar("startup/ready", "start_s", at_most=1)])
    assert "MISS  startup/ready start_s: 2.5" in capsys.readouterr().out
    document = json.loads(path.read_text())
    jsonschema.validate(document, SCHEMA)
    assert document["settings"] == {"new_tokens": 8}
    assert len(document["rows"]) == 3


def test_options_are_the_same_for_all_scripts(tmp_path: Path) -> None:
    assert harness.parse("x", []) == Options(quick=False, json=None)
    assert harness.parse("x", ["--quick", "--json", str(tmp_path)]) == Options(quick=True, json=tmp_path)


def test_every_stored_result_follows_the_schema() -> None:
    jsonschema.Draft202012Validator.check_schema(SCHEMA)
    for path in RESULTS.glob("*.json"):
        if path.name != "schema.json":
            document = json.loads(path.read_text())
            jsonschema.validate(document, SCHEMA)
            for row in document["rows"]:
                assert row["low"] <= row["value"] <= row["high"], (path.name, row)


@pytest.mark.parametrize(
    ("path", "value"),
    [
        (("commit",), "main"),
        (("when",), "yesterday"),
        (("machine", "cores"), 0),
        (("rows",), []),
        (("rows", 0, "value"), "fast"),
        (("rows", 0, "runs"), 0),
        (("rows", 0, "metric"), "Tokens per second"),
        (("rows", 0, "note"), "extra"),
    ],
)
def test_the_schema_refuses(path: tuple[str | int, ...], value: object) -> None:
    document = report().document()
    jsonschema.validate(document, SCHEMA)
    place: Any = document
    for step in path[:-1]:
        place = place[step]
    place[path[-1]] = value
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate(document, SCHEMA)


def test_results_that_are_not_committed_are_no_change_of_what_is_measured(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def git(*words: str) -> None:
        subprocess.run(["git", "-C", str(tmp_path), *words], check=True, capture_output=True)

    monkeypatch.setattr(harness, "ROOT", tmp_path)
    git("init")
    (tmp_path / "code.py").write_text("1")
    git("add", ".")
    git("-c", "user.name=a", "-c", "user.email=a@b", "commit", "-m", "first")
    (tmp_path / "benchmarks" / "results").mkdir(parents=True)
    (tmp_path / "benchmarks" / "results" / "new.json").write_text("{}")
    assert len(harness.commit()) == 40
    (tmp_path / "code.py").write_text("2")
    assert harness.commit().endswith("+")
