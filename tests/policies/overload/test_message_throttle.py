"""A reason that goes on is reported once, and again only after a while."""

from __future__ import annotations

from blockwright.policies.overload.message_throttle import AGAIN, MessageThrottle


def test_a_reason_is_reported_at_once_and_again_after_a_while() -> None:
    telling = MessageThrottle()
    assert telling.news("full", 10.0)
    assert not telling.news("full", 10.0)
    assert not telling.news("full", 10.0 + AGAIN / 2)
    assert telling.news("full", 10.0 + AGAIN)
    assert not telling.news("full", 10.1 + AGAIN)


def test_two_that_take_turns_are_each_reported_no_more_often() -> None:
    telling = MessageThrottle()
    events = [why for n in range(200) for why in ("full", "drained") if telling.news(why, n * 0.1)]
    assert (events.count("full"), events.count("drained")) == (4, 4), "in 20 seconds"
