"""Limits of the whole server: number of requests, number of tokens, and the text of a refusal."""

from __future__ import annotations

import random

from blockwright.policies.requests.admission_limit import ALPHA, SILENT, AdmissionLimit, Held
from blockwright.policies.requests.refusal import Refusal
from blockwright.tests.claims import claim


def holding(overload: AdmissionLimit, requests: int, tokens: int = 10) -> AdmissionLimit:
    """The same, with so many requests more, of so many tokens each."""
    for _ in range(requests):
        overload.begin("a")
        overload.charge("a", tokens)
    return overload


def test_room_is_no_answer() -> None:
    assert holding(AdmissionLimit(3, 0), 2).refusal("a", 10, 0, 1.0, alone=True) is None


@claim("A full server answers 503 with a forecast of when to try again", of="http-api")
def test_too_many_requests_name_the_number_and_forecast_the_turn() -> None:
    overload = holding(AdmissionLimit(3, 0), 3)
    for i in range(11):
        overload.pace.ended(i * 0.5)
    refused = overload.refusal("a", 10, 19, 5.5, alone=True)
    assert refused is not None
    assert (refused.why, refused.retry_after) == (Refusal.OVERLOADED, 10.0)
    assert "3 requests, its limit; try again in about 10 s" in refused.message


def test_too_many_tokens() -> None:
    overload = holding(AdmissionLimit(100, 25), 1)
    assert overload.refusal("a", 10, 0, 1.0, alone=True) is None
    refused = holding(overload, 1).refusal("a", 10, 0, 1.0, alone=True)
    assert refused is not None
    assert "20 tokens to compute and accepts 25" in refused.message
    overload.charge("a", -5)
    assert overload.refusal("a", 10, 0, 1.0, alone=True) is None, "what was computed meanwhile counts no more"


def test_an_idle_server_takes_what_is_larger_than_the_limit() -> None:
    overload = AdmissionLimit(100, 5)
    assert overload.refusal("a", 1000, 0, 1.0, alone=True) is None
    assert holding(overload, 1).refusal("a", 1000, 0, 1.0, alone=True) is not None
    overload.end("a", 10, 1.0)
    assert overload.refusal("a", 1000, 0, 1.0, alone=True) is None


def test_one_busy_gateway_comes_to_hold_what_the_others_leave() -> None:
    overload = AdmissionLimit(100, 0, sharers=4)
    rounds = 0
    while overload.requests < 100:
        overload.tick(float(rounds))
        for name in ("g1", "g2", "g3"):
            overload.hear(name, Held(0, 0, float(rounds)))
        before = overload.requests
        while overload.refusal("a", 10, 0, 0.0, alone=True) is None:
            overload.begin("a")
        assert before < overload.requests <= 100
        rounds += 1
    assert rounds <= 20, "a part at a time"
    overload.tick(float(rounds))
    assert overload.limit == 100
    assert overload.refusal("a", 10, 0, 0.0, alone=True) is not None


def test_all_together_keep_the_limits_and_one_that_is_silent_holds_nothing() -> None:
    draw = random.Random(7)
    names = ("g0", "g1", "g2")
    limit = 20
    tokens = 150
    overloads = {name: AdmissionLimit(limit, tokens, sharers=3) for name in names}
    refused = 0
    for now in range(200):
        said = {name: overloads[name].tick(now / 10) for name in names}
        for name in names:
            for other in set(names) - {name}:
                overloads[name].hear(other, said[other])
        for name in names:
            overload = overloads[name]
            overload.tick(now / 10)
            for _ in range(draw.randrange(12)):
                if overload.refusal("a", 10, 0, now / 10, alone=True) is None:
                    holding(overload, 1)
                else:
                    refused += 1
            for _ in range(overload.requests):
                if draw.random() < 0.2:
                    overload.end("a", 10, now / 10)
            assert sum(one.requests for one in overloads.values()) <= limit + len(names) - 1
        work = sum(one.work for one in overloads.values())
        assert work <= tokens + len(names) * 10, "one that is idle takes whatever comes"
    assert refused > 100
    other = AdmissionLimit(limit, 0, sharers=3)
    other.hear("g0", Held(limit, 0, 20.0))
    other.tick(20.0)
    assert other.refusal("a", 10, 0, 20.0, alone=True) is not None
    other.tick(20.0 + SILENT)
    assert other.refusal("a", 10, 0, 20.0, alone=True) is None


# several accounts ----------------------------------------------------------------------------------------------------


def filled(overload: AdmissionLimit, *accounts: str, tokens: int = 10) -> dict[str, int]:
    """The accounts take turns until all of them are refused; what each got in."""
    found = dict.fromkeys(accounts, 0)
    while True:
        before = sum(found.values())
        for account in accounts:
            if overload.refusal(account, tokens, 0, 0.0, alone=False) is None:
                overload.begin(account)
                overload.charge(account, tokens)
                found[account] += 1
        if sum(found.values()) == before:
            return found


def test_a_flood_leaves_room_for_others_and_is_refused_with_the_reason() -> None:
    overload = AdmissionLimit(900, 0)
    assert filled(overload, "flood") == {"flood": 800}
    refused = overload.refusal("flood", 10, 0, 0.0, alone=False)
    assert refused is not None
    assert (refused.why, refused.retry_after) == (Refusal.OVERLOADED, 1.0)
    assert "'flood' has 800 of the 900 requests" in refused.message
    assert overload.refusal("steady", 10, 0, 0.0, alone=False) is None
    assert overload.refusal("flood", 10, 0, 0.0, alone=True) is None, "who is alone may have all"


def test_several_floods_share_and_still_leave_room() -> None:
    overload = AdmissionLimit(850, 0)
    assert filled(overload, "a", "b") == {"a": 400, "b": 400}
    assert filled(overload, "c") == {"c": 50 * ALPHA // (ALPHA + 1) + 1}
    assert overload.requests < overload.limit


def test_a_flood_of_tokens_leaves_room_for_others() -> None:
    overload = AdmissionLimit(1000, 900)
    assert filled(overload, "flood") == {"flood": 80}
    refused = overload.refusal("flood", 10, 0, 0.0, alone=False)
    assert refused is not None
    assert "800 of the 900 tokens" in refused.message
    assert overload.refusal("steady", 90, 0, 0.0, alone=False) is None


def test_a_small_room_is_not_cut_down() -> None:
    """Where an eighth is less than one request a single account may still have all."""
    assert filled(AdmissionLimit(4, 0), "a") == {"a": 4}
