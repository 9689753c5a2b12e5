"""Answers that were cut off: found by what they follow from, for a while, and only so many."""

from __future__ import annotations

from dataclasses import replace

import pytest

from blockwright.policies.plan.sampling import SamplingParams, TokenRules
from blockwright.policies.requests import remembered
from blockwright.policies.requests.remembered import AnswerKey, KnownAnswer, RememberedAnswers, answer_key, longest

SAMPLING = SamplingParams(temperature=0.5, seed=7)
KEY = answer_key("m f32", [1, 2], SAMPLING, [3, 4], b"ann")


def test_an_answer_is_found_for_a_while() -> None:
    answers = RememberedAnswers(30.0)
    answers.add(KEY, [5, 6], 100.0)
    assert answers.find(KEY, 129.9) == [5, 6]
    assert answers.find(KEY, 130.0) == []


def test_the_longest_beginning_is_kept_and_lives_on() -> None:
    answers = RememberedAnswers(30.0)
    for tokens, at in (([5, 6], 0.0), ([5], 10.0), ([5, 6, 7], 20.0)):
        answers.add(KEY, tokens, at)
        assert answers.find(KEY, at) == ([5, 6, 7] if len(tokens) == 3 else [5, 6])
    assert answers.find(KEY, 49.0) == [5, 6, 7]


def test_nothing_is_remembered_without_a_window_or_tokens() -> None:
    for window, tokens in ((0.0, [5]), (30.0, [])):
        answers = RememberedAnswers(window)
        answers.add(KEY, list(tokens), 0.0)
        assert answers.find(KEY, 0.0) == []


def test_the_oldest_are_forgotten_first(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(remembered, "MOST_TOKENS", 5)
    answers = RememberedAnswers(30.0)
    keys = [AnswerKey(bytes([i]), i) for i in range(3)]
    for key in keys:
        answers.add(key, [1, 2], 0.0)
    assert [answers.find(key, 0.0) for key in keys] == [[], [1, 2], [1, 2]]


def test_whatever_an_answer_follows_from_is_in_its_key() -> None:
    alike = answer_key("m f32", (1, 2), replace(SAMPLING, logprobs=3, prompt_logprobs=1), [4, 3], b"ann")
    assert alike == KEY
    others = [
        answer_key("n f32", [1, 2], SAMPLING, [3, 4], b"ann"),
        answer_key("m f32", [1], SAMPLING, [3, 4], b"ann"),
        answer_key("m f32", [1, 2], replace(SAMPLING, seed=8), [3, 4], b"ann"),
        answer_key("m f32", [1, 2], replace(SAMPLING, choice=1), [3, 4], b"ann"),
        answer_key("m f32", [1, 2], replace(SAMPLING, rules=TokenRules(min_tokens=1)), [3, 4], b"ann"),
        answer_key("m f32", [1, 2], SAMPLING, [3], b"ann"),
        answer_key("m f32", [1, 2], SAMPLING, [3, 4], b"bob"),
    ]
    assert len({KEY, *others}) == 8


def test_the_worker_that_remembers_most_goes_on() -> None:
    assert longest({"w0": [1, 2], "w1": [1, 2, 3], "w2": []}) == KnownAnswer("w1", [1, 2])
    for nothing in ({}, {"w0": []}, {"w0": [1]}):
        assert longest(nothing) == KnownAnswer(), "the last token is drawn again"
