"""Offline requests beside online ones over seeds of kills, drops, delays and duplicates: the properties of ``game.py``, and
that workers take them by credit, give them back for others, and end all of them."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from random import Random

import pytest

from blockwright.actors.gateway.port import Generation
from blockwright.runtime.testing import seeds
from blockwright.tests.claims import claim
from blockwright.tests.parts import spans
from blockwright.tests.serving.game import REQUESTS, Game, Request

PARTS = 4
PART = 24
DAILY = 5
FIRST = 10  # seed; requests yield in the daily ones


class Blended(Game):
    """Half of the requests are offline, each meant for some worker."""

    def _generation(self, request: Request) -> Generation:
        online = super()._generation(request)
        random = Random(f"{self.seed}/offline/{request.id}")
        if not self.offline(request):
            return online
        return replace(
            online, offline=True, home=random.choice(self.house.plan.workers), side=random.choice(("left", "right"))
        )

    def offline(self, request: Request) -> bool:
        return Random(f"{self.seed}/{request.id}").random() < 0.5


@claim("No offline request is lost or doubled under random faults", of="offline")
@pytest.mark.parametrize("span", spans(PARTS, PART, DAILY), ids=str)
def test_every_offline_request_ends_with_the_right_tokens_or_a_typed_error(span: range) -> None:
    counters: Counter[str] = Counter()
    outcomes: Counter[str] = Counter()
    for seed in seeds(len(span), first=FIRST + span.start):
        game = Blended(seed)
        game.play()
        assert sum(game.outcomes.values()) == REQUESTS, seed
        counters += game.counters
        outcomes += Counter(request.outcome for request in game.requests if game.offline(request))
    assert counters["offline_tokens"] > 0, counters
    assert counters["offline_yielded"] > 0, counters
    assert outcomes["done"] + outcomes["cancelled"] >= 0.9 * sum(outcomes.values()), outcomes


def test_without_faults_every_offline_request_gets_its_tokens() -> None:
    for seed in range(3):
        game = Blended(seed, faults=False).play()
        assert set(game.outcomes) <= {"done", "cancelled"}, seed
