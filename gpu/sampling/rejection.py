"""Rejection sampling of drafts, an ablation: the distribution of tokens stays the target's, the tokens themselves do not.

After Chen et al., "Accelerating Large Language Model Decoding with Speculative Sampling" (2023). A draft x, drawn from q,
stands with probability min(1, p(x) / q(x)), where p is the target's law. Otherwise the token is drawn from the normalised
positive part of p - q. The draft of a text is drawn from the law that has only that token. Which token comes then depends on
where rounds begin, so an answer that starts anew elsewhere may go on otherwise.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from ...policies.plan.sampling import SamplingParams
from .noise import gumbel, noise_key

# Each use has noise of its own, since a position's draft, verdict and replacement must not depend on each other.
DRAFTING = 0xA0761D6478BD642F
VERDICT = 0xE7037ED1A0B428DB
REPLACING = 0x8EBC6AF09C88C6E3


def applies(params: SamplingParams) -> bool:
    """Return whether the drafts of a sequence are judged by this rule. Without randomness both rules are the same."""
    return params.rejection and params.temperature > 0.0


def draw_draft(law_V: np.ndarray, params: SamplingParams, position: int) -> int:
    """Return a draft from this law."""
    return _draw(law_V, params, position, DRAFTING)


def judge(
    target: Sequence[np.ndarray],
    drafts: Sequence[int],
    drafting: Mapping[int, np.ndarray],
    params: SamplingParams,
    position: int,
) -> list[int]:
    """Return the tokens of a round: the drafts that stand and, if one does not, the token in its place.

    Args:
        target: the target's law [V] at each draft.
        drafts: the drafts.
        drafting: the law that a draft was drawn from, by place; without one it is the draft of a text.
        params: the sampling options.
        position: of the first draft in the sequence.
    """
    tokens: list[int] = []
    for place, (law_V, draft) in enumerate(zip(target, drafts, strict=True)):
        drawn_V = drafting.get(place)
        chance = float(law_V[draft]) / (1.0 if drawn_V is None else float(drawn_V[draft]))
        if _uniform(params, position + place) < chance:
            tokens.append(draft)
            continue
        left_V = law_V.copy()
        left_V[draft] = 0.0  # the draft had too much probability
        if drawn_V is not None:
            left_V = np.maximum(left_V - drawn_V, 0.0)
        tokens.append(_draw(left_V if left_V.any() else law_V, params, position + place, REPLACING))
        break
    return tokens


def _draw(weight_V: np.ndarray, params: SamplingParams, position: int, use: int) -> int:
    token_K = np.flatnonzero(weight_V)
    noise_K = gumbel(noise_key(params.seed ^ use, params.choice, position), token_K)
    return int(token_K[np.argmax(np.log(weight_V[token_K]) + noise_K)])


def _uniform(params: SamplingParams, position: int) -> float:
    """Return a number between 0 and 1, the noise of a verdict."""
    noise_K = gumbel(noise_key(params.seed ^ VERDICT, params.choice, position), np.zeros(1, dtype=np.int64))
    return float(np.exp(-np.exp(-noise_K[0])))
