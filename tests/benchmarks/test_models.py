"""The random models: the sizes that are claimed, readable by transformers, a tokenizer that covers the vocabulary."""

from __future__ import annotations

from math import prod
from pathlib import Path

import models
import pytest
import torch
import transformers_peer
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM, AutoTokenizer


@pytest.mark.parametrize(("size", "millions"), [("S", 26.9), ("M", 168.8), ("W", 44.1)])
def test_parameters(size: str, millions: float) -> None:
    assert sum(map(prod, models.shapes(models.SIZES[size]).values())) / 1e6 == pytest.approx(millions, abs=0.05)


@pytest.mark.parametrize("size", ["tiny", "S", "M"])
def test_the_tokenizer_has_a_text_for_every_token(size: str) -> None:
    vocabulary = models.SIZES[size].vocabulary
    tokenizer = models.make_tokenizer(vocabulary)
    assert tokenizer.get_vocab_size() == vocabulary
    assert tokenizer.decode([vocabulary - 1])
    assert tokenizer.decode(tokenizer.encode("Grüße, world!").ids) == "Grüße, world!"


def test_transformers_reads_and_runs_the_folder(tmp_path: Path) -> None:
    folder = models.make_model("tiny", "bf16", tmp_path / "tiny")
    model = AutoModelForCausalLM.from_pretrained(folder, dtype="auto")
    assert model.dtype == torch.bfloat16
    assert {name: tuple(t.shape) for name, t in load_file(folder / "model.safetensors").items()} == models.shapes(
        models.SIZES["tiny"]
    )
    assert AutoTokenizer.from_pretrained(folder).vocab_size == 512
    asked = {"prompts": models.prompts("tiny", 3, 5, seed=1), "tokens": 7}
    assert transformers_peer.answer(model, asked)["seconds"] > 0


def test_the_weights_are_fixed_by_the_seed(tmp_path: Path) -> None:
    first, again, other = (
        load_file(models.make_model("tiny", "f32", tmp_path / str(n), seed=seed) / "model.safetensors")
        for n, seed in enumerate((0, 0, 1))
    )
    assert all(torch.equal(first[name], again[name]) for name in first)
    assert not torch.equal(first["lm_head.weight"], other["lm_head.weight"])


def test_prompts_differ_between_seeds_and_hold_no_end() -> None:
    first, second = models.prompts("S", 4, 16, seed=1), models.prompts("S", 4, 16, seed=2)
    assert first == models.prompts("S", 4, 16, seed=1)
    assert first != second
    assert all(models.EOS < token < 8192 for prompt in first + second for token in prompt)
