"""Lengths, arrivals and prompts of a load."""

from __future__ import annotations

import itertools
import random

from hypothesis import given
from hypothesis import strategies as st

from blockwright.api.load.workload import BLOCK, Vocabulary, arrivals, clip, random_lengths, requests
from blockwright.simulator.traces import TraceRequest
from blockwright.tests.claims import claim

WORDS = Vocabulary(tuple(range(40, 90)), 4.0)


@claim("`bench serve` sends the usual load patterns and reports their figures", of="command-line")
def test_arrivals() -> None:
    assert arrivals(3, None, "poisson", random.Random(1)) == [0.0, 0.0, 0.0]
    assert arrivals(3, 4.0, "constant", random.Random(1)) == [0.0, 0.25, 0.5]
    times = arrivals(4000, 10.0, "poisson", random.Random(1))
    assert times == sorted(times)
    assert 360 < times[-1] < 440
    gaps = [b - a for a, b in itertools.pairwise(times)]
    mean = sum(gaps) / len(gaps)
    assert 0.9 < sum((gap - mean) ** 2 for gap in gaps) / len(gaps) / mean**2 < 1.1, "as irregular as a Poisson process"


def test_random_lengths() -> None:
    made = random_lengths(500, 100, 10, 0.5, random.Random(1))
    assert (min(one.prompt for one in made), max(one.prompt for one in made)) == (50, 150)
    assert (min(one.output for one in made), max(one.output for one in made)) == (5, 15)
    assert set(random_lengths(9, 100, 10, 0.0, random.Random(1))) == {TraceRequest(None, 100, 10)}


@given(st.lists(st.tuples(st.integers(1, 5000), st.integers(1, 5000)), max_size=20), st.integers(2, 4096))
def test_what_is_clipped_fits_and_the_rest_stays(lengths: list[tuple[int, int]], context: int) -> None:
    shapes = [TraceRequest(1.0, prompt, output, (3,)) for prompt, output in lengths]
    made, clipped = clip(shapes, context)
    assert all(one.prompt + one.output <= context and one.prompt > 0 and one.output > 0 for one in made)
    assert clipped == sum(one.prompt + one.output > context for one in shapes)
    assert clip(shapes, 0) == (shapes, 0)


def test_prompts_have_their_lengths_and_their_beginnings() -> None:
    shapes = [TraceRequest(None, 30, 5), TraceRequest(None, 7, 5)]
    made = list(requests(shapes, [0.0, 1.5], WORDS, text=False, prefix=10, source=random.Random(1)))
    assert [(len(one.prompt), one.at, one.max_tokens) for one in made] == [(30, 0.0, 5), (7, 1.5, 5)]
    assert made[0].prompt[:7] == made[1].prompt
    assert set(made[0].prompt) <= set(WORDS.ids)
    other = list(requests(shapes, [0.0, 1.5], WORDS, text=False, prefix=10, source=random.Random(2)))
    assert other[0].prompt[:10] != made[0].prompt[:10], "another run finds nothing in a cache"


def test_blocks_of_a_trace_are_equal_where_their_ids_are() -> None:
    shapes = [
        TraceRequest(0.0, BLOCK + 100, 5, (0, 1)),
        TraceRequest(0.0, BLOCK + 50, 5, (0, 2)),
        TraceRequest(0.0, BLOCK * 3, 5, (0, 1)),
    ]
    first, second, third = (
        one.prompt for one in requests(shapes, [0.0] * 3, WORDS, text=False, prefix=0, source=random.Random(1))
    )
    assert [len(one) for one in (first, second, third)] == [BLOCK + 100, BLOCK + 50, BLOCK * 3]
    assert first[:BLOCK] == second[:BLOCK] == third[:BLOCK]
    assert first[BLOCK:] == third[BLOCK : BLOCK + 100]
    assert first[BLOCK : BLOCK + 50] != second[BLOCK:]


def test_words_for_endpoints_that_take_text() -> None:
    shapes = [TraceRequest(0.0, 25, 5), TraceRequest(0.0, 25, 5)]
    made = requests(shapes, [0.0, 0.0], WORDS, text=True, prefix=20, source=random.Random(1))
    first, second = (one.prompt for one in made)
    assert isinstance(first, str)
    assert isinstance(second, str)
    assert 97 <= len(first) <= 100
    assert first[:60] == second[:60]
    assert first != second
