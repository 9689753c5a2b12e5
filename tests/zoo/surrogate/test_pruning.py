"""Half of the heads and columns goes, whatever the architecture, and the repair brings the states back."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from blockwright.gpu.model.config import ComponentConfig, MlpConfig, ParallelConfig, attention_of, tensor_shapes
from blockwright.gpu.weights.checkpoint import Checkpoint
from blockwright.tests.claims import claim
from blockwright.tests.zoo.equivalence.models import ROWS
from blockwright.zoo.family.network import ChainNetwork, component_output
from blockwright.zoo.surrogate import pruning
from blockwright.zoo.surrogate.pruning import ProbeBatch, PrunedComponent, low_rank, prune
from blockwright.zoo.surrogate.similarity import states_before

PRESETS = ["llama", "llama-tied", "llama-biases", "gemma2", "gpt-neox", "glm4", "granite", "olmo2", "phi3", "qwen3"]


def pruned(network: ChainNetwork, first: int, last: int) -> tuple[list[PrunedComponent], list[ProbeBatch]]:
    components = [network.component(network.parameters, place) for place in range(first, last)]
    dtypes = [dict.fromkeys(weights, torch.float32) for _, weights in components]
    before = states_before(network, ROWS, first)
    told: list[int] = []
    found = prune(components, dtypes, before, lambda what, done, total: told.append(100 * done // total))
    assert told[-1] == 100
    return found, before


def sizes(config: ComponentConfig) -> tuple[int, int, int]:
    """Heads, KV heads and columns."""
    attention = attention_of(config)
    mlp = config.mlp if isinstance(config, ParallelConfig) else config
    columns = mlp.intermediate if isinstance(mlp, MlpConfig) else 0
    return (attention.heads, attention.kv_heads, columns) if attention is not None else (0, 0, columns)


def half(count: int) -> int:
    return -(-count // 2)


def distance(network: ChainNetwork, found: list[PrunedComponent], before: list[ProbeBatch], last: int) -> float:
    """Squared distance of the states behind a pruned block from the block's, summed over the probe."""
    first, total = last - len(found), 0.0
    for batch in before:
        near, position_L = batch.x, torch.arange(batch.x.shape[1])
        for one in found:
            near = component_output(one.config, one.weights, near, position_L)
        *_, true = network.passage(network.parameters, batch.x, first, last)
        total += float((near - true)[batch.real_BL].pow(2).sum())
    return total


@claim("A surrogate has half of the heads and columns of its block, in every architecture", of="adaptive")
@pytest.mark.parametrize("preset", PRESETS)
def test_half_goes_and_the_repair_helps(
    preset: str, checkpoint: Callable[..., Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    network = ChainNetwork(Checkpoint.open(checkpoint(preset)))
    first = 1
    last = min(5, network.depth)
    found, before = pruned(network, first, last)
    for place, one in enumerate(found, first):
        config, weights = network.component(network.parameters, place)
        heads, kv_heads, columns = sizes(config)
        wanted = (half(kv_heads) * heads // kv_heads, half(kv_heads)) if kv_heads > 1 else (half(heads), kv_heads)
        assert sizes(one.config) == (*wanted, half(columns))
        assert {role: tuple(tensor.shape) for role, tensor in one.weights.items()} == tensor_shapes(one.config)
        unchanged = [role for role, tensor in one.weights.items() if tensor.shape == weights[role].shape]
        assert all(torch.equal(one.weights[role], weights[role]) for role in unchanged)
        assert len(unchanged) < len(weights)
    monkeypatch.setattr(pruning, "low_rank", lambda square, cross, rank: torch.zeros_like(cross))
    plain, _ = pruned(network, first, last)
    assert distance(network, found, before, last) < 0.9 * distance(network, plain, before, last)


def test_the_columns_that_add_most_stay(checkpoint: Callable[..., Path]) -> None:
    network = ChainNetwork(Checkpoint.open(checkpoint("llama")))
    name = next(name for name in network.parameters if name.endswith("layers.0.mlp.down_proj.weight"))
    silent = torch.arange(112)[1::2]
    network.parameters[name][:, silent] = 0.0
    config, weights = network.component(network.parameters, 2)
    (found,), before = pruned(network, 2, 3)
    assert torch.equal(found.weights["up"], weights["up"][::2])
    assert distance(network, [found], before, 3) < 1e-6 * sum(float(one.x.pow(2).sum()) for one in before)
    assert found.config == type(config)(**{**{k: getattr(config, k) for k in config.__slots__}, "intermediate": 56})


def test_a_correction_has_its_rank_and_finds_what_is_there() -> None:
    generator = torch.Generator().manual_seed(0)
    inputs, left, right = (torch.randn(*shape, generator=generator) for shape in ((400, 12), (7, 3), (3, 12)))
    map_DQ = left @ right
    wanted = inputs @ map_DQ.T
    square, cross = inputs.T @ inputs, wanted.T @ inputs
    assert torch.allclose(low_rank(square, cross, 3), map_DQ, atol=0.02)
    assert int(torch.linalg.matrix_rank(low_rank(square, cross, 2), rtol=1e-4)) == 2
    errors = [float((inputs @ low_rank(square, cross, rank).T - wanted).pow(2).sum()) for rank in (1, 2, 3)]
    assert errors == sorted(errors, reverse=True)
