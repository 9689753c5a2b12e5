"""The load of a worker from its machine is what a simulated instance counts from the machine's effects."""

from __future__ import annotations

import random
from dataclasses import replace

from blockwright.policies.plan.coefficients import Coefficients
from blockwright.policies.plan.sweep_plan import SweepPlan
from blockwright.policies.prediction.instance import IDLE, Instance
from blockwright.policies.prediction.load import candidate_at
from blockwright.policies.requests.routes_changed import RoutesChanged
from blockwright.policies.sweep.config import SweepConfig
from blockwright.policies.sweep.state import SweepState

from ..sweep.offline_world import commit, offline, online, world
from ..sweep_world import chain, pipeline, replica, submission

BASE = chain("base")
ROUTE = replica("w0", BASE)
ROUTES = RoutesChanged(1, [BASE], [ROUTE], [ROUTE])


def instance(pages: int) -> Instance:
    sizes = {"budget": pages * 64 * 1024, "slot_unit": 32 * 1024, "page_size": 4, "chunk_size": 8, "sweep_tokens": 32}
    config = SweepConfig(worker="w0", numerics="fake", max_rows=5, **sizes)  # type: ignore[arg-type]
    return Instance(config, ROUTES, Coefficients(base=0.01), jumps=False)


def test_it_is_what_an_instance_counts() -> None:
    """Through starts, preemptions, ends, with prompts that share their beginnings."""
    assert sum(preemptions_compared(seed) for seed in range(8)) > 0


def preemptions_compared(seed: int) -> int:
    """How many there were."""
    chance = random.Random(seed)
    worker = instance(chance.choice([14, 30]))
    now = 0.0
    arrivals = [chance.random() * 0.6 for _ in range(14)]
    arrivals.sort()
    preempted = looks = 0
    while arrivals or worker.due < IDLE:
        if arrivals and arrivals[0] <= worker.due:
            now, number = arrivals.pop(0), len(arrivals)
            prompt = [1, 2, 3, 4, 5, 6, 7, 8] * (number % 2) + [chance.randrange(40) for _ in range(chance.randint(1, 9))]
            worker.submit(submission(f"r{number}", prompt, len(prompt) + chance.randint(2, 20), ROUTE.id, arrival=now), now)
        else:
            now = worker.due
            worker.finish()
        candidate = candidate_at(worker.state, ROUTE.id, submission("new", [9], 10, ROUTE.id))
        assert candidate is not None
        expected = worker.candidate(now)
        more = candidate.waiting_blocks - expected.waiting_blocks  # an open plan adds a token to whoever has been preempted
        preempted = worker.state.counters["preemptions"]
        assert 0 <= more <= preempted
        assert replace(candidate, route="w0", cached_blocks=0, waiting_blocks=expected.waiting_blocks) == expected, now
        looks += 1
    assert looks > 30
    assert candidate.waiting == candidate.running == candidate.used_blocks == 0
    return preempted


def test_who_goes_elsewhere_while_its_prompt_is_computed_is_started_and_outstanding_no_more() -> None:
    """Or no stretch of equal sweeps would be taken at once here any more."""
    worker = instance(60)
    for name, tokens in (("stays", 4), ("goes", 40)):
        worker.submit(submission(name, [tokens] * tokens, tokens + 9, ROUTE.id), 0.0)
    for _ in range(4):
        worker.finish()
    assert (worker._load.starting, worker.candidate(worker.due).running) == (1, 2), "chunks of its prompt are computed"
    computed, _ = worker.withdraw("goes", worker.due)
    assert 0 < computed < 40
    assert (worker._load.starting, worker.candidate(worker.due).running) == (0, 1)
    while worker.due < IDLE:
        worker.finish()
    assert worker.outstanding(0.0) == 0


def test_what_is_in_flight_waits_and_cached_prefixes_count() -> None:
    worker = instance(60)
    worker.submit(submission("r0", [*range(12)], 14, ROUTE.id), 0.0)
    while worker.due < IDLE:
        worker.finish()
    target = submission("new", [*range(12), 77, 78], 20, ROUTE.id)
    flying = [submission("r1", [1] * 5, 9, ROUTE.id), submission("r2", [1] * 4, 9, ROUTE.id)]
    found = candidate_at(worker.state, ROUTE.id, target, flying)
    assert found is not None
    assert (found.waiting, found.waiting_blocks, found.in_flight, found.cached_blocks) == (2, 3, 2, 3)
    assert candidate_at(worker.state, ROUTE.id, submission("new", [*range(1, 14)], 20, ROUTE.id)).cached_blocks == 0  # type: ignore[union-attr]
    assert candidate_at(worker.state, pipeline(["w1", "w0"], BASE).id, target) is None, "it is not that route's home"


def test_offline_sequences_are_no_load() -> None:
    state, alone = (world(60).workers["w0"].state for _ in range(2))
    for i in range(4):
        state.apply(offline(f"o{i}", [50 + i] * 12, 20, float(i)), 0.0)
    for _ in range(3):
        commit(state, _plan(state))
    for one in (state, alone):
        one.apply(online("a", [1] * 20, 8), 0.0)
        commit(one, _plan(one))
    assert state.running > 2
    found, candidate = (candidate_at(one, "base@w0", online("new", [9], 4)) for one in (state, alone))
    assert candidate is not None
    assert found == candidate
    assert (candidate.running, candidate.waiting) == (1, 0)
    assert candidate.used_blocks > 0


def _plan(state: SweepState) -> SweepPlan:
    plan = state.plan(0.0)
    assert plan is not None
    return plan
