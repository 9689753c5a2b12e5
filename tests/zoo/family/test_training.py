"""Training of a family: losses fall, an interrupted run ends with the same bits, each control trains what it should."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F

from blockwright.gpu.errors import CheckpointError
from blockwright.gpu.weights.checkpoint import Checkpoint
from blockwright.tests.checkpoints import make_family
from blockwright.tests.claims import claim
from blockwright.zoo.family.examples import TrainingExample, tensors
from blockwright.zoo.family.optimizer import orthogonalized
from blockwright.zoo.family.recipe import Recipe
from blockwright.zoo.family.run_file import describe, finite, resume, save_run
from blockwright.zoo.family.training import Training

Checkpoints = Callable[..., Path]
EXAMPLES = [TrainingExample((1, 10 + i), (20 + i, 30 + i, 2)) for i in range(12)]


def training(folder: Path, *, exits: tuple[int, ...] = (1, 2), steps: int = 24, **more: Any) -> Training:
    recipe = Recipe(exits=exits, steps=steps, **{"batch": 6, "rate": 0.02, **more})
    return Training(Checkpoint.open(folder), recipe, EXAMPLES, bfloat16=False)


def same(one: Training, other: Training) -> bool:
    mine, theirs = one.state(), other.state()
    return mine.keys() == theirs.keys() and all(torch.equal(mine[name], theirs[name]) for name in mine)


@pytest.mark.parametrize("optimizer", ["adamw", "muon"])
def test_the_loss_of_every_tier_falls(checkpoint: Checkpoints, optimizer: str) -> None:
    run = training(checkpoint("llama"), optimizer=optimizer, kl=0.5)
    losses = [run.advance() for _ in range(24)]
    assert [[*one] for one in (losses[0], losses[-1])] == [[3, 2], [3, 2, 1]], "the second stage adds the lower tier"
    for layers in (3, 2, 1):
        seen = [one[layers] for one in losses if layers in one]
        assert seen[-1] < 0.6 * seen[0]


def test_the_loss_is_the_cross_entropy_of_the_answers(checkpoint: Checkpoints) -> None:
    run = training(checkpoint("llama"), exits=(2,), even=0.0, batch=12)
    tokens_BL, labels_BL = tensors(EXAMPLES)
    with torch.no_grad():
        hidden = run.network.hidden(run.weights(), tokens_BL, (2, 3))
        expected = {
            layers: F.cross_entropy(run.network.logits(run.weights(), layers, one.flatten(0, 1)), labels_BL.flatten())
            for layers, one in hidden.items()
        }
    found = run.advance()
    assert found == {layers: pytest.approx(float(one), rel=1e-4) for layers, one in expected.items()}


@claim("A training run that is interrupted ends with the weights of one that is not, bit for bit", of="families")
@pytest.mark.parametrize("optimizer", ["adamw", "muon"])
def test_a_stored_run_goes_on_bit_for_bit(checkpoint: Checkpoints, tmp_path: Path, optimizer: str) -> None:
    whole = training(checkpoint("llama"), steps=9, optimizer=optimizer)
    for _ in range(9):
        whole.advance()
    first, second = (training(checkpoint("llama"), steps=9, optimizer=optimizer) for _ in range(2))
    said = describe(Checkpoint.open(checkpoint("llama")), first, EXAMPLES, 1)
    assert not resume(tmp_path / "f.run", second, said)
    for _ in range(5):
        first.advance()
    save_run(tmp_path / "f.run", first, said)
    assert resume(tmp_path / "f.run", second, said)
    assert second.step == 5
    for _ in range(4):
        second.advance()
    assert same(whole, second)
    assert second.means == whole.means, "the printed losses go on, too"


def test_the_state_of_another_run_is_refused(checkpoint: Checkpoints, tmp_path: Path) -> None:
    path, folder = tmp_path / "f.run", checkpoint("llama")
    run = training(folder)
    mine = describe(Checkpoint.open(folder), run, EXAMPLES, 1)
    save_run(path, run, mine)
    for recipe, says in (({"rate": 0.01}, "rate 0.02, not 0.01"), ({"exits": (2,)}, r"exits \[1, 2\], not \[2\]")):
        other = training(folder, **recipe)
        with pytest.raises(CheckpointError, match=f"belongs to a run with {says}; go on with that one, remove the file"):
            resume(path, other, describe(Checkpoint.open(folder), other, EXAMPLES, 1))
    with pytest.raises(CheckpointError, match="belongs to a run with another data"):
        resume(path, run, describe(Checkpoint.open(folder), run, EXAMPLES[1:], 1))
    with pytest.raises(CheckpointError, match="belongs to a run with another checkpoint"):
        resume(path, run, describe(Checkpoint.open(checkpoint("llama", seed=1)), run, EXAMPLES, 1))
    path.write_bytes(path.read_bytes()[:100])
    with pytest.raises(CheckpointError, match=r"cannot be read as the state of a run .*; remove it to begin again"):
        resume(path, run, mine)


def test_low_rank_training_leaves_the_top_tiers_tensors(checkpoint: Checkpoints) -> None:
    run = training(checkpoint("llama"), exits=(2,), rank=2, steps=3)
    before = {name: one.clone() for name, one in run.network.parameters.items()}
    for _ in range(3):
        run.advance()
    moved = {name for name, one in run.network.parameters.items() if not torch.equal(one, before[name])}
    assert moved == run.network.heads_of(2).keys()
    changed = {name for name, one in run.weights().items() if not torch.equal(one, before[name])}
    assert changed == {*moved, *run.network.matrices()}


def test_without_exits_the_whole_model_is_trained(checkpoint: Checkpoints) -> None:
    run = training(checkpoint("llama"), exits=(), steps=3)
    assert [*run.advance()] == [3]


def test_a_family_is_trained_on_from_its_own_heads(checkpoint: Checkpoints, tmp_path: Path) -> None:
    family = make_family(checkpoint("llama"), tmp_path / "f", {2: "low"})
    run = training(family, exits=(1, 2))
    own, new = run.network.heads_of(2)["after-2.head.weight"], run.network.heads_of(1)["after-1.head.weight"]
    top = run.network.parameters["lm_head.weight"]
    assert torch.equal(new, top)
    assert not torch.equal(own, top)


def test_a_run_that_diverges_ends_with_the_remedy(checkpoint: Checkpoints) -> None:
    run = training(checkpoint("llama"))
    finite(run)
    with torch.no_grad():
        run.parameters["lm_head.weight"][0, 0] = float("nan")
    with pytest.raises(CheckpointError, match=r"tensor lm_head.weight has values that are NaN .* a lower rate than 0.02"):
        finite(run)


def test_orthogonalized_matrices_have_singular_values_near_1() -> None:
    made_NRC = orthogonalized(torch.randn(2, 24, 16, generator=torch.Generator().manual_seed(1)))
    values = torch.linalg.svdvals(made_NRC)
    assert float(values.min()) > 0.5
    assert float(values.max()) < 1.3
