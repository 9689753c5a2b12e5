"""Fit of a stitch by least squares, from the hidden states of two models that read the same rows.

The sums of the normal equations are kept in float64, so that memory does not grow with the rows and the order of batches
hardly matters. The fit is the start of training, and the measure that training must not fall behind.

Legend: B rows, L positions, P chosen positions of a batch, D width of the model left, E width of the model entered.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch

from ...policies.adaptive.stitching import StitchPoint
from ..equivalence.probe import Probe
from ..family.network import ChainNetwork

TOGETHER = 32  # rows in one batch
RIDGE = 1e-6  # share of the mean square of the inputs that is added to the diagonal: states may span less than all widths

Progress = Callable[[int, int], None]  # rows done, rows in all


@dataclass(frozen=True, slots=True)
class Stitch:
    """The matrix of a pair of models: ``weight`` [E, D + 1], whose last column belongs to the position."""

    weight: torch.Tensor

    def bias(self, point: StitchPoint) -> torch.Tensor:
        """Return the bias [E] of a point."""
        return self.weight[:, -1] * point.position

    def __call__(self, hidden: torch.Tensor, point: StitchPoint) -> torch.Tensor:
        """Return states [..., E] of the model entered for states [..., D] of the model left."""
        return hidden @ self.weight[:, :-1].T + self.bias(point)


@torch.no_grad()
def fit_stitch(
    own: ChainNetwork, other: ChainNetwork, probe: Probe, points: Sequence[StitchPoint], progress: Progress
) -> Stitch:
    """Return the one stitch whose outputs have the least squared distance from the states entered, over all points."""
    square, cross = torch.empty(0), torch.empty(0)
    for first in range(0, len(probe.rows), TOGETHER):
        places = range(first, min(first + TOGETHER, len(probe.rows)))
        mine = _states(own, probe.rows, [one[0] for one in probe.places], places)
        theirs = _states(other, probe.other_rows, [one[1] for one in probe.places], places)
        for point in points:
            left_PD, target_PE = mine[point.depth - 1].double(), theirs[point.other_depth - 1].double()
            left_PD = torch.cat([left_PD, left_PD.new_full((len(left_PD), 1), point.position)], 1)
            if not len(square):
                square = left_PD.new_zeros((left_PD.shape[1],) * 2)
                cross = left_PD.new_zeros((left_PD.shape[1], target_PE.shape[1]))
            square += left_PD.T @ left_PD
            cross += left_PD.T @ target_PE
        progress(places.stop, len(probe.rows))
    square += torch.eye(len(square), dtype=torch.float64) * RIDGE * square.diagonal().mean()
    return Stitch(torch.linalg.solve(square, cross).T.float().contiguous())


@torch.no_grad()
def stitch_error(
    stitch: Stitch, own: ChainNetwork, other: ChainNetwork, probe: Probe, points: Sequence[StitchPoint]
) -> dict[StitchPoint, float]:
    """Return at each point the squared distance from the states entered, as a share of their variance; 0 is exact."""
    places = range(len(probe.rows))
    mine = _states(own, probe.rows, [one[0] for one in probe.places], places)
    theirs = _states(other, probe.other_rows, [one[1] for one in probe.places], places)
    found = {}
    for point in points:
        target_PE = theirs[point.other_depth - 1].double()
        missed_PE = stitch(mine[point.depth - 1], point).double() - target_PE
        found[point] = float(missed_PE.pow(2).sum() / (target_PE - target_PE.mean(0)).pow(2).sum())
    return found


def _states(
    network: ChainNetwork, rows: Sequence[Sequence[int]], chosen: Sequence[Sequence[int]], places: range
) -> list[torch.Tensor]:
    """Return the states [P, D] behind each component at the chosen positions of some rows."""
    width = max(len(rows[i]) for i in places)
    tokens_BL = torch.tensor([[*rows[i], *[0] * (width - len(rows[i]))] for i in places])
    at = torch.cat([torch.tensor(chosen[i], dtype=torch.int64) + n * width for n, i in enumerate(places)])
    return [one.flatten(0, 1)[at] for one in network.passage(network.parameters, tokens_BL, 0, network.depth)]
