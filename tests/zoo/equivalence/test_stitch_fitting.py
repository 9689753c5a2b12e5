"""Stitches by least squares and by training: an exact basis is found, figures are right, training is never worse."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from widened import basis, widened

from blockwright.gpu.weights.checkpoint import Checkpoint
from blockwright.policies.adaptive.stitches import StitchPoint, stitch_points
from blockwright.tests.checkpoints import make_checkpoint
from blockwright.tests.claims import claim
from blockwright.tests.zoo.equivalence.models import components
from blockwright.zoo.equivalence import stitch_fitting as fitting
from blockwright.zoo.equivalence.probe import Row
from blockwright.zoo.equivalence.stitch_fitting import StitchedPair, StitchTraining, fit, least_squares, measure, rounded
from blockwright.zoo.family.network import ChainNetwork

NARROW, WIDE = 32, 48
SMALL = {"hidden_size": NARROW, "head_dim": 8, "intermediate_size": 48, "num_hidden_layers": 2, "initializer_range": 0.3}


def drawn_rows(count: int, seed: int) -> list[Row]:
    source = torch.Generator().manual_seed(seed)
    lengths = torch.randint(8, 24, (count,), generator=source).tolist()
    return [tuple(torch.randint(3, 260, (length,), generator=source).tolist()) for length in lengths]


ROWS, HELD_OUT = drawn_rows(40, 1), drawn_rows(6, 2)


def quiet(what: str, done: int, total: int) -> None:
    """Show no progress."""


def paired(folder: Path, noise: float, *, back: bool = False) -> StitchedPair:
    narrow = make_checkpoint(folder / "narrow", **SMALL)
    opened = [Checkpoint.open(narrow), Checkpoint.open(widened(narrow, folder / "wide", WIDE, noise=noise))]
    own, other = opened[::-1] if back else opened
    return StitchedPair(ChainNetwork(own), ChainNetwork(other), stitch_points(components(own), components(other)))


@claim("Least squares finds the basis in which a wider model computes the same, at all points at once", of="adaptive")
@pytest.mark.parametrize("back", [False, True])
def test_an_exact_change_of_basis_is_found(tmp_path: Path, back: bool) -> None:
    pair = paired(tmp_path, 0.0, back=back)
    weights, _ = least_squares(pair, ROWS, quiet)
    turn = basis(NARROW, WIDE, 5).float()
    exact = turn.T if back else turn
    assert torch.allclose(weights["weight"], exact, atol=2e-3)
    assert weights["bias"].abs().max() < 2e-3
    assert len(pair.points) == 5
    for one in measure(pair, weights, HELD_OUT, quiet).values():
        assert one.distance < 1e-4
        assert one.kl < 1e-4
        assert one.similarity > 0.9999


def test_least_squares_are_those_of_numpy_with_a_bias_for_each_point(tmp_path: Path) -> None:
    """Each point counts alike: its distances are divided by the spread of the states entered there."""
    pair = paired(tmp_path, 0.4)
    weights, spreads = least_squares(pair, ROWS, quiet)
    features, wanted = [], []
    for number, spread in enumerate(spreads):
        states = [states[number] for states in fitting._paired(pair, ROWS, "", quiet)]
        left, entered = (torch.cat(parts).double() for parts in zip(*states, strict=True))
        assert spread == pytest.approx(float((entered - entered.mean(0)).square().sum(-1).mean()), rel=1e-6)
        place = F.one_hot(torch.full((len(left),), number), len(spreads)).double()
        features.append(torch.cat((left, place), -1) / spread**0.5)
        wanted.append(entered / spread**0.5)
    found = torch.linalg.lstsq(torch.cat(features), torch.cat(wanted)).solution.T
    assert torch.allclose(weights["weight"].double(), found[:, :NARROW], atol=1e-4)
    assert torch.allclose(weights["bias"].double(), found[:, NARROW:].T, atol=1e-4)


@claim("Trained stitches are at no point worse than least squares on rows held out", of="adaptive")
def test_training_is_nowhere_worse_and_better_on_the_whole(tmp_path: Path) -> None:
    pair = paired(tmp_path, 0.4)
    plan = StitchTraining(steps=4, rate=2e-3)
    found = fit(pair, ROWS, HELD_OUT, plan, torch.float32, quiet)
    assert found.least == measure(pair, rounded(least_squares(pair, ROWS, quiet)[0], torch.float32), HELD_OUT, quiet)
    assert found.kept == measure(pair, found.weights, HELD_OUT, quiet), "the figures are of what is stored"
    assert all(one.is_no_worse(found.least[point]) for point, one in found.kept.items())
    better = [point for point, one in found.kept.items() if one.loss < found.least[point].loss]
    assert len(better) > 1


def test_without_training_and_with_a_harmful_one_least_squares_is_kept(tmp_path: Path) -> None:
    pair = paired(tmp_path, 0.2)
    for plan in (StitchTraining(steps=0), StitchTraining(steps=2, rate=50.0)):
        found = fit(pair, ROWS, HELD_OUT, plan, torch.bfloat16, quiet)
        assert found.kept == found.least
        assert torch.equal(found.weights["weight"], found.weights["weight"].bfloat16().float()), "as it is stored"


def test_figures_are_those_of_the_chain_row_by_row(tmp_path: Path) -> None:
    pair = paired(tmp_path, 0.4)
    weights, _ = least_squares(pair, ROWS, quiet)
    point = pair.points[2]
    kl, cosine = 0.0, 0.0
    count = 0
    made_all, entered_all = [], []
    with torch.no_grad():
        for row in HELD_OUT:
            tokens = torch.tensor([row])
            left = [*pair.own.passage(pair.own.parameters, tokens, 0, point.left)][-1]
            entered = [*pair.other.passage(pair.other.parameters, tokens, 0, point.entered)][-1]
            made = F.linear(left, weights["weight"], weights["bias"][2])
            after, before = (probabilities(pair.other, one, point) for one in (made, entered))
            kl += float((before * (before.log() - after.log())).sum())
            cosine += float(F.cosine_similarity(after, before, dim=-1).sum())
            count += len(row)
            made_all.append(made[0])
            entered_all.append(entered[0])
    made, entered = torch.cat(made_all), torch.cat(entered_all)
    distance = float((made - entered).square().sum() / (entered - entered.mean(0)).square().sum())
    found = measure(pair, weights, HELD_OUT, quiet)[point]
    assert (found.distance, found.kl, found.similarity) == pytest.approx((distance, kl / count, cosine / count), rel=1e-3)


def probabilities(network: ChainNetwork, states: torch.Tensor, point: StitchPoint) -> torch.Tensor:
    last = [states, *network.passage(network.parameters, states, point.entered, network.depth)][-1]
    return network.logits(network.parameters, network.layers, last[0]).softmax(-1)
