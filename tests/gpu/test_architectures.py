"""Architectures beyond Llama: spellings of config.json, what is refused, fused tensors, bits on every instruction set."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

from blockwright.gpu.backend import Batch
from blockwright.gpu.model import registry
from blockwright.gpu.model.config import (
    AttentionConfig,
    EmbeddingConfig,
    HeadConfig,
    MlpConfig,
    ParallelConfig,
    attention_of,
)
from blockwright.gpu.select import open_backend
from blockwright.gpu.tables import Tables
from blockwright.gpu.weights.checkpoint import Checkpoint, CheckpointError
from blockwright.policies.model.chain import Kind
from blockwright.tests.cap import CAP
from blockwright.tests.checkpoints import make_checkpoint
from blockwright.tests.claims import claim
from blockwright.tests.gpu import reference
from blockwright.tests.gpu.choices import EACH_SET
from blockwright.tests.gpu.native_oracle import pack_whole
from blockwright.tests.gpu.rig import Rig

MakeCheckpoint = Callable[..., Path]
Copy = Callable[..., Path]
EVERY_FEATURE = ("gemma2", "glm4", "gpt-neox", "gpt-neox-serial", "granite", "olmo2", "qwen3")


@pytest.fixture
def copy(checkpoint: MakeCheckpoint, tmp_path: Path) -> Copy:
    """``copy(architecture, **changes)``: a copy with fields of config.json set, or removed where the value is ``...``."""

    def make(architecture: str, **changes: Any) -> Path:
        folder = Path(shutil.copytree(checkpoint(architecture), tmp_path / "copy", dirs_exist_ok=True))
        config = json.loads((folder / "config.json").read_text())
        config.update(changes)
        config = {key: value for key, value in config.items() if value is not ...}
        (folder / "config.json").write_text(json.dumps(config))
        return folder

    return make


# In the first releases' config.json; each must mean what the preset's own spelling means.
OLD_SPELLINGS: list[tuple[str, dict[str, Any]]] = [
    ("qwen3", {"rope_parameters": ..., "rope_theta": 10000.0, "layer_types": ..., "dtype": ..., "torch_dtype": "float32"}),
    ("gemma", {"rope_parameters": ..., "hidden_act": "gelu", "hidden_activation": None, "tie_word_embeddings": ...}),
    ("gemma2", {"rope_parameters": ..., "rope_theta": 10000.0, "layer_types": ..., "hidden_act": "gelu_pytorch_tanh"}),
    ("phi3", {"rope_parameters": ..., "rope_theta": 10000.0, "rope_scaling": None}),
    ("gpt-neox", {"rope_parameters": ..., "rotary_pct": 0.25, "rotary_emb_base": 10000, "attention_bias": ...}),
    ("gpt-neox", {"rope_parameters": ..., "use_parallel_residual": ..., "hidden_act": ..., "layer_norm_eps": ...}),
    ("glm4", {"rope_parameters": ..., "rope_theta": 10000.0, "partial_rotary_factor": 0.5}),
    ("glm4", {"rope_parameters": ..., "rope_theta": 10000.0, "partial_rotary_factor": ..., "attention_bias": ...}),
    ("olmo2", {"rope_parameters": ..., "rope_theta": 10000.0, "rope_scaling": None}),
    ("granite", {"rope_parameters": ..., "rope_theta": 10000.0, "mlp_bias": ...}),
]


@pytest.mark.parametrize(("architecture", "changes"), OLD_SPELLINGS)
def test_old_spellings_mean_the_same(checkpoint: MakeCheckpoint, copy: Copy, architecture: str, changes: Any) -> None:
    new = Checkpoint.open(checkpoint(architecture)).specs(16, "float32")
    old = Checkpoint.open(copy(architecture, **changes)).specs(16, "float32")
    assert [spec.component.id for spec in old] == [spec.component.id for spec in new]


def test_old_longrope_spelling(checkpoint: MakeCheckpoint, copy: Copy) -> None:
    new = Checkpoint.open(checkpoint("phi3-longrope"))
    rope = json.loads((new.path / "config.json").read_text())["rope_parameters"]
    scaling = {"type": "su", "short_factor": rope["short_factor"], "long_factor": rope["long_factor"]}
    for name in ("su", "longrope", "yarn"):
        old = copy("phi3-longrope", rope_parameters=..., rope_theta=10000.0, rope_scaling={**scaling, "type": name})
        assert Checkpoint.open(old).config.rope == new.config.rope
    assert new.config.rope.attention_factor == pytest.approx((1 + 2 / 9) ** 0.5)  # four times as long: ln 4 / ln 512 more


def test_defaults_where_keys_are_missing(copy: Copy) -> None:
    """As transformers' configuration classes have them."""
    assert Checkpoint.open(copy("phi3", eos_token_id=..., sliding_window=...)).config.eos_token_ids == (32000,)
    assert Checkpoint.open(copy("phi3", sliding_window=...)).config.windows == (None,) * 3
    assert Checkpoint.open(copy("gemma2", sliding_window=...)).config.windows == (4096, None, 4096)
    assert Checkpoint.open(copy("gemma2", layer_types=["full_attention"] * 3)).config.windows == (None,) * 3
    caps = Checkpoint.open(copy("gemma2", attn_logit_softcapping=..., final_logit_softcapping=None))
    first, head = attention_of(caps.specs(16, "float32")[1].config), caps.specs(16, "float32")[-1].config
    assert first is not None
    assert isinstance(head, HeadConfig)
    assert (first.softcap, head.softcap) == (50.0, 0.0)
    assert Checkpoint.open(copy("glm", eos_token_id=...)).config.eos_token_ids == (151329, 151336, 151338)
    assert Checkpoint.open(copy("glm4", architectures=...)).config.architecture == "Glm4ForCausalLM"


@pytest.mark.parametrize(
    ("architecture", "changes", "words"),
    [
        ("gemma", {"use_bidirectional_attention": True}, ["use_bidirectional_attention"]),
        ("gemma2", {"use_bidirectional_attention": True}, ["use_bidirectional_attention"]),
        ("gemma2", {"attn_logit_softcapping": -1.0}, ["attn_logit_softcapping", "-1.0"]),
        ("gemma2", {"final_logit_softcapping": 0}, ["final_logit_softcapping"]),
        ("gemma2", {"query_pre_attn_scalar": 0}, ["query_pre_attn_scalar"]),
        ("gemma2", {"layer_types": ["chunked_attention"] * 3}, ["chunked_attention"]),
        ("gemma2", {"layer_types": ["full_attention"] * 2}, ["layer_types", "3"]),
        ("gemma2", {"sliding_window": None}, ["sliding_attention", "window"]),
        ("gemma2", {"hidden_activation": "relu2"}, ["hidden_activation", "relu2"]),
        ("phi3", {"rope_parameters": {"rope_type": "linear", "factor": 2.0}}, ["linear", "longrope"]),
        (
            "phi3",
            {"rope_parameters": {"rope_type": "longrope", "short_factor": [1.0], "long_factor": [1.0] * 8}},
            ["short_factor", "8"],
        ),
        ("phi3", {"rope_parameters": {"rope_type": "longrope", "short_factor": [1.0] * 8}}, ["long_factor", "8"]),
        ("phi3", {"intermediate_size": 100}, ["gate_up_proj", "[224, 64]", "[200, 64]"]),
        ("gpt-neox", {"rope_parameters": {"rope_type": "default", "partial_rotary_factor": 0.2}}, ["0.2", "3 of 16"]),
        ("gpt-neox", {"rope_parameters": {"rope_type": "dynamic", "factor": 2.0}}, ["dynamic"]),
        ("gpt-neox", {"hidden_act": "relu"}, ["relu", "gelu_fast"]),
        ("gpt-neox", {"hidden_size": 128}, ["embed_in", "[384, 128]"]),
        ("gpt-neox", {"use_parallel_residual": "no"}, ["use_parallel_residual"]),
        ("glm4", {"architectures": ["Glm4MoeForCausalLM"]}, ["Glm4MoeForCausalLM", "Glm4ForCausalLM"]),
        ("glm", {"architectures": ["Glm4ForCausalLM"]}, ["post_self_attn_layernorm"]),
        ("qwen3", {"architectures": ["Qwen3MoeForCausalLM"]}, ["Qwen3MoeForCausalLM"]),
        ("qwen3", {"architectures": [], "model_type": None}, ["names no architecture; give architectures or model_type"]),
        ("qwen3", {"rope_parameters": {"rope_type": "yarn", "factor": 4.0}}, ["yarn"]),
        ("olmo2", {"rope_parameters": {"rope_type": "default", "partial_rotary_factor": 0.5}}, ["partial_rotary_factor"]),
        ("granite", {"logits_scaling": 0}, ["logits_scaling"]),
        ("granite", {"residual_multiplier": "half"}, ["residual_multiplier"]),
    ],
)
def test_refuses_variants(copy: Copy, architecture: str, changes: dict[str, Any], words: list[str]) -> None:
    with pytest.raises(CheckpointError) as caught:
        Checkpoint.open(copy(architecture, **changes))
    text = str(caught.value)
    assert "\n" not in text
    assert "; " in text, "a remedy is missing"
    assert all(word in text for word in words), text


def rope(**fields: Any) -> dict[str, Any]:
    return {"rope_parameters": {"rope_type": "default", "rope_theta": 10000.0, **fields}}


@pytest.mark.parametrize(
    ("architecture", "changes"),
    [
        ("qwen3", {"tie_word_embeddings": True, "attention_bias": True, "head_dim": 10}),
        ("qwen3", {"use_sliding_window": True, "sliding_window": 7, "max_window_layers": 1}),
        ("granite", {"tie_word_embeddings": True, "mlp_bias": True, "intermediate_size": 45}),
        ("olmo2", {"num_key_value_heads": 1, "hidden_size": 40, "attention_bias": True}),
        ("gemma", {"head_dim": 256, "attention_bias": True, "tie_word_embeddings": False}),
        ("gemma2", {"attn_logit_softcapping": None, "final_logit_softcapping": 3.0, "head_dim": 6}),
        ("gemma2", {"attn_logit_softcapping": 2.0, "final_logit_softcapping": None, "attention_bias": True}),
        ("phi3", {"tie_word_embeddings": True, "sliding_window": None, **rope(partial_rotary_factor=0.75)}),
        ("glm4", {"attention_bias": False, **rope(partial_rotary_factor=1.0)}),
        ("glm", {"head_dim": 40, "hidden_act": "gelu", "attention_bias": True}),
        ("gpt-neox", {"attention_bias": False, **rope(partial_rotary_factor=1.0)}),
        ("gpt-neox", {"hidden_size": 72, "num_attention_heads": 3, **rope(partial_rotary_factor=0.5)}),
        ("gpt-neox-serial", {"tie_word_embeddings": True, "hidden_act": "gelu"}),
    ],
)
def test_variants(checkpoint: MakeCheckpoint, architecture: str, changes: dict[str, Any]) -> None:
    """What config.json may say besides the presets: greedy tokens of transformers, in pages and chunks."""
    path, prompt = checkpoint(architecture, seed=5, **changes), reference.prompt_of(40)
    want = list(reference.greedy(path, prompt, 24))
    assert Rig(open_backend("auto", "float32", 1), path).generate(0, prompt, 24, chunk=13)[: len(want)] == want


@pytest.mark.parametrize("architecture", ["phi3", "glm4", "gpt-neox"])
def test_fused_tensors_are_tensors_of_their_own(checkpoint: MakeCheckpoint, tmp_path: Path, architecture: str) -> None:
    """Parts have identities of their own, whatever file they lie in; all bytes are hashed once."""
    whole = Checkpoint.open(checkpoint(architecture))
    sharded = Checkpoint.open(make_checkpoint(tmp_path, architecture, 0, shard="40KB"))
    assert len(list(tmp_path.glob("*.safetensors"))) > 2
    calls: list[tuple[int, int]] = []
    first = whole.specs(16, "float32", lambda done, total: calls.append((done, total)))
    assert calls[-1][0] == calls[-1][1] == whole.nbytes
    assert [s.component.id for s in sharded.specs(16, "float32")] == [s.component.id for s in first]


@claim("Tied and fused tensors are read as the model that has them apart", of="checkpoints")
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_equal_tensors_have_one_identity_and_the_same_bits_however_they_are_stored(tmp_path: Path, dtype: str) -> None:
    """A Phi-3, whose projections are fused, and a Llama of the same weights stored apart are one chain of components."""
    fused = make_checkpoint(tmp_path / "fused", "phi3", 3, dtype, sliding_window=None)
    apart = make_checkpoint(tmp_path / "apart", "llama", 4, dtype)
    heads = 4
    kv_heads = 2
    size = 16
    parts = {"qkv_proj": {"q_proj": heads * size, "k_proj": kv_heads * size, "v_proj": kv_heads * size}}
    parts |= {"gate_up_proj": {"gate_proj": 112, "up_proj": 112}}
    split: dict[str, torch.Tensor] = {}
    for name, tensor in load_file(fused / "model.safetensors").items():
        mark = next((mark for mark in parts if mark in name), "")
        pieces = tensor.split(list(parts[mark].values())) if mark else (tensor,)
        for role, piece in zip(parts.get(mark, {mark: 0}), pieces, strict=True):
            split[name.replace(mark, role) if mark else name] = piece.contiguous()
    save_file(split, apart / "model.safetensors", {"format": "pt"})
    config = json.loads((apart / "config.json").read_text())
    config["rms_norm_eps"] = json.loads((fused / "config.json").read_text())["rms_norm_eps"]
    (apart / "config.json").write_text(json.dumps(config))
    ids = [[spec.component.id for spec in Checkpoint.open(path).specs(16, dtype)] for path in (fused, apart)]
    assert ids[0] == ids[1]
    tokens = list(reference.prompt_of(40))
    answers = [Rig(open_backend("auto", dtype, 1), path).logprobs(0, tokens, 30) for path in (fused, apart)]
    assert answers[0] == answers[1]


def test_a_layer_with_parallel_residual_is_one_component(checkpoint: MakeCheckpoint) -> None:
    kinds = [spec.component.kind for spec in Checkpoint.open(checkpoint("gpt-neox")).specs(16, "float32")]
    assert kinds == [Kind.EMBEDDING, *[Kind.PARALLEL] * 3, Kind.HEAD]
    specs = Checkpoint.open(checkpoint("gpt-neox-serial")).specs(16, "float32")
    assert [type(spec.config) for spec in specs] == [EmbeddingConfig, *[AttentionConfig, MlpConfig] * 3, HeadConfig]
    parallel = Checkpoint.open(checkpoint("gpt-neox")).specs(16, "float32")[1]
    assert isinstance(parallel.config, ParallelConfig)
    assert parallel.component.kv is not None
    assert {"q", "mlp.up", "mlp.norm_bias"} <= set(parallel.tensors)


@EACH_SET
@pytest.mark.parametrize("architecture", EVERY_FEATURE)
def test_bits_do_not_depend_on_chunks_or_neighbours(
    checkpoint: MakeCheckpoint, architecture: str, instruction_set: str, dtype: str
) -> None:
    path, tokens = checkpoint(architecture), list(reference.prompt_of(50))
    whole = Rig(open_backend("native", dtype, 1, instruction_set), path).logprobs(0, tokens, 40, 512)
    rig = Rig(open_backend("native", dtype, 3, instruction_set), path, page_size=16)
    for row, (given, chunk) in enumerate([(40, 7), (45, 1), (50, 512)]):
        assert rig.logprobs(row, tokens, given, chunk) == whole[given - 40 :]


@claim("A new architecture takes one file and one line in the registry", of="checkpoints")
def test_one_file_and_one_line_each() -> None:
    """What an architecture needs: a file that fits on a few screens, and its line in the registry."""
    folder = Path(registry.__file__).parent
    shared = {"__init__", "activations", "config", "deltas", "fields", "parts", "registry", "rope", "rotary"}
    files = {path.stem: path for path in folder.glob("*.py") if path.stem not in shared}
    lines = re.findall(r'^    "blockwright\.gpu\.model\.(\w+)",$', (folder / "registry.py").read_text(), re.MULTILINE)
    assert sorted(lines) == sorted(files)
    assert all(len(path.read_text().splitlines()) <= 150 for path in files.values())
    # nothing else of the package knows an architecture by name
    names = re.compile("|".join(set(registry.ARCHITECTURES) | {a.model_type + '"' for a in registry.ARCHITECTURES.values()}))
    for path in (*folder.parent.glob("*.py"), *(folder / f"{name}.py" for name in shared - {"registry"})):
        found = names.search(path.read_text())
        assert found is None, f"{path.name}: {found}"


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("backend", ["torch", "native"])
@pytest.mark.parametrize(
    ("architecture", "settings"),
    [
        ("gemma", {"hidden_size": 96}),
        ("gemma2", {"hidden_size": 40}),
        ("granite", {"hidden_size": 96, "embedding_multiplier": 9.797958971132712}),
    ],
)
def test_scaled_embeddings_have_the_bits_of_transformers(
    checkpoint: MakeCheckpoint, architecture: str, settings: dict[str, Any], backend: str, dtype: str
) -> None:
    """Gemma rounds its multiplier to the weight's type, Granite does not. In bfloat16 the root of 96 shows it."""
    path = checkpoint(architecture, dtype="bfloat16", num_hidden_layers=1, **settings)
    model, tokens = reference.load(path, dtype), list(range(300))
    expected = []
    hook = model.model.layers[0].register_forward_pre_hook(lambda _, inputs: expected.append(inputs[0][0]))
    reference.logits(path, tokens, dtype)
    hook.remove()
    spec = Checkpoint.open(path).specs(16, dtype)[0]
    engine = open_backend(backend, dtype, 1, CAP)
    tables = Tables(1, 512, 1, 16)
    tables.tokens[0, : len(tokens)] = tokens
    engine.reserve(tables, len(tokens), 1)
    run = engine.compose([pack_whole(engine, spec, {"weight": model.get_input_embeddings().weight.detach()})], kv_layer=0)
    hidden_TD = torch.empty(len(tokens), settings["hidden_size"], dtype=getattr(torch, dtype))
    row_N, start_N, count_N = (np.array([number], dtype=np.int32) for number in (0, 0, len(tokens)))
    engine.forward(run, Batch(row_N, start_N, count_N, hidden_TD))
    engine.settle()
    assert torch.equal(hidden_TD, expected[0])
