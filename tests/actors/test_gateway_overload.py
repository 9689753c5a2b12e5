"""Limits of the whole server: how many requests, how many tokens, and what those who are refused are told."""

from __future__ import annotations

import random

from blockwright.actors.gateway.overload import SILENT, Crowd, Held
from blockwright.actors.gateway.port import Generation
from blockwright.actors.gateway.record import Record
from blockwright.policies.plan.sampling import SamplingParams


def wanted(name: str, prompt: int = 4, answer: int = 6) -> Generation:
    sampling = SamplingParams(seed=1)
    return Generation(id=name, application="a", prompt=[1] * prompt, max_tokens=answer, stop_tokens=[], sampling=sampling)


def active(count: int) -> dict[str, Record]:
    return {f"r{i}": Record(wanted(f"r{i}"), i, 0.0) for i in range(count)}


def test_room_is_no_answer() -> None:
    assert Crowd(3, 0).refusal(wanted("x"), active(2), 0, 1.0) is None


def test_too_many_requests_name_the_number_and_forecast_the_turn() -> None:
    crowd = Crowd(3, 0)
    for i in range(11):
        crowd.pace.ended(i * 0.5)
    failure = crowd.refusal(wanted("x"), active(3), 19, 5.5)
    assert failure is not None
    assert (failure.status, failure.code, failure.retry_after) == (503, "unavailable", 10.0)
    assert "3 requests, its limit; try again in about 10 s" in failure.message


def test_too_many_tokens() -> None:
    crowd = Crowd(100, 25)
    assert crowd.refusal(wanted("x", 4, 6), active(1), 0, 1.0) is None
    failure = crowd.refusal(wanted("x", 4, 6), active(2), 0, 1.0)
    assert failure is not None
    assert "20 tokens to compute and takes 25" in failure.message


def test_an_idle_server_takes_what_is_larger_than_the_limit() -> None:
    assert Crowd(100, 5).refusal(wanted("x", 400, 600), {}, 0, 1.0) is None


def test_one_busy_gateway_comes_to_hold_what_the_others_leave() -> None:
    crowd, held = Crowd(100, 0, sharers=4), dict[str, Record]()
    rounds = 0
    while len(held) < 100:
        crowd.look(held, float(rounds))
        for name in ("g1", "g2", "g3"):
            crowd.hear(name, Held(0, 0, float(rounds)))
        before = len(held)
        while crowd.refusal(wanted("x"), held, 0, 0.0) is None:
            held[f"r{len(held)}"] = Record(wanted("r"), 0, 0.0)
        assert before < len(held) <= 100
        rounds += 1
    assert rounds <= 20, "a part at a time"
    crowd.look(held, float(rounds))
    assert crowd.refusal(wanted("x"), held, 0, 0.0) is not None


def test_all_together_keep_the_limits_and_one_that_is_silent_holds_nothing() -> None:
    draw = random.Random(7)
    names, limit, tokens = ("g0", "g1", "g2"), 20, 150
    crowds = {name: Crowd(limit, tokens, sharers=3) for name in names}
    held: dict[str, dict[str, Record]] = {name: {} for name in names}
    refused = 0
    for now in range(200):
        said = {name: crowds[name].look(held[name], now / 10) for name in names}
        for name in names:
            for other in set(names) - {name}:
                crowds[name].hear(other, said[other])
        for name in names:
            crowds[name].look(held[name], now / 10)
            for _ in range(draw.randrange(12)):
                if crowds[name].refusal(wanted("x"), held[name], 0, now / 10) is None:
                    held[name][f"r{draw.random()}"] = Record(wanted("r"), 0, 0.0)
                else:
                    refused += 1
            for key in [key for key in held[name] if draw.random() < 0.2]:
                del held[name][key]
            assert sum(len(records) for records in held.values()) <= limit + len(names) - 1
        work = sum(record.cost() for records in held.values() for record in records.values())
        assert work <= tokens + len(names) * 10, "one that is idle takes whatever comes"
    assert refused > 100
    crowds["g1"].hear("g0", Held(limit, 0, 20.0))
    crowds["g1"].look({}, 20.0)
    assert crowds["g1"].refusal(wanted("x"), {}, 0, 20.0) is not None
    crowds["g1"].look({}, 20.0 + SILENT)
    assert crowds["g1"].refusal(wanted("x"), {}, 0, 20.0) is None
