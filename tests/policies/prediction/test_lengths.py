"""Features, bounds, corrections, oracles and measures of length estimates."""

from __future__ import annotations

from random import Random
from statistics import fmean
from typing import Any

import pytest

from blockwright.policies.prediction.lengths import (
    KNOWN,
    STRUCTURE,
    TERMS,
    Accuracy,
    Features,
    LengthSpread,
    bounded,
    corrected,
    features_of,
)
from blockwright.tests.claims import claim


def asked(prompt: list[int], **more: Any) -> Features:
    return features_of("a", prompt, **{"max_tokens": 100, **more})


def test_features_are_the_same_in_every_process_and_for_every_release_that_reads_a_log() -> None:
    """The numbers are a file format: a log that was written before must go on meaning the same."""
    made = asked([5, 6, 7], asked="greedy")
    assert (made.application, made.prompt, made.max_tokens, made.stated) == ("a", 3, 100, False)
    assert made.terms[:6] == (0, 267, 191, 306, 123, 23)
    assert all(0 <= term < TERMS for term in made.terms)
    assert len([term for term in made.terms if term >= STRUCTURE]) == 6  # each token at both ends


def test_features_tell_requests_apart_by_what_matters_and_are_bounded() -> None:
    plain = asked([5, 6, 7])
    others = [asked([6, 5, 7]), asked([5, 6, 8]), asked([5, 6, 7, 8]), asked([5, 6, 7], asked="1 stop"), asked([])]
    others += [asked([5, 6, 7], max_tokens=9), features_of("b", [5, 6, 7], 100)]
    assert len({plain.terms, *(other.terms for other in others)}) == 8
    assert asked(list(range(100, 9000))).terms != asked(list(range(101, 9001))).terms
    assert max(len(asked(list(range(1000, 1000 + size))).terms) for size in (0, 1, 31, 32, 5000)) < 64
    assert asked([1 << 40, 0]).terms, "ids of any vocabulary"


def test_max_tokens_bounds_an_estimate_and_a_stated_length_is_one() -> None:
    free = asked([1])
    assert [bounded(tokens, free) for tokens in (-3.0, 0.4, 41.6, 1e9)] == [1, 1, 42, 100]
    assert bounded(3.0, asked([1], min_tokens=7)) == 7
    assert [bounded(3.0, asked([1], **more)) for more in ({"endless": True}, {"min_tokens": 100})] == [100, 100]


@claim("Lengths of answers are estimated from prompt, model and limits, and outrun estimates are corrected", of="prediction")
def test_an_outrun_estimate_is_corrected_to_more_than_is_there() -> None:
    assert corrected(20, 100, 100) == 20
    assert corrected(20, 100, 119) == 20
    assert corrected(20, 100, 120) == 30  # as many as there are: it has outrun it
    assert corrected(0, 100, 100) == 10  # unknown
    assert all(corrected(e, 7, 7 + there) > there for e in range(20) for there in range(20))


def test_what_is_still_to_come_is_the_mean_of_the_lengths_that_can_be() -> None:
    """Of answers around an estimate of 200 by exp(0.3 z), those that have come so far, drawn one by one."""
    source = Random(1)
    lengths = [200 * 2.718281828 ** (0.3 * source.gauss(0.0, 1.0)) for _ in range(200_000)]
    for generated in (0, 100, 180, 200, 260, 400):
        beyond = fmean([length for length in lengths if length > generated])
        assert corrected(200, 50, 50 + generated, spread=0.3) == pytest.approx(beyond, rel=0.02), generated
    assert corrected(200, 50, 50 + 150, spread=1e-6) == 200, "no spread"
    assert corrected(200, 50, 50 + 150, spread=0.02) == 200
    assert 1000 < corrected(200, 50, 50 + 1000, spread=0.3) < 1100, "far beyond"
    near, far = (corrected(1000, 0, generated, spread=0.3) / generated for generated in (4481, 4483))
    assert near == pytest.approx(far, rel=0.02), "the limit of the tail continues it"
    assert all(corrected(9, 0, there, spread=s) > there for there in range(99) for s in (0.02, 0.3, 2.0))


def test_how_wrong_estimates_are_is_learned_from_answers_that_are_whole() -> None:
    spread, source = LengthSpread(), Random(2)
    for n in range(400):
        assert (spread.value > 0) == (n >= 16)
        spread.begin(f"r{n}", 30, 100)
        spread.end(f"r{n}", 30 + round(100 * 2.718281828 ** (0.4 * source.gauss(0.0, 1.0))))
    assert spread.value == pytest.approx(0.4, rel=0.15)
    before = spread.value
    spread.begin("gone", 30, 100)
    spread.leave("gone")
    spread.begin("unknown", 30, 0)
    for request in ("gone", "unknown", "never there"):
        spread.end(request, 100_000)
    assert spread.value == before


def test_right_estimates_are_distinguished_from_unknown_ones() -> None:
    spread = LengthSpread()
    for n in range(16):
        assert spread.value == 0.0
        spread.begin(f"r{n}", 30, 100)
        spread.end(f"r{n}", 130)
    assert 0.0 < spread.value < KNOWN


def test_accuracy() -> None:
    seen = Accuracy()
    assert seen.figures() == {"requests": 0, "mean_error": 0, "relative_error": 0, "acc_50": 0, "acc_100": 0}
    for estimate, length in ((10, 10), (60, 10), (111, 10), (200, 100)):
        seen.add(estimate, length)
    assert seen.figures() == {
        "requests": 4,
        "mean_error": (50 + 101 + 100) / 4,
        "relative_error": (5 + 10.1 + 1) / 4,
        "acc_50": 0.5,
        "acc_100": 0.75,
    }
