"""Grading of a family's tiers on prompts whose answers are known: right answers, agreement, confidence, thresholds, memory.

Each tier answers greedily, from the parameters as they are stored, in float32.

Legend: B prompts of one length, L positions, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch

from ...gpu.weights.checkpoint import Checkpoint
from ...policies.model.confidence import (
    ALWAYS,
    FIRST_TOKENS,
    MEASURES,
    GradedAnswer,
    Threshold,
    TierChoice,
    choose,
    confidence,
    judge,
    oracle,
)
from .examples import TrainingExample
from .network import ChainNetwork, Past

TOGETHER = 64  # prompts in one batch
LIKELY = max(MEASURES.values())


@dataclass(frozen=True, slots=True)
class TierAnswer:
    """An answer without its end token, and the likeliest tokens' log-probabilities at its first positions, end included."""

    tokens: tuple[int, ...]
    likely: list[list[float]]


@dataclass(frozen=True, slots=True, kw_only=True)
class TierGrade:
    """The results of a tier.

    right: share of whole answers right. agrees: share of answers equal to the top's. Of a lower tier also: the threshold
    that was chosen on one half of the prompts and the work that it cost there, its result on the other half, the top tier's
    share of right answers there, and the result of an oracle there.
    """

    layers: int
    right: float
    agrees: float
    threshold: Threshold | None = None
    chosen_work: float = 0.0
    held_out: TierChoice | None = None
    top_held_out: float = 0.0
    oracle: TierChoice | None = None

    @property
    def loss(self) -> float:
        """Points of right answers lost against the top tier on the held-out half."""
        return 0.0 if self.held_out is None else 100 * (self.top_held_out - self.held_out.right)


Answers = dict[int, list[TierAnswer]]  # by the layers of the tier
Progress = Callable[[int, int], None]  # answers generated, answers in all


def answer_all(
    network: ChainNetwork, examples: Sequence[TrainingExample], ends: Sequence[int], progress: Progress
) -> Answers:
    """Return the answers of every tier, the top included."""
    tiers = [*network.exits, network.layers]
    done, found = 0, dict[int, list[TierAnswer]]()
    for layers in tiers:
        answers: dict[int, TierAnswer] = {}
        for places in _batches(examples):
            max_tokens = max(len(examples[i].answer) for i in places) + 1
            made = _answer(network, layers, [examples[i].prompt for i in places], ends, max_tokens)
            answers |= dict(zip(places, made, strict=True))
            done += len(places)
            progress(done, len(tiers) * len(examples))
        found[layers] = [answers[i] for i in range(len(examples))]
    return found


def _batches(examples: Sequence[TrainingExample]) -> list[list[int]]:
    """Return the places of prompts of one length together, of like answers beside each other."""
    by_length: dict[int, list[int]] = {}
    for i in sorted(range(len(examples)), key=lambda i: len(examples[i].answer)):
        by_length.setdefault(len(examples[i].prompt), []).append(i)
    return [group[i : i + TOGETHER] for group in by_length.values() for i in range(0, len(group), TOGETHER)]


@torch.no_grad()
def _answer(
    network: ChainNetwork, layers: int, prompts: Sequence[Sequence[int]], ends: Sequence[int], max_tokens: int
) -> list[TierAnswer]:
    weights, past = network.parameters, Past()
    tokens: list[list[int]] = [[] for _ in prompts]
    likely: list[list[list[float]]] = [[] for _ in prompts]
    open_rows = set(range(len(prompts)))
    next_BL = torch.tensor(prompts)
    while open_rows and len(tokens[0]) < max_tokens:
        hidden_BLD = network.hidden(weights, next_BL, [layers], past)[layers]
        logits_BV = network.logits(weights, layers, hidden_BLD[:, -1])
        values_BK, ids_BK = logits_BV.log_softmax(-1).topk(LIKELY)
        next_BL = ids_BK[:, :1]
        for row, (values, token) in enumerate(zip(values_BK.tolist(), next_BL[:, 0].tolist(), strict=True)):
            if row in open_rows:
                if len(likely[row]) < FIRST_TOKENS:
                    likely[row].append(values)
                open_rows -= {row} if token in ends else set()
            tokens[row].append(token)
    return [TierAnswer(_until(one, ends), places) for one, places in zip(tokens, likely, strict=True)]


def _until(tokens: Sequence[int], ends: Sequence[int]) -> tuple[int, ...]:
    """Return the tokens before the first end token."""
    end = next((i for i, token in enumerate(tokens) if token in ends), len(tokens))
    return tuple(tokens[:end])


def right(example: TrainingExample, answer: TierAnswer, ends: Sequence[int]) -> bool:
    """Return True if a whole answer is right. Where nothing ends an answer, what follows the right one does not count."""
    wanted = _until(example.answer, ends)
    return wanted == (answer.tokens if len(wanted) < len(example.answer) else answer.tokens[: len(wanted)])


def grade(
    network: ChainNetwork, examples: Sequence[TrainingExample], answers: Answers, ends: Sequence[int], loss: float
) -> list[TierGrade]:
    """Return the grades of all tiers, lowest first. ``loss``: points of right answers that ``auto`` may lose."""
    top = answers[network.layers]
    grades = []
    for layers, found in sorted(answers.items()):
        rights = [right(example, one, ends) for example, one in zip(examples, found, strict=True)]
        share = sum(rights) / len(rights)
        agrees = sum(one.tokens == other.tokens for one, other in zip(found, top, strict=True)) / len(rights)
        if layers == network.layers:
            grades.append(TierGrade(layers=layers, right=share, agrees=agrees))
            continue
        rule, work, held_out = _threshold(network, examples, layers, answers, ends, loss)
        grades.append(
            TierGrade(
                layers=layers,
                right=share,
                agrees=agrees,
                threshold=rule,
                chosen_work=work,
                held_out=judge(held_out, rule.theta, layers, network.layers),
                top_held_out=judge(held_out, ALWAYS, layers, network.layers).right,
                oracle=oracle(held_out, layers, network.layers),
            )
        )
    return grades


def cheapest(grades: Sequence[TierGrade]) -> tuple[int, Threshold]:
    """Return the layers and the rule of the exit from which ``auto`` costs least work on the prompts that chose it."""
    best = min((one for one in grades if one.threshold is not None), key=lambda one: (one.chosen_work, one.layers))
    assert best.threshold is not None
    return best.layers, best.threshold


def _threshold(
    network: ChainNetwork,
    examples: Sequence[TrainingExample],
    layers: int,
    answers: Answers,
    ends: Sequence[int],
    loss: float,
) -> tuple[Threshold, float, list[GradedAnswer]]:
    """Return the rule that costs least work on every other prompt, that work, and the graded answers to the others."""
    best: tuple[Threshold, float, list[GradedAnswer]] | None = None
    for measure in MEASURES:
        graded = _graded(measure, examples, answers[layers], answers[network.layers], ends)
        chosen_on, held_out = graded[::2], graded[1::2] or graded
        theta = choose(chosen_on, loss)
        work = judge(chosen_on, theta, layers, network.layers).work
        if best is None or work < best[1]:
            best = Threshold(theta=theta, measure=measure), work, held_out
    assert best is not None, "there is a measure"
    return best


def _graded(
    measure: str,
    examples: Sequence[TrainingExample],
    low: Sequence[TierAnswer],
    top: Sequence[TierAnswer],
    ends: Sequence[int],
) -> list[GradedAnswer]:
    return [
        GradedAnswer(
            confidence=confidence(measure, mine.likely),
            right_low=right(example, mine, ends),
            right_top=right(example, best, ends),
            tokens_low=len(mine.tokens) + 1,
            tokens_top=len(best.tokens) + 1,
        )
        for example, mine, best in zip(examples, low, top, strict=True)
    ]


def tier_bytes(family: Checkpoint) -> tuple[int, int]:
    """Return the bytes of parameters of all tiers together: distinct ones, and if each tier were a model of its own."""
    tiers = [family, *(family.at_exit(layers) for layers in family.exits)]
    tensors = [{ref for _, refs in tier.parts for ref in refs.values()} for tier in tiers]
    distinct = {ref for one in tensors for ref in one}
    return sum(ref.nbytes for ref in distinct), sum(ref.nbytes for one in tensors for ref in one)
