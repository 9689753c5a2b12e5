"""Measuring of equivalence: how alike two models' predictions are at each depth, and what a swap of a block damages.

All is computed in float32 from the parameters as they are stored. Batches come first and pairs second, so that the states
of a chain are computed once for all of its pairs and memory does not grow with the probe.

Legend: B rows, L positions, P chosen positions of a batch, D hidden width, V vocabulary, S shared tokens, N and M depths of
the two chains.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import torch
import torch.nn.functional as F

from ...policies.adaptive.equivalence import (
    BlockPair,
    EquivalenceLimits,
    PairFigures,
    candidate_pairs,
    is_similar,
    longer_pairs,
    points_lost,
    refusal,
)
from ...policies.model.chain import Component
from ..family.examples import IGNORED, TrainingExample, tensors
from ..family.network import ChainNetwork
from .joints import Joined, Joints
from .probe import Probe, Row
from .rows import batches, padded

HELD = 1 << 24  # probabilities that are held at a time
LOW = 0.05  # the quantile that is reported beside a mean

Progress = Callable[[str, int, int], None]  # current activity, tokens done, tokens in all
Depths = tuple[int, int]  # numbers of components of two chains


@dataclass(frozen=True, slots=True)
class ComparedModel:
    """One of the models of a comparison. ``prompts`` have known answers in its own tokens; there may be none."""

    components: Sequence[Component]
    network: ChainNetwork
    prompts: Sequence[TrainingExample] = ()


@dataclass(slots=True)
class Similarities:
    """The similarity of two models behind each component: means by depth, and of some depths also the 5th percentile."""

    mean: list[list[float]]
    low: dict[Depths, float]

    def turned(self) -> Similarities:
        return Similarities(
            [list(row) for row in zip(*self.mean, strict=True)], {(j, i): x for (i, j), x in self.low.items()}
        )


@dataclass(frozen=True, slots=True)
class JudgedPair:
    """A pair with its figures. ``refused``: the reason why it does not count; empty if it counts.

    ``joined``: the stitches that a swap needs; None if there are none.
    """

    pair: BlockPair
    figures: PairFigures
    refused: str
    joined: Joined | None = None


@dataclass(frozen=True, slots=True)
class Equivalences:
    """The pairs of a chain with another. ``right``: prompts that the chain answers right, of ``prompts``."""

    pairs: tuple[JudgedPair, ...]
    right: int
    prompts: int


@dataclass(slots=True)
class _Damage:
    """Sums over a probe and over prompts; ``None`` stands for the chain itself."""

    kl: dict[BlockPair, float] = field(default_factory=dict)
    right: dict[BlockPair | None, int] = field(default_factory=dict)


def ends_of(pair: BlockPair, own: Sequence[Component], other: Sequence[Component]) -> Depths:
    """Return the depths behind the blocks of a pair, at most those before the heads."""
    return min(pair.last, len(own) - 1), min(pair.other_last, len(other) - 1)


@torch.no_grad()
def similarities(
    own: ChainNetwork, other: ChainNetwork, probe: Probe, wanted: Sequence[Depths], progress: Progress
) -> Similarities:
    """Return the cosine of both models' vocabulary probabilities, each by its own norm and head, behind all components.

    ``wanted``: the depths whose 5th percentile is wanted, too.
    """
    sums_NM = torch.zeros((own.depth, other.depth), dtype=torch.float64)
    values: dict[Depths, list[torch.Tensor]] = {depths: [] for depths in wanted}
    columns = probe.shared if not probe.same_tokens else None
    done, total = 0, probe.tokens
    for places in batches([len(row) for row in probe.rows]):
        mine = _states(own, [probe.rows[i] for i in places], [probe.places[i][0] for i in places])
        theirs = _states(other, [probe.other_rows[i] for i in places], [probe.places[i][1] for i in places])
        piece = max(1, HELD // (len(mine) * own.head.vocabulary + len(theirs) * other.head.vocabulary))
        for first in range(0, len(mine[0]), piece):
            some, others = ([one[first : first + piece] for one in states] for states in (mine, theirs))
            cosine_PNM = _cosines(own, other, some, others, columns)
            sums_NM += cosine_PNM.sum(0, dtype=torch.float64)
            for (i, j), found in values.items():
                found.append(cosine_PNM[:, i - 1, j - 1].clone())
            done += len(cosine_PNM)
            progress("similarity", done, total)
    low = {depths: low_quantile(torch.cat(found)) for depths, found in values.items()}
    return Similarities((sums_NM / total).tolist(), low)


def compare(
    own: ComparedModel,
    other: ComparedModel,
    probe: Probe,
    alike: Similarities,
    limits: EquivalenceLimits,
    progress: Progress,
    joints: Joints | None = None,
) -> Equivalences:
    """Judge the blocks of ``other`` that may stand in for blocks of ``own``.

    Damage is measured for the pairs that look alike: each alone, then longer ones of them together. Blocks of another
    width are swapped with the stitches of ``joints`` around them.
    """
    mine, theirs = own.components, other.components
    joints = joints or Joints(mine, theirs, {}, {})
    same = probe.same_tokens
    judged: dict[BlockPair, JudgedPair] = {}
    right, pairs = 0, candidate_pairs(mine, theirs, same_tokens=same)
    while pairs or not judged:
        looks = {pair: _looks(pair, alike, ends_of(pair, mine, theirs)) for pair in pairs}
        joined = {pair: joints.around(pair) for pair in pairs}
        swaps = {pair: one for pair, one in joined.items() if one is not None and is_similar(looks[pair], limits)}
        damage = swap_damage(own, other.network, probe.rows, swaps, progress)
        right = damage.right[None]
        for pair, look in looks.items():
            figures = look
            if pair in damage.kl:
                lost = points_lost(right, damage.right[pair], len(own.prompts))
                figures = PairFigures(look.similarity, look.low, damage.kl[pair], lost)
            judged[pair] = JudgedPair(
                pair, figures, refusal(figures, limits, swappable=joined[pair] is not None), joined[pair]
            )
        if not judged:
            break
        counts = {pair: not one.refused for pair, one in judged.items()}
        pairs = longer_pairs(mine, theirs, counts, same_tokens=same)
    return Equivalences(tuple(judged[pair] for pair in sorted(judged)), right, len(own.prompts))


@torch.no_grad()
def swap_damage(
    own: ComparedModel, donor: ChainNetwork, rows: Sequence[Row], pairs: Mapping[BlockPair, Joined], progress: Progress
) -> _Damage:
    """Return what each swap alone does: the mean KL of the output over the rows, in nats, and the prompts still right.

    ``pairs``: the swaps, each with the stitches around it.
    """
    found = _Damage(dict.fromkeys(pairs, 0.0), dict.fromkeys([None, *pairs], 0))
    rows = rows if pairs else ()
    total = sum(map(len, rows)) + sum(map(len, own.prompts))
    done, tokens = 0, sum(map(len, rows))
    for places in batches([len(row) for row in rows]):
        tokens_BL = padded([rows[i] for i in places])
        chosen = torch.cat([torch.arange(len(rows[i])) + number * tokens_BL.shape[1] for number, i in enumerate(places)])
        before_PV = torch.empty(0)
        for pair, logits_PV in _swapped(own.network, donor, pairs, tokens_BL, chosen):
            after_PV = logits_PV.log_softmax(-1)
            if pair is None:
                before_PV = after_PV
            else:
                found.kl[pair] += float(F.kl_div(after_PV, before_PV, reduction="sum", log_target=True)) / tokens
        done += len(chosen)
        progress("damage", done, total)
    for places in batches([len(one) for one in own.prompts]):
        tokens_BL, labels_BL = tensors([own.prompts[i] for i in places])
        asked_BL = labels_BL != IGNORED
        chosen = asked_BL.flatten().nonzero()[:, 0]
        for pair, logits_PV in _swapped(own.network, donor, pairs, tokens_BL, chosen):
            good_BL = ~asked_BL
            good_BL[asked_BL] = logits_PV.argmax(-1) == labels_BL[asked_BL]
            found.right[pair] += int(good_BL.all(1).sum())
        done += sum(len(own.prompts[i]) for i in places)
        progress("damage", done, total)
    return found


def _swapped(
    host: ChainNetwork,
    donor: ChainNetwork,
    pairs: Mapping[BlockPair, Joined],
    tokens_BL: torch.Tensor,
    chosen: torch.Tensor,
) -> Iterator[tuple[BlockPair | None, torch.Tensor]]:
    """Yield the logits [P, V] at the chosen positions: of the chain, then with each pair's block swapped alone."""
    states = [tokens_BL, *host.passage(host.parameters, tokens_BL, 0, host.depth)]
    yield None, _logits(host, states[-1].flatten(0, 1)[chosen])
    for pair, joined in pairs.items():
        entered = states[pair.first] if joined.enter is None else joined.enter(states[pair.first])
        swapped_BLD = _behind(donor, entered, pair.other_first, min(pair.other_last, donor.depth))
        swapped_BLD = swapped_BLD if joined.leave is None else joined.leave(swapped_BLD)
        last_BLD = _behind(host, swapped_BLD, pair.last, host.depth)
        yield pair, _logits(donor if pair.last > host.depth else host, last_BLD.flatten(0, 1)[chosen])


def _behind(network: ChainNetwork, x: torch.Tensor, first: int, last: int) -> torch.Tensor:
    """Return the states behind a block, given the ones before it."""
    return [x, *network.passage(network.parameters, x, first, last)][-1]


def _states(network: ChainNetwork, rows: Sequence[Row], places: Sequence[Row]) -> list[torch.Tensor]:
    """Return the hidden states [P, D] behind each component, at these places of the rows."""
    tokens_BL = padded(rows)
    chosen = torch.cat([torch.tensor(at, dtype=torch.int64) + i * tokens_BL.shape[1] for i, at in enumerate(places)])
    return [one.flatten(0, 1)[chosen] for one in network.passage(network.parameters, tokens_BL, 0, network.depth)]


def _cosines(
    own: ChainNetwork,
    other: ChainNetwork,
    mine: Sequence[torch.Tensor],
    theirs: Sequence[torch.Tensor],
    columns: tuple[Row, Row] | None,
) -> torch.Tensor:
    """Return the cosines [P, N, M] of the probabilities behind all components; of the shared tokens where columns differ."""
    mine_PNV, theirs_PMV = _probabilities(own, mine), _probabilities(other, theirs)
    if columns is None:
        width = min(mine_PNV.shape[-1], theirs_PMV.shape[-1])  # one of them may be padded
        mine_PNS, theirs_PMS = mine_PNV[..., :width], theirs_PMV[..., :width]
    else:
        mine_PNS, theirs_PMS = mine_PNV[..., torch.tensor(columns[0])], theirs_PMV[..., torch.tensor(columns[1])]
    return F.normalize(mine_PNS, dim=-1) @ F.normalize(theirs_PMS, dim=-1).mT


def _probabilities(network: ChainNetwork, states: Sequence[torch.Tensor]) -> torch.Tensor:
    return torch.stack([_logits(network, one).softmax(-1) for one in states], 1)


def _logits(network: ChainNetwork, hidden_PD: torch.Tensor) -> torch.Tensor:
    return network.logits(network.parameters, network.layers, hidden_PD)


def _looks(pair: BlockPair, alike: Similarities, ends: Depths) -> PairFigures:
    return PairFigures(alike.mean[ends[0] - 1][ends[1] - 1], alike.low[ends])


def low_quantile(values: torch.Tensor) -> float:
    ordered = values.sort().values
    return float(ordered[int(LOW * (len(ordered) - 1))])
