"""Checkpoints: spellings of config.json, what transformers reads from the same file, identities, refusals."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from blockwright.gpu.model.config import AttentionConfig, EmbeddingConfig, HeadConfig, MlpConfig, RopeConfig
from blockwright.gpu.weights.checkpoint import Checkpoint, CheckpointError, near_folder
from blockwright.gpu.weights.identity import component_id
from blockwright.policies.model.chain import Kind, KvLayout
from blockwright.tests.checkpoints import PRESETS, make_checkpoint
from blockwright.tests.claims import claim

MakeCheckpoint = Callable[..., Path]


@pytest.fixture
def copy(checkpoint: MakeCheckpoint, tmp_path: Path) -> Callable[..., Path]:
    """``copy(architecture, **changes)``: a copy with fields of config.json set, or removed where the value is ``...``."""

    def make(architecture: str = "llama", **changes: Any) -> Path:
        folder = Path(shutil.copytree(checkpoint(architecture), tmp_path / "copy", dirs_exist_ok=True))
        config = json.loads((folder / "config.json").read_text())
        config.update(changes)
        config = {key: value for key, value in config.items() if value is not ...}
        (folder / "config.json").write_text(json.dumps(config))
        return folder

    return make


@claim("The configuration and rope scaling of a checkpoint are read as transformers reads them", of="checkpoints")
@pytest.mark.parametrize("architecture", list(PRESETS))
def test_agrees_with_transformers(checkpoint: MakeCheckpoint, architecture: str) -> None:
    from transformers import AutoConfig

    path = checkpoint(architecture)
    ours, theirs = Checkpoint.open(path).config, AutoConfig.from_pretrained(path)
    assert ours.vocabulary == theirs.vocab_size
    multi_head = theirs.model_type == "gpt_neox"  # which has no such key
    assert ours.kv_heads == (theirs.num_attention_heads if multi_head else theirs.num_key_value_heads)
    assert ours.head_dim == (getattr(theirs, "head_dim", None) or theirs.hidden_size // theirs.num_attention_heads)
    assert ours.rope.theta == theirs.rope_parameters["rope_theta"]
    assert ours.rope.kind == theirs.rope_parameters["rope_type"]
    types = getattr(theirs, "layer_types", None) or ["sliding_attention"] * ours.layers
    window = getattr(theirs, "sliding_window", None)
    assert ours.windows == tuple(window if kind == "sliding_attention" else None for kind in types)
    # with longrope, transformers computes everything anew beyond the original length: sequences end there
    original = theirs.rope_parameters.get("original_max_position_embeddings")
    longest = original if ours.rope.kind == "longrope" else theirs.max_position_embeddings
    assert ours.max_position == longest
    assert ours.tied == theirs.tie_word_embeddings
    assert ours.eos_token_ids == (theirs.eos_token_id,)


def test_chain_of_components(checkpoint: MakeCheckpoint) -> None:
    ckpt = Checkpoint.open(checkpoint("llama-biases"))
    specs = ckpt.specs(16, "float32")
    kinds = [Kind.EMBEDDING, *[Kind.ATTENTION, Kind.MLP] * 3, Kind.HEAD]
    assert [spec.component.kind for spec in specs] == kinds
    assert [type(spec.config) for spec in specs[:3]] == [EmbeddingConfig, AttentionConfig, MlpConfig]
    assert isinstance(specs[-1].config, HeadConfig)
    assert set(specs[1].tensors) == {"norm", "q", "k", "v", "o", "q_bias", "k_bias", "v_bias", "o_bias"}
    assert set(specs[2].tensors) == {"norm", "gate", "up", "down", "gate_bias", "up_bias", "down_bias"}
    assert specs[1].component.kv == KvLayout(2, 24, "float32", 16)
    assert specs[2].component.kv is None
    assert [(s.component.width_in, s.component.width_out) for s in specs] == [(0, 64), *[(64, 64)] * 6, (64, 384)]
    assert specs[0].component.nbytes == 384 * 64 * 4
    assert ckpt.nbytes == sum(spec.component.nbytes for spec in specs)


def test_identity_is_that_of_the_content(checkpoint: MakeCheckpoint, tmp_path: Path) -> None:
    first = Checkpoint.open(checkpoint("llama")).specs(16, "float32")
    moved = Checkpoint.open(make_checkpoint(tmp_path, "llama", 0, shard="60KB"))
    assert len(list(tmp_path.glob("*.safetensors"))) > 2
    ids = [spec.component.id for spec in first]
    assert [spec.component.id for spec in moved.specs(8, "bfloat16")] == ids
    assert len(set(ids)) == len(ids)
    assert all(len(id) == 16 for id in ids)
    other = Checkpoint.open(checkpoint("llama", seed=1)).specs(16, "float32")
    assert not set(ids) & {spec.component.id for spec in other}
    half = Checkpoint.open(checkpoint("llama", dtype="bfloat16")).specs(16, "float32")
    assert not set(ids) & {spec.component.id for spec in half}


def test_configuration_is_part_of_the_identity(copy: Callable[..., Path], checkpoint: MakeCheckpoint) -> None:
    before = Checkpoint.open(checkpoint("llama")).specs(16, "float32")
    after = Checkpoint.open(copy("llama", rms_norm_eps=1e-5)).specs(16, "float32")
    same = [a.component.id == b.component.id for a, b in zip(before, after, strict=True)]
    assert same == [True, *[False] * 7]  # an embedding has no norm


def test_progress_and_known_ids(checkpoint: MakeCheckpoint) -> None:
    ckpt = Checkpoint.open(checkpoint("llama-tied"))
    calls: list[tuple[int, int]] = []
    specs = ckpt.specs(16, "float32", lambda done, total: calls.append((done, total)))
    assert calls[-1][0] == calls[-1][1] == ckpt.nbytes - specs[0].component.nbytes  # the tied tensor was read once
    assert calls == sorted(calls)
    ids = [spec.component.id for spec in specs]
    hashes = [spec.hashes for spec in specs]
    assert ckpt.specs_with_ids(16, "float32", ids, hashes=hashes) == specs
    assert ckpt.specs_with_ids(16, "float32", ids[3:5], 3, hashes[3:5]) == specs[3:5]
    with pytest.raises(CheckpointError, match="other tensors than were hashed"):
        ckpt.specs_with_ids(16, "float32", ids[:2], 0, hashes[1:3])
    with pytest.raises(CheckpointError, match="8 components, not 9"):
        ckpt.specs_with_ids(16, "float32", [*ids, b""])


def test_old_spelling(copy: Callable[..., Path]) -> None:
    scaling = {"type": "linear", "factor": 2.0}
    path = copy(rope_parameters=..., dtype=..., rope_theta=5000.0, rope_scaling=scaling, torch_dtype="bfloat16")
    config = Checkpoint.open(path).config
    assert config.rope == RopeConfig(theta=5000.0, kind="linear", factor=2.0)
    assert config.dtype == "bfloat16"
    path = copy(rope_parameters=..., dtype=..., rope_theta=..., rope_scaling=None, head_dim=None, torch_dtype=...)
    config = Checkpoint.open(path).config
    assert (config.rope, config.dtype, config.head_dim) == (RopeConfig(theta=10000.0), "float32", 16)


LLAMA31 = {"factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0}


@claim("The configuration and rope scaling of a checkpoint are read as transformers reads them", of="checkpoints")
def test_llama_31_scaling(copy: Callable[..., Path]) -> None:
    scaling = {**LLAMA31, "rope_type": "llama3", "original_max_position_embeddings": 8192}
    path = copy(rope_parameters=..., rope_theta=5e5, rope_scaling=scaling)
    want = RopeConfig(theta=5e5, kind="llama3", factor=8.0, original_max_position=8192)
    assert Checkpoint.open(path).config.rope == want
    path = copy(rope_parameters={**LLAMA31, "rope_type": "llama3", "rope_theta": 5e5})
    assert Checkpoint.open(path).config.rope.original_max_position == 512  # as transformers falls back


def test_defaults_where_keys_are_missing(copy: Callable[..., Path]) -> None:
    config = Checkpoint.open(copy("llama-multihead", num_key_value_heads=..., eos_token_id=..., rms_norm_eps=...)).config
    assert (config.kv_heads, config.eos_token_ids, config.eps) == (4, (2,), 1e-6)
    assert Checkpoint.open(copy("llama", eos_token_id=[2, 7])).config.eos_token_ids == (2, 7)
    assert Checkpoint.open(copy("llama", eos_token_id=None)).config.eos_token_ids == ()
    assert Checkpoint.open(copy("mistral", sliding_window=...)).config.windows == (4096,) * 3
    assert Checkpoint.open(copy("mistral", sliding_window=None)).config.windows == (None,) * 3
    assert Checkpoint.open(copy("llama", architectures=["LLaMAForCausalLM"])).config.layers == 3
    assert Checkpoint.open(copy("llama", architectures=...)).config.architecture == "LlamaForCausalLM"


def test_windows_of_qwen2(copy: Callable[..., Path]) -> None:
    assert Checkpoint.open(copy("qwen2-windows", layer_types=...)).config.windows == (None, 9, 9)
    assert Checkpoint.open(copy("qwen2-windows", layer_types=..., max_window_layers=2)).config.windows == (None, None, 9)
    off = copy("qwen2-windows", layer_types=..., use_sliding_window=False)
    assert Checkpoint.open(off).config.windows == (None,) * 3
    types = ["sliding_attention", "full_attention", "sliding_attention"]
    assert Checkpoint.open(copy("qwen2-windows", layer_types=types)).config.windows == (9, None, 9)


def test_generation_defaults(copy: Callable[..., Path]) -> None:
    path = copy("llama")
    values = {"temperature": 0.6, "top_p": 0.9, "top_k": 20, "repetition_penalty": 1.1, "do_sample": True}
    (path / "generation_config.json").write_text(json.dumps({**values, "eos_token_id": [5, 6]}))
    found = Checkpoint.open(path).generation
    assert {key: getattr(found, key) for key in values} == values
    assert found.eos_token_ids == (5, 6)
    (path / "generation_config.json").unlink()
    found = Checkpoint.open(path).generation
    assert (found.temperature, found.top_k, found.do_sample, found.eos_token_ids) == (1.0, 0, None, (2,))


@claim("Tied and fused tensors are read as the model that has them apart", of="checkpoints")
def test_tied_pair_under_either_name(copy: Callable[..., Path], tmp_path: Path) -> None:
    from safetensors.torch import load_file, save_file

    path = copy("llama-tied")
    tensors = load_file(path / "model.safetensors")
    tensors["lm_head.weight"] = tensors.pop("model.embed_tokens.weight")
    save_file(tensors, path / "model.safetensors", metadata={"format": "pt"})
    specs = Checkpoint.open(path).specs(16, "float32")
    assert specs[0].tensors["weight"] == specs[-1].tensors["weight"]


def refusal(path: Path | str) -> str:
    with pytest.raises(CheckpointError) as caught:
        Checkpoint.open(path)
    text = str(caught.value)
    assert "\n" not in text
    assert "; " in text, "a remedy is missing"
    return text


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"architectures": ["GPT2LMHeadModel"]}, ["GPT2LMHeadModel", "LlamaForCausalLM"]),
        ({"architectures": "LlamaForCausalLM"}, ["architectures"]),
        ({"rope_parameters": {"rope_type": "yarn", "factor": 4.0}}, ["yarn", "llama3"]),
        ({"rope_parameters": ..., "rope_scaling": {"type": "dynamic", "factor": 2.0}}, ["dynamic"]),
        ({"rope_parameters": {"rope_type": "linear"}}, ["factor"]),
        ({"rope_parameters": {"rope_type": "default", "partial_rotary_factor": 0.5}}, ["partial_rotary_factor", "0.5"]),
        ({"rope_parameters": {"full_attention": {"rope_type": "default"}}}, ["layer type"]),
        ({"rope_parameters": {**LLAMA31, "rope_type": "llama3", "low_freq_factor": 9.0}}, ["low_freq_factor", "9.0"]),
        ({"hidden_size": ...}, ["hidden_size"]),
        ({"hidden_size": "64"}, ["hidden_size", "'64'"]),
        ({"num_hidden_layers": 0}, ["num_hidden_layers", "0"]),
        ({"num_hidden_layers": 4}, ["model.layers.3", "30 tensors"]),
        ({"vocab_size": 385}, ["model.embed_tokens.weight", "[384, 64]", "[385, 64]"]),
        ({"num_key_value_heads": 3}, ["num_key_value_heads 3"]),
        ({"num_attention_heads": 5, "head_dim": None}, ["hidden_size 64", "5"]),
        ({"head_dim": 17}, ["head_dim 17"]),
        ({"head_dim": 1026}, ["head_dim 1026", "1024"]),
        ({"hidden_act": "relu"}, ["relu", "silu"]),
        ({"dtype": "float64"}, ["float64"]),
        ({"attention_bias": True}, ["q_proj.bias"]),
        ({"attention_bias": "yes"}, ["attention_bias", "yes"]),
        ({"rms_norm_eps": "small"}, ["rms_norm_eps", "small"]),
        ({"rms_norm_eps": -1}, ["rms_norm_eps is -1", "from 0 to 1"]),
        ({"eos_token_id": "</s>"}, ["eos_token_id"]),
        ({"quantization_config": {"quant_method": "gptq", "bits": 4}}, ["quantized", "gptq"]),
    ],
)
def test_refuses_configurations(copy: Callable[..., Path], changes: dict[str, Any], words: list[str]) -> None:
    text = refusal(copy("llama", **changes))
    assert all(word in text for word in words), text


@pytest.mark.parametrize(
    ("changes", "word"),
    [
        ({"layer_types": ["full_attention"]}, "3 layer types"),
        ({"layer_types": ["linear_attention"] * 3}, "linear_attention"),
        ({"use_sliding_window": False}, "use_sliding_window"),
    ],
)
def test_refuses_windows_that_cannot_be(copy: Callable[..., Path], changes: dict[str, Any], word: str) -> None:
    assert word in refusal(copy("qwen2-windows", **changes))


def test_refuses_broken_folders(copy: Callable[..., Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert "neither a folder nor a hub id" in refusal(tmp_path / "nowhere")
    for address in ("https://huggingface.co/org/model-1B/tree/main", "hf.co/org/model-1B", "hf.co/org/model-1B:Q4_K_M"):
        assert refusal(address) == f"{address} is an address of the hub; name the checkpoint by its id: org/model-1B"
    (tmp_path / "models" / "my-model").mkdir(parents=True)
    (tmp_path / "models" / "my-model" / "config.json").touch()
    meant = tmp_path / "models" / "my-model"
    assert refusal(meant.with_name("my-modle")) == f"there is no folder {meant.with_name('my-modle')}; did you mean {meant}?"
    (tmp_path / "models" / "dates").mkdir()
    (tmp_path / "models" / "dates" / "adapter_config.json").touch()
    assert refusal(meant.with_name("date")).endswith(f"did you mean {meant.with_name('dates')}?")
    monkeypatch.chdir(tmp_path / "models")
    assert refusal(Path("my-modle")) == "there is no folder my-modle; did you mean my-model?"
    monkeypatch.chdir(tmp_path)
    hub = "(for the one of the hub write {}@main)"
    for wrong in ("modles/my-model", "modles/my-modle", "models/my-modle"):
        assert refusal(wrong) == f"there is no folder {wrong}; did you mean models/my-model? {hub.format(wrong)}"
    assert refusal("./modles/my-model").endswith("did you mean models/my-model?")
    assert refusal(tmp_path / "modles" / "my-modle").endswith(f"did you mean {meant}?")
    assert "did you mean" not in refusal("./quite/other")
    assert near_folder(Path("models/my-model@main")) is None, "the hub's, on purpose"
    (inside := meant.with_name("saved") / "named").mkdir(parents=True)
    (inside / "adapter_config.json").write_text("{}")
    assert refusal(inside.parent) == f"{inside.parent} has no config.json; did you mean {inside}?"
    file = copy("llama") / "config.json"
    assert refusal(file) == f"{file} is a file; name its folder, {file.parent}"
    empty = tmp_path / "empty"
    empty.mkdir()
    assert "no config.json" in refusal(empty)
    path = copy("llama")
    (path / "config.json").write_text('{"a": ')
    assert "not valid JSON" in refusal(path)
    (path / "config.json").write_text("[]")
    assert "not an object" in refusal(path)
    path = copy("llama")
    (path / "generation_config.json").write_text('{"top_p": "much"}')
    assert "top_p" in refusal(path)
    for key, value in (("temperature", -1), ("top_p", 7), ("repetition_penalty", -0.5)):
        (path / "generation_config.json").write_text(json.dumps({key: value}))
        assert f"{key} is {value}, not a number {'above' if 'penalty' in key else 'from'} 0 to" in refusal(path)
    (path / "generation_config.json").write_text('{"repetition_penalty": 0}')  # divides logits
    assert "generation_config.json: repetition_penalty is 0, not a number above 0 to inf; correct the file" in refusal(path)


@claim("Pickle files are never loaded", of="checkpoints")
def test_refuses_what_is_no_safetensors(copy: Callable[..., Path]) -> None:
    path = copy("llama")
    weights = path / "model.safetensors"
    raw = weights.read_bytes()
    weights.write_bytes(raw[: len(raw) // 2])
    assert str(len(raw) // 2) in refusal(path)
    weights.write_bytes(raw[:4])
    assert "truncated" in refusal(path)
    weights.write_bytes(b"\xff" * 100)
    assert "truncated" in refusal(path)
    weights.write_bytes(b"version https://git-lfs.github.com/spec/v1\noid sha256:00\nsize 9\n")
    assert f"{weights} is a pointer of git-lfs, not the weights; run 'git lfs pull' in {path}" in refusal(path)
    weights.write_bytes((20).to_bytes(8, "little") + b"{" + b" " * 19)
    assert "broken header" in refusal(path)
    weights.unlink()
    assert "neither model.safetensors" in refusal(path)
    (path / "model.gguf").touch()
    assert "GGUF" in refusal(path)
    (path / "pytorch_model.bin").touch()
    assert "pickles (1 files, pytorch_model.bin first)" in refusal(path)


@claim("GGUF files are named wherever they are met", of="checkpoints")
def test_gguf_is_named_wherever_it_is_met(copy: Callable[..., Path], tmp_path: Path) -> None:
    remedy = "which is not supported; name the folder of the model's safetensors checkpoint"
    file = tmp_path / "model-q4.gguf"
    file.touch()
    assert refusal(file) == f"{file} is a GGUF file, {remedy}"
    assert refusal(tmp_path) == f"{tmp_path} holds a GGUF file, {remedy}", "as llama.cpp keeps them, without config.json"


def test_refuses_tensors(copy: Callable[..., Path]) -> None:
    import torch
    from safetensors.torch import load_file, save_file

    path, name = copy("llama"), "model.layers.1.mlp.up_proj.weight"
    tensors = load_file(path / "model.safetensors")

    def with_(changes: dict[str, Any]) -> str:
        save_file({k: v for k, v in {**tensors, **changes}.items() if v is not None}, path / "model.safetensors")
        return refusal(path)

    assert f"lacks tensor {name} (29 tensors" in with_({name: None})
    assert "I8" in with_({name: tensors[name].to(torch.int8)})
    assert "F8_E4M3" in with_({name: tensors[name].to(torch.float8_e4m3fn)})
    assert "F64" in with_({name: tensors[name].double()})
    assert "[64, 112]" in with_({name: tensors[name].T.contiguous()})
    assert "tie_word_embeddings" in with_({"lm_head.weight": None})
    packed = {name: None, name.removesuffix("weight") + "qweight": tensors[name].to(torch.int32)}
    assert "quantized" in with_(packed)


def test_refuses_shards(tmp_path: Path) -> None:
    path = make_checkpoint(tmp_path, "llama", shard="100KB")
    index = path / "model.safetensors.index.json"
    values = json.loads(index.read_text())
    names = sorted(set(values["weight_map"].values()))
    assert len(Checkpoint.open(path)) == 8
    index.write_text(json.dumps({"weight_map": {**values["weight_map"], "extra.weight": names[0]}}))
    assert "lacks tensor extra.weight" in refusal(path)
    wrong = names[0] if values["weight_map"]["model.norm.weight"] != names[0] else names[1]
    index.write_text(json.dumps({"weight_map": {**values["weight_map"], "model.norm.weight": wrong}}))
    assert "lacks tensor model.norm.weight" in refusal(path)
    index.write_text(json.dumps({"weight_map": {"a": "../model.safetensors"}}))
    assert "../model.safetensors" in refusal(path)
    index.write_text(json.dumps({"metadata": {}}))
    assert "weight_map" in refusal(path)
    index.write_text(json.dumps(values))
    (path / names[-1]).unlink()
    assert names[-1] in refusal(path)


def test_a_file_that_shrinks_after_opening(copy: Callable[..., Path]) -> None:
    path = copy("llama")
    ckpt = Checkpoint.open(path)
    weights = path / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-100])
    with pytest.raises(CheckpointError, match="ends within tensor"):
        ckpt.specs(16, "float32")


def test_needs_no_torch() -> None:
    code = "import sys, blockwright.gpu.weights.checkpoint; sys.exit('torch' in sys.modules or 'numpy' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def renamed(folder: Path, name: Callable[[str], str]) -> None:
    """Give the tensors of a checkpoint other names."""
    from safetensors.torch import load_file, save_file

    tensors = load_file(folder / "model.safetensors")
    save_file(
        {name(old): tensor for old, tensor in tensors.items()}, folder / "model.safetensors", metadata={"format": "pt"}
    )


@pytest.mark.parametrize("architecture", ["llama-tied", "gpt-neox", "qwen2"])
@pytest.mark.parametrize("before", ["", "language_model.model.", "model.language_model."])
def test_other_prefixes_of_names_are_the_same_model(copy: Callable[..., Path], architecture: str, before: str) -> None:
    folder = copy(architecture)
    original = [spec.component for spec in Checkpoint.open(folder).specs(16, "float32")]
    own = "gpt_neox." if architecture == "gpt-neox" else "model."
    outer = before.removesuffix(own) if before.endswith(own) else ""
    renamed(folder, lambda name: before + name.removeprefix(own) if name.startswith(own) else outer + name)
    assert [spec.component for spec in Checkpoint.open(folder).specs(16, "float32")] == original


def test_a_checkpoint_of_the_model_without_its_head_is_what_transformers_loads(copy: Callable[..., Path]) -> None:
    import torch
    from transformers import AutoModelForCausalLM

    folder = copy("llama-tied")
    whole = AutoModelForCausalLM.from_pretrained(folder).state_dict()
    original = [spec.component for spec in Checkpoint.open(folder).specs(16, "float32")]
    renamed(folder, lambda name: name.removeprefix("model."))
    theirs = AutoModelForCausalLM.from_pretrained(folder).state_dict()
    assert all(torch.equal(theirs[name], tensor) for name, tensor in whole.items())
    assert [spec.component for spec in Checkpoint.open(folder).specs(16, "float32")] == original


def test_a_tensor_under_another_name_is_named(copy: Callable[..., Path]) -> None:
    folder = copy("llama")
    renamed(folder, lambda name: f"tower.{name}" if ".layers.1." in name else name)
    said = refusal(folder)
    assert "lacks tensor model.layers.1." in said
    assert "but has tower.model.layers.1." in said


def test_a_field_that_came_later_leaves_identities_of_stored_models_alone() -> None:
    contents = {"weight": b"x" * 32}
    plain, rounded = (EmbeddingConfig(vocabulary=8, hidden=4, multiplier=2.5, rounded=rounded) for rounded in (False, True))
    assert component_id(Kind.EMBEDDING, plain, contents).hex() == "ee7f2f7f958fba7c8e6d87a51306cf83"
    assert component_id(Kind.EMBEDDING, rounded, contents) != component_id(Kind.EMBEDDING, plain, contents)
