"""Features, bounds, corrections, oracles and measures of length estimates."""

from __future__ import annotations

from typing import Any

import pytest

from blockwright.policies.prediction.lengths import (
    STRUCTURE,
    TERMS,
    Accuracy,
    Features,
    Oracle,
    bounded,
    corrected,
    features_of,
)


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


def test_an_outrun_estimate_is_corrected_to_more_than_is_there() -> None:
    assert corrected(20, 100, 100) == 20
    assert corrected(20, 100, 119) == 20
    assert corrected(20, 100, 120) == 30  # as many as there are: it has outrun it
    assert corrected(0, 100, 100) == 10  # unknown
    assert all(corrected(e, 7, 7 + there) > there for e in range(20) for there in range(20))


def test_an_oracle_knows_and_may_be_wrong_by_what_it_is_given() -> None:
    oracle = Oracle({"r": 40, "s": 40, "t": 40}, {"s": 0.5, "t": 100.0})
    told = [oracle.estimate(asked([1], max_tokens=500, request=name)) for name in "rst"]
    assert told == [40, 20, 200]  # no factor is beyond 5
    assert oracle.estimate(asked([1], max_tokens=30, request="r")) == 30
    with pytest.raises(KeyError):
        oracle.estimate(asked([1], request="u"))


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
