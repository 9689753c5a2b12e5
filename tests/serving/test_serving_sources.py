"""Loads that name another worker as their source, while messages are lost, late and doubled and processes die: the
properties of ``game.py``, over seeds. What is written is checked byte by byte."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from random import Random

import pytest

from blockwright.policies.control.loads import LoadBlock
from blockwright.policies.control.residency import Residency
from blockwright.runtime.testing import Fault, Kill, seeds
from blockwright.tests.parts import parts
from blockwright.tests.serving.game import REQUESTS, STRIKES, WITHIN, Game
from blockwright.tests.serving.strikes import ACTIONS, FETCHED, Strike

PART = 7
PARTS = 6
DAILY = 1


class Sourced(Game):
    """Every load names a worker: one that has everything, one that has nothing, itself, one that is down."""

    def _draw(self) -> list[Strike]:
        random = Random(f"{self.seed}/draw sources")
        cells = [(random.choice(FETCHED), random.choice(ACTIONS), random.randint(1, 40)) for _ in range(2 * STRIKES)]
        return [*super()._draw(), *cells]

    def _random_faults(self) -> list[Fault]:
        random = Random(f"{self.seed}/sources")
        again = [Kill(random.uniform(0.1, WITHIN), random.choice(self.house.plan.workers)) for _ in range(2)]
        return [*super()._random_faults(), *again]

    def play(self) -> Sourced:
        first_missing = Residency._first_missing
        random = Random(f"{self.seed}/source")
        workers = self.house.plan.workers

        def sourced(residency: Residency, name: str) -> LoadBlock:
            return replace(first_missing(residency, name), source=random.choice(workers))

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(Residency, "_first_missing", sourced)
            super().play()
        return self

    def _leaks(self) -> str:
        lives = self.sim._launcher.list()
        for worker in [worker for worker in self.house.workers.values() if worker.node.id in lives]:
            staged = worker._parameters.counters()["staged_parameter_bytes"]
            if worker._parameters._fetches or staged:
                return f"worker {worker.node.id} has parameters on their way: {staged} bytes"
        return super()._leaks()

    def _count(self) -> None:
        super()._count()
        for worker in self.house.workers.values():
            self.counters.update(worker._parameters.counters())


@pytest.mark.parametrize("part", parts(PARTS, DAILY))
def test_every_request_ends_with_the_right_tokens_wherever_parameters_come_from(part: int) -> None:
    counters: Counter[str] = Counter()
    hits: Counter[tuple[str, str]] = Counter()
    for seed in seeds(PART, first=9000 + part * PART):
        game = Sourced(seed).play()
        assert sum(game.outcomes.values()) == REQUESTS, seed
        counters += game.counters
        hits.update((hit.kind, hit.action) for hit in game.strikes.hits if hit.kind in FETCHED)
    assert counters["fetched_parameter_bytes"] > 0 < counters["unfetched_loads"], counters
    assert len(hits) == len(FETCHED) * len(ACTIONS), hits
