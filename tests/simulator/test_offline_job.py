"""The simulated engine: it does all the work of a batch, no more than it must, and jumping is the same as stepping."""

from __future__ import annotations

import random
from collections.abc import Sequence

import pytest

from blockwright.policies.offline.density import Costs
from blockwright.policies.offline.order import Weigher
from blockwright.policies.offline.prefix_tree import PrefixTree, packed
from blockwright.policies.offline.step_time import calibrated, ideal, sequential
from blockwright.simulator.offline_job import Engine, OfflineJob

COSTS = Costs(token=1e-3, attend=1e-7, read=1e-5)
WEIGHTS = 0.05


def engine(memory: int = 2000, max_tokens: int = 256) -> Engine:
    clocks = {"sequential": sequential(WEIGHTS), "ideal": ideal(WEIGHTS), "calibrated": calibrated(WEIGHTS)}
    return Engine(costs=COSTS, memory=memory, weights=WEIGHTS, clocks=clocks, max_tokens=max_tokens)


class Stepping(OfflineJob):
    """Takes every step by itself."""

    def _many(self) -> None:
        decoding = len(self._ends)
        self._pass(1, COSTS.answer(decoding), COSTS.read * (self._context + decoding))


def batch(seed: int, count: int = 120) -> tuple[PrefixTree, list[int]]:
    chance = random.Random(seed)
    prompts = [
        [group % 6] * chance.randint(5, 20) + [100 + number] * chance.randint(1, 60)
        for number, group in enumerate(chance.choices(range(12), k=count))
    ]
    outputs = [chance.choice([1, 3, 40, 300]) for _ in range(count)]
    return PrefixTree([packed(prompt) for prompt in prompts]), outputs


def job(
    kind: type[OfflineJob], tree: PrefixTree, outputs: Sequence[int], memory: int, pace: float | None, *, sides: bool
) -> OfflineJob:
    weigher = Weigher(tree, COSTS, outputs)
    order = sorted(range(tree.count), key=lambda one: -weigher.comp(one) / weigher.mem(one))
    half = tree.count // 2
    groups = [order[:half], order[half:]] if sides else [list(tree.order)]
    return kind(
        engine(memory), tree, outputs, outputs, weigher.units(groups), target=weigher.whole().rho, pace=pace
    )  # fmt: skip


@pytest.mark.parametrize("memory", [400, 1000, 5000])
@pytest.mark.parametrize("pace", [None, 1.0])
@pytest.mark.parametrize("sides", [False, True], ids=["one", "two"])
def test_jumping_is_the_same_as_stepping(memory: int, pace: float | None, sides: bool) -> None:
    tree, outputs = batch(memory)
    jumps, steps = (job(kind, tree, outputs, memory, pace, sides=sides) for kind in (OfflineJob, Stepping))
    jumps.run()
    steps.run()
    assert (jumps.step, jumps.computed, jumps.found, jumps.again) == (steps.step, steps.computed, steps.found, steps.again)
    assert jumps.seconds == pytest.approx(steps.seconds, rel=1e-9)
    assert (jumps.compute, jumps.memory) == pytest.approx((steps.compute, steps.memory), rel=1e-9)
    assert len(jumps.timeline) < len(steps.timeline)


@pytest.mark.parametrize("seed", range(12))
def test_a_batch_takes_all_its_work_and_what_was_stopped_again(seed: int) -> None:
    chance = random.Random(seed)
    tree, outputs = batch(seed)
    memory = chance.choice([380, 700, 3000])
    found = job(OfflineJob, tree, outputs, memory, chance.choice([None, 0.7, 3.0]), sides=seed % 2 == 0)
    found.run()
    weigher = Weigher(tree, COSTS, outputs)
    assert found.computed + found.found == tree.tokens
    assert found.found <= tree.tokens - tree.distinct
    assert found.memory == pytest.approx(sum(weigher.mem(one) for one in range(tree.count)), rel=1e-9), (
        "each token reads once"
    )
    tokens = found.computed + sum(outputs) + found.again
    assert COSTS.token * tokens <= found.compute <= COSTS.token * tokens + COSTS.attend * 1e7
    assert (found.again > 0) == (found.scanner.retractions > 0)
    assert found.seconds["ideal"] <= found.seconds["calibrated"] <= found.seconds["sequential"]
    assert (found.cache.held, found.scanner.waiting) == (0, 0)
    assert sum(found.timeline[0::3]) == found.step


def test_a_full_memory_stops_the_newest_and_an_ample_one_nobody() -> None:
    tree, outputs = PrefixTree([packed([number] * 10) for number in range(40)]), [100] * 40
    tight, ample = (job(OfflineJob, tree, outputs, memory, None, sides=False) for memory in (600, 6000))
    tight.run()
    ample.run()
    assert tight.scanner.retractions > 0 == ample.scanner.retractions
    assert ample.compute == pytest.approx(COSTS.token * (40 * 110) + 40 * COSTS.attend * 100)


def test_depth_first_shares_all_and_a_small_memory_forgets_in_random_order() -> None:
    tree, outputs = batch(5, 400)
    units = Weigher(tree, COSTS, outputs).units([random.Random(1).sample(range(400), 400)])
    mixed = OfflineJob(engine(400), tree, outputs, outputs, units, target=1.0)
    sorted_ = job(OfflineJob, tree, outputs, 5000, None, sides=False)
    mixed.run()
    sorted_.run()
    assert sorted_.found == tree.tokens - tree.distinct > mixed.found


def test_steps_follow_the_density_that_is_asked_for() -> None:
    tree, outputs = batch(8, 600)
    found = {}
    for rho in (None, 2.0):
        paced = job(OfflineJob, tree, outputs, 3000, rho, sides=False)
        paced.run()
        steps = [paced.timeline[at : at + 3] for at in range(0, len(paced.timeline), 3)]
        found[rho] = max(compute / memory for count, compute, memory in steps if count == 1 and memory > 0.02)
    assert found[2.0] <= 2.0 + 128 * COSTS.token / 0.02 + 1.0 < found[None]


def test_another_order_in_the_middle_and_what_is_awaited() -> None:
    tree, outputs = batch(9)
    found = job(OfflineJob, tree, outputs, 2000, None, sides=True)
    awaited = {3, 77}
    found.run(awaited)
    assert not awaited
    rest = found.scanner.pending()
    assert 0 < len(rest) < tree.count
    found.replace(Weigher(tree, COSTS, outputs).units([rest]), outputs, 1.0)
    found.run()
    assert found.computed + found.found == tree.tokens
    assert found.scanner.finishes == tree.count


def test_a_request_that_no_memory_holds_is_refused() -> None:
    tree = PrefixTree([packed([1] * 10)])
    with pytest.raises(ValueError, match="request 0 has 30 tokens, and memory 25 positions"):
        job(OfflineJob, tree, [20], 25, None, sides=False)
