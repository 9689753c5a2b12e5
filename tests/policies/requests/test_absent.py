"""Conversations that are away: when KV is copied ahead, what becomes of cold KV, in which order, and who is forgotten."""

from __future__ import annotations

from typing import Any

import pytest

from blockwright.policies.model.chain import Hop, Route
from blockwright.policies.requests.absent import (
    MOST,
    PERIOD,
    AbsentConversation,
    AbsentConversations,
    AbsentStep,
    HomeLoad,
    wastes,
)

COPY = {"m": 0.001}  # seconds of a token


def route(worker: str) -> Route:
    return Route(f"m@{worker}", 1, "m", (Hop(worker, 0, 4),))


def away(name: str, worker: str = "w0", tokens: int = 100, left: float = 0.0, shared: int = 0) -> AbsentConversation:
    pages = [b"common%d" % n for n in range(shared)] + [f"{name}{n}".encode() for n in range(4 - shared)]
    return AbsentConversation(name, "m", route(worker), tuple(pages), tokens, left)


def load(worker: str, queue: float = 0.0, held: int = 0, room: int = 10_000) -> HomeLoad:
    return HomeLoad(worker, {"m": route(worker)}, queue, 0.01, held, room)


def homes(*loads: HomeLoad) -> dict[str, HomeLoad]:
    return {one.worker: one for one in loads}


def told(orders: Any) -> list[tuple[str, AbsentStep, str]]:
    return [(one.conversation.request, one.step, one.target.home if one.target else "") for one in orders]


BUSY = homes(load("w0", queue=9.0), load("w1", queue=1.0), load("w2", queue=2.0))


def test_kv_is_copied_ahead_from_a_busy_owner_to_who_has_least_to_do_once_it_has_been_away_long_enough() -> None:
    conversations = AbsentConversations(proactive=True)
    conversations.leave(away("a", tokens=2500))
    assert conversations.decide(BUSY, COPY, 2.4) == [], "T_int is shorter than the copy"
    assert told(conversations.decide(BUSY, COPY, 2.6)) == [], "the next look is a period later"
    assert told(conversations.decide(BUSY, COPY, 2.4 + PERIOD)) == [("a", AbsentStep.COPY, "w1")]
    assert conversations.decide(BUSY, COPY, 9.0) == [], "once"


def test_nothing_is_copied_from_an_owner_that_has_hardly_more_to_do_nor_at_an_unknown_speed() -> None:
    conversations = AbsentConversations(proactive=True)
    conversations.leave(away("a"))
    assert conversations.decide(homes(load("w0", queue=9.0), load("w1", queue=7.0)), COPY, 5.0) == []
    assert conversations.decide(BUSY, {}, 7.0) == []
    assert conversations.decide(homes(load("w0", queue=9.0), load("w1", room=99)), COPY, 9.0) == [], "it does not fit"
    assert told(conversations.decide(BUSY, COPY, 11.0)) == [("a", AbsentStep.COPY, "w1")]


def test_what_few_share_goes_first_then_who_is_expected_back_soonest_one_by_one() -> None:
    conversations = AbsentConversations(proactive=True)
    for one in (away("s", left=4.0, shared=2), away("t", left=3.0, shared=2), away("b", left=1.0), away("c", left=2.0)):
        conversations.leave(one)
    order = []
    for at in (5.0, 7.0, 9.0, 11.0):
        order += told(conversations.decide(BUSY, COPY, at))
        assert conversations.decide(BUSY, COPY, at + PERIOD) == [], "one copy at a time"
        assert conversations.arrived("w0", whole=True) is not None
    assert [request for request, _, _ in order] == ["c", "b", "s", "t"]


def test_who_comes_back_is_away_no_longer() -> None:
    conversations = AbsentConversations(proactive=True)
    one = away("a")
    conversations.leave(one)
    conversations.come("other", [*one.hashes, b"more"])
    assert len(conversations) == 1
    conversations.come("m", [*one.hashes, b"more"])
    assert len(conversations) == 0
    for number in range(MOST + 3):
        conversations.leave(away(f"a{number}"))
    assert len(conversations) == MOST
    conversations.lose("w0")
    assert len(conversations) == 0
    assert conversations.decide(BUSY, COPY, 99.0) == []


@pytest.mark.parametrize(
    ("seconds", "copy", "step"),
    [
        (0.3, 0.001, AbsentStep.KEEP),
        (60.0, 0.001, AbsentStep.MOVE),
        (60.0, 0.0, AbsentStep.DROP),
        (60.0, 0.1, AbsentStep.DROP),
    ],
)
def test_cold_kv_is_kept_dropped_or_moved_by_the_least_byte_seconds(seconds: float, copy: float, step: AbsentStep) -> None:
    """Keep T_int C; drop T_fwd (C / 2 + others); move 2 T_copy others, for C = 100 tokens and 200 others."""
    found = wastes(seconds, 100, 0.01, copy, 200, movable=copy > 0)
    assert found[AbsentStep.KEEP] == seconds * 100
    assert found[AbsentStep.DROP] == pytest.approx(0.01 * 100 * (50 + 200))
    assert AbsentStep.MOVE not in found or found[AbsentStep.MOVE] == pytest.approx(2 * copy * 100 * 200)
    assert min(found, key=found.__getitem__) is step


def test_only_a_full_cache_gives_up_kv_and_only_as_much_as_it_must() -> None:
    conversations = AbsentConversations(cold=True)
    for number, left in enumerate((0.0, 10.0, 20.0)):
        conversations.leave(away(f"a{number}", left=left))
    assert conversations.decide(homes(load("w0", held=700, room=1000)), {}, 60.0) == []
    assert told(conversations.decide(homes(load("w0", held=750, room=1000)), {}, 62.0)) == [("a0", AbsentStep.DROP, "")]
    assert len(conversations) == 2
    full = homes(load("w0", held=850, room=1000), load("w1", held=880, room=1000))
    assert told(conversations.decide(full, {"m": 1e-6}, 64.0)) == [("a1", AbsentStep.MOVE, "w1")]
    assert conversations.decide(full, {"m": 1e-6}, 66.0) == [], "the next one waits for the link"
    order = conversations.arrived("w0", whole=True)
    assert order is not None
    assert order.step is AbsentStep.MOVE
    conversations.lose("w0")
    assert len(conversations) == 1, "the one that has moved"
