"""Figures of a running batch: sums over its models, and the time that the last of them takes."""

from __future__ import annotations

from dataclasses import replace

from blockwright.actors.batches.actor import figures_of
from blockwright.policies.offline.job_account import FeedProgress

ONE = FeedProgress(
    total=9, done=4, running=2, sampled=3, sampling=False, prompt_tokens=90, done_tokens=50, remaining_tokens=70.4,
    remaining_seconds=12.34, density=1.23456, sharing=0.25, sharing_best=0.5, given_back=1, sides={},
)  # fmt: skip
OTHER = replace(ONE, running=5, remaining_tokens=30.3, remaining_seconds=40.06)


def test_models_run_beside_each_other_and_their_sums_are_reported() -> None:
    outcome = figures_of({"a": ONE, "b": OTHER}, {"b": "no memory"})
    assert (outcome["running"], outcome["remaining_tokens"]) == (7, 101)
    assert outcome["remaining_seconds"] == 40.1, "that of the longest"
    assert (outcome["models"]["a"]["waits"], outcome["models"]["b"]["waits"]) == ("", "no memory")
    assert (outcome["models"]["a"]["density"], outcome["models"]["a"]["running"]) == (1.2346, 2)


def test_while_one_of_them_has_no_estimate_nothing_is_said_of_the_end() -> None:
    assert figures_of({"a": ONE, "b": replace(OTHER, remaining_seconds=None)})["remaining_seconds"] is None
    assert figures_of({})["remaining_seconds"] is None
