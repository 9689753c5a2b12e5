"""One definition of waiting: after each step a gateway counts as running what workers run, and all else as waiting."""

from __future__ import annotations

import random
from typing import Any

import pytest

from blockwright.actors.gateway.port import Generation
from blockwright.policies.plan.sampling import SamplingParams
from blockwright.policies.requests.book.lifecycle import LifeEvent
from blockwright.policies.requests.book.record import RequestRecord
from blockwright.policies.requests.book.token_progress import TokenProgress
from blockwright.policies.sweep.events import Preempted, Progressed, TokensEmitted
from blockwright.tests.claims import claim
from blockwright.tests.policies.sweep_world import World, chain, pipeline, replica, submission

BASE = chain("base")


class WatchedWorld(World):
    """A world whose gateway keeps records as the live one does."""

    def __init__(self, *args: Any, **more: Any) -> None:
        self.records: dict[str, RequestRecord] = {}
        self.preempted = self.longest = 0
        super().__init__(*args, **more)

    def ask(self, name: str, prompt: list[int], new: int, route: str, arrival: float) -> None:
        generation = Generation(
            id=name,
            application="base",
            prompt=prompt,
            max_tokens=new,
            stop_tokens=[],
            sampling=SamplingParams(temperature=0.0),
        )
        record = self.records[name] = RequestRecord(
            generation, len(self.records), arrival, "base", TokenProgress(prompt, new)
        )
        record.apply(LifeEvent.SEND)
        record.start(self.routes[route], arrival)
        self.submit(submission(name, prompt, len(prompt) + new, route, arrival=arrival))

    def hear(self, effects: list[Any]) -> list[Any]:
        for effect in effects:
            match effect:
                case Preempted():
                    self.records[effect.request].preempted(effect, 1.0)
                    self.preempted += 1
                case Progressed():
                    self.records[effect.request].progressed(effect, 1.0, 0.0)
                case TokensEmitted():
                    if not self.records[effect.request].progress.planned:
                        self.records[effect.request].plan_seen(1.0, 0.0)
                    self.records[effect.request].extend(effect, 1.0)
                    if effect.finish:
                        del self.records[effect.request]
        return effects

    def _move(self, kind: str, what: object) -> bool:
        moved = super()._move(kind, what)
        states = [worker.state for worker in self.workers.values()]
        waiting = sum(record.progress.waits for record in self.records.values())
        assert waiting == sum(state.awaiting for state in states)
        assert len(self.records) - waiting == sum(state.running for state in states)
        self.longest = max(self.longest, waiting)
        return moved


@claim("Gateways, workers and the page count waiting requests alike", of="observability")
@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("workers", [["w0"], ["w0", "w1"]])
def test_gateway_and_workers_agree_while_memory_is_short(workers: list[str], seed: int) -> None:
    route = replica("w0", BASE) if len(workers) == 1 else pipeline(workers, BASE)
    world = WatchedWorld(workers, [BASE], [route], budget=11 * 64 * 1024, chunk_size=8, max_rows=8, sweep_tokens=64)
    chance = random.Random(seed)
    for i in range(10):
        shared = [1] * 8 if i % 2 else []
        prompt = shared + [chance.randrange(40) for _ in range(chance.randint(1, 18))]
        world.ask(f"r{i}", prompt, 14, route.id, float(i))
    world.run(seed)
    assert not world.records
    assert world.preempted or len(workers) > 1
    assert world.longest > 0
    world.assert_quiet()
