"""The same with dispatchers that are asked for each request: whatever is lost, late, doubled or dead between gateway,
dispatcher and predictors, every request ends with the right tokens, and nobody asks for ever."""

from __future__ import annotations

from collections import Counter

import pytest

from blockwright.policies.prediction.dispatching import POLICIES
from blockwright.runtime.testing import seeds
from blockwright.tests.serving.game import REQUESTS, Game
from blockwright.tests.serving.strikes import ASKED

PART, PARTS = 52, 2  # seeds: all policies by turns


@pytest.mark.parametrize("part", range(PARTS))
def test_every_request_ends_whichever_policy_chooses(part: int) -> None:
    counters: Counter[str] = Counter()
    outcomes: Counter[str] = Counter()
    seen: Counter[str] = Counter()
    for seed in seeds(PART, first=5000 + part * PART):
        game = Game(seed, dispatch=[*POLICIES][seed % len(POLICIES)]).play()
        assert sum(game.outcomes.values()) == REQUESTS, seed
        counters += game.counters
        outcomes += game.outcomes
        seen.update(hit.kind for hit in game.strikes.hits)
    assert counters["asked"] > PART, counters
    assert counters["dispatcher_late"] + counters["dispatcher_dead"] > 0, counters
    assert outcomes["done"] + outcomes["cancelled"] >= 0.9 * sum(outcomes.values()), outcomes
    assert set(ASKED) <= seen.keys(), seen


def test_without_faults_every_answer_comes_in_time() -> None:
    for seed, policy in enumerate(POLICIES):
        game = Game(seed, faults=False, dispatch=policy).play()
        assert set(game.outcomes) <= {"done", "cancelled"}, policy
        assert not game.counters["dispatcher_late"] + game.counters["dispatcher_dead"], policy
