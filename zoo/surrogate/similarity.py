"""Similarity of a chain with a surrogate to the chain itself, on rows that the surrogate was not fitted to.

Legend: B rows, L positions, P positions without padding, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F

from ..equivalence.measuring import low_quantile
from ..equivalence.probe import Row
from ..equivalence.rows import batches, padded
from ..family.network import ChainNetwork, component_output
from .pruning import ProbeBatch
from .row_time import RawBlock


@dataclass(frozen=True, slots=True)
class SurrogateFigures:
    """Measurements of a surrogate, as in ``StoredSurrogate``."""

    tokens: int
    similarity: float
    low: float
    kl: float
    agreement: float


@torch.no_grad()
def states_before(network: ChainNetwork, rows: Sequence[Row], first: int) -> list[ProbeBatch]:
    """Return the states before component ``first``, in batches of rows of like lengths."""
    found = []
    for places in batches([len(row) for row in rows]):
        tokens_BL = padded([rows[i] for i in places])
        lengths = torch.tensor([len(rows[i]) for i in places])
        x = [tokens_BL, *network.passage(network.parameters, tokens_BL, 0, first)][-1]
        found.append(ProbeBatch(x, torch.arange(tokens_BL.shape[1]) < lengths[:, None]))
    return found


@torch.no_grad()
def surrogate_figures(
    network: ChainNetwork, first: int, last: int, surrogate: RawBlock, rows: Sequence[Row]
) -> SurrogateFigures:
    """Compare the components ``first`` to ``last - 1`` of a chain with their surrogate."""
    cosines = []
    kl = 0.0
    agreed, tokens = 0, 0
    block = [(config, {role: one.float() for role, one in weights.items()}) for config, weights in surrogate]
    for batch in states_before(network, rows, first):
        position_L = torch.arange(batch.x.shape[1])
        near = batch.x
        for config, weights in block:
            near = component_output(config, weights, near, position_L)
        true = _behind(network, batch.x, first, last)
        true_PV, near_PV = (_logits(network, one, batch).softmax(-1) for one in (true, near))
        cosines.append(F.cosine_similarity(true_PV, near_PV))
        ends = (_behind(network, one, last, network.depth) for one in (true, near))
        true_PV, near_PV = (_logits(network, one, batch).log_softmax(-1) for one in ends)
        kl += float(F.kl_div(near_PV, true_PV, reduction="sum", log_target=True))
        agreed += int((true_PV.argmax(-1) == near_PV.argmax(-1)).sum())
        tokens += len(true_PV)
    cosine = torch.cat(cosines)
    return SurrogateFigures(tokens, float(cosine.mean()), low_quantile(cosine), kl / tokens, agreed / tokens)


def _behind(network: ChainNetwork, x: torch.Tensor, first: int, last: int) -> torch.Tensor:
    return [x, *network.passage(network.parameters, x, first, last)][-1]


def _logits(network: ChainNetwork, x: torch.Tensor, batch: ProbeBatch) -> torch.Tensor:
    return network.logits(network.parameters, network.layers, x[batch.real_BL])
