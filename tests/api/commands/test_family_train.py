"""The commands that train a family and report on it: what they write, a kill in the middle, what they refuse."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from blockwright.api.commands.cli import main
from blockwright.api.commands.family_train import progress_line
from blockwright.gpu.weights.checkpoint import Checkpoint
from blockwright.gpu.weights.export import export
from blockwright.tests.claims import claim
from blockwright.tests.gpu.reference import load
from blockwright.zoo.family.network import ChainNetwork
from blockwright.zoo.family.recipe import Recipe

Checkpoints = Callable[..., Path]
LINES = [{"prompt": f"say {word} =", "answer": word * 2} for word in ("one", "the", "in", "on", "an", "ten", "hat", "son")]
SETTINGS = ("--set", "batch=4", "--set", "rate=0.01", "--set", "threads=1", "--set", "keep=1")


@pytest.fixture
def data(tmp_path: Path) -> Path:
    path = tmp_path / "data.jsonl"
    path.write_text("\n".join(map(json.dumps, LINES)) + "\n\n", encoding="utf-8")
    return path


def words(folder: Path, out: Path, data: Path, exits: str = "1,2", steps: int = 8) -> list[str]:
    named = ["--exits", exits, "--steps", str(steps), "--data", str(data)]
    return ["family", "train", str(folder), str(out), *named, *SETTINGS]


@claim("A family is trained from a checkpoint and a file of prompts and answers", of="families")
def test_a_trained_family_is_what_transformers_opens(
    checkpoint: Checkpoints, tmp_path: Path, data: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "new" / "f"
    assert main(words(checkpoint("llama-tied"), out, data)) == 0
    said = capsys.readouterr().out.splitlines()
    assert said[-1] == f"{out}: tiers of 1, 2, 3 layers after 8 steps"
    assert [line.split(":")[0] for line in said[:-1]] == [f"step {step} of 8" for step in range(1, 9)]
    assert [path.name for path in out.parent.iterdir()] == ["f"], "the state of the run is gone"
    family = Checkpoint.open(out)
    assert [*family.exits] == [1, 2]
    report = json.loads((out / "report.json").read_text())
    assert (report["steps"], report["data"], [*report["losses"]]) == (8, "data.jsonl", ["3", "2", "1"])
    network, tokens_BL = ChainNetwork(family), torch.tensor([[1, 5, 9, 70, 71]])
    for layers, folder in ((1, export(family.at_exit(1), tmp_path / "1")), (3, out)):
        with torch.no_grad():
            hidden_BLD = network.hidden(network.parameters, tokens_BL, [layers])[layers]
            ours_LV = network.logits(network.parameters, layers, hidden_BLD[0])
            torch.testing.assert_close(ours_LV, load(folder)(tokens_BL).logits[0], rtol=1e-4, atol=1e-4)


@claim("A training run that is interrupted ends with the weights of one that is not, bit for bit", of="families")
def test_a_killed_run_goes_on_to_the_same_files(
    checkpoint: Checkpoints, tmp_path: Path, data: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    whole, killed = tmp_path / "whole", tmp_path / "killed"
    assert main(words(checkpoint("llama"), whole, data, steps=40)) == 0
    asked = [sys.executable, "-m", "blockwright", *words(checkpoint("llama"), killed, data, steps=40)]
    with subprocess.Popen(asked, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline().startswith("step 2 of 40: ")
        process.send_signal(signal.SIGKILL)
    assert process.returncode == -signal.SIGKILL
    assert not killed.exists()
    capsys.readouterr()
    assert main(words(checkpoint("llama"), killed, data, steps=40)) == 0
    assert capsys.readouterr().out.startswith(f"{killed}.run: going on after step ")
    for name in ("model.safetensors", "exits.safetensors", "exits.json"):
        assert (killed / name).read_bytes() == (whole / name).read_bytes(), name


def refused(capsys: pytest.CaptureFixture[str], asked: list[str]) -> str:
    capsys.readouterr()
    assert main(asked) == 2
    return capsys.readouterr().err.removeprefix("blockwright: ").rstrip("\n")


def test_what_cannot_be_trained_is_refused(
    checkpoint: Checkpoints, tmp_path: Path, data: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder, out = checkpoint("llama"), tmp_path / "f"
    assert refused(capsys, words(folder, out, data, exits="2,1")) == (
        "--exits: exit 2 is after 1 layer, but follows one after 2; sort the exits"
    )
    assert refused(capsys, words(folder, out, data, exits="1;2")) == (
        "--exits is '1;2'; give numbers of layers separated by commas, as 8,16"
    )
    assert refused(capsys, words(folder, out, data, steps=0)) == (
        "--steps is 0; give 2 or more (one for each tier that is added)"
    )
    assert refused(capsys, [*words(folder, out, data), "--set", "rate"]) == "--set 'rate' has no '='; write --set name=value"
    (out.with_name("f.run")).write_bytes(b"?" * 99)
    assert refused(capsys, words(folder, out, data)).endswith("; remove it to begin again")
    out.mkdir()
    assert refused(capsys, words(folder, out, data)) == f"{out} is there already; name a folder that is not"
    missing = tmp_path / "none"
    assert refused(capsys, words(folder, tmp_path / "g", missing)) == (
        f"{missing} cannot be read (No such file or directory); name a file, or demo"
    )


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("\n", "{f} has 0 examples; give one JSON object with prompt and answer in each line"),
        ("{", "{f}, line 1 is not valid JSON (line 1: Expecting property name enclosed in double quotes); correct the line"),
        ("\n[1]", "{f}, line 2 is no JSON object; give prompt and answer"),
        ('{"prompt": "a"}', "{f}, line 1: answer is None; give a text"),
        ('{"prompt": "a", "answer": 3}', "{f}, line 1: answer is 3; give a text"),
        ('{"text": "a b", "prompt": "a"}', "{f}, line 1 has the field 'prompt' beside text; remove it"),
        ('{"prompt": "a", "answer": "b", "c": 1}', "{f}, line 1 has the field 'c' beside prompt and answer; remove it"),
        (
            json.dumps({"prompt": "a" * 600, "answer": "b"}),
            "{f}, line 1 has 602 tokens, more than the 512 of the model; shorten it",
        ),
    ],
)
def test_wrong_data_is_refused_by_file_and_line(
    checkpoint: Checkpoints, tmp_path: Path, capsys: pytest.CaptureFixture[str], text: str, says: str
) -> None:
    path = tmp_path / "d.jsonl"
    path.write_text(text, encoding="utf-8")
    assert refused(capsys, words(checkpoint("llama"), tmp_path / "f", path)) == says.format(f=path)


@claim("A report shows how good each tier is, and chooses theta for a loss", of="families")
def test_a_report_writes_the_threshold_for_a_loss(
    checkpoint: Checkpoints, tmp_path: Path, data: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "f"
    assert main(words(checkpoint("llama"), out, data, exits="2", steps=30)) == 0
    before = (out / "exits.json").read_text()
    capsys.readouterr()
    asked = ["family", "report", str(out), "--data", str(data)]
    assert main(asked) == 0
    said = capsys.readouterr().out.splitlines()
    assert said[0] == "8 prompts, greedy, float32"
    assert [line.split()[0] for line in said[2:4]] == ["2", "3"]
    assert said[3].split()[-1] == "100.0%", "the top agrees with itself"
    assert (out / "exits.json").read_text() == before
    assert main([*asked, "--loss", "1"]) == 0
    assert f"{out / 'exits.json'}: auto begins with 2 layers, theta for a loss of 1 points" in capsys.readouterr().out
    assert 0 <= Checkpoint.open(out).thresholds[2].theta <= 2
    assert refused(capsys, [*asked, "--loss", "101"]) == "--loss is 101; give points from 0 to 100"
    plain = str(checkpoint("llama"))
    assert refused(capsys, ["family", "report", plain, "--data", str(data)]) == (
        f"{plain} lists no exits; write exits.json, or run blockwright family train"
    )


def test_the_progress_says_what_is_left() -> None:
    line = progress_line(Recipe(exits=(4,), steps=50), 20, {6: 0.25, 4: 1.5}, 12.3)
    assert line == "step 20 of 50: loss 0.2500 of 6 layers, 1.5000 of 4 layers; left: 30 steps, 12 s"
    assert progress_line(Recipe(exits=(4,), steps=50), 49, {6: 0.25}, 0.4).endswith("left: 1 step, 0 s")
