"""The fit: exact where one matrix suffices, the solution of numpy elsewhere, with the position as a bias."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

from blockwright.gpu.weights.checkpoint import Checkpoint
from blockwright.policies.adaptive.stitching import StitchPoint, stitch_points
from blockwright.tests.zoo.equivalence.models import components
from blockwright.tests.zoo.models import WEIGHTS
from blockwright.zoo.equivalence.probe import Probe, same_probe
from blockwright.zoo.family.network import ChainNetwork
from blockwright.zoo.stitching.fitting import Stitch, fit_stitch, stitch_error

Checkpoints = Callable[..., Path]


def quiet(done: int, total: int) -> None:
    """Show no progress."""


def rows(count: int, seed: int) -> Probe:
    source = torch.Generator().manual_seed(seed)
    return same_probe([tuple(torch.randint(3, 260, (24,), generator=source).tolist()) for _ in range(count)])


def reordered(base: Path, folder: Path, order: torch.Tensor) -> Path:
    """Make a copy whose hidden states are the base's in another order, so that a permutation leads from one to the other."""
    shutil.copytree(base, folder)
    tensors = load_file(base / WEIGHTS)
    for name, one in tensors.items():
        rows_move = name.endswith(("o_proj.weight", "down_proj.weight", "norm.weight"))
        tensors[name] = one[order].contiguous() if rows_move else one[:, order].contiguous()
    save_file(tensors, folder / WEIGHTS, {"format": "pt"})
    return folder


def test_a_change_of_basis_is_found_exactly(checkpoint: Checkpoints, tmp_path: Path) -> None:
    base, order = checkpoint("llama"), torch.randperm(64, generator=torch.Generator().manual_seed(3))
    own, other = Checkpoint.open(base), Checkpoint.open(reordered(base, tmp_path / "b", order))
    networks = ChainNetwork(own), ChainNetwork(other)
    points = stitch_points(components(own), components(other))
    stitch = fit_stitch(*networks, rows(40, 1), points, quiet)
    permutation = torch.eye(64)[order]
    torch.testing.assert_close(stitch.weight[:, :-1], permutation, rtol=0, atol=1e-3)
    torch.testing.assert_close(stitch.weight[:, -1], torch.zeros(64), rtol=0, atol=1e-3)
    errors = stitch_error(stitch, *networks, rows(5, 2), points)
    assert {*errors} == {*points}
    assert max(errors.values()) < 1e-5, "held out"


def test_the_fit_is_the_least_squares_solution(checkpoint: Checkpoints) -> None:
    own, other = Checkpoint.open(checkpoint("llama")), Checkpoint.open(checkpoint("llama", seed=5, hidden_size=96))
    networks, probe = (ChainNetwork(own), ChainNetwork(other)), rows(40, 1)
    points = stitch_points(components(own), components(other))
    stitch = fit_stitch(*networks, probe, points, quiet)
    assert stitch.weight.shape == (96, 65)
    with torch.no_grad():
        tokens = torch.tensor(probe.rows)
        mine, theirs = ([*one.passage(one.parameters, tokens, 0, one.depth)] for one in networks)
    inputs = [np.pad(mine[p.depth - 1].flatten(0, 1), ((0, 0), (0, 1)), constant_values=p.position) for p in points]
    targets = [theirs[p.other_depth - 1].flatten(0, 1).numpy() for p in points]
    expected = np.linalg.lstsq(np.concatenate(inputs).astype(float), np.concatenate(targets).astype(float), rcond=None)[0]
    np.testing.assert_allclose(stitch.weight.numpy(), expected.T, rtol=0, atol=1e-3 * float(np.abs(expected).max()))
    errors = stitch_error(stitch, *networks, probe, points)
    constant = stitch_error(Stitch(torch.zeros(96, 65)), *networks, probe, points)
    assert all(0 < errors[point] < constant[point] for point in points)


@pytest.mark.parametrize("position", [0.0, 0.25, 1.0])
def test_the_position_folds_into_a_bias(position: float) -> None:
    stitch = Stitch(torch.randn((7, 6), generator=torch.Generator().manual_seed(1)))
    point, hidden = StitchPoint(3, 3, position), torch.randn((2, 4, 5), generator=torch.Generator().manual_seed(2))
    given = torch.cat([hidden, torch.full((2, 4, 1), position)], -1)
    torch.testing.assert_close(stitch(hidden, point), given @ stitch.weight.T)
    assert torch.equal(stitch.bias(point), stitch.weight[:, -1] * position)
