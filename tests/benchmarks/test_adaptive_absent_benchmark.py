"""Conversations that are away: both subjects see the same requests, and what is saved is relative to no rule."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

import adaptive_absent
from adaptive_absent import CASES, conversations, run


def test_conversations_come_back_with_their_history() -> None:
    case = replace(CASES["ahead"], conversations=5)
    requests = conversations(case, 1)
    assert len(requests) == 5 * adaptive_absent.TURNS
    assert sorted(one.at for one in requests) == [one.at for one in requests]
    assert all(one.tokens[: case.common] == (7,) * case.common for one in requests)
    by_own: dict[int, list[tuple[int, ...]]] = {}
    for one in requests:
        by_own.setdefault(one.tokens[case.common], []).append(one.tokens)
    assert all(later[: len(earlier)] == earlier for turns in by_own.values() for earlier, later in pairwise(turns))
    assert [one.tokens for one in conversations(case, 2)] != [one.tokens for one in requests]


def test_a_rule_moves_kv_that_stays_without() -> None:
    case = replace(CASES["ahead"], conversations=16)
    requests = conversations(case, 1)
    without, ahead = run(case, {}, requests), run(case, case.rule, requests)
    assert without["moved"] == 0
    assert ahead["moved"] > 0
    assert run(case, case.rule, requests) == ahead, "the same on any machine"
