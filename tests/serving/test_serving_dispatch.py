"""The same with dispatchers that are asked about each request: whatever is lost, late, doubled or dead between gateways,
dispatchers, predictors and workers, every request ends with the right tokens, and none waits for an answer for ever."""

from __future__ import annotations

import contextlib
from collections import Counter

import pytest

from blockwright.actors.gateway import calls
from blockwright.actors.gateway.calls import Handle
from blockwright.policies.prediction.dispatching import POLICIES
from blockwright.policies.requests.book.dispatch_messages import Ask, Chosen
from blockwright.runtime import RuntimeFault
from blockwright.runtime.actor.actor import ActorNode
from blockwright.runtime.testing import seeds
from blockwright.tests.parts import parts
from blockwright.tests.serving.game import REQUESTS, Game, Violation
from blockwright.tests.serving.house import write_profile
from blockwright.tests.serving.strikes import ASKED

PARTS, DAILY = 3, 1  # each all policies by turns; ``make nightly`` plays others besides


@pytest.fixture(scope="module")
def profile(tmp_path_factory: pytest.TempPathFactory) -> str:
    return write_profile(tmp_path_factory.mktemp("profile"))


@pytest.mark.parametrize("part", parts(PARTS, DAILY))
def test_every_request_ends_whichever_policy_chooses(profile: str, part: int) -> None:
    counters: Counter[str] = Counter()
    outcomes: Counter[str] = Counter()
    seen: Counter[str] = Counter()
    planted: Counter[str] = Counter()
    for seed in seeds(len(POLICIES), first=5000 + part * len(POLICIES)):
        game = Game(seed, dispatch=[*POLICIES][seed % len(POLICIES)], profile=profile).play()
        assert sum(game.outcomes.values()) == REQUESTS, seed
        counters += game.counters
        outcomes += game.outcomes
        seen.update(hit.kind for hit in game.strikes.hits)
        planted += game.house.late
    assert planted["chosen, asked again"] > 0, planted
    assert counters["asked"] > counters["fell back"] > 0, counters
    assert counters["forecasts"] > 0, counters
    lost = outcomes["connection lost"]  # with the process of their gateway, whoever chose
    assert outcomes["done"] + outcomes["cancelled"] >= 0.9 * (sum(outcomes.values()) - lost), outcomes
    assert set(ASKED) <= seen.keys(), seen


def test_a_lost_answer_is_replaced_and_if_it_were_not_the_seeds_would_see_it(monkeypatch: pytest.MonkeyPatch) -> None:
    lost = [("answer to choose", "drop", 1)]
    assert Game(1, strikes=lost, dispatch="random").play().counters["dispatcher_late"] == 1

    async def forgets(effect: Ask, node: ActorNode, dispatcher: str, patience: float, handle: Handle) -> None:
        with contextlib.suppress(RuntimeFault):
            handle(await node.ref(dispatcher).choose(effect, timeout=patience, returns=Chosen))

    monkeypatch.setattr(calls, "ask", forgets)
    with pytest.raises(Violation, match=r"^ended"):
        Game(1, strikes=lost, dispatch="random").play()


@pytest.mark.nightly
def test_without_faults_every_answer_comes_in_time(profile: str) -> None:
    counters: Counter[str] = Counter()
    for seed, policy in enumerate(POLICIES):
        game = Game(seed, faults=False, dispatch=policy, profile=profile).play()
        assert set(game.outcomes) <= {"done", "cancelled"}, policy
        assert not game.counters["dispatcher_late"] + game.counters["dispatcher_dead"], policy
        counters += game.counters
    assert counters["forecasts"] > 0
