"""Similarity and damage are what transformers' models give, computed row by row; verdicts follow from the figures."""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F

from blockwright.gpu.weights.checkpoint import Checkpoint
from blockwright.policies.adaptive.equivalence import BlockPair, EquivalenceLimits, candidate_pairs
from blockwright.tests.claims import claim
from blockwright.tests.gpu.reference import load
from blockwright.tests.zoo.equivalence.models import ROWS, components, noisy
from blockwright.zoo.equivalence import measuring, rows
from blockwright.zoo.equivalence.joints import Joined
from blockwright.zoo.equivalence.measuring import ComparedModel, compare, ends_of, similarities, swap_damage
from blockwright.zoo.equivalence.probe import Probe, same_probe
from blockwright.zoo.family.examples import TrainingExample
from blockwright.zoo.family.grading import answer_all, right
from blockwright.zoo.family.network import ChainNetwork

Checkpoints = Callable[..., Path]
LAYERS = 3


def opened(folder: Path) -> ComparedModel:
    checkpoint = Checkpoint.open(folder)
    return ComparedModel(components(checkpoint), ChainNetwork(checkpoint))


def alone(pairs: Sequence[BlockPair]) -> dict[BlockPair, Joined]:
    """Swaps of blocks that are as wide."""
    return dict.fromkeys(pairs, Joined())


def quiet(what: str, done: int, total: int) -> None:
    """Show no progress."""


@torch.no_grad()
def their_probabilities(folder: Path) -> list[torch.Tensor]:
    """The vocabulary probabilities [positions of all rows, vocabulary] behind each component of a Llama."""
    model, found = load(folder), [list[torch.Tensor]() for _ in range(1 + 2 * LAYERS)]

    def keep(place: int, hidden: torch.Tensor) -> None:
        logits = model.lm_head(model.model.norm(hidden))[0]
        found[place].append(logits.softmax(-1))

    inner = model.model
    hooks = [inner.embed_tokens.register_forward_hook(lambda _, __, out: keep(0, out))]
    for i, layer in enumerate(inner.layers):
        normed = layer.post_attention_layernorm
        hooks.append(normed.register_forward_pre_hook(lambda _, given, i=i: keep(1 + 2 * i, given[0])))
        hooks.append(layer.register_forward_hook(lambda _, __, out, i=i: keep(2 + 2 * i, out)))
    for row in ROWS:
        model(input_ids=torch.tensor([row]))
    for hook in hooks:
        hook.remove()
    return [torch.cat(one) for one in found]


@torch.no_grad()
def their_kl(own: Path, other: Path, pair: BlockPair) -> float:
    """The divergence of a Llama's output when modules of another stand in for its own."""
    model, donor = load(own), load(other)
    mixed = copy.deepcopy(model)
    for place in range(pair.first, pair.last):
        layer, theirs = mixed.model.layers[(place - 1) // 2], donor.model.layers[(place - 1) // 2]
        names = ("self_attn", "input_layernorm") if place % 2 else ("mlp", "post_attention_layernorm")
        for name in names:
            setattr(layer, name, getattr(theirs, name))
    total = 0.0
    for row in ROWS:
        tokens = torch.tensor([row])
        before, after = (one(input_ids=tokens).logits.log_softmax(-1) for one in (model, mixed))
        total += float((before.exp() * (before - after)).sum())
    return total / sum(map(len, ROWS))


@claim("Similarity and damage of blocks are what transformers computes, row by row", of="adaptive")
@pytest.mark.parametrize("piece", [1 << 24, 1 << 13])
def test_similarity_is_that_of_transformers(
    checkpoint: Checkpoints, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, piece: int
) -> None:
    own = checkpoint("llama")
    other = noisy(own, tmp_path / "b", 0.3)
    monkeypatch.setattr(measuring, "HELD", piece)
    monkeypatch.setattr(rows, "TOGETHER", 60)
    wanted = [(n, n) for n in range(1, 2 * LAYERS + 2)]
    found = similarities(opened(own).network, opened(other).network, same_probe(ROWS), wanted, quiet)
    mine, theirs = their_probabilities(own), their_probabilities(other)
    for i, one in enumerate(mine):
        for j, two in enumerate(theirs):
            cosine = F.cosine_similarity(one, two)
            assert found.mean[i][j] == pytest.approx(float(cosine.mean()), abs=2e-5)
            if i == j:
                low = float(cosine.sort().values[int(0.05 * (len(cosine) - 1))])
                assert found.low[i + 1, j + 1] == pytest.approx(low, abs=1e-4)
    assert 0.2 < found.mean[-1][-1] < 0.999, "neither equal nor strangers"


@claim("Similarity and damage of blocks are what transformers computes, row by row", of="adaptive")
def test_damage_is_that_of_modules_swapped_in_transformers(checkpoint: Checkpoints, tmp_path: Path) -> None:
    own = checkpoint("llama")
    other = noisy(own, tmp_path / "b", 0.3)
    pairs = [BlockPair(n, m, n, m) for n, m in ((1, 2), (2, 3), (3, 5), (1, 7))]
    found = swap_damage(opened(own), opened(other).network, ROWS, alone(pairs), quiet)
    for pair in pairs:
        assert found.kl[pair] == pytest.approx(their_kl(own, other, pair), rel=2e-3, abs=1e-5)
    assert len({*found.kl.values()}) == 4


def test_embedding_and_head_are_swapped_as_well(checkpoint: Checkpoints, tmp_path: Path) -> None:
    own = checkpoint("llama")
    ends = [BlockPair(0, 1, 0, 1), BlockPair(7, 8, 7, 8), BlockPair(0, 8, 0, 8)]
    parts = [noisy(own, tmp_path / name, 0.3, part) for name, part in (("e", "embed_tokens"), ("h", "lm_head"), ("w", ""))]
    for folder, pair in zip(parts, ends, strict=True):
        found = swap_damage(opened(own), opened(folder).network, ROWS, alone(ends), quiet)
        with torch.no_grad():
            total = 0.0
            for row in ROWS:
                before, after = (load(one)(input_ids=torch.tensor([row])).logits.log_softmax(-1) for one in (own, folder))
                total += float((before.exp() * (before - after)).sum())
        assert found.kl[pair] == pytest.approx(total / sum(map(len, ROWS)), rel=2e-3)


def test_right_answers_are_those_of_generation(checkpoint: Checkpoints, tmp_path: Path) -> None:
    own = checkpoint("llama")
    other = noisy(own, tmp_path / "b", 0.05)
    made = ChainNetwork(Checkpoint.open(own))
    asked = [TrainingExample(row, (5, 6, 7)) for row in ROWS]
    answers = answer_all(made, asked, (), lambda done, total: None)[LAYERS]
    # the model's own answers, of which every second one is spoilt at its end
    prompts = [
        TrainingExample(row, (*one.tokens[:2], one.tokens[2] + (i % 2)))
        for i, (row, one) in enumerate(zip(ROWS, answers, strict=True))
    ]
    model = ComparedModel(opened(own).components, made, prompts)
    whole = BlockPair(1, 7, 1, 7)
    found = swap_damage(model, ChainNetwork(Checkpoint.open(other)), ROWS, alone([whole]), quiet)
    assert found.right[None] == 3
    generated = answer_all(ChainNetwork(Checkpoint.open(other)), prompts, (), lambda done, total: None)[LAYERS]
    expected = sum(right(one, answer, ()) for one, answer in zip(prompts, generated, strict=True))
    assert found.right[whole] == expected


def judged(own: ComparedModel, other: ComparedModel, probe: Probe, limits: EquivalenceLimits) -> dict[BlockPair, Any]:
    pairs = candidate_pairs(own.components, other.components, same_tokens=probe.same_tokens)
    wanted = [ends_of(pair, own.components, other.components) for pair in pairs]
    alike = similarities(own.network, other.network, probe, wanted, quiet)
    return {one.pair: one for one in compare(own, other, probe, alike, limits, quiet).pairs}


@claim("Blocks that only look alike are refused, with the reason", of="adaptive")
def test_a_block_that_only_looks_alike_is_refused(checkpoint: Checkpoints, tmp_path: Path) -> None:
    own = checkpoint("llama")
    model, other = opened(own), opened(noisy(own, tmp_path / "b", 0.02))
    found = judged(model, other, same_probe(ROWS), EquivalenceLimits(kl=0.004))
    first, last = found[BlockPair(1, 2, 1, 2)], found[BlockPair(5, 6, 5, 6)]
    assert first.figures.similarity > last.figures.similarity >= 0.98
    assert first.refused.startswith("only looks alike: a swap moves the output by ")
    assert not last.refused
    assert BlockPair(1, 7, 1, 7) not in found, "a run begins behind what was refused"
    assert all(one.figures.kl is None for one in found.values() if one.refused.startswith("similarity "))


def test_damage_is_measured_of_what_looks_alike_alone(checkpoint: Checkpoints, tmp_path: Path) -> None:
    own = checkpoint("llama")
    found = judged(opened(own), opened(noisy(own, tmp_path / "b", 1.0)), same_probe(ROWS), EquivalenceLimits())
    assert {one.refused.partition(" 0")[0] for one in found.values()} == {"similarity"}
    assert {one.figures.kl for one in found.values()} == {None}
