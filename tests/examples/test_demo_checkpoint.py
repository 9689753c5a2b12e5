"""The shipped checkpoint: small, readable by transformers, and as good as its report says."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
import torch
from tokenizers import Tokenizer
from transformers import AutoModelForCausalLM, AutoTokenizer

from blockwright.api.demo.checkpoint import BOS, CHAT_TEMPLATE, EOS, encode, make_tokenizer
from blockwright.api.demo.tasks import HELD_OUT, LONGER, accuracy, examination
from blockwright.tests.claims import claim

FOLDER = Path(__file__).parents[2] / "examples" / "demo-checkpoint"

TEXTS = ["reverse: abcd =", "  two  blanks\n", "Grüße, 世界 🙂", "</s", "x" * 300]


def test_the_folder_is_at_most_four_megabytes() -> None:
    assert sum(path.stat().st_size for path in FOLDER.rglob("*")) <= 4_000_000


@pytest.mark.parametrize("text", TEXTS)
def test_the_stored_tokenizer_gives_bytes_and_gives_the_text_back(text: str) -> None:
    stored = Tokenizer.from_file(str(FOLDER / "tokenizer.json"))
    assert stored.to_str() == make_tokenizer().to_str()
    ids = stored.encode(text).ids
    assert ids == encode(text) == [BOS, *text.encode()]
    assert stored.decode(ids) == text


@pytest.mark.parametrize("content", ["reverse: abcd", " reverse: abcd ", "reverse: abcd ="])
def test_a_chat_is_the_same_prompt(content: str) -> None:
    tokenizer = AutoTokenizer.from_pretrained(FOLDER)
    assert tokenizer.chat_template == CHAT_TEMPLATE
    messages = [
        {"role": "system", "content": "be brief"},
        {"role": "user", "content": "copy: z"},
        {"role": "assistant", "content": "z"},
        {"role": "user", "content": content},
    ]
    rendered = tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True)
    assert rendered == "<s>reverse: abcd ="
    assert tokenizer(rendered, add_special_tokens=False)["input_ids"] == encode("reverse: abcd =")


@claim("The demo checkpoint reaches its reported accuracy in transformers", of="installation")
def test_transformers_reaches_the_reported_accuracy() -> None:
    """Another seed than the report's; at most eight points below it, which a sample of 96 prompts allows for."""
    tokenizer = AutoTokenizer.from_pretrained(FOLDER, padding_side="left")
    model = AutoModelForCausalLM.from_pretrained(FOLDER, dtype=torch.float32)
    examples = examination(99, 8, (HELD_OUT,))
    batch = tokenizer([item.prompt for item in examples], return_tensors="pt", padding=True, return_token_type_ids=False)
    made = model.generate(**batch, max_new_tokens=64)
    texts = tokenizer.batch_decode(made[:, batch["input_ids"].shape[1] :], skip_special_tokens=True)
    right, total = accuracy(zip(examples, texts, strict=True))["all", HELD_OUT]
    reported = read("report.json")["accuracy"][HELD_OUT]["all"]
    assert reported > 0.9
    assert right / total >= reported - 0.08
    assert (made[:, -1] == EOS).any() or made.shape[1] < 100  # answers end by themselves


def test_the_readme_states_the_reported_accuracy() -> None:
    readme = (FOLDER.parents[1] / "README.md").read_text()
    stated = re.findall(r"(\d+) of 100", readme)
    table = read("report.json")["accuracy"]
    assert [int(number) for number in stated] == [round(100 * table[split]["all"]) for split in (HELD_OUT, LONGER)]


def test_configuration_and_generation_defaults_agree_on_the_end() -> None:
    config, generation = read("config.json"), read("generation_config.json")
    assert config["eos_token_id"] == generation["eos_token_id"] == EOS
    assert config["architectures"] == ["LlamaForCausalLM"]
    assert config["torch_dtype"] == "bfloat16"


def read(name: str) -> dict[str, Any]:
    content: dict[str, Any] = json.loads((FOLDER / name).read_text())
    return content
