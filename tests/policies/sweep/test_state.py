"""The sweep state machine over a fake device that verifies every position it reads."""

from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from blockwright.policies.model.chain import Hop, Route
from blockwright.policies.plan.sweep_plan import SweepResult
from blockwright.policies.requests.routes_changed import RoutesChanged
from blockwright.policies.sweep.columns import Status
from blockwright.policies.sweep.state import SweepState
from blockwright.tests.claims import claim
from blockwright.tests.parts import examples

from ..sweep_world import World, chain, generate, pipeline, replica, submission

BASE = chain("base")


def prompts(seed: int, count: int, longest: int = 30) -> list[list[int]]:
    chance = random.Random(seed)
    return [[chance.randrange(40) for _ in range(chance.randint(1, longest))] for _ in range(count)]


def status_of(state: SweepState, request: str) -> int:
    s = state.parts.rows.find(request)
    assert s is not None
    return state.parts.rows.status[s]


def one_worker(**config: int) -> World:
    return World(["w0"], [BASE], [replica("w0", BASE)], **config)


def submit_all(world: World, all_prompts: list[list[int]], route: str, new: int = 12, stop: list[int] | None = None) -> None:
    for i, prompt in enumerate(all_prompts):
        world.submit(submission(f"r{i}", prompt, len(prompt) + new, route, stop=stop, arrival=float(i)))


def assert_exact(world: World, all_prompts: list[list[int]], new: int = 12, stop: list[int] | None = None) -> None:
    for i, prompt in enumerate(all_prompts):
        assert world.emitted[f"r{i}"] == generate("base", prompt, len(prompt) + new, stop or []), f"r{i}"
        assert f"r{i}" in world.finished
    world.assert_quiet()


@claim("Prompts are prefilled in chunks beside sequences that decode", of="serving")
@given(seed=st.integers(0, 10_000), chunk=st.sampled_from([1, 3, 8, 64]), page=st.sampled_from([1, 4, 5]))
@examples(60)
def test_every_sequence_gets_its_own_tokens(seed: int, chunk: int, page: int) -> None:
    target = chain("base", page_size=page)
    world = World(["w0"], [target], [replica("w0", target)], chunk_size=chunk, sweep_tokens=64, max_rows=5, page_size=page)
    all_prompts = prompts(seed, 12)
    for i, prompt in enumerate(all_prompts):
        world.submit(submission(f"r{i}", prompt, len(prompt) + 12, "base@w0", stop=[7], page_size=page, arrival=float(i)))
    world.run(seed)
    assert_exact(world, all_prompts, stop=[7])


@given(seed=st.integers(0, 10_000))
@examples(60)
def test_short_memory_preempts_and_ends(seed: int) -> None:
    # 11 pages of 2 layers: 1.1 of the longest sequence (40 tokens = 10 pages)
    world = one_worker(budget=11 * 64 * 1024, chunk_size=8, max_rows=8, sweep_tokens=64)
    all_prompts = prompts(seed, 8, longest=28)
    submit_all(world, all_prompts, "base@w0")
    world.run(seed)
    assert_exact(world, all_prompts)


@claim("Requests end without a deadlock even if memory holds only one sequence", of="serving")
def test_memory_for_one_sequence_preempts() -> None:
    world = one_worker(budget=11 * 64 * 1024, chunk_size=8, max_rows=8, sweep_tokens=64)
    all_prompts = [[i] * 8 for i in range(6)]
    submit_all(world, all_prompts, "base@w0", new=30)
    world.run(3)
    assert_exact(world, all_prompts, new=30)
    assert world.workers["w0"].state.counters["preemptions"] > 0


@claim("A request that can never fit is refused with both numbers", of="serving")
def test_what_can_never_fit_is_refused_with_the_numbers() -> None:
    world = one_worker(budget=11 * 64 * 1024)
    world.submit(submission("r0", [1] * 40, 45, "base@w0"))
    assert world.returned[0].reason.startswith("refused: the sequence needs memory for 45 tokens")
    assert "44" in world.returned[0].reason
    world.assert_quiet()


@claim("Equal prompt prefixes are computed once and then read from the cache", of="serving", headline=True)
def test_equal_prompts_compute_the_prefix_once() -> None:
    world = one_worker(chunk_size=8, sweep_tokens=512)
    prompt = list(range(41))
    submit_all(world, [prompt] * 32, "base@w0", new=1)
    world.run(1)
    assert_exact(world, [prompt] * 32, new=1)
    assert world.workers["w0"].device.computed_tokens == 41 + 31  # the last prompt token is always computed


def test_waiters_take_over_when_the_maker_is_cancelled_half_way() -> None:
    world = one_worker(chunk_size=8, sweep_tokens=512)
    prompt = list(range(41))
    submit_all(world, [prompt] * 8, "base@w0", new=4)
    worker = world.workers["w0"]
    world.start_plan(worker)
    world.end_plan(worker)
    assert worker.state.counters["parked"] == 7
    world.cancel("r0")
    world.run(2)
    assert all(world.emitted[f"r{i}"] == generate("base", prompt, 45, []) for i in range(1, 8))
    assert worker.device.computed_tokens < 41 + 7 * 5 + 8
    world.assert_quiet()


@claim("A cancelled request is in no later plan, and its memory returns", of="serving")
def test_a_cancelled_row_is_in_no_later_plan_and_its_memory_returns_with_the_open_plans() -> None:
    world = one_worker(chunk_size=64, sweep_tokens=64)
    world.submit(submission("r0", [1] * 10, 60, "base@w0"))
    worker = world.workers["w0"]
    world.start_plan(worker)
    world.start_plan(worker)
    used = worker.state.parts.memory.pages.slots_in_use[BASE.components[1].kv.key]  # type: ignore[union-attr]
    world.cancel("r0")
    assert worker.state.parts.memory.pages.slots_in_use[BASE.components[1].kv.key] == used  # type: ignore[union-attr]
    assert worker.state.plan(0.0) is None
    world.end_plan(worker)
    world.end_plan(worker)
    assert worker.state.parts.rows.free_rows == worker.state.config.max_rows
    world.assert_quiet()


def test_shared_lower_half_shares_memory_not_tokens() -> None:
    upper = chain("tuned", own_from=3)
    world = World(["w0"], [BASE, upper], [replica("w0", BASE), replica("w0", upper)], chunk_size=64)
    prompt = list(range(24))
    world.submit(submission("a", prompt, 30, "base@w0"))
    world.run(0)
    before = world.workers["w0"].state.counters["shared_pages"]
    world.submit(submission("b", prompt, 30, "tuned@w0"))
    world.run(0)
    assert world.emitted["a"] == generate("base", prompt, 30, [])
    assert world.emitted["b"] == generate("tuned", prompt, 30, [])
    assert world.workers["w0"].state.counters["shared_pages"] == before + 5  # the lower span of five full pages
    world.assert_quiet()


@claim("Requests of all variants run in the same sweeps, in one product where they share a block", of="fine-tunes")
def test_rows_of_chains_that_share_run_in_one_step() -> None:
    upper = chain("tuned", own_from=3)
    world = World(["w0"], [BASE, upper], [replica("w0", BASE), replica("w0", upper)])
    world.submit(submission("a", [1, 2, 3], 9, "base@w0"))
    world.submit(submission("b", [4, 5], 9, "tuned@w0"))
    plan = world.workers["w0"].state.plan(0.0)
    assert plan is not None
    assert [step.batch for step in plan.steps] == [[0, 1], [0], [1], [0], [1]]  # shared, two uppers, two heads


@claim("A model serves as a pipeline over several workers with the same tokens", of="serving")
@given(seed=st.integers(0, 10_000), stages=st.sampled_from([2, 3]))
@examples(60)
def test_pipelines_and_replicas_together(seed: int, stages: int) -> None:
    workers = [f"w{i}" for i in range(stages)]
    target = chain("base", layers=3)
    routes = [pipeline(workers, target), *[replica(w, target) for w in workers]]
    world = World(workers, [target], routes, budget=60 * 64 * 1024, chunk_size=8, max_rows=6, sweep_tokens=64)
    all_prompts = prompts(seed, 14)
    for i, prompt in enumerate(all_prompts):
        route = routes[(seed + i) % len(routes)].id
        world.submit(submission(f"r{i}", prompt, len(prompt) + 12, route, stop=[7], arrival=float(i)))
    world.run(seed)
    assert_exact(world, all_prompts, stop=[7])


def test_equal_prompts_over_a_pipeline_compute_the_prefix_once() -> None:
    target = chain("base")
    world = World(["w0", "w1"], [target], [pipeline(["w0", "w1"], target)], chunk_size=8, sweep_tokens=512)
    prompt = list(range(41))
    submit_all(world, [prompt] * 8, "base@w0+w1", new=1)
    world.run(4)
    assert_exact(world, [prompt] * 8, new=1)
    assert [w.device.computed_tokens for w in world.workers.values()] == [41 + 7, 41 + 7]


@pytest.mark.parametrize("borders", [[0, 1, 4, 6], [0, 2, 5, 6], [0, 1, 5, 6]])
def test_hops_without_kv_serve_and_keep_the_prefix_cache(borders: list[int]) -> None:
    """The embedding, the head, or both have a worker of their own."""
    workers = ["w0", "w1", "w2"]
    hops = tuple(Hop(w, a, b) for w, a, b in zip(workers, borders[:-1], borders[1:], strict=True))
    world = World(workers, [BASE], [Route("base@all", 1, "base", hops)], chunk_size=8, sweep_tokens=64)
    prompt = list(range(41))
    for i in range(2):
        world.submit(submission(f"r{i}", prompt, 53, "base@all"))
        world.run(i)
    assert_exact(world, [prompt] * 2)
    assert world.workers["w0"].state.counters["cached_tokens"] == 40


@given(seed=st.integers(0, 10_000), victim=st.sampled_from(["w0", "w1"]), moves=st.integers(0, 200))
@examples(80)
def test_a_lost_worker_gives_its_sequences_back_and_leaks_nothing(seed: int, victim: str, moves: int) -> None:
    target = chain("base")
    routes = [pipeline(["w0", "w1"], target), replica("w0", target), replica("w1", target)]
    world = World(["w0", "w1"], [target], routes, chunk_size=8, max_rows=6, sweep_tokens=64)
    all_prompts = prompts(seed, 9)
    for i, prompt in enumerate(all_prompts):
        world.submit(submission(f"r{i}", prompt, len(prompt) + 12, routes[i % 3].id, arrival=float(i)))
    chance = random.Random(seed)
    for _ in range(moves):
        kind, what = chance.choice(world.moves())
        world._move(kind, what)
    world.kill(victim)
    world.run(seed)
    world.assert_quiet()
    other = "w1" if victim == "w0" else "w0"
    local = [i for i in range(9) if routes[i % 3].id == f"base@{other}"]
    for i in local:
        assert world.emitted[f"r{i}"] == generate("base", all_prompts[i], len(all_prompts[i]) + 12, [])
    if victim == "w1":
        given_back = {g.request for g in world.returned if g.reason == "host-lost"}
        crossing = {f"r{i}" for i in range(9) if i % 3 == 0}
        assert given_back | set(world.finished) >= crossing
    for i, prompt in enumerate(all_prompts):  # what was emitted before is a prefix of the truth
        truth = generate("base", prompt, len(prompt) + 12, [])
        assert world.emitted[f"r{i}"] == truth[: len(world.emitted[f"r{i}"])]


@given(seed=st.integers(0, 10_000), moves=st.integers(0, 120))
@examples(40)
def test_cancelling_anything_at_any_time_leaks_nothing(seed: int, moves: int) -> None:
    target = chain("base")
    routes = [pipeline(["w0", "w1"], target), replica("w0", target)]
    world = World(["w0", "w1"], [target], routes, budget=40 * 64 * 1024, chunk_size=8, max_rows=4, sweep_tokens=64)
    all_prompts = prompts(seed, 8)
    for i, prompt in enumerate(all_prompts):
        world.submit(submission(f"r{i}", prompt, len(prompt) + 12, routes[i % 2].id, arrival=float(i)))
    chance = random.Random(seed)
    for _ in range(moves):
        kind, what = chance.choice(world.moves())
        world._move(kind, what)
        if chance.random() < 0.1:
            world.cancel(f"r{chance.randrange(8)}")
    for i in range(8):
        world.cancel(f"r{i}")
    world.run(seed)
    world.assert_quiet()


@claim("Several sweeps planned at once lead to the same state as single ones", of="serving")
@given(seed=st.integers(0, 10_000), sweeps=st.integers(1, 40))
@examples(60)
def test_jumping_equals_stepping(seed: int, sweeps: int) -> None:
    world = one_worker(chunk_size=16, max_rows=4, sweep_tokens=64)
    submit_all(world, prompts(seed, 6), "base@w0", new=25)
    stepping = world.workers["w0"].state
    jumping = stepping.fork()
    assert stepping.digest() == jumping.digest()
    while jumping.number < sweeps and (plan := jumping.plan(0.0)) is not None:
        jumping.jump(plan, jumping.repeat(plan), 0.0)
    while stepping.number < jumping.number and (plan := stepping.plan(0.0)) is not None:
        stepping.commit(plan, SweepResult(plan.number, [0] * len(plan.sample)), 0.0)
    assert stepping.digest() == jumping.digest()


def test_plans_repeat_until_an_end() -> None:
    world = one_worker(chunk_size=16)
    worker = world.workers["w0"]
    world.submit(submission("r0", [1] * 9, 40, "base@w0"))
    world.start_plan(worker)  # the prompt; token 9 is sampled
    world.end_plan(worker)
    plan = worker.state.plan(0.0)
    assert plan is not None
    assert worker.state.repeat(plan) == 30  # tokens 10 .. 39


def test_a_fork_is_independent() -> None:
    world = one_worker()
    submit_all(world, prompts(5, 6), "base@w0")
    worker = world.workers["w0"]
    copy = worker.state.fork()
    digest = copy.digest()
    world.run(1)
    assert copy.digest() == digest
    assert worker.state.digest() != digest


def test_a_vanished_route_gives_its_sequences_back() -> None:
    world = one_worker()
    submit_all(world, prompts(5, 6), "base@w0")
    worker = world.workers["w0"]
    world.start_plan(worker)
    worker.state.apply(RoutesChanged(2, [BASE], [], [replica("w0", BASE)]), 0.0)
    world.run(0)
    assert {g.request for g in world.returned} == {f"r{i}" for i in range(6)}
    assert {g.reason for g in world.returned} == {"route"}
    world.assert_quiet()


@claim("Priorities and service tiers order the requests that wait", of="serving")
def test_urgency_goes_before_arrival() -> None:
    world = one_worker(max_rows=1, sweep_tokens=64)
    state = world.workers["w0"].state
    world.submit(submission("late", [1, 2], 8, "base@w0", arrival=2.0))
    world.submit(submission("early", [3, 4], 8, "base@w0", arrival=1.0))
    world.submit(submission("urgent", [5, 6], 8, "base@w0", arrival=3.0, priority=-1))
    started = []
    while len(started) < 3:
        world.start_plan(world.workers["w0"])
        world.end_plan(world.workers["w0"])
        started += [
            n for n in ("late", "early", "urgent")
            if n not in started and (n in world.finished or status_of(state, n) == Status.RUNNING)
        ]  # fmt: skip
    assert started == ["urgent", "early", "late"]


@claim("Preemption takes the sequence that loses the least work and changes no token", of="serving")
def test_the_victim_is_the_one_that_loses_least() -> None:
    world = one_worker(budget=12 * 64 * 1024, chunk_size=64, sweep_tokens=64, max_rows=8)
    for name, length in (("oldest", 4), ("long", 20), ("short", 8)):
        world.submit(submission(name, [length] * length, 40, "base@w0", arrival=float(len(world.emitted))))
    worker = world.workers["w0"]
    state = worker.state
    while not state.counters["preemptions"]:
        assert world.start_plan(worker)
        world.end_plan(worker)
    assert status_of(state, "short") != Status.RUNNING
    assert status_of(state, "long") == Status.RUNNING
    world.run(0)
    assert {name: world.emitted[name] for name in world.emitted} == {
        name: generate("base", [length] * length, 40, []) for name, length in (("oldest", 4), ("long", 20), ("short", 8))
    }


def test_work_that_another_sequence_keeps_is_not_lost() -> None:
    """The longer sequence shares its pages, so that less of its own work would be lost."""
    world = one_worker(budget=15 * 64 * 1024, chunk_size=64, sweep_tokens=64, max_rows=8)
    prompt = list(range(20))
    for name, tokens in (("oldest", prompt), ("alone", [40, 41, 42, 43, 44, 45, 46, 47]), ("sharing", [*prompt, 49])):
        world.submit(submission(name, tokens, 44, "base@w0", arrival=float(len(world.emitted))))
    worker = world.workers["w0"]
    state = worker.state
    while not state.counters["preemptions"]:
        assert world.start_plan(worker)
        world.end_plan(worker)
    assert status_of(state, "sharing") != Status.RUNNING
    assert status_of(state, "alone") == Status.RUNNING
    world.run(0)
    world.assert_quiet()
