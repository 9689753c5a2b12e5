"""The shipped family: small, a checkpoint that transformers opens, tiers as good as the stored result says."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from transformers import AutoModelForCausalLM

from blockwright.api.demo.checkpoint import EOS, encode
from blockwright.api.demo.tasks import HELD_OUT, Example, examination
from blockwright.gpu.weights.checkpoint import Checkpoint
from blockwright.gpu.weights.export import export
from blockwright.tests.claims import claim

ROOT = Path(__file__).parents[2]
FOLDER, RESULT = ROOT / "examples" / "demo-tiers", ROOT / "benchmarks" / "results" / "family.json"


def test_the_folder_is_smaller_than_six_megabytes() -> None:
    assert sum(path.stat().st_size for path in FOLDER.rglob("*")) < 6_000_000
    assert [*Checkpoint.open(FOLDER).thresholds] == [4], "auto begins at the exit from which it costs least"


@claim("Each tier of the shipped family reaches its reported accuracy in transformers", of="families")
@pytest.mark.parametrize("layers", Checkpoint.open(FOLDER).exits.keys() | {6})
def test_a_tier_reaches_its_accuracy_in_transformers(layers: int, tmp_path: Path) -> None:
    """Prompts of another seed; at most ten points below the result, which a sample of 96 allows for."""
    folder = FOLDER if layers == 6 else export(Checkpoint.open(FOLDER).at_exit(layers), tmp_path / "tier")
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    examples = examination(99, 8, (HELD_OUT,))
    share = sum(greedy(model, one) for one in examples) / len(examples)
    rows = json.loads(RESULT.read_text())["rows"]
    (reported,) = (row["value"] for row in rows if (row["case"], row["metric"]) == (f"shipped/{layers}", "right"))
    assert share >= reported - 0.1


@torch.no_grad()
def greedy(model: torch.nn.Module, example: Example) -> bool:
    """Return True if each token of the answer is the likeliest one after the ones before it."""
    prompt, answer = encode(example.prompt), [*encode(example.answer, start=False), EOS]
    logits_LV = model(torch.tensor([[*prompt, *answer[:-1]]])).logits[0, len(prompt) - 1 :]
    return bool(logits_LV.argmax(-1).tolist() == answer)
