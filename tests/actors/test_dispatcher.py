"""A dispatcher among predictors that answer, are late, are dead, or have no picture of their worker."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any

from blockwright.actors.dispatcher.actor import Dispatcher
from blockwright.actors.predictor.messages import NODE, Query, predictor_of
from blockwright.actors.settings.dispatching import DispatchSettings
from blockwright.policies.prediction.candidate import Candidate, Forecast
from blockwright.policies.requests.book.dispatch_messages import Ask, Chosen
from blockwright.policies.requests.standing import Standing
from blockwright.policies.sweep.events import Submission
from blockwright.runtime import Actor, Node, endpoint
from blockwright.runtime.base.buffers import Sink
from blockwright.runtime.base.codec import encode, pack, unpack
from blockwright.runtime.base.decoding import decode
from blockwright.runtime.testing import Simulation
from blockwright.tests.actors import fake_worker
from blockwright.tests.actors.test_topology import cluster, collect
from blockwright.tests.claims import claim
from blockwright.tests.fake_cluster import generation, reference
from blockwright.tests.policies.requests.book.gateway_bench import Bench

WORKERS = ("w0", "w1", "w2", "w3")


def submission(request: str = "r") -> Submission:
    """As a gateway sends it."""
    bench = Bench(*WORKERS, asks=True)
    (ask,) = bench(generation(request))
    assert isinstance(ask, Ask)
    return ask.submission


How = dict[str, dict[str, Any] | None]  # by worker, how its predictor is; None: dead
LASTS: How = {"w0": {"last": 4.0}, "w1": {"last": 2.0}, "w2": {"last": 3.0}, "w3": {"last": 9.0}}
ROUTES = {f"m@{worker}": [worker] for worker in WORKERS}


class FakePredictor(Actor):
    """Predicts ``last`` seconds, and that others lose ``delayed``; None: has no replica. ``late``: answers after so many
    seconds."""

    def __init__(
        self, worker: str, last: float | None = 1.0, delayed: float = 0.0, late: float = 0.0, forecasts: bool = True
    ) -> None:
        self.worker = worker
        self.last = last
        self.delayed = delayed
        self.late = late
        self.forecasts = forecasts
        self.asked: list[Query] = []
        self.coming: list[Submission] = []

    @endpoint
    async def ask(self, query: Query) -> Candidate | None:
        self.asked.append(query)
        await asyncio.sleep(self.late)
        if self.last is None:
            return None
        assert query.submission.route == query.route
        forecast = Forecast(self.last / 2, self.last, self.delayed, 0, 9) if query.forecast and self.forecasts else None
        load = int(self.last) + len(self.coming)
        return Candidate(
            route=query.route, home=self.worker, running=1, total_blocks=100, free_blocks=100 - load, forecast=forecast
        )

    @endpoint
    async def placed(self, submission: Submission) -> None:
        self.coming.append(submission)


def choices(
    count: int,
    predictors: How,
    routes: dict[str, list[str]] = ROUTES,
    standings: dict[str, Standing] | None = None,
    **settings: Any,
) -> tuple[list[Chosen], Any, float]:
    """What a dispatcher says to so many questions at once; the predictors; and the virtual seconds it took."""
    fakes = {worker: FakePredictor(worker, **how) for worker, how in predictors.items() if how is not None}

    async def setup(node: Node) -> None:
        for worker, fake in fakes.items():
            await node.spawn(fake, name=predictor_of(worker).partition("/")[2])
        await node.spawn(Dispatcher(DispatchSettings(**{"dispatch_sample": 0.0, **settings}), 0), name="dispatcher-0")

    async def scenario(sim: Simulation) -> tuple[list[Chosen], float]:
        ref, began = sim.head.ref(f"{NODE}/dispatcher-0", Dispatcher), sim.time
        asked = [Ask(submission(f"r{number}"), routes, standings or {}) for number in range(count)]
        found = await asyncio.gather(*map(ref.choose, asked))
        spent = sim.time - began
        await asyncio.sleep(0.01)  # until the last word has come
        return list(found), spent

    found, spent = Simulation(seed=1, nodes=(NODE,), setup=setup, latency=(0.001, 0.001)).run(scenario)
    return found, fakes, spent


def test_the_least_forecast_is_chosen_and_its_predictor_hears_of_it() -> None:
    (chosen,), fakes, _ = choices(1, LASTS, dispatch="ours")
    assert (chosen.route, chosen.policy, chosen.reason) == ("m@w1", "ours", "")
    assert [candidate.forecast.last_token for candidate in chosen.candidates if candidate.forecast] == [4.0, 2.0, 3.0, 9.0]
    assert [load and load[:2] for load in chosen.loads] == [[1.5, 4.0], [0.5, 2.0], [1.0, 3.0], [4.0, 9.0]]
    assert [len(fake.coming) for fake in fakes.values()] == [0, 1, 0, 0]
    assert fakes["w1"].coming[0].route == "m@w1"
    assert all(query.forecast and not query.delays for fake in fakes.values() for query in fake.asked)


def test_standings_of_routes_go_before_their_forecasts() -> None:
    standings = {route: Standing(rank=int(route == "m@w1")) for route in ROUTES}
    (chosen,), _, _ = choices(1, LASTS, standings=standings, dispatch="predicted-latency")
    assert chosen.route == "m@w2"
    standings["m@w3"] = Standing(owns=True)
    (chosen,), _, _ = choices(1, LASTS, standings=standings, dispatch="predicted-latency", slo_ttft=5.0, dispatch_sample=1.0)
    assert (chosen.route, chosen.rank) == ("m@w3", 4)


def test_a_pipeline_counts_by_what_a_block_takes_of_each_worker() -> None:
    """Its home has twice the blocks of a replica in use, each of which is half as large."""
    known: How = {"w0": {"last": 12.0}, "w2": {"last": 8.0}}
    (chosen,), _, _ = choices(1, known, {"m@w0+w1": ["w0", "w1"], "m@w2": ["w2"]}, dispatch="prefix-aware")
    assert (chosen.route, chosen.loads) == ("m@w0+w1", [[6.0], [8.0]])
    found, _, _ = choices(9, known, {"m@w0+w1": ["w0", "w1"], "m@w2": ["w2"]}, dispatch="min-qpm")
    assert sorted(one.route for one in found).count("m@w0+w1") == 6


def test_each_policy_asks_for_no_more_than_it_needs() -> None:
    for policy, asked in (("random", False), ("round-robin", False), ("min-qpm", False), ("llumnix-minus-code", True)):
        found, fakes, _ = choices(4, LASTS, dispatch=policy)
        queries = [query for fake in fakes.values() for query in fake.asked]
        assert bool(queries) == asked, policy
        assert not any(query.forecast for query in queries)
        assert not any(chosen.reason for chosen in found)
        if policy in ("round-robin", "min-qpm"):
            assert sorted(chosen.route for chosen in found) == sorted(ROUTES), policy
        assert any(fake.coming for fake in fakes.values()) == asked, "nobody counts what is on its way otherwise"
    for policy, delays in (("predicted-ttft", False), ("predicted-delay", True)):
        _, fakes, _ = choices(1, LASTS, dispatch=policy)
        assert [query.delays for fake in fakes.values() for query in fake.asked] == [delays] * 4


def test_targets_are_settings() -> None:
    rude: How = {"w0": {"last": 2.0, "delayed": 9.0}, "w1": {"last": 3.0}}
    rude |= {"w2": None, "w3": None}
    for target, route in ((30.0, "m@w1"), (2.5, "m@w0")):
        (chosen,), _, _ = choices(1, rude, dispatch="predicted-slo", slo_latency=target)
        assert chosen.route == route, "who meets the target comes first, then whom it costs others least"
    (chosen,), _, _ = choices(1, rude, dispatch="predicted-slo", slo_ttft=1.25)
    assert chosen.route == "m@w0"


def test_power_of_k_asks_k_and_a_sample_asks_all_and_ranks_the_choice_of_the_k() -> None:
    found, fakes, _ = choices(40, LASTS, dispatch="ours", dispatch_candidates=2)
    assert {len(chosen.candidates) for chosen in found} == {2}
    assert sum(len(fake.asked) for fake in fakes.values()) == 80
    assert {chosen.rank for chosen in found} == {0}
    found, fakes, _ = choices(40, LASTS, dispatch="ours", dispatch_candidates=2, dispatch_sample=1.0)
    assert {len(chosen.candidates) for chosen in found} == {2}
    assert sum(len(fake.asked) for fake in fakes.values()) == 160
    assert {chosen.ranked for chosen in found} == {4}
    assert {chosen.rank for chosen in found} == {1, 2, 3}, "the worst of four is never the better of two"


@claim("A late or dead predictor costs at most its time-out", of="prediction")
def test_who_is_late_dead_or_knows_nothing_is_not_chosen_and_costs_at_most_the_time_out() -> None:
    mixed: How = {"w0": {"late": 5.0}, "w1": None, "w2": {"last": None}, "w3": {"last": 7.0}}
    (chosen,), _, spent = choices(1, mixed, dispatch="ours", dispatch_timeout=0.05)
    assert (chosen.route, chosen.reason) == ("m@w3", "")
    assert chosen.unanswered == {"late": 1, "dead": 1, "absent": 1}
    assert spent < 0.06


def test_without_any_answer_or_forecast_it_says_so() -> None:
    found, _, _ = choices(2, dict.fromkeys(WORKERS), dispatch="llumnix-minus")
    assert {chosen.reason for chosen in found} == {"no_answer"}
    assert {chosen.route for chosen in found} == {""}, "the gateway knows better than chance"
    assert found[0].unanswered == {"dead": 4}
    unpriced: How = {worker: {**(how or {}), "forecasts": False} for worker, how in LASTS.items()}
    (chosen,), _, _ = choices(1, unpriced, dispatch="ours")
    assert (chosen.reason, chosen.route) == ("no_forecast", "m@w1"), "the fallback compares free blocks"
    assert chosen.loads == [None] * 4


def test_requests_that_no_worker_shows_yet_do_not_herd() -> None:
    """Predictors count what was sent to their workers; who comes at the same moment is asked about after that."""
    found, _, _ = choices(8, {worker: {"last": 1.0} for worker in WORKERS}, dispatch="llumnix-minus-code")
    routes = [chosen.route for chosen in found]
    assert [routes.count(route) for route in ROUTES] == [2] * 4


def test_requests_that_come_together_wait_no_longer_than_one() -> None:
    """Between two of them no message crosses a process."""
    alone, together = (choices(count, LASTS, dispatch="ours")[2] for count in (1, 16))
    assert 0 < together < 1.5 * alone


async def test_dispatchers_are_asked_by_turns_and_the_death_of_one_is_no_matter(checkpoint: Callable[..., Path]) -> None:
    """In a cluster by its settings, with workers that compute no tensors."""
    fake_worker.reset()
    async with cluster({"m": checkpoint()}, workers=2, dispatch="round-robin", dispatchers=2) as running:
        asked = [generation(f"r{i}", max_tokens=3) for i in range(8)]
        for one in asked:
            assert await collect(running.port.generate(one)) == (reference(one), "length")
        homes = [running.port.describe(one.id).home for one in asked]
        first, *_ = homes  # who has published its routes first
        second = {"w0": "w1", "w1": "w0"}[first]
        assert homes == [first, first, second, second] * 2, "each counts for itself"
        await running.cluster.node.kill_actor(running.cluster.node.ref("head/dispatcher-0"))
        for i in range(8):
            one = generation(f"s{i}", max_tokens=3)
            assert await collect(running.port.generate(one)) == (reference(one), "length")
        figures = running.port.dispatching()
        assert sum(figures.asked.counts) == 16
        assert figures.fallbacks.keys() <= {"dispatcher_dead"}, "until it is started again"


def test_questions_and_answers_travel() -> None:
    never = Candidate(route="r", home="w", forecast=Forecast(float("inf"), float("inf"), 0.0, 0, 0))
    chosen = Chosen(request="r", attempt=1, candidates=[never], loads=[[1.0, float("inf")], None])
    for value in (chosen, Ask(submission(), ROUTES, {"m@w0": Standing(short=3, owns=True)})):
        assert decode(type(value), unpack(pack(encode(value, Sink())))) == value
