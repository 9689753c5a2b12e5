"""Limits of the whole server: how many requests, how many tokens, and what those who are refused are told."""

from __future__ import annotations

from blockwright.actors.gateway.crowd import Crowd
from blockwright.actors.gateway.port import Generation
from blockwright.actors.gateway.record import Record
from blockwright.policies.sampling import SamplingParams


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
