"""Variants in the benchmark of equivalences: what a swap computes is what a checkpoint with the donor's tensors computes."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import torch
from adaptive_equal import logits_of, right, served, variant_swaps
from safetensors.torch import load_file

from blockwright.gpu.weights.checkpoint import Checkpoint
from blockwright.policies.adaptive.equivalence import BlockPair, PairFigures
from blockwright.tests.checkpoints import make_checkpoint, with_tensors
from blockwright.tests.zoo.equivalence.models import components, noisy
from blockwright.zoo.equivalence.measuring import ComparedModel, JudgedPair
from blockwright.zoo.family.examples import IGNORED, TrainingExample
from blockwright.zoo.family.network import ChainNetwork

PROMPTS = [TrainingExample((5, 6, 7), (8, 9)), TrainingExample((10,), (11, 12, 13))]
LAYER = BlockPair(3, 5, 3, 5)  # the second of two layers
TOKENS_BL = torch.tensor([[5, 9, 17, 33, 4]])
ASKED_BL = torch.tensor([[False, True, True, False, True]])


def opened(folder: Path) -> ComparedModel:
    checkpoint = Checkpoint.open(folder)
    return ComparedModel(components(checkpoint), ChainNetwork(checkpoint), PROMPTS)


def test_a_swap_is_a_checkpoint_with_the_tensors_of_the_donor(tmp_path: Path) -> None:
    base = make_checkpoint(tmp_path / "a", num_hidden_layers=2)
    other = noisy(base, tmp_path / "b", 0.5)
    tensors = load_file(other / "model.safetensors")
    mixed = with_tensors(base, tmp_path / "c", {name: one for name, one in tensors.items() if "layers.1." in name})
    own, donor, judge = (opened(folder).network for folder in (base, other, mixed))
    found = logits_of(own, donor, [LAYER], TOKENS_BL, ASKED_BL)
    assert torch.equal(found, logits_of(judge, judge, (), TOKENS_BL, ASKED_BL))
    assert found.shape[0] == 3
    assert not torch.equal(found, logits_of(own, donor, (), TOKENS_BL, ASKED_BL))


def test_variants_are_of_pairs_that_count_and_a_swap_of_equals_loses_nothing(tmp_path: Path) -> None:
    base = make_checkpoint(tmp_path / "a", num_hidden_layers=2)
    own = opened(base)
    first = BlockPair(1, 3, 1, 3)
    judged = [
        JudgedPair(LAYER, PairFigures(0.99, 0.9, 0.0, 0.2), ""),
        JudgedPair(first, PairFigures(0.99, 0.9, 0.0, 0.2), ""),
        JudgedPair(BlockPair(1, 2, 1, 2), PairFigures(0.5, 0.4), "similarity"),
    ]
    donor = opened(noisy(base, tmp_path / "b", 0.0))
    other = ComparedModel([replace(one, id=bytes(16)) for one in donor.components], donor.network)
    assert [{*one} for one in variant_swaps(own, other, judged)] == [{first, LAYER}, {first}, {LAYER}]
    figures = served(own, other, judged)
    assert [one.swapped for one in figures] == [4, 2, 2]
    assert all(one.lost == 0 and one.agreed == 1 and abs(one.similarity - 1) < 1e-6 for one in figures)


def test_a_row_is_right_if_all_its_asked_tokens_are() -> None:
    labels_BL = torch.tensor([[IGNORED, 1, 2], [IGNORED, IGNORED, 0]])
    logits_PV = torch.eye(3)[[1, 2, 1]]
    assert right(logits_PV, labels_BL) == 1
    assert right(torch.eye(3)[[1, 0, 0]], labels_BL) == 1
    assert right(torch.eye(3)[[1, 2, 0]], labels_BL) == 2
