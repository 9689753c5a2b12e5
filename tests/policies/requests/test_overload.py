"""Limits of the whole server: how many requests, how many tokens, and what those who are refused are told."""

from __future__ import annotations

import random

from blockwright.policies.requests.overload import SILENT, Held, Overload
from blockwright.policies.requests.refusal import Refusal


def holding(overload: Overload, requests: int, tokens: int = 10) -> Overload:
    """The same, with so many requests more, of so many tokens each."""
    for _ in range(requests):
        overload.begin()
        overload.charge(tokens)
    return overload


def test_room_is_no_answer() -> None:
    assert holding(Overload(3, 0), 2).refusal(10, 0, 1.0) is None


def test_too_many_requests_name_the_number_and_forecast_the_turn() -> None:
    overload = holding(Overload(3, 0), 3)
    for i in range(11):
        overload.pace.ended(i * 0.5)
    refused = overload.refusal(10, 19, 5.5)
    assert refused is not None
    assert (refused.why, refused.retry_after) == (Refusal.OVERLOADED, 10.0)
    assert "3 requests, its limit; try again in about 10 s" in refused.message


def test_too_many_tokens() -> None:
    overload = holding(Overload(100, 25), 1)
    assert overload.refusal(10, 0, 1.0) is None
    refused = holding(overload, 1).refusal(10, 0, 1.0)
    assert refused is not None
    assert "20 tokens to compute and takes 25" in refused.message
    overload.charge(-5)
    assert overload.refusal(10, 0, 1.0) is None, "what was computed meanwhile counts no more"


def test_an_idle_server_takes_what_is_larger_than_the_limit() -> None:
    overload = Overload(100, 5)
    assert overload.refusal(1000, 0, 1.0) is None
    assert holding(overload, 1).refusal(1000, 0, 1.0) is not None
    overload.end(10, 1.0)
    assert overload.refusal(1000, 0, 1.0) is None


def test_one_busy_gateway_comes_to_hold_what_the_others_leave() -> None:
    overload = Overload(100, 0, sharers=4)
    rounds = 0
    while overload.requests < 100:
        overload.look(float(rounds))
        for name in ("g1", "g2", "g3"):
            overload.hear(name, Held(0, 0, float(rounds)))
        before = overload.requests
        while overload.refusal(10, 0, 0.0) is None:
            overload.begin()
        assert before < overload.requests <= 100
        rounds += 1
    assert rounds <= 20, "a part at a time"
    overload.look(float(rounds))
    assert overload.most == 100
    assert overload.refusal(10, 0, 0.0) is not None


def test_all_together_keep_the_limits_and_one_that_is_silent_holds_nothing() -> None:
    draw = random.Random(7)
    names, limit, tokens = ("g0", "g1", "g2"), 20, 150
    overloads = {name: Overload(limit, tokens, sharers=3) for name in names}
    refused = 0
    for now in range(200):
        said = {name: overloads[name].look(now / 10) for name in names}
        for name in names:
            for other in set(names) - {name}:
                overloads[name].hear(other, said[other])
        for name in names:
            overload = overloads[name]
            overload.look(now / 10)
            for _ in range(draw.randrange(12)):
                if overload.refusal(10, 0, now / 10) is None:
                    holding(overload, 1)
                else:
                    refused += 1
            for _ in range(overload.requests):
                if draw.random() < 0.2:
                    overload.end(10, now / 10)
            assert sum(one.requests for one in overloads.values()) <= limit + len(names) - 1
        work = sum(one.work for one in overloads.values())
        assert work <= tokens + len(names) * 10, "one that is idle takes whatever comes"
    assert refused > 100
    other = Overload(limit, 0, sharers=3)
    other.hear("g0", Held(limit, 0, 20.0))
    other.look(20.0)
    assert other.refusal(10, 0, 20.0) is not None
    other.look(20.0 + SILENT)
    assert other.refusal(10, 0, 20.0) is None
