"""The rule of speculative sampling: its tokens follow the target's law, in draws with fixed seeds and on the device."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from blockwright.gpu.backend import Backend
from blockwright.gpu.sampling.noise import gumbel, noise_key
from blockwright.gpu.sampling.rejection import draw_draft, judge
from blockwright.policies.plan.sampling import SamplingParams
from blockwright.policies.plan.sweep_plan import WriteTokens
from blockwright.tests.claims import claim
from blockwright.tests.gpu import reference
from blockwright.tests.gpu.rig import GREEDY
from blockwright.tests.gpu.test_tier_drafts import TierRig, drafted, families  # noqa: F401
from blockwright.tests.gpu.test_verification import one_by_one

DRAWS = 100_000
SOME = 5_000
VOCABULARY = 6
CRITICAL = {5: 20.515, 35: 66.619}  # chi-square with these degrees of freedom, alpha 0.001
POSITION = 11


def laws(seed: int, sharpness: float) -> np.ndarray:
    """[1 + V, V]: the law of the first token, and for each first token that of the second."""
    draw = np.random.default_rng(seed)
    weight_NV = np.exp(sharpness * draw.standard_normal((1 + VOCABULARY, VOCABULARY)))
    return np.asarray(weight_NV / weight_NV.sum(axis=1, keepdims=True))


def play(target: np.ndarray, drafting: np.ndarray | None, seed: int) -> tuple[list[int], int]:
    """Draw two tokens by rounds of two drafts; return them, and how many drafts the first round accepted."""
    params = SamplingParams(seed=seed)
    tokens: list[int] = []
    accepted = -1
    while len(tokens) < 2:
        drafts: list[int] = []
        drawn: dict[int, np.ndarray] = {}
        for place in range(2 - len(tokens)):
            before = [*tokens, *drafts]
            if drafting is None:
                drafts.append(len(before) * 2)  # of a text
                continue
            drawn[place] = drafting[1 + before[-1]] if before else drafting[0]
            drafts.append(draw_draft(drawn[place], params, POSITION + len(before)))
        contexts = [[*tokens, *drafts[:place]] for place in range(len(drafts))]
        judged = judge(
            [target[1 + c[-1]] if c else target[0] for c in contexts], drafts, drawn, params, POSITION + len(tokens)
        )
        accepted = accepted if accepted >= 0 else sum(a == b for a, b in zip(judged, drafts, strict=False))
        tokens += judged
    return tokens[:2], accepted


def statistic(seen: np.ndarray, expected: np.ndarray) -> float:
    return float(((seen - expected) ** 2 / expected).sum())


@claim("The rejection rule draws from the target's law: chi-square over 100,000 draws", of="drafts")
@pytest.mark.parametrize("draws", [SOME, pytest.param(DRAWS, marks=pytest.mark.nightly)])
@pytest.mark.parametrize("case", ["near", "far", "text"])
def test_tokens_follow_the_law_of_the_target(case: str, draws: int) -> None:
    target = laws(1, 1.0)
    drafting = {"near": 0.8 * target + 0.2 * laws(2, 1.0), "far": laws(3, 1.5), "text": None}[case]
    seen = np.zeros((VOCABULARY, VOCABULARY))
    accepted = 0
    for seed in range(draws):
        tokens, stood = play(target, drafting, seed)
        seen[tokens[0], tokens[1]] += 1
        accepted += stood > 0
    expected = draws * target[0][:, None] * target[1:]
    assert expected.min() > 1
    assert statistic(seen, expected) < CRITICAL[VOCABULARY**2 - 1]
    assert statistic(seen.sum(axis=1), expected.sum(axis=1)) < CRITICAL[VOCABULARY - 1]
    first = target[0][0] if drafting is None else float(np.minimum(target[0], drafting[0]).sum())
    assert accepted / draws == pytest.approx(first, abs=2 / draws**0.5), "a draft stands as often as the laws agree"


def test_coupling_accepts_no_more_and_hardly_less() -> None:
    """At least (1 - TV) / (1 + TV), by Daliri et al., and at most 1 - TV."""
    target, drafting = laws(1, 1.0)[0], (0.8 * laws(1, 1.0) + 0.2 * laws(2, 1.0))[0]
    token_V = np.arange(VOCABULARY)
    stood = 0
    for seed in range(5_000):
        noise_V = gumbel(noise_key(seed, 0, POSITION), token_V)
        stood += int(np.argmax(np.log(target) + noise_V) == np.argmax(np.log(drafting) + noise_V))
    agreeing = float(np.minimum(target, drafting).sum())
    assert agreeing / (2 - agreeing) - 0.02 < stood / 5_000 < agreeing + 0.02


@pytest.mark.best
def test_rounds_on_the_device(
    make_backend: Callable[..., Backend],
    families: Callable[[str], Path],  # noqa: F811
) -> None:
    """Greedy tokens are those without drafts; sampled ones are others, a draft of the target's own law always stands, and
    log-probabilities are of the tokens that came."""
    rig, prompt = TierRig(make_backend(), families("own")), reference.prompt_of(21)
    greedy = replace(GREEDY, rejection=True)
    assert drafted(rig, 1, prompt, 20, greedy, [3])[0][:20] == one_by_one(rig, 0, prompt, 20, GREEDY)[0]
    warm = SamplingParams(temperature=1.2, top_k=30, seed=3, logprobs=0, rejection=True)
    tokens, logprobs, rounds = drafted(rig, 2, prompt, 40, warm, [3, 1])
    assert drafted(rig, 3, prompt, 40, warm, [3, 1])[:2] == (tokens, logprobs), "a rerun draws the same"
    assert tokens[:40] != one_by_one(rig, 0, prompt, 40, replace(warm, rejection=False))[0]
    assert sum(rounds) > len(rounds)
    row = [*prompt, *tokens]
    scored = rig.scores(4, row)[len(prompt) - 1 :]
    assert [entry.logprob for entry in logprobs if entry] == pytest.approx(scored, abs=1e-4)


@pytest.mark.best
def test_the_draft_of_a_text_is_judged(make_backend: Callable[..., Backend], families: Callable[[str], Path]) -> None:  # noqa: F811
    """With a very low temperature the target's law has one token, which stands; every other one is replaced by it."""
    rig, prompt = TierRig(make_backend(), families("own")), reference.prompt_of(9)
    want = one_by_one(rig, 0, prompt, 6, GREEDY)[0]
    cold = SamplingParams(temperature=1e-6, seed=4, rejection=True)
    first = rig.run([(1, 0, 9)], [0], rig.admit(1, prompt, cold))
    plan = rig.plan([(1, 9, 5)], [0], [WriteTokens(1, 10, [*want[1:3], want[3] ^ 1, want[4]])])
    plan.verify = [0]
    result = rig.executor.execute(plan)
    assert first.tokens + result.tokens + result.verified[0] == want[:4]
