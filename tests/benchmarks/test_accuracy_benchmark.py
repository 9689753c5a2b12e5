"""The judge of bfloat16: its truth is float64 to the last step, its models vary as it says, and it sees a fault."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import accuracy
import jsonschema
import numpy as np
import pytest
import torch
from accuracy_models import FAMILIES, LONGEST, drawn, quiet_transformers, write
from accuracy_reference import Peer, Truth, wide
from safetensors.torch import load_file, save_file

from blockwright.tests.parts import some

SCHEMA = json.loads((Path(accuracy.__file__).parent / "results" / "schema.json").read_text())


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    """As the benchmark has it."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def norm(x_TD: np.ndarray, weight_D: np.ndarray, eps: float) -> np.ndarray:
    return x_TD / np.sqrt((x_TD**2).mean(-1, keepdims=True) + eps) * weight_D


def softmax(scores: np.ndarray) -> np.ndarray:
    weights = np.exp(scores - scores.max(-1, keepdims=True))
    return weights / weights.sum(-1, keepdims=True)


def llama(folder: Path, tokens: tuple[int, ...]) -> np.ndarray:
    """Log-probabilities of a Llama without biases, from its files, in float64 and with nothing of torch but the reading."""
    tensors = {name: t.double().numpy() for name, t in load_file(folder / "model.safetensors").items()}
    config = json.loads((folder / "config.json").read_text())
    heads, kv_heads, size = (config[key] for key in ("num_attention_heads", "num_key_value_heads", "head_dim"))
    length, eps = len(tokens), config["rms_norm_eps"]
    angle_TH = np.arange(length)[:, None] * 10000.0 ** (-np.arange(0, size, 2) / size)
    cos_TH, sin_TH = np.cos(angle_TH), np.sin(angle_TH)

    def split(x_TD: np.ndarray, weight: np.ndarray, count: int) -> np.ndarray:
        return (x_TD @ weight.T).reshape(length, count, size).transpose(1, 0, 2)

    def turn(x_NTH: np.ndarray) -> np.ndarray:
        a, b = x_NTH[..., : size // 2], x_NTH[..., size // 2 :]
        return np.concatenate((a * cos_TH - b * sin_TH, b * cos_TH + a * sin_TH), -1)

    x_TD = tensors["model.embed_tokens.weight"][list(tokens)]
    for layer in range(config["num_hidden_layers"]):
        part = {name.split(f"layers.{layer}.")[1]: t for name, t in tensors.items() if f"layers.{layer}." in name}
        normed = norm(x_TD, part["input_layernorm.weight"], eps)
        q = turn(split(normed, part["self_attn.q_proj.weight"], heads))
        k = turn(split(normed, part["self_attn.k_proj.weight"], kv_heads)).repeat(heads // kv_heads, 0)
        v = split(normed, part["self_attn.v_proj.weight"], kv_heads).repeat(heads // kv_heads, 0)
        hidden = np.triu(np.full((length, length), -np.inf), 1)
        mixed = softmax(q @ k.transpose(0, 2, 1) / np.sqrt(size) + hidden) @ v
        x_TD = x_TD + mixed.transpose(1, 0, 2).reshape(length, -1) @ part["self_attn.o_proj.weight"].T
        normed = norm(x_TD, part["post_attention_layernorm.weight"], eps)
        gate, up = (normed @ part[f"mlp.{name}_proj.weight"].T for name in ("gate", "up"))
        x_TD = x_TD + (gate / (1 + np.exp(-gate)) * up) @ part["mlp.down_proj.weight"].T
    head = tensors.get("lm_head.weight", tensors["model.embed_tokens.weight"])
    return np.log(softmax(norm(x_TD, tensors["model.norm.weight"], eps) @ head.T))


@pytest.mark.parametrize("number", some((0, 13), 13))
def test_the_truth_is_float64(tmp_path: Path, number: int) -> None:
    model = drawn(number)
    unlike = {"attention_bias": False, "mlp_bias": False, "rope_parameters": {"rope_type": "default", "rope_theta": 10000.0}}
    plain = replace(model, config={**model.config, **unlike})
    folder = write(plain, tmp_path / "model")
    tokens = plain.prompts[-1].tokens
    assert np.abs(Truth(folder).logprobs(tokens).numpy() - llama(folder, tokens)).max() < 1e-9


@pytest.mark.parametrize("number", some(range(len(FAMILIES)), *range(0, len(FAMILIES), 4)), ids=list(FAMILIES))
def test_the_truth_of_every_family_is_transformers_float32_with_more_digits(tmp_path: Path, number: int) -> None:
    model = drawn(number, longest=120)
    folder, tokens = write(model, tmp_path / "model"), model.prompts[-1].tokens
    single = quiet_transformers().AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    with torch.no_grad():
        found = torch.log_softmax(single(input_ids=torch.tensor([tokens])).logits[0].double(), -1)
    assert 1e-9 < (found - Truth(folder).logprobs(tokens)).abs().max() < 5e-6


def test_a_narrow_step_is_refused() -> None:
    with wide():
        assert torch.ones(2, dtype=torch.float32).float().dtype == torch.float64
        assert torch.arange(3).to(torch.float32).softmax(0, torch.float32).dtype == torch.float64
        with pytest.raises(TypeError, match="bfloat16"):
            torch.ones(2, dtype=torch.float64).bfloat16()


def test_transformers_decodes_what_its_single_pass_says_but_for_rounding(tmp_path: Path) -> None:
    model = drawn(2)
    folder, prompt = write(model, tmp_path / "model"), model.prompts[0]
    peer, truth = Peer(folder), Truth(folder).logprobs(prompt.tokens)
    for given in (prompt.given, len(prompt.tokens)):
        assert (peer.logprobs(prompt.tokens, given) - truth).abs().max() < 0.02


def test_models_vary_as_they_should_and_can_be_had_again() -> None:
    models = [drawn(number) for number in range(104)]
    assert models == [drawn(number) for number in range(104)]
    assert drawn(3, seed=1) != models[3]
    assert {(model.name, model.spread) for model in models} == {
        (name, spread) for name in FAMILIES for spread in (0.02, 0.2)
    }
    assert {model.config["num_hidden_layers"] for model in models} == set(range(2, 9))
    given = [prompt.given for model in models for prompt in model.prompts]
    assert min(given) == 1
    assert 1200 < max(given) <= LONGEST
    assert all(len(prompt.tokens) >= prompt.given + 4 for model in models for prompt in model.prompts)


@pytest.mark.nightly
def test_weights_that_lost_three_bits_are_seen(tmp_path: Path) -> None:
    model = drawn(15)
    case = accuracy.judged(model, tmp_path)
    assert accuracy.judged(model, tmp_path).truth.tobytes() == case.truth.tobytes()
    file = case.folder / "model.safetensors"
    worse = {name: (t.view(torch.int16) & ~7).view(torch.bfloat16) for name, t in load_file(file).items()}
    save_file(worse, file, {"format": "pt"})
    peer = Peer(case.folder)
    found = np.concatenate([peer.logprobs(prompt.tokens, prompt.given).numpy() for prompt in model.prompts])
    for measure, error in case.errors(found).items():
        assert error > accuracy.FOR_ANY_ONE * case.errors(case.peer)[measure]


@pytest.mark.nightly
def test_one_model_by_its_number(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    rows = []
    for name in ("first.json", "again.json"):
        arguments = ["--model", "12", "--reuse", str(tmp_path / "kept"), "--json", str(tmp_path / name)]
        accuracy.main(arguments)
        document = json.loads((tmp_path / name).read_text())
        jsonschema.validate(document, SCHEMA)
        rows.append(document["rows"])
    assert rows[0] == rows[1]
    assert "12 granite range 0.02" in capsys.readouterr().out
    assert {row["case"].split("/")[0] for row in rows[0]} >= {"range0.02"}
