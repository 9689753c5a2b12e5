"""Every back end computes what transformers computes: all architectures, any paging, chunking, batching and cutting."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from blockwright.gpu.backend import Backend
from blockwright.gpu.checkpoint import Checkpoint
from blockwright.gpu.memory import Arena
from blockwright.gpu.select import open_backend
from blockwright.policies.plans import Arrival, Departure, Step
from blockwright.tests.checkpoints import PRESETS
from blockwright.tests.gpu import reference
from blockwright.tests.gpu.rig import Rig

# Of log-probabilities in float32 from float64, which no processor computes otherwise: twice the worst of all instruction
# sets. GPT-NeoX's livelier weights magnify a rounding.
TOLERANCE = dict.fromkeys(PRESETS, 4e-5) | dict.fromkeys(("gpt-neox", "gpt-neox-serial"), 1e-4)
FURTHER = [name for name, (family, _) in PRESETS.items() if family not in ("llama", "mistral", "qwen2")]
BFLOAT16 = [
    *(("llama", spread) for spread in (0.02, 0.2)),
    *(("llama-biases", spread) for spread in (0.02, 0.2)),
    *((name, 0.2) for name in FURTHER),
]

USUAL_CAPS = {"attn_logit_softcapping": 50.0, "final_logit_softcapping": 30.0}
WIDE = {"hidden_size": 256, "num_attention_heads": 8, "intermediate_size": 512}
DEEP: list[tuple[str, dict[str, Any]]] = [
    ("llama", {"num_hidden_layers": 4}),
    ("llama-biases", {"num_hidden_layers": 8, "num_key_value_heads": 4}),
    ("llama", {"num_hidden_layers": 8, "hidden_size": 256, "head_dim": 128, "num_attention_heads": 2}),
    ("mistral-window", {"num_hidden_layers": 6, "hidden_size": 96, "num_attention_heads": 6, "num_key_value_heads": 3}),
    ("qwen2", {"num_hidden_layers": 8, "hidden_size": 192, "intermediate_size": 300}),
    ("qwen3", {"num_hidden_layers": 5, "head_dim": 32}),
    *((name, {"num_hidden_layers": 8}) for name in ("gemma", "gemma2", "glm", "glm4", "granite", "olmo2", "phi3")),
    ("gpt-neox", {"num_hidden_layers": 8}),
    ("gpt-neox-serial", {"num_hidden_layers": 6}),
    ("gpt-neox-serial", {"num_hidden_layers": 6, "hidden_act": "gelu_new", "hidden_size": 72, "intermediate_size": 128}),
    # each of these shows one order of sums, or one rounding, that all others hide
    ("llama-multihead", {"num_hidden_layers": 8, "seed": 5}),
    ("gpt-neox", {"num_hidden_layers": 8, "hidden_size": 128, "intermediate_size": 256, "seed": 5}),
    ("llama", {"num_hidden_layers": 8, "intermediate_size": 2112}),
    ("gemma2", {"num_hidden_layers": 8, "hidden_size": 128, "intermediate_size": 256, "seed": 2, **USUAL_CAPS}),
    ("gemma2", {"num_hidden_layers": 8, **WIDE, "num_key_value_heads": 4, "seed": 6, **USUAL_CAPS}),
    ("gemma2", {"num_hidden_layers": 8, **WIDE, "num_key_value_heads": 4, "seed": 1, "sliding_window": 4096, **USUAL_CAPS}),
]

# One layer of many heads, and how many tokens are given and follow: pieces, windows and stretches of every kind.
MANY_HEADS = {"num_hidden_layers": 1, "num_attention_heads": 32, "head_dim": 64, "max_position_embeddings": 2048}
CAPPED = MANY_HEADS | {"attn_logit_softcapping": 50.0, "final_logit_softcapping": None, "query_pre_attn_scalar": 64}
LONG: list[tuple[str, int, int, dict[str, Any]]] = [
    ("llama", 500, 30, {**MANY_HEADS, "num_key_value_heads": 8}),
    ("llama", 1100, 2, {**MANY_HEADS, "num_key_value_heads": 32}),
    ("mistral-window", 40, 60, {**MANY_HEADS, "num_key_value_heads": 8, "sliding_window": 11}),
    ("mistral-window", 500, 60, {**MANY_HEADS, "num_key_value_heads": 8, "sliding_window": 100}),
    ("mistral-window", 500, 60, {**MANY_HEADS, "num_key_value_heads": 32, "sliding_window": 101}),
    ("mistral-window", 330, 60, {**MANY_HEADS, "num_key_value_heads": 8, "sliding_window": 301}),
    ("mistral-window", 1000, 30, {**MANY_HEADS, "num_key_value_heads": 8, "sliding_window": 650}),
    ("gemma2", 505, 60, {**CAPPED, "num_key_value_heads": 32, "sliding_window": 100}),
    ("gemma2", 1100, 30, {**CAPPED, "num_key_value_heads": 8, "sliding_window": 4096}),
    ("gemma2", 1300, 10, {**CAPPED, "num_key_value_heads": 8, "sliding_window": 48}),
    ("gemma", 200, 30, {**MANY_HEADS, "num_attention_heads": 8, "head_dim": 256, "num_key_value_heads": 1}),
    ("llama", 520, 30, {**MANY_HEADS, "head_dim": 8, "num_key_value_heads": 16}),
]

Make = Callable[..., Backend]
MakeCheckpoint = Callable[..., Path]


def assert_near(rig: Rig, path: Path, architecture: str, tokens: list[int], given: int, chunk: int) -> None:
    ours = torch.tensor(rig.logprobs(0, tokens, given, chunk))
    exact = reference.logits(path, tokens, "float64").log_softmax(-1)[given - 1 :]
    assert ours.shape == exact.shape
    assert float((ours - exact).abs().max()) < TOLERANCE[architecture]


@pytest.mark.parametrize("architecture", list(PRESETS))
def test_greedy_tokens(make_backend: Make, checkpoint: MakeCheckpoint, architecture: str) -> None:
    path, prompt = checkpoint(architecture), reference.prompt_of(37)
    want = list(reference.greedy(path, prompt, 64))
    assert len(set(want)) >= 30
    assert Rig(make_backend(), path).generate(0, prompt, 64)[: len(want)] == want


@pytest.mark.parametrize("architecture", list(PRESETS))
@pytest.mark.parametrize("chunk", [1, 7, 512])
def test_logits_of_chunked_prefill_and_decode(
    make_backend: Make, checkpoint: MakeCheckpoint, architecture: str, chunk: int
) -> None:
    path = checkpoint(architecture)
    assert_near(Rig(make_backend(), path), path, architecture, list(reference.prompt_of(40)), 29, chunk)


@pytest.mark.parametrize("architecture", ["llama", "mistral-window", "gemma2"])
@pytest.mark.parametrize("page_size", [1, 4, 16, 64])
def test_page_sizes(make_backend: Make, checkpoint: MakeCheckpoint, architecture: str, page_size: int) -> None:
    path = checkpoint(architecture)
    assert_near(Rig(make_backend(), path, page_size), path, architecture, list(reference.prompt_of(38)), 33, 9)


@pytest.mark.parametrize("length", [1, 2, 7, 8, 9, 150])
def test_prompt_lengths(make_backend: Make, checkpoint: MakeCheckpoint, length: int) -> None:
    path, prompt = checkpoint("llama"), reference.prompt_of(length)
    want = list(reference.greedy(path, prompt, 10))
    assert Rig(make_backend(), path).generate(0, prompt, 10, chunk=32)[: len(want)] == want


@pytest.mark.parametrize("architecture", ["llama3", "qwen2-windows"])
def test_batches_of_prefill_and_decode(make_backend: Make, checkpoint: MakeCheckpoint, architecture: str) -> None:
    """Six sequences of different lengths that join one by one: each gets the tokens that it gets alone."""
    path = checkpoint(architecture)
    rig = Rig(make_backend(), path)
    prompts = [reference.prompt_of(length, seed=5) for length in (3, 20, 9, 33, 1, 16)]
    done, out, edits = [0] * 6, [[] for _ in prompts], []
    for sweep in range(24):
        live = [row for row in range(6) if sweep >= 2 * row][::-1]
        for row in live:
            if sweep == 2 * row:
                edits += rig.admit(row, prompts[row])
        known = [len(prompts[row]) + len(out[row]) for row in range(6)]
        batch = [(row, done[row], min(5, known[row] - done[row])) for row in live]
        sample = [n for n, (row, start, count) in enumerate(batch) if start + count == known[row]]
        result = rig.run(batch, sample, edits)
        edits = []
        for row, start, count in batch:
            done[row] = start + count
        for n, token in zip(sample, result.tokens, strict=True):
            out[batch[n][0]].append(token)
    for row, prompt in enumerate(prompts):
        want = list(reference.greedy(path, prompt, len(out[row])))
        assert len(out[row]) >= 6
        assert out[row][: len(want)] == want


@pytest.mark.parametrize("architecture", ["llama-biases", "mistral-window", "gemma2", "gpt-neox"])
def test_cutting_the_chain_changes_no_bit(make_backend: Make, checkpoint: MakeCheckpoint, architecture: str) -> None:
    path, tokens = checkpoint(architecture), list(reference.prompt_of(30))
    whole = Rig(make_backend(), path).logprobs(0, tokens, 20, 8)
    cut = Rig(make_backend(), path, cuts=range(1, len(Checkpoint.open(path)))).logprobs(0, tokens, 20, 8)
    assert whole == cut


def test_rows_that_lie_apart_in_the_batch(make_backend: Make, checkpoint: MakeCheckpoint) -> None:
    """Steps over batch rows in another order, and over some of them only, as with several chains in one sweep."""
    path = checkpoint("llama")
    rig = Rig(make_backend(), path, cuts=[3])
    prompts = [reference.prompt_of(length, seed=3) for length in (4, 7, 2, 5)]
    edits = [edit for row, prompt in enumerate(prompts) for edit in rig.admit(row, prompt)]
    plan = rig.plan([(row, 0, len(prompts[row])) for row in range(4)], [1, 3, 0, 2], edits)
    plan.steps = [Step(0, [2, 0]), Step(0, [3, 1]), Step(1, [0, 3]), Step(1, [1, 2])]
    result = rig.executor.execute(plan)
    assert result.tokens == [reference.greedy(path, prompts[row], 1)[0] for row in (1, 3, 0, 2)]


def test_a_chain_over_two_executors(make_backend: Make, checkpoint: MakeCheckpoint) -> None:
    """The lower part departs, the upper part arrives: tokens equal those of the whole chain."""
    path, prompts = checkpoint("qwen2"), [reference.prompt_of(6), reference.prompt_of(9)]
    lower, upper = Rig(make_backend(), path, cuts=[5]), Rig(make_backend(), path, cuts=[5])
    batch = [(row, 0, len(prompt)) for row, prompt in enumerate(prompts)]
    edits = [edit for row, prompt in enumerate(prompts) for edit in lower.admit(row, prompt)]
    down = lower.plan(batch, [], edits)
    down.steps = [Step(0, [0, 1])]
    down.departures = [Departure("w1", "w0", 64, [1, 0], [])]
    lower.executor.execute(down)
    hidden = lower.executor.take_departure(down.number, 0)
    edits = [edit for row, prompt in enumerate(prompts) for edit in upper.admit(row, prompt)]
    up = upper.plan(batch, [0, 1], edits)
    up.arrivals, up.steps = [Arrival(9, [1, 0])], [Step(1, [0, 1])]
    upper.executor.put_flight(9, hidden, 15, 64)
    assert upper.executor.execute(up).tokens == [reference.greedy(path, prompt, 1)[0] for prompt in prompts]


def test_what_lies_in_unused_slots_does_not_matter(
    make_backend: Make, checkpoint: MakeCheckpoint, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Memory that held something else before, not-a-number everywhere, gives the same bits."""
    path, prompt = checkpoint("mistral-window"), reference.prompt_of(21)
    clean = Rig(make_backend(), path).logprobs(0, list(prompt), 13, 5)
    commit = Arena.commit

    def commit_poisoned(self: Arena, first: int, count: int) -> None:
        commit(self, first, count)
        self.memory[first * self.chunk : (first + count) * self.chunk] = 0xFF

    monkeypatch.setattr(Arena, "commit", commit_poisoned)
    rig = Rig(make_backend(), path)
    edits = [edit for row in (0, 1) for edit in rig.admit(row, prompt)]
    rig.run([(0, 0, 3), (1, 0, 11)], [], edits)  # rows of unlike length decode together
    rig.run([(0, 3, 1), (1, 11, 1)], [0, 1])
    assert rig.logprobs(2, list(prompt), 13, 5) == clean


@pytest.mark.parametrize(("architecture", "spread"), BFLOAT16)
def test_bfloat16(make_backend: Make, checkpoint: MakeCheckpoint, architecture: str, spread: float) -> None:
    """Log-probabilities of the reference's tokens, beside transformers in the same type."""
    path = checkpoint(architecture, seed=3, dtype="bfloat16", initializer_range=spread)
    prompt = reference.prompt_of(24)
    tokens = [*prompt, *reference.greedy(path, prompt, 48)]
    ours = torch.tensor(Rig(make_backend("bfloat16"), path).logprobs(0, tokens, 24, 16))[:-1]
    chosen = np.arange(len(tokens) - 24), tokens[24:]
    theirs = reference.logits(path, tokens, "bfloat16").log_softmax(-1)[23:-1]
    off = (ours[chosen] - theirs[chosen]).abs()
    assert float(off.mean()) <= 0.02
    assert float(off.max()) <= 0.2


def skip_if_not_of_torchs_order(backend: Backend) -> None:
    if backend.name == "native" and ("avx512bf16" not in backend.numerics or torch.cpu._is_amx_tile_supported()):
        pytest.skip("the kernels know torch's order of sums on processors with AVX-512 and bfloat16 pairs, without AMX")


@pytest.mark.parametrize(("architecture", "given", "following", "config"), LONG)
def test_bfloat16_has_the_bits_of_transformers(
    checkpoint: MakeCheckpoint, architecture: str, given: int, following: int, config: dict[str, Any]
) -> None:
    backend = open_backend("native", "bfloat16", 1)
    skip_if_not_of_torchs_order(backend)
    path = checkpoint(architecture, seed=1, dtype="bfloat16", **config)
    tokens = list(reference.prompt_of(given + following))
    rig = Rig(backend, path, page_size=16, rows=2, max_length=given + following)
    decoded = reference.decoded(path, tokens, given, "bfloat16").log_softmax(-1)[:-1]
    single_pass = reference.logits(path, tokens, "bfloat16").log_softmax(-1)[:-1]
    assert float((torch.tensor(rig.logprobs(0, tokens[:-1], given)) - decoded).abs().max()) < 1e-5
    scores = single_pass[np.arange(len(tokens) - 1), tokens[1:]]
    assert float((torch.tensor(rig.scores(1, tokens)) - scores).abs().max()) < 1e-5


@pytest.mark.parametrize(("length", "seed"), [(191, 2), (400, 4)])
def test_bfloat16_of_long_prompts(make_backend: Make, checkpoint: MakeCheckpoint, length: int, seed: int) -> None:
    """Sums of many weights and values, eight layers, beside transformers' single pass; one sum for all is 0.01 off here."""
    backend = make_backend("bfloat16")
    skip_if_not_of_torchs_order(backend)
    path = checkpoint("llama", seed=seed, dtype="bfloat16", num_hidden_layers=8, hidden_size=128)
    tokens = list(reference.prompt_of(length))
    ours = torch.tensor(Rig(backend, path, max_length=length).scores(0, tokens))
    theirs = reference.logits(path, tokens, "bfloat16").log_softmax(-1)[:-1]
    assert float((ours - theirs[np.arange(length - 1), tokens[1:]]).abs().mean()) <= 0.002


@pytest.mark.parametrize(("architecture", "config"), DEEP, ids=lambda value: value if isinstance(value, str) else "")
def test_bfloat16_of_deep_models(
    make_backend: Make, checkpoint: MakeCheckpoint, architecture: str, config: dict[str, Any]
) -> None:
    """Each layer magnifies a rounding that falls otherwise, so these are near only where the order of sums is transformers'.

    A prompt is compared with its single pass and decoding with its decoding: the two are farther apart than the bound.
    """
    backend = make_backend("bfloat16")
    skip_if_not_of_torchs_order(backend)
    path = checkpoint(architecture, **{"seed": 3, "dtype": "bfloat16", **config})
    prompt = reference.prompt_of(24, config.get("seed", 0))
    tokens = [*prompt, *reference.greedy(path, prompt, 64)]
    chosen = np.arange(len(tokens) - 24), tokens[24:]
    rig = Rig(backend, path)
    ours = [torch.tensor(rig.scores(0, tokens)[23:]), torch.tensor(rig.logprobs(1, tokens[:-1], 24))[chosen]]
    single_pass = reference.logits(path, tokens, "bfloat16").log_softmax(-1)[23:-1][chosen]
    decoded = reference.decoded(path, tokens[:-1], 24, "bfloat16").log_softmax(-1)[chosen]
    for mine, theirs in zip(ours, (single_pass, decoded), strict=True):
        assert float((mine - theirs).abs().mean()) <= 0.02
        assert float((mine - theirs).abs().max()) <= 0.2
