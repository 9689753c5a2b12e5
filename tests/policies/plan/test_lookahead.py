"""Lookahead batches: the flow-shop law, cuts of equal cost, and how far from the optimum they are."""

from __future__ import annotations

import heapq
import random
from collections.abc import Sequence
from itertools import accumulate, combinations, pairwise
from statistics import median

import pytest

from blockwright.policies.plan.coefficients import Coefficients
from blockwright.policies.plan.cost import cost
from blockwright.policies.plan.lookahead import (
    ChunkCost,
    DecodeRow,
    Lookahead,
    PromptChunk,
    pipeline_seconds,
)
from blockwright.policies.plan.sweep_plan import SweepPlan
from blockwright.tests.claims import claim

PRICE = ChunkCost(attention=2e-5, token=1e-3, context=1e-5, sweep=4e-3)


def played(times: Sequence[Sequence[float]]) -> float:
    """Stages as queues: a stage that is free takes the next microbatch that has come to it; events in a heap."""
    stages = len(times[0])
    free = [True] * stages
    queues = [list(range(len(times))), *([] for _ in range(stages - 1))]
    events = []
    now = 0.0
    while True:
        for stage in range(stages):
            if free[stage] and queues[stage]:
                batch = queues[stage].pop(0)
                free[stage] = False
                heapq.heappush(events, (now + times[batch][stage], stage, batch))
        if not events:
            return now
        now, stage, batch = heapq.heappop(events)
        free[stage] = True
        if stage + 1 < stages:
            queues[stage + 1].append(batch)


def test_the_time_of_a_pipeline_is_that_of_stages_played_one_by_one() -> None:
    source = random.Random(2)
    for _ in range(300):
        stages, count = source.randint(1, 5), source.randint(1, 8)
        times = [[source.choice([0.0, source.random(), 3.0]) for _ in range(stages)] for _ in range(count)]
        assert pipeline_seconds(times) == pytest.approx(played(times), rel=1e-12)
    assert pipeline_seconds([]) == 0.0
    two = [0.5, 2.0, 0.25, 1.0]
    in_step = two[0] + sum(max(a, b) for a, b in pairwise(two)) + two[-1]
    assert pipeline_seconds([[t, t] for t in two]) == 5.75 < in_step, "the paper's formula has no queue between two stages"
    assert pipeline_seconds([[t, t] for t in sorted(two)]) == pytest.approx(sum(two) + max(two)), "in which both agree here"


def test_a_chunk_costs_what_the_cost_model_says() -> None:
    """The same terms as of a sweep with that chunk, beyond the constant: 300 tokens after 200, and a row of 80."""
    costs = Coefficients(base=0.01, step=0.002, read=0.02, beyond=1e-4, context=1e-6, prefill=1e-7)
    price = ChunkCost.of(costs)

    def swept(start: int, count: int) -> float:
        return cost(SweepPlan(0, row=[0], start=[start], count=[count]), costs)

    assert price.chunk(200, 300) - price.chunk(200, 100) == pytest.approx(swept(200, 300) - swept(200, 100))
    assert price.decode(DecodeRow("r", 80)) - price.token == pytest.approx(1e-6 * 80)
    assert price.sweep == pytest.approx(0.01 + 0.002 + 0.02)
    parts = price.chunk(50, 70) + price.chunk(120, 30)
    assert parts == pytest.approx(price.chunk(50, 100)), "cutting a chunk costs nothing"
    for start, count in ((0, 1), (0, 500), (3000, 77)):
        assert price.tokens(start, price.chunk(start, count)) == count
        assert ChunkCost(attention=0.0, token=0.1).tokens(start, 0.1 * count) == count


def prompts(source: random.Random, count: int, mean: float = 300.0) -> list[PromptChunk]:
    """Log-normal lengths, one of 20 of them sixteen times as long; some begin behind a cached prefix."""
    found = []
    for n in range(count):
        size = max(1, int(source.lognormvariate(0.0, 0.8) * mean * (16 if source.random() < 0.05 else 1)))
        found.append(PromptChunk(f"r{n}", source.choice([0, 0, 100]), size))
    return found


def test_every_token_is_in_one_microbatch_in_order_and_costs_are_equal() -> None:
    source = random.Random(4)
    for _ in range(200):
        chunks, least = prompts(source, source.randint(0, 12)), source.choice([64, 256, 512])
        decodes = [
            DecodeRow(f"d{n}", source.randint(1, 2000), source.choice([-1, 0, 1])) for n in range(source.randint(0, 40))
        ]
        made = Lookahead(PRICE, least, 2).form(chunks, decodes, waiting=True)
        joined: dict[str, list[PromptChunk]] = {}
        order = [one for batch in made for one in batch.chunks]
        for one in order:
            assert one.count > 0
            joined.setdefault(one.request, []).append(one)
        assert list(joined) == [one.request for one in chunks]
        for one in chunks:
            parts = joined[one.request]
            assert [p.start for p in parts] == [one.start + sum(q.count for q in parts[:k]) for k in range(len(parts))]
            assert sum(p.count for p in parts) == one.count
        assert sorted(row.request for b in made for row in b.decodes) == sorted(row.request for row in decodes)
        for number, batch in enumerate(made):
            assert all(row.microbatch in (-1, number) for row in batch.decodes)
        if not decodes and len(made) > 1:
            times = [PRICE.microbatch(batch) for batch in made]
            slack = max(PRICE.chunk(one.start + one.count, 1) for one in chunks)
            tokens = [sum(one.count for one in batch.chunks) for batch in made]
            assert max(times) <= 2 * min(times) + 8 * slack, times
            assert min(tokens) >= least / 4
            assert len(made) >= 2 or sum(tokens) <= least


def test_decodes_are_dealt_out_evenly_and_prompts_fill_up() -> None:
    long = [DecodeRow(f"d{n}", 5000, 0) for n in range(10)]  # bound to the first, which they keep busy
    short = [DecodeRow(f"s{n}", 10) for n in range(10)]
    made = Lookahead(PRICE, 200, 2).form([PromptChunk("p", 0, 400)], long + short, waiting=True)
    assert [len(batch.decodes) for batch in made] == [10, 10]
    filled = [sum(PRICE.chunk(one.start, one.count) for one in batch.chunks) for batch in made]
    assert 0 < filled[0] < 0.7 * filled[1]
    first, second = (PRICE.microbatch(batch) for batch in made)
    assert first == pytest.approx(second, rel=0.02)
    quiet = Lookahead(PRICE, 200, 2).form([PromptChunk("p", 0, 400)], short, waiting=False)
    assert [sum(one.count for one in batch.chunks) for batch in quiet] == [400, 0], "nobody waits: the prompt is not cut"
    assert Lookahead(PRICE, 200, 2).form([], [], waiting=True) == []


def cut_at(points: Sequence[int], ahead: Sequence[float], stages: int, price: ChunkCost) -> float:
    """Seconds of the microbatches that begin at these tokens; ``ahead``: cost of all tokens before each. Each stage takes
    its part of the tokens, and its part of the constant."""
    borders = [0, *points, len(ahead) - 1]
    return pipeline_seconds([[(price.sweep + ahead[b] - ahead[a]) / stages] * stages for a, b in pairwise(borders)])


@claim("Pipelines of prompts are cut into microbatches of equal time", of="serving")
def test_at_most_a_tenth_worse_than_the_optimum_in_the_median() -> None:
    """Prompts of together 16 tokens, any number of microbatches up to eight, cut anywhere."""
    source = random.Random(6)
    worse = list[float]()
    even = list[float]()
    for _ in range(12):
        price = ChunkCost(attention=source.choice([0.02, 0.2]), token=1.0, sweep=source.choice([0.5, 2.0]))
        chunks, left = list[PromptChunk](), 16
        while left:
            count = min(left, source.choice([1, 2, 4, 16]))
            chunks.append(PromptChunk(f"r{len(chunks)}", 0, count))
            left -= count
        ahead = [0.0, *accumulate(price.chunk(at, 1) for one in chunks for at in range(one.count))]
        stages = source.choice([2, 3])
        every = (points for count in range(8) for points in combinations(range(1, 16), count))
        best = min(cut_at(points, ahead, stages, price) for points in every)
        made = Lookahead(price, 4, stages).form(chunks, waiting=True)
        sizes = [sum(one.count for one in batch.chunks) for batch in made]
        times = [[price.microbatch(batch) / stages] * stages for batch in made]
        assert pipeline_seconds(times) == pytest.approx(cut_at([*accumulate(sizes)][:-1], ahead, stages, price))
        worse.append(pipeline_seconds(times) / best)
        even.append(cut_at(range(16 // len(made), 16, 16 // len(made)), ahead, stages, price) / best)
    assert min(worse) >= 1 - 1e-9
    assert median(worse) <= 1.1, sorted(worse)
    assert median(worse) < median(even), "equal token counts do as well"
