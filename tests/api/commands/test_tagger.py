"""``blockwright tagger``: what it prints of a log, what it refuses, and that the same log makes the same file."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pytest

from blockwright.actors.tagger.model_file import TaggerFile, read_tagger, write_tagger
from blockwright.actors.tagger.request_log import line
from blockwright.api.commands.cli import main
from blockwright.api.demo.tasks import TASKS, TRAIN, make_example
from blockwright.policies.prediction.length_history import LengthHistory
from blockwright.policies.prediction.lengths import LengthSample, features_of


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str]) -> Any:
    """``code, out, err = run("train", ...)``"""

    def call(*words: object) -> tuple[int, str, str]:
        capsys.readouterr()
        try:
            code = main(["tagger", *map(str, words)])
        except SystemExit as end:  # of argparse
            code = int(str(end.code))
        said = capsys.readouterr()
        return code, said.out, said.err

    return call


@pytest.fixture
def log(tmp_path: Path) -> Path:
    """Of 250 answers to tasks of the demo."""
    draw, lines = random.Random(1), []
    for number in range(250):
        example = make_example(draw, draw.choice([*TASKS]), TRAIN)
        features = features_of("demo", [ord(letter) for letter in example.prompt], 64)
        lines.append(line(LengthSample(features, len(example.answer) + 1, True), number))
    (tmp_path / "g0.jsonl").write_bytes(b"".join(lines))
    return tmp_path


def test_training_shows_the_three_on_what_was_held_out(log: Path, run: Any, tmp_path: Path) -> None:
    file = tmp_path / "t.json"
    code, out, err = run("train", log, "-o", file)
    assert (code, err) == (0, "")
    rows = [words for words in map(str.split, out.splitlines()) if words and words[0] in ("constant", "history", "trained")]
    assert [row[:2] for row in rows] == [["constant", "50"], ["history", "50"], ["trained", "50"]]
    constant, history, trained = (float(row[2]) for row in rows)
    assert trained < 0.7 * history
    assert trained < 0.7 * constant
    assert [row[4:] for row in rows] == [["100%", "100%"]] * 3, "no answer of a task is longer than 50 tokens"
    assert f"--set tagger=trained:{file}" in out
    again = tmp_path / "again.json"
    assert run("train", log / "g0.jsonl", "-o", again, "--held-out", "0.2")[0] == 0
    assert file.read_bytes() == again.read_bytes()
    code, shown, _ = run("show", file)
    assert (code, shown.splitlines()[1:]) == (0, out.splitlines()[:4])
    assert shown.startswith(f"{file}: trained, 4,050 lessons\n")
    assert read_tagger(file).figures["trained"]["mean_error"] == pytest.approx(trained, abs=0.05)


def test_a_kept_tagger_is_shown_too(run: Any, tmp_path: Path) -> None:
    history = LengthHistory()
    history.learn(LengthSample(features_of("m", [1], 9), 5, True))
    write_tagger(tmp_path / "tagger.json", TaggerFile(history, "history"))
    code, out, _ = run("show", tmp_path / "tagger.json")
    assert (code, out.splitlines()[0]) == (0, f"{tmp_path / 'tagger.json'}: history, 3 levels")


def test_mistakes_are_exit_code_2(log: Path, run: Any, tmp_path: Path) -> None:
    for words, outcome in {
        ("train", tmp_path / "no"): "no: No such file or directory; name a file or folder of request_log",
        ("train", log, "--held-out", "0.99"): "has 250 requests, 2 of them to train on; serve until there are 20",
        ("train", log, "--held-out", "0.001"): "has 250 requests, 250 of them to train on",
        ("train", log, "--held-out", "2"): "argument --held-out: is '2'; give a part between 0 and 1",
        ("show", tmp_path / "no"): "no: No such file or directory; give a file that blockwright tagger train has written",
        ("show", log / "g0.jsonl"): "train it again",
    }.items():
        code, out, err = run(*words)
        assert (code, out) == (2, ""), words
        assert outcome in err
        assert len(err.splitlines()) == 1
    code, _, err = run("train", log, "-o", tmp_path / "no" / "t.json")
    assert (code, err) == (
        1,
        f"blockwright: {tmp_path / 'no' / 't.json'}: No such file or directory; name another file with -o\n",
    )
