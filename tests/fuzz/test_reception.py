"""Rubbish from a peer that the transport let in: no error, no growth, and the others are served."""

from __future__ import annotations

import gc
import logging
import tracemalloc
from collections.abc import Iterator

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from blockwright.runtime.base import envelope
from blockwright.tests.claims import claim
from blockwright.tests.fuzz import rubbish
from blockwright.tests.fuzz.target import ATTACKER, STRANGER, WAYS, Target
from blockwright.tests.parts import examples

MOST_AT_ONCE = 256 << 20  # bytes that one message may cost while it is refused


@pytest.fixture(autouse=True, scope="module")
def quiet() -> Iterator[None]:
    logger = logging.getLogger("blockwright")
    level = logger.level
    logger.setLevel(logging.CRITICAL + 1)
    yield
    logger.setLevel(level)


@pytest.fixture(scope="module")
def target() -> Iterator[Target]:
    with Target() as made:
        yield made


@claim("Garbage on a node's socket is refused and other peers go on", of="actor-runtime")
@settings(
    examples(500),
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
@given(
    sender=st.sampled_from([ATTACKER, ATTACKER, ATTACKER, STRANGER]),
    body=rubbish.bodies,
    buffers=rubbish.frames,
    way=st.sampled_from(WAYS),
)
def test_rubbish_of_every_kind(target: Target, sender, body: bytes, buffers: list[bytes], way: str) -> None:
    target.feed(sender, body, buffers, way)
    assert target.held() <= 2048


@pytest.mark.parametrize("name", rubbish.bombs())
@pytest.mark.parametrize("sender", [ATTACKER, STRANGER], ids=str)
def test_bombs(target: Target, sender, name: str) -> None:
    tracemalloc.start()
    try:
        target.feed_all([rubbish.bombs()[name]], sender, [b"buffer"])
        held, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < MOST_AT_ONCE
    assert held < 16 << 20


def test_replayed_ids_start_nothing() -> None:
    with Target() as fresh:
        call = rubbish.packed([envelope.CALL, 1, "server", "hang", 1e4, b"", [], {}])
        for _ in range(100):
            fresh.feed(ATTACKER, call)
        assert fresh.held() == 1


def test_what_a_peer_may_open_is_bounded() -> None:
    with Target() as fresh:
        calls = [[envelope.CALL, number, "server", "hang", 1e4, b"", [], {}] for number in range(1, 3001)]
        fresh.feed_all([rubbish.packed(call) for call in calls])
        assert fresh.held() <= 1024


def test_a_long_stream_of_rubbish_leaves_nothing() -> None:
    """The same messages again and again: what they cost does not add up."""
    messages = [rubbish.packed(message) for message in rubbish.VALID if message[0] not in (envelope.CALL, envelope.OPEN)]
    messages += [b"", b"\xc1", b"\x90" * 1000, *[body[:-1] for body in messages]]
    with Target() as fresh:

        def held_after(rounds: int) -> int:
            for _ in range(rounds):
                fresh.feed_all(messages)
            gc.collect()
            return tracemalloc.get_traced_memory()[0]

        tracemalloc.start()
        try:
            first = held_after(20)
            later = held_after(200)
        finally:
            tracemalloc.stop()
    assert later - first < 200_000
