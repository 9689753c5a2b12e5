"""Stitches of a pair of models: least squares from paired hidden states, and training with both models frozen.

A stitch takes the states behind some components of ``own`` to the states before a component of ``other``. One matrix serves
all points of a direction; each point has a bias. Everything is computed in float32, sums of least squares in float64.

Legend: B rows, L positions, P positions of a batch, D and E widths of the two models, N points, V vocabulary.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F

from ...policies.adaptive.stitches import Figures, StitchFigures, StitchPoint, is_better
from ..family.network import ChainNetwork
from ..family.optimizer import Optimizer, Weights
from .probe import Row
from .rows import batches, padded

SMALLEST = 1e-10  # of the largest eigenvalue: smaller ones are noise of float32
BATCH = 1024  # tokens of a training step
SHARES = (1.0, 0.5, 0.25)  # of the way from least squares to what was trained, which are tried
Progress = Callable[[str, int, int], None]  # current activity, tokens done, tokens in all


@dataclass(frozen=True, slots=True)
class StitchedPair:
    """Two models, and the points where a chain goes over from the first to the second."""

    own: ChainNetwork
    other: ChainNetwork
    points: Sequence[StitchPoint]


@dataclass(frozen=True, slots=True)
class StitchTraining:
    """The amount of training. ``steps``: optimizer steps for each point; ``rate``: the first step's, which falls to 0."""

    steps: int = 20
    rate: float = 1e-3
    seed: int = 0


@dataclass(frozen=True, slots=True)
class FittedStitches:
    """The stitches of one direction: ``weight`` [E, D] and ``bias`` [N, E], and their figures beside least squares'."""

    weights: Weights
    least: Figures
    kept: Figures


@dataclass(slots=True)
class _Moments:
    """Sums of the states of one point: their number, those left and entered, and the squares of those entered."""

    count: int
    left_D: torch.Tensor
    entered_E: torch.Tensor
    squares: float

    @property
    def spread(self) -> float:
        """The mean squared distance of the states entered from their mean."""
        return self.squares / self.count - float((self.entered_E / self.count).square().sum())


def fit(
    pair: StitchedPair,
    rows: Sequence[Row],
    validation: Sequence[Row],
    plan: StitchTraining,
    dtype: torch.dtype,
    progress: Progress,
) -> FittedStitches:
    """Fit the stitches of one direction. ``dtype``: the type that they are stored in, to which they are rounded.

    Training begins with least squares at the first point and takes in deeper ones step by step. After each stage the
    weights are kept if they are better on validation rows, and at no point worse than least squares. Then the biases are
    trained alone, of which each point keeps the better one.
    """
    weights, spreads = least_squares(pair, rows, progress)
    kept = rounded(weights, dtype)
    least = measure(pair, kept, validation, progress)
    found = dict(least)
    if not plan.steps:
        return FittedStitches(kept, least, found)
    trainer = _Trainer(pair, weights, spreads, rows, plan, ("weight", "bias"))
    for stage in range(len(pair.points)):
        trainer.advance(stage, progress)
        shares = SHARES if stage == len(pair.points) - 1 else SHARES[:1]
        for share in shares:
            candidate = rounded({name: one.lerp(trainer.weights[name], share) for name, one in weights.items()}, dtype)
            figures = measure(pair, candidate, validation, progress)
            if is_better(figures, found, least):
                kept, found = candidate, figures
    trainer = _Trainer(pair, kept, spreads, rows, plan, ("bias",))
    for stage in range(len(pair.points)):
        trainer.advance(stage, progress)
    candidate = rounded(trainer.weights, dtype)
    for number, (point, one) in enumerate(measure(pair, candidate, validation, progress).items()):
        if one.is_no_worse(found[point]):
            kept["bias"][number], found[point] = candidate["bias"][number], one
    return FittedStitches(kept, least, found)


def rounded(weights: Weights, dtype: torch.dtype) -> Weights:
    """Return weights as they are when they are stored in a type."""
    return {name: one.detach().to(dtype).float() for name, one in weights.items()}


@torch.no_grad()
def least_squares(pair: StitchedPair, rows: Sequence[Row], progress: Progress) -> tuple[Weights, list[float]]:
    """Return the weights with the least squared distance, relative to the spread at each point, and these spreads.

    The states are read twice: for their means, then for the products of what is left beside the means.
    """
    width, out = pair.own.head.hidden, pair.other.head.hidden
    wide = torch.float64
    moments = [_Moments(0, torch.zeros(width, dtype=wide), torch.zeros(out, dtype=wide), 0.0) for _ in pair.points]
    for states in _paired(pair, rows, "means", progress):
        for one, (left_PD, entered_PE) in zip(moments, states, strict=True):
            one.count += len(left_PD)
            one.left_D += left_PD.sum(0, dtype=wide)
            one.entered_E += entered_PE.sum(0, dtype=wide)
            one.squares += float(entered_PE.double().square().sum())
    spreads = [max(one.spread, torch.finfo(torch.float32).tiny) for one in moments]
    square_DD, cross_ED = torch.zeros(width, width, dtype=wide), torch.zeros(out, width, dtype=wide)
    for states in _paired(pair, rows, "least squares", progress):
        for one, spread, (left_PD, entered_PE) in zip(moments, spreads, states, strict=True):
            beside_PD = left_PD.double() - one.left_D / one.count
            square_DD += beside_PD.T @ beside_PD / spread
            cross_ED += (entered_PE.double() - one.entered_E / one.count).T @ beside_PD / spread
    weight_ED = cross_ED @ torch.linalg.pinv(square_DD, hermitian=True, rtol=SMALLEST)
    biases = [one.entered_E / one.count - weight_ED @ (one.left_D / one.count) for one in moments]
    return {"weight": weight_ED.float(), "bias": torch.stack(biases).float()}, spreads


@torch.no_grad()
def measure(
    pair: StitchedPair, weights: Weights, rows: Sequence[Row], progress: Progress
) -> dict[StitchPoint, StitchFigures]:
    """Return the figures of the chain that goes over at each point, against the other model alone."""
    points = pair.points
    out = pair.other.head.hidden
    sums = torch.zeros(len(points), 4, dtype=torch.float64)  # of distances, of divergences, of cosines, of squares
    means_NE = torch.zeros(len(points), out, dtype=torch.float64)
    count, total = 0, sum(map(len, rows))
    for tokens_BL, chosen in _batches(rows):
        mine, theirs = _passages(pair, tokens_BL)
        before_PV = _log_probabilities(pair.other, theirs[-1], chosen)
        count += len(chosen)
        for i, point in enumerate(points):
            made_BLE = stitched(mine[point.left], weights, i)
            entered_PE, made_PE = (one.flatten(0, 1)[chosen] for one in (theirs[point.entered], made_BLE))
            after_PV = _log_probabilities(pair.other, _to_the_end(pair.other, made_BLE, point.entered), chosen)
            sums[i, 0] += (made_PE - entered_PE).double().square().sum()
            sums[i, 1] += F.kl_div(after_PV, before_PV, reduction="sum", log_target=True)
            sums[i, 2] += F.cosine_similarity(after_PV.exp(), before_PV.exp(), dim=-1).sum()
            sums[i, 3] += entered_PE.double().square().sum()
            means_NE[i] += entered_PE.sum(0, dtype=torch.float64)
        progress("validation", count, total)
    sums, means_NE = sums / count, means_NE / count
    spreads = (sums[:, 3] - means_NE.square().sum(-1)).clamp(min=torch.finfo(torch.float32).tiny)
    figures = torch.stack((sums[:, 0] / spreads, sums[:, 1], sums[:, 2]), -1).tolist()
    return {point: StitchFigures(*values) for point, values in zip(points, figures, strict=True)}


def stitched(hidden_BLD: torch.Tensor, weights: Weights, place: int) -> torch.Tensor:
    """Return the states [B, L, E] that the stitch at one of the points makes."""
    return F.linear(hidden_BLD, weights["weight"], weights["bias"][place])


class _Trainer:
    """The training of one direction, stage by stage. ``weights`` are all parameters as they are now, of which it trains the
    ``names``.
    """

    def __init__(
        self,
        pair: StitchedPair,
        first: Weights,
        spreads: Sequence[float],
        rows: Sequence[Row],
        plan: StitchTraining,
        names: Sequence[str],
    ) -> None:
        self.weights: Weights = {name: one.clone().requires_grad_(name in names) for name, one in first.items()}
        self._pair, self._spreads = pair, spreads
        self._rows, self._plan = rows, plan
        self._trained = {name: self.weights[name] for name in names}
        self._optimizer = Optimizer(self._trained, [], 0.0)
        self._random = random.Random(plan.seed)
        self._step = 0

    def advance(self, stage: int, progress: Progress) -> None:
        """Train the point of a stage for its share of the steps.

        If the matrix is trained, which all points have, one of the points before is trained with it.
        """
        total = self._plan.steps * len(self._pair.points)
        for _ in range(self._plan.steps):
            rows = self._some_rows()
            places = {stage, self._random.randrange(stage + 1)} if "weight" in self._trained else {stage}
            names = [*self._trained]
            found = torch.autograd.grad(self._loss(rows, places), [self._trained[name] for name in names])
            rate = self._plan.rate * (1 - self._step / total)
            self._step += 1
            self._optimizer.step(dict(zip(names, found, strict=True)), rate, self._step)
            progress("training", self._step * BATCH, total * BATCH)

    def _some_rows(self) -> list[Row]:
        """Return rows of about ``BATCH`` tokens, drawn at random."""
        drawn, tokens = [self._random.choice(self._rows)], 0
        while (tokens := tokens + len(drawn[-1])) < BATCH:
            drawn.append(self._random.choice(self._rows))
        return drawn

    def _loss(self, rows: Sequence[Row], places: set[int]) -> torch.Tensor:
        tokens_BL, chosen = _batch(rows)
        with torch.no_grad():
            mine, theirs = _passages(self._pair, tokens_BL)
            before_PV = _log_probabilities(self._pair.other, theirs[-1], chosen)
        total = torch.zeros(())
        for place in sorted(places):
            point = self._pair.points[place]
            made_BLE = stitched(mine[point.left], self.weights, place)
            last_BLE = _to_the_end(self._pair.other, made_BLE, point.entered)
            after_PV = _log_probabilities(self._pair.other, last_BLE, chosen)
            apart = (made_BLE - theirs[point.entered]).flatten(0, 1)[chosen].square().sum(-1).mean() / self._spreads[place]
            total = total + apart + F.kl_div(after_PV, before_PV, reduction="batchmean", log_target=True)
        return total


def _paired(
    pair: StitchedPair, rows: Sequence[Row], what: str, progress: Progress
) -> Iterator[list[tuple[torch.Tensor, torch.Tensor]]]:
    """Yield for each batch and point the states left [P, D] and the states entered [P, E]."""
    done, total = 0, sum(map(len, rows))
    for tokens_BL, chosen in _batches(rows):
        mine, theirs = _passages(pair, tokens_BL)
        yield [(mine[one.left].flatten(0, 1)[chosen], theirs[one.entered].flatten(0, 1)[chosen]) for one in pair.points]
        done += len(chosen)
        progress(what, done, total)


def _batches(rows: Sequence[Row]) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
    for places in batches([len(row) for row in rows]):
        yield _batch([rows[i] for i in places])


def _batch(rows: Sequence[Row]) -> tuple[torch.Tensor, torch.Tensor]:
    """Return tokens [B, L], and the places [P] of their positions that are not padding."""
    tokens_BL = padded(rows)
    chosen = [torch.arange(len(row)) + number * tokens_BL.shape[1] for number, row in enumerate(rows)]
    return tokens_BL, torch.cat(chosen)


def _passages(pair: StitchedPair, tokens_BL: torch.Tensor) -> tuple[list[torch.Tensor], list[torch.Tensor]]:
    """Return the states of both models behind each number of components; the first is the tokens."""
    own, other = pair.own, pair.other
    return (
        [tokens_BL, *own.passage(own.parameters, tokens_BL, 0, own.depth)],
        [tokens_BL, *other.passage(other.parameters, tokens_BL, 0, other.depth)],
    )


def _to_the_end(network: ChainNetwork, x_BLE: torch.Tensor, first: int) -> torch.Tensor:
    """Return the states before the head, given the ones before a component."""
    return [x_BLE, *network.passage(network.parameters, x_BLE, first, network.depth)][-1]


def _log_probabilities(network: ChainNetwork, x_BLE: torch.Tensor, chosen: torch.Tensor) -> torch.Tensor:
    hidden_PE = x_BLE.flatten(0, 1)[chosen]
    return network.logits(network.parameters, network.layers, hidden_PE).log_softmax(-1)
