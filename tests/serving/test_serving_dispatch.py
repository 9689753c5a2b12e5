"""The same with dispatchers that are asked about each request: whatever is lost, late, doubled or dead between gateways,
dispatchers, predictors and workers, every request ends with the right tokens, and none waits for an answer for ever."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path

import pytest

from blockwright.policies.prediction.dispatching import POLICIES
from blockwright.runtime.testing import seeds
from blockwright.tests.serving.device import SWEEP, TOKEN
from blockwright.tests.serving.game import REQUESTS, Game
from blockwright.tests.serving.strikes import ASKED

PART, PARTS = 39, 2  # seeds: all policies by turns


@pytest.fixture(scope="module")
def profile(tmp_path_factory: pytest.TempPathFactory) -> str:
    path: Path = tmp_path_factory.mktemp("profile") / "profile.json"
    path.write_text(json.dumps({"coefficients": {"base": SWEEP, "token": TOKEN}}))
    return str(path)


@pytest.mark.parametrize("part", range(PARTS))
def test_every_request_ends_whichever_policy_chooses(part: int, profile: str) -> None:
    counters: Counter[str] = Counter()
    outcomes: Counter[str] = Counter()
    seen: Counter[str] = Counter()
    for seed in seeds(PART, first=5000 + part * PART):
        game = Game(seed, dispatch=[*POLICIES][seed % len(POLICIES)], profile=profile).play()
        assert sum(game.outcomes.values()) == REQUESTS, seed
        counters += game.counters
        outcomes += game.outcomes
        seen.update(hit.kind for hit in game.strikes.hits)
    assert counters["asked"] > counters["fell back"] > 0, counters
    assert counters["forecasts"] > 0, counters
    assert outcomes["done"] + outcomes["cancelled"] >= 0.9 * sum(outcomes.values()), outcomes
    assert set(ASKED) <= seen.keys(), seen


def test_without_faults_every_answer_comes_in_time(profile: str) -> None:
    counters: Counter[str] = Counter()
    for seed, policy in enumerate(POLICIES):
        game = Game(seed, faults=False, dispatch=policy, profile=profile).play()
        assert set(game.outcomes) <= {"done", "cancelled"}, policy
        assert not game.counters["dispatcher_late"] + game.counters["dispatcher_dead"], policy
        counters += game.counters
    assert counters["forecasts"] > 0
