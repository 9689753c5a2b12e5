"""The tiers of a family share an account by work and weight, service classes rise with the wait, and urgent requests take
rows of lower classes: in worlds of one worker, of which every plan is checked."""

from __future__ import annotations

import random

import pytest

from blockwright.policies.model.tier_work import WHOLE, family_tiers
from blockwright.policies.plan.sweep_plan import SweepResult
from blockwright.policies.requests.urgency import OFFLINE, URGENT, offline_urgency, service_class, urgency
from blockwright.policies.sweep.columns import MOST_YIELDS, Status
from blockwright.policies.sweep.events import Preempted, Progressed
from blockwright.policies.sweep.state import SweepState
from blockwright.tests.claims import claim
from blockwright.tests.parts import parts

from ..sweep_world import World, chain, generate, replica, submission, tier

TOP = chain("base", 4)
LOW, MIDDLE = tier(TOP, 1), tier(TOP, 2)
PLAIN = chain("plain", 4, own_from=0)
FAMILY = [TOP, LOW, MIDDLE]
CLASSES = ("priority", "default", "flex")
CHUNK = 64 * 1024


def world(chunks: int = 100, **more: object) -> World:
    served = [*FAMILY, PLAIN]
    numbers = {"budget": chunks * CHUNK, "chunk_size": 16, "sweep_tokens": 64, "max_rows": 4, **more}
    return World(["w0"], served, [replica("w0", one) for one in served], **numbers)  # type: ignore[arg-type]


def ask(
    made: World, name: str, model: str, prompt: list[int], answer: int, service: str = "default", **more: object
) -> None:
    fields = {"tenant": "a", "arrival": made.now, "priority": urgency(service, 0), **more}
    made.submit(submission(name, prompt, len(prompt) + answer, f"{model}@w0", **fields))


def sweep(made: World, *, check: bool = True) -> None:
    """Make and end a plan, with a check of all memory after each of the two."""
    worker = made.workers["w0"]
    for _ in range(2):
        if not (worker.open and made.end_plan(worker)):
            made.start_plan(worker)
        if check:
            worker.state.check()


def running(state: SweepState) -> set[str]:
    return {state.parts.rows.submission[s].request for s in state.parts.queue.running}


# work and weights ----------------------------------------------------------------------------------------------------


def test_work_of_a_tier_is_its_share_of_the_top_tiers_parameters() -> None:
    found = family_tiers([*FAMILY, PLAIN])
    assert {name: one.work for name, one in found.items()} == {
        "base": WHOLE, "base:1": WHOLE * 3 // 9, "base:2": WHOLE * 5 // 9,
    }  # fmt: skip
    assert {one.family for one in found.values()} == {"base"}
    assert not family_tiers([TOP, PLAIN]), "a model without lower tiers is no family"
    assert family_tiers([LOW])["base:1"].work == WHOLE, "the deepest tier that is there counts as the top"


def test_a_lower_tiers_token_costs_an_account_less() -> None:
    made = world()
    for name, model in (("top", "base"), ("low", "base:1"), ("plain", "plain")):
        ask(made, name, model, list(range(9)), 9, tenant=name)
    made.run()
    paid = made.workers["w0"].state.parts.queue.share.served
    assert paid == {"top": 27, "plain": 27, "low": 9}
    assert made.workers["w0"].state.parts.queue.tiers.served == {"base": 27, "base:1": 9}


def given(weights: dict[str, int], counts: dict[str, int], sweeps: int = 300) -> dict[str, int]:
    """Work that each tier has got of one account after so many sweeps, while all of them wait."""
    made, chance = world(tier_weights=weights, prefix_cache=False), random.Random(1)
    for number in range(max(counts.values())):
        for model, count in counts.items():
            if number < count:
                ask(made, f"{model} {number}", model, [chance.randrange(40) for _ in range(6)], 10)
    state = made.workers["w0"].state
    for _ in range(sweeps):
        sweep(made, check=False)
    state.check()
    assert {state.parts.rows.route[s].route.application for s in state.parts.rows.with_status(Status.WAITING)} == set(counts)
    return state.parts.queue.tiers.served


@claim("Tiers of a family share an account by work, according to their weights", of="families")
@pytest.mark.parametrize("weight", [1, 3])
def test_tiers_share_work_by_their_weights(weight: int) -> None:
    found = given({"base:1": weight} if weight > 1 else {}, {"base": 90, "base:1": 300})
    assert found["base:1"] / found["base"] == pytest.approx(weight, rel=0.15)


def test_without_tier_fairness_tiers_start_in_the_order_of_arrival() -> None:
    made = world(tier_fairness=False, max_rows=1)
    for number, model in enumerate(["base", "base", "base", "base:1"]):
        ask(made, f"r{number}", model, [number] * 5, 4, arrival=float(number))
    made.run()
    assert list(made.finished) == ["r0", "r1", "r2", "r3"]
    assert made.workers["w0"].state.parts.queue.share.served == {"a": 4 * (5 + 2 * 4)}, "each token costs the same"
    fair = world(max_rows=1)
    for number, model in enumerate(["base", "base", "base", "base:1"]):
        ask(fair, f"r{number}", model, [number] * 5, 4, arrival=float(number))
    fair.run()
    assert list(fair.finished) == ["r0", "r3", "r1", "r2"]


def test_models_without_tiers_keep_the_order_of_arrival_beside_a_family() -> None:
    made = world(max_rows=1)
    for number, model in enumerate(["base", "plain", "base", "base:1", "plain"]):
        ask(made, f"r{number}", model, [number] * 5, 4, arrival=float(number))
    made.run()
    assert list(made.finished) == ["r0", "r1", "r3", "r2", "r4"]


def test_shares_between_tenants_know_no_tiers() -> None:
    """Two tenants that always wait get the same, one of them on all tiers, the other on a model without."""
    made, chance = world(prefix_cache=False), random.Random(2)
    for number in range(120):
        for tenant, models in (("a", ["base", "base:1", "base:2"]), ("b", ["plain"])):
            prompt = [chance.randrange(40) for _ in range(6)]
            ask(made, f"{tenant}{number}", chance.choice(models), prompt, 10, tenant=tenant)
    for _ in range(300):
        sweep(made, check=False)
    paid = made.workers["w0"].state.parts.queue.share.served
    assert paid["a"] / paid["b"] == pytest.approx(1, abs=0.1)


# classes and ageing --------------------------------------------------------------------------------------------------


def test_the_highest_class_goes_first_across_the_tiers_of_an_account() -> None:
    made = world(max_rows=1)
    for number, (model, service) in enumerate(
        [("base", "default"), ("base:1", "flex"), ("base", "priority"), ("base:1", "default")]
    ):
        ask(made, f"r{number}", model, [number] * 5, 4, service, arrival=float(number))
    made.run()
    assert list(made.finished) == ["r2", "r3", "r0", "r1"]


@pytest.mark.parametrize(("ageing", "first"), [(10.0, "old"), (0.0, "late")])
def test_a_class_rises_after_ten_seconds_of_waiting(ageing: float, first: str) -> None:
    made = world(max_rows=1, class_ageing=ageing, tier_preemption=False)
    ask(made, "runs", "base", [1, 2], 4)
    sweep(made)
    ask(made, "old", "base", [3, 4], 4)
    made.now = 9.9
    ask(made, "early", "base", [5, 6], 4, "priority")
    while "runs" not in made.finished:
        sweep(made)
    sweep(made)
    assert running(made.workers["w0"].state) == {"early"}
    while "early" not in made.finished:
        sweep(made)
    made.now = 10.0
    ask(made, "late", "base", [7, 8], 4, "priority", arrival=5.0)
    sweep(made)
    state = made.workers["w0"].state
    assert running(state) == {first}
    s = state.parts.rows.find(first)
    assert s is not None
    assert state.parts.rows.risen(s) == (first == "old")
    assert state.counters["class_rises"] == (first == "old")
    made.run()


@claim("A request keeps the wait behind it when it goes up a tier or its worker dies", of="families")
@pytest.mark.parametrize(("waited", "risen"), [(0.0, 0), (5.0, 0), (7.5, 1), (13.0, 1), (17.5, 2), (90.0, 2)])
def test_a_wait_before_this_worker_counts(waited: float, risen: int) -> None:
    """Of three seconds here, behind an urgent request, and of what the gateway says."""
    made = world(max_rows=1, tier_preemption=False)
    ask(made, "runs", "base", [1, 2], 4)
    sweep(made)
    ask(made, "old", "base", [3, 4], 4, "flex", waited=waited)
    made.now = 3.0
    ask(made, "urgent", "base", [5, 6], 4, "priority", arrival=-1.0)
    while "runs" not in made.finished:
        sweep(made)
    sweep(made)
    state = made.workers["w0"].state
    s = state.parts.rows.find("old")
    assert s is not None
    assert state.parts.rows.risen(s) == risen
    assert running(state) == {"urgent"}
    again = SweepState.restore(state.snapshot())
    assert again.parts.queue.ageing.since(s) == 3.0 - 3.0 - waited + risen * 10
    made.run()


def test_nothing_rises_where_all_that_waits_is_of_one_class() -> None:
    made = world(max_rows=1)
    for number in range(3):
        ask(made, f"r{number}", "base", [number], 4, "flex")
    made.now = 100.0
    made.run()
    assert made.workers["w0"].state.counters["class_rises"] == 0


def test_a_class_that_has_risen_pays_in_the_class_that_it_has() -> None:
    """A request that goes after everybody else's work, and has waited for it, counts between accounts as others do."""
    made = world(max_rows=1)
    ask(made, "runs", "plain", [1], 3, tenant="b")
    sweep(made)
    ask(made, "flex", "plain", [2, 3], 4, "flex", tenant="a")
    ask(made, "other", "plain", [4, 5], 4, tenant="b")
    made.now = 11.0
    made.run()
    assert list(made.finished) == ["runs", "flex", "other"]
    counter = made.workers["w0"].state.parts.queue.share.counter
    assert counter((0, "a")) > 0
    assert counter((1, "a")) == 0


@pytest.mark.parametrize("seed", parts(4, 1))
def test_no_request_waits_longer_than_ageing_and_its_turn(seed: int) -> None:
    """A flood of urgent requests, each of which takes a second, beside a few others: each waits two rises at the most,
    then for the urgent ones that came before it."""
    made, chance = world(max_rows=1, tier_preemption=False), random.Random(seed)
    came: dict[str, tuple[float, str]] = {}
    for second in range(120):
        made.now = float(second)
        service = "priority" if second % 8 else chance.choice(CLASSES[1:])
        came[f"r{second}"] = made.now, service
        ask(made, f"r{second}", chance.choice(["base", "base:1"]), [second], 3, service)
        state = made.workers["w0"].state
        before = len(made.finished)
        while len(made.finished) == before:
            sweep(made)
        assert len(state.parts.queue.running) <= 1
    rows = made.workers["w0"].state.parts.rows
    left = [made.now - came[rows.submission[s].request][0] for s in rows.with_status(Status.WAITING)]
    assert max(left, default=0) <= 20 + 2


# preemption ----------------------------------------------------------------------------------------------------------


def full(made: World, services: list[str], **more: object) -> SweepState:
    """A worker of which all rows decode."""
    for number, service in enumerate(services):
        ask(made, f"r{number}", "base", [number, 1, 2], 40, service, arrival=float(number), **more)
    for _ in range(6):
        sweep(made)
    state = made.workers["w0"].state
    assert len(running(state)) == len(services)
    return state


@claim("An urgent request without a row takes one of the lowest class at a sweep's end", of="families")
def test_an_urgent_request_takes_the_row_of_the_lowest_class() -> None:
    made = world()
    state = full(made, ["default", "default", "flex", "default"])
    ask(made, "urgent", "base:1", [9, 9], 4, "priority", arrival=9.0)
    sweep(made)
    assert "r2" not in running(state)
    sweep(made)
    assert "urgent" in running(state)
    assert state.counters["urgent_preemptions"] == 1
    made.run()
    for number in range(4):
        assert made.emitted[f"r{number}"] == generate("base", [number, 1, 2], 43, [])
    made.assert_quiet()


def test_of_equal_classes_the_latest_finish_tag_gives_its_row() -> None:
    """The tier that was given most for its weight, and in it the request with most tokens to come."""
    made = world(max_rows=3)
    for number, (model, answer) in enumerate([("base", 30), ("base", 60), ("base:1", 60)]):
        ask(made, f"r{number}", model, [number, 1, 2], answer, arrival=float(number))
    for _ in range(6):
        sweep(made)
    ask(made, "urgent", "base", [9], 2, "priority", arrival=9.0)
    sweep(made)
    assert running(made.workers["w0"].state) >= {"r0", "r2"}
    made.run()


def test_pages_of_who_gives_its_row_are_found_again_while_memory_lasts() -> None:
    made = world(max_rows=2)
    state = full(made, ["default", "default"])
    for _ in range(20):
        sweep(made)
    ask(made, "urgent", "base", [9], 2, "priority", arrival=9.0)
    before = state.counters["cached_tokens"]
    made.run()
    assert state.counters["urgent_preemptions"] == 1
    assert state.counters["cached_tokens"] - before >= 24, "its full pages stayed"
    again = world(max_rows=2, prefix_cache=False)
    state = full(again, ["default", "default"])
    ask(again, "urgent", "base", [9], 2, "priority", arrival=9.0)
    again.run()
    assert state.counters["cached_tokens"] == 0
    for played in (made, again):
        assert [played.emitted[f"r{n}"] for n in range(2)] == [generate("base", [n, 1, 2], 43, []) for n in range(2)]


def test_an_urgent_request_that_lacks_pages_takes_them() -> None:
    made = world(chunks=24, max_rows=4, prefix_cache=False)
    state = full(made, ["default", "default"])
    ask(made, "urgent", "base", list(range(40)), 2, "priority", arrival=9.0)
    sweep(made)
    assert state.parts.rows.free_rows >= 2, "rows were never short"
    assert state.counters["urgent_preemptions"] >= 1
    made.run()
    assert next(iter(made.finished)) == "urgent"


def test_a_request_gives_its_row_three_times_at_most() -> None:
    """Two run, and urgent ones come without end."""
    made, heard = world(max_rows=2), list[str]()

    def hear(effects: list[object]) -> list[object]:
        heard.extend(effect.request for effect in effects if isinstance(effect, Preempted) and effect.urgent)
        return effects

    made.hear = hear  # type: ignore[method-assign]
    state = full(made, ["default", "default"])
    for number in range(8):
        ask(made, f"urgent {number}", "base:1", [50 + number], 3, "priority", arrival=10.0 + number)
        while f"urgent {number}" not in made.finished:
            sweep(made)
        for _ in range(3):
            sweep(made)
    assert state.counters["urgent_preemptions"] == 2 * MOST_YIELDS
    assert [heard.count(f"r{n}") for n in range(2)] == [MOST_YIELDS, MOST_YIELDS]
    made.run()
    assert made.emitted["r1"] == generate("base", [1, 1, 2], 43, [])


def test_without_tier_preemption_an_urgent_request_waits_for_a_row() -> None:
    made = world(tier_preemption=False)
    state = full(made, ["default"] * 3 + ["flex"])
    ask(made, "urgent", "base:1", [9], 2, "priority", arrival=9.0)
    made.run()
    assert state.counters["urgent_preemptions"] == 0
    assert list(made.finished)[-1] == "urgent"


def test_a_tenant_that_was_given_more_takes_no_row_of_another() -> None:
    """The flood's requests are all urgent. Rows of the other account are taken by its own urgent ones, never by those."""
    made = world(max_rows=2)
    ask(made, "first", "base", [7] * 16, 60, tenant="flood", arrival=0.0)
    ask(made, "other", "base", [8] * 4, 60, tenant="steady", arrival=1.0)
    for _ in range(8):
        sweep(made)
    state = made.workers["w0"].state
    ask(made, "urgent", "base", [9], 2, "priority", tenant="flood", arrival=9.0)
    sweep(made)
    assert "other" in running(state)
    made.run()


def test_the_effects_say_who_was_preempted_for_an_urgent_request_and_who_has_risen() -> None:
    made = world(max_rows=1)
    state = made.workers["w0"].state
    heard: list[object] = []

    def hear(effects: list[object]) -> list[object]:
        heard.extend(effects)
        return effects

    made.hear = hear  # type: ignore[method-assign]
    ask(made, "older", "base", [7], 3, tenant="b")
    sweep(made)
    ask(made, "old", "base", [3, 4], 4, "flex")
    ask(made, "urgent", "base", [5], 4, "priority")
    made.now = 10.0
    made.run()
    assert [effect.risen for effect in heard if isinstance(effect, Progressed) and effect.request == "old"][:1] == [1]
    assert all(effect.urgent for effect in heard if isinstance(effect, Preempted))
    assert state.counters["class_rises"] == 1


# everything at once --------------------------------------------------------------------------------------------------


@claim("Classes, weights and preemptions change no token", of="families")
@pytest.mark.parametrize("seed", parts(60, 6))
def test_in_random_worlds_every_request_ends_with_its_own_tokens(seed: int) -> None:
    chance = random.Random(seed)
    weights = {"base:1": chance.choice([1, 2, 5])} if chance.random() < 0.7 else {}
    made = world(chance.choice([14, 20, 60]), max_rows=chance.choice([1, 2, 4]), prefix_cache=chance.random() < 0.7,
                 tier_weights=weights, class_ageing=chance.choice([0.0, 2.0, 10.0]))  # fmt: skip
    due = {}
    for number in range(14):
        prompt, answer = [chance.randrange(4) for _ in range(chance.randint(1, 12))], chance.randint(1, 12)
        model = chance.choice(["base", "base:1", "base:2", "plain"])
        service, tenant = chance.choice(CLASSES), chance.choice("aab")
        ask(made, f"r{number}", model, prompt, answer, service, tenant=tenant, arrival=float(number))
        due[f"r{number}"] = generate(model, prompt, len(prompt) + answer, [])
        for _ in range(chance.randrange(6)):
            kind, what = chance.choice(made.moves())
            made._move(kind, what)
            made.workers["w0"].state.check()
            assert max(made.workers["w0"].state.parts.rows.yielded, default=0) <= MOST_YIELDS
        made.now += chance.choice([0.0, 1.0, 5.0])
    made.run(seed)
    assert {name: made.emitted[name] for name in due} == due
    made.assert_quiet()


@pytest.mark.parametrize("seed", parts(40, 6))
def test_jumping_is_stepping_with_classes_and_tiers(seed: int) -> None:
    chance = random.Random(seed)
    made = world(chance.choice([20, 60]), max_rows=chance.choice([2, 3]), prefix_cache=chance.random() < 0.5)
    state = made.workers["w0"].state
    for number in range(chance.randint(2, 9)):
        model, service = chance.choice(["base", "base:1", "plain"]), chance.choice(CLASSES)
        prompt = [chance.randrange(9) for _ in range(chance.randint(1, 6))]
        ask(made, f"r{number}", model, prompt, chance.randint(2, 30), service, arrival=float(number))
    stepped, jumped = state.fork(), state.fork()
    for one in (stepped, jumped):
        one.without_device()
    jumps, now = 0, 0.0
    while (plan := jumped.plan(now)) is not None:
        sweeps = jumped.jump(plan, jumped.repeat(plan), now)
        jumps += sweeps - 1
        for _ in range(sweeps):
            again = stepped.plan(now)
            assert again is not None
            stepped.commit(again, SweepResult(again.number, [0] * len(again.sample)), now)
        assert jumped.digest() == stepped.digest()
        now += sweeps
    assert jumped.running == jumped.waiting == 0


def test_service_classes_are_those_of_the_tiers_that_clients_ask_for() -> None:
    assert [service_class(urgency(name, -(1 << 31))) for name in ("priority", "fast", "auto", "scale", "flex")] == [
        -1,
        -1,
        0,
        0,
        1,
    ]
    assert service_class(offline_urgency(5)) == OFFLINE
    assert URGENT < 0 < OFFLINE
