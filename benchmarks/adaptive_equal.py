"""Answers lost by the variants that ``adaptive.NAME=equal`` serves, for ``adaptive.py``.

Variants are made as a server makes them of the pairs that count (``make_variants``). Each is served alone to prompts that
chose nothing. A greedy answer is right exactly if each of its tokens is the likeliest after those before it, so one passage
over a prompt with its answer judges it. ``lost``: answers in 100 that the model's own chain gives right and the variant does
not, less the other way round; the mean of all variants. ``fullest``: the same of the variants with most components swapped,
one for each donor. ``similarity``: mean cosine of both chains' vocabulary probabilities at the tokens of the answers;
``agreed``: share of these at which both take the same token.

Legend: B rows, L positions, P asked positions of a batch, V vocabulary.
"""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from harness import OURS, Bar, Report

from blockwright.policies.adaptive.equivalence import BlockPair
from blockwright.policies.adaptive.variants import Equivalent, Swap, make_variants
from blockwright.zoo.equivalence.measuring import ComparedModel, JudgedPair
from blockwright.zoo.equivalence.rows import batches
from blockwright.zoo.family.examples import IGNORED, tensors
from blockwright.zoo.family.network import ChainNetwork

MEAN_LOST = 2.0  # answers in 100, held out
EQUAL_BARS = [Bar("equal", "lost", at_most=MEAN_LOST)]


@dataclass(frozen=True, slots=True)
class ServedVariant:
    """The figures of one variant. swapped: components. lost: answers in 100."""

    swapped: int
    lost: float
    similarity: float
    agreed: float


def variant_swaps(own: ComparedModel, donor: ComparedModel, judged: Sequence[JudgedPair]) -> list[list[BlockPair]]:
    """Return the pairs that each variant swaps, for the variants that a server makes of the ones that count."""
    pairs: dict[Swap, BlockPair] = {}
    known = list[Equivalent]()
    for one in [one for one in judged if not one.refused]:
        ids = tuple(c.id.hex() for c in donor.components[one.pair.other_first : one.pair.other_last])
        swap = Swap(one.pair.first, one.pair.last, ids)
        pairs[swap] = one.pair
        known.append(Equivalent(swap, "donor", one.figures.lost, one.figures.kl))
    variants = make_variants([c.id.hex() for c in own.components], known)
    return [[pairs[swap] for swap in one.swaps] for one in variants]


def logits_of(
    own: ChainNetwork, donor: ChainNetwork, pairs: Sequence[BlockPair], tokens_BL: torch.Tensor, asked_BL: torch.Tensor
) -> torch.Tensor:
    """Return the logits [P, V] of a chain with some blocks swapped, at the positions that ``asked_BL`` marks."""
    x, place = tokens_BL, 0
    head = own
    for pair in sorted(pairs):
        x = behind(own, x, place, pair.first)
        x = behind(donor, x, pair.other_first, min(pair.other_last, donor.depth))
        place, head = pair.last, donor if pair.last > own.depth else own
    x = behind(own, x, place, own.depth)
    return head.logits(head.parameters, head.layers, x[asked_BL])


def behind(network: ChainNetwork, x: torch.Tensor, first: int, last: int) -> torch.Tensor:
    """Return the states behind a block, given the ones before it."""
    return [x, *network.passage(network.parameters, x, first, last)][-1]


def right(logits_PV: torch.Tensor, labels_BL: torch.Tensor) -> int:
    """Return the number of rows whose asked tokens are all the likeliest."""
    good_BL = labels_BL == IGNORED
    good_BL[~good_BL] = logits_PV.argmax(-1) == labels_BL[~good_BL]
    return int(good_BL.all(1).sum())


@torch.no_grad()
def served(own: ComparedModel, donor: ComparedModel, judged: Sequence[JudgedPair]) -> list[ServedVariant]:
    """Return the figures of all variants on the prompts of ``own``, the ones with most components swapped first."""
    variants = variant_swaps(own, donor, judged)
    sums_V3 = torch.zeros(len(variants), 3, dtype=torch.float64)
    asked = 0
    for places in batches([len(one) for one in own.prompts]):
        tokens_BL, labels_BL = tensors([own.prompts[i] for i in places])
        asked_BL = labels_BL != IGNORED
        asked += int(asked_BL.sum())
        before_PV = logits_of(own.network, donor.network, (), tokens_BL, asked_BL)
        for number, pairs in enumerate(variants):
            after_PV = logits_of(own.network, donor.network, pairs, tokens_BL, asked_BL)
            lost = right(before_PV, labels_BL) - right(after_PV, labels_BL)
            alike = float(F.cosine_similarity(before_PV.softmax(-1), after_PV.softmax(-1), dim=-1).sum())
            agreed = float((before_PV.argmax(-1) == after_PV.argmax(-1)).sum())
            sums_V3[number] += torch.tensor([lost, alike, agreed])
    return [
        ServedVariant(sum(one.last - one.first for one in pairs), 100 * lost / len(own.prompts), alike / asked, same / asked)
        for pairs, (lost, alike, same) in zip(variants, sums_V3.tolist(), strict=True)
    ]


def add_equal(report: Report, case: str, donors: Sequence[Sequence[ServedVariant]]) -> None:
    """Report the variants of some donors together. A donor without any counts for nothing."""
    every = [one for variants in donors for one in variants]
    if not every:
        return
    figures = {"variants": float(len(every)), "lost": statistics.fmean(one.lost for one in every)}
    figures |= {"worst": max(one.lost for one in every), "fullest": statistics.fmean(v[0].lost for v in donors if v)}
    figures |= {"similarity": statistics.fmean(one.similarity for one in every)}
    report.add(case, OURS, figures | {"agreed": statistics.fmean(one.agreed for one in every)})
