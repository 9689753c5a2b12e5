"""Every field of generation_config.json is applied, changes nothing, or is named."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from blockwright.gpu.errors import CheckpointError
from blockwright.gpu.model.config import GenerationDefaults, ModelConfig, WeightedTokens
from blockwright.gpu.weights.checkpoint import Checkpoint
from blockwright.gpu.weights.checkpoint_files import CheckpointFiles
from blockwright.gpu.weights.generation import APPLIED, NEUTRAL, SILENT, read_generation
from blockwright.tests.api.fake_port import EOS, make_folder
from blockwright.tests.claims import claim


@pytest.fixture(scope="module")
def config(tmp_path_factory: pytest.TempPathFactory) -> ModelConfig:
    return Checkpoint.open(make_folder(tmp_path_factory.mktemp("tiny"))).config


def read(config: ModelConfig, *folders: Path) -> GenerationDefaults:
    return read_generation(CheckpointFiles(*folders), config)


def written(folder: Path, values: dict[str, Any]) -> Path:
    folder.mkdir(exist_ok=True)
    (folder / "generation_config.json").write_text(json.dumps(values))
    return folder


@claim("The sampling defaults of a checkpoint are applied or named as ignored", of="checkpoints")
def test_every_field_of_transformers_has_its_place(config: ModelConfig, tmp_path: Path) -> None:
    from transformers import GenerationConfig

    known = set(GenerationConfig().to_dict())
    assert {*APPLIED, *SILENT} <= known
    assert not {*APPLIED} & {*SILENT} | {*NEUTRAL} & {*APPLIED, *SILENT}
    named = sorted(known - {*APPLIED, *SILENT})
    assert {"typical_p", "num_beams", "forced_eos_token_id", "guidance_scale", "watermarking_config"} <= {*named}
    for field in named:
        assert read(config, written(tmp_path, {field: 3})).unapplied == (field,)
        for neutral in (None, *NEUTRAL.get(field, ())):
            assert read(config, written(tmp_path, {field: neutral})).unapplied == ()
    silent = dict.fromkeys(SILENT, 7) | {"transformers_version": "5.0"}
    assert read(config, written(tmp_path, silent)) == GenerationDefaults(eos_token_ids=(EOS,))
    assert read(config, written(tmp_path, {"chat_format": "x", "top_k": 3})).unapplied == ("chat_format",)
    saved = GenerationConfig()._get_default_generation_params()
    assert read(config, written(tmp_path, saved)).unapplied == (), "what transformers takes for nothing"


def test_applied_fields_are_read(config: ModelConfig, tmp_path: Path) -> None:
    values = {
        "min_p": 0.1, "min_new_tokens": 3, "max_length": 40, "max_new_tokens": 20,
        "no_repeat_ngram_size": 2,
        "suppress_tokens": [3, 4, 999, -1], "begin_suppress_tokens": [5], "stop_strings": ["a", "b"],
        "bad_words_ids": [[3], [EOS], [4, 5], [999]], "sequence_bias": [[[7], 2.5], [[8, 9], -1]],
    }  # fmt: skip
    assert read(config, written(tmp_path, values)) == GenerationDefaults(
        eos_token_ids=(EOS,), min_p=0.1, min_new_tokens=3, max_length=40, max_new_tokens=20, no_repeat_ngram=2,
        suppressed=(3, 4), suppressed_first=(5,), stop_strings=("a", "b"), banned=((3,), (4, 5)),
        biases=(WeightedTokens((7,), 2.5), WeightedTokens((8, 9), -1.0)),
    )  # fmt: skip
    assert read(config, written(tmp_path, dict.fromkeys(values))) == GenerationDefaults(eos_token_ids=(EOS,))
    assert read(config, tmp_path / "none") == GenerationDefaults(eos_token_ids=(EOS,))


def test_min_new_tokens_takes_the_place_of_min_length(config: ModelConfig, tmp_path: Path) -> None:
    """It does in transformers, also if it is 0."""
    assert read(config, written(tmp_path, {"min_length": 9})).min_length == 9
    for least in (0, 3):
        made = read(config, written(tmp_path, {"min_length": 9, "min_new_tokens": least}))
        assert (made.min_length, made.min_new_tokens) == (0, least)


def test_a_quantized_cache_is_named(config: ModelConfig, tmp_path: Path) -> None:
    assert read(config, written(tmp_path, {"cache_implementation": "quantized"})).unapplied == ("cache_implementation",)


def test_without_the_file_config_json_has_the_fields(config: ModelConfig, tmp_path: Path) -> None:
    """Older releases saved them so, and transformers still reads them."""
    from transformers import GenerationConfig

    fields = {"repetition_penalty": 1.5, "no_repeat_ngram_size": 2, "min_length": 7, "suppress_tokens": [3], "top_p": 0.5}
    base, adapter = tmp_path / "base", written(tmp_path / "adapter", {"top_p": 0.9})
    base.mkdir()
    (base / "config.json").write_text(json.dumps({"hidden_size": 8, "typical_p": 0.5, "eos_token_id": EOS, **fields}))
    judge = GenerationConfig.from_model_config(json.loads((base / "config.json").read_text()))
    made = read(config, base)
    assert (made.repetition_penalty, made.no_repeat_ngram, made.min_length, made.top_p) == (
        judge.repetition_penalty,
        judge.no_repeat_ngram_size,
        judge.min_length,
        judge.top_p,
    )
    assert (made.suppressed, made.unapplied) == ((3,), ("typical_p",))
    assert (read(config, adapter, base).top_p, read(config, adapter, base).min_length) == (0.9, 7)
    written(base, {})
    assert read(config, base) == GenerationDefaults(eos_token_ids=(EOS,)), "with the file, config.json has none"
    (base / "generation_config.json").unlink()
    (base / "config.json").write_text(json.dumps({"min_length": "x"}))
    with pytest.raises(CheckpointError, match=r"config.json: min_length is 'x', "):
        read(config, base)


def test_an_adapters_fields_go_before_its_bases(config: ModelConfig, tmp_path: Path) -> None:
    base = written(tmp_path / "base", {"temperature": 0.5, "top_k": 5, "eos_token_id": [2, 7]})
    adapter = written(tmp_path / "adapter", {"temperature": 0.9, "do_sample": False, "eos_token_id": 9})
    made = read(config, adapter, base)
    assert (made.temperature, made.top_k, made.do_sample, made.eos_token_ids) == (0.9, 5, False, (9,))
    (adapter / "generation_config.json").unlink()
    assert read(config, adapter, base) == read(config, base)


@pytest.mark.parametrize(
    "values",
    [
        {"bad_words_ids": [3]},
        {"bad_words_ids": [[]]},
        {"bad_words_ids": [["a"]]},
        {"sequence_bias": {"3": 1}},
        {"sequence_bias": [[[3], "x"]]},
        {"suppress_tokens": ["a"]},
        {"stop_strings": [3]},
        {"stop_strings": ["a"] * 17},
        {"stop_strings": "a" * 1025},
        {"min_p": 2},
        {"min_new_tokens": -1},
        {"no_repeat_ngram_size": 1.5},
    ],
)
def test_values_of_the_wrong_type_are_refused(config: ModelConfig, tmp_path: Path, values: dict[str, Any]) -> None:
    with pytest.raises(CheckpointError, match=f"{next(iter(values))} is .*; correct the file"):
        read(config, written(tmp_path, values))
