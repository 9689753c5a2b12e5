"""The trained network: logits of transformers in each architecture, exits as their exports, generation with a cache."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from blockwright.gpu.weights.checkpoint import Checkpoint
from blockwright.gpu.weights.export import export
from blockwright.tests.checkpoints import make_family
from blockwright.tests.claims import claim
from blockwright.tests.gpu.reference import load
from blockwright.zoo.family.network import ChainNetwork, LowRank, Past

Checkpoints = Callable[..., Path]
TOKENS_BL = torch.randint(3, 384, (2, 23), generator=torch.Generator().manual_seed(5))
ARCHITECTURES = ("llama-tied", "phi3", "gpt-neox", "gemma2", "qwen2-windows", "olmo2", "qwen3", "granite", "llama-biases")


@torch.no_grad()
def logits(network: ChainNetwork, layers: int) -> torch.Tensor:
    hidden_BLD = network.hidden(network.parameters, TOKENS_BL, [layers])[layers]
    return network.logits(network.parameters, layers, hidden_BLD.flatten(0, 1)).view(2, 23, -1)


@torch.no_grad()
def theirs(folder: Path) -> Any:
    model: Any = load(folder)
    return model(TOKENS_BL).logits


@claim("Training computes what transformers computes, in every architecture that is served", of="families")
@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_the_logits_are_those_of_transformers(checkpoint: Checkpoints, architecture: str) -> None:
    folder = checkpoint(architecture)
    torch.testing.assert_close(logits(ChainNetwork(Checkpoint.open(folder)), 3), theirs(folder), rtol=1e-4, atol=2e-4)


@pytest.mark.parametrize("architecture", ["llama-tied", "phi3"])
def test_an_exit_computes_what_transformers_computes_of_its_export(
    checkpoint: Checkpoints, tmp_path: Path, architecture: str
) -> None:
    family = Checkpoint.open(make_family(checkpoint(architecture), tmp_path / "f", {1: "shared", 2: "own"}))
    network = ChainNetwork(family)
    for layers in network.exits:
        out = export(family.at_exit(layers), tmp_path / str(layers))
        torch.testing.assert_close(logits(network, layers), theirs(out), rtol=1e-4, atol=2e-4)


@pytest.mark.parametrize("architecture", ["llama", "mistral-window"])
@torch.no_grad()
def test_token_after_token_with_a_cache_gives_the_same(checkpoint: Checkpoints, architecture: str) -> None:
    network, past = ChainNetwork(Checkpoint.open(checkpoint(architecture))), Past()
    whole_BLD = network.hidden(network.parameters, TOKENS_BL, [3])[3]
    parts = [network.hidden(network.parameters, piece, [3], past)[3] for piece in TOKENS_BL.split([15, 1, 1, 6], dim=1)]
    torch.testing.assert_close(torch.cat(parts, 1), whole_BLD, rtol=1e-4, atol=1e-4)


def test_low_rank_terms_begin_without_effect(checkpoint: Checkpoints) -> None:
    network = ChainNetwork(Checkpoint.open(checkpoint("llama")))
    low = LowRank(network, network.matrices(), 2, torch.Generator().manual_seed(1))
    assert len(network.matrices()) == 3 * 7
    for name, one in low.merged().items():
        assert torch.equal(one, network.parameters[name])
    low.parameters[f"{network.matrices()[0]}.b"].fill_(1.0)
    changed = [name for name, one in low.merged().items() if not torch.equal(one, network.parameters[name])]
    assert changed == network.matrices()[:1]
