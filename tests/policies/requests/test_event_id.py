"""Ids of events: they are read as they were written, and say what changed."""

from __future__ import annotations

from dataclasses import replace

import pytest

from blockwright.policies.requests.event_id import (
    EventId,
    SaidPart,
    StreamDigest,
    basis_of,
    parse_event_id,
    seed_of,
    short_hash,
)
from blockwright.tests.policies.sweep_world import chain

DIGEST = StreamDigest(
    owner=short_hash(b"o"),
    model=short_hash(b"m"),
    body=short_hash(b"b"),
    prompt=short_hash(b"p"),
    sampling=short_hash(b"s"),
    numerics=short_hash(b"n"),
    seed=(1 << 64) - 1,
    created=1_900_000_000,
    cached=48,
)
ID = EventId("chatcmpl-g0-0a1b", DIGEST, (SaidPart(3), SaidPart(), SaidPart(7, 2)))


def test_an_id_is_read_as_it_was_written() -> None:
    text = str(ID)
    assert text.endswith(".3-0-7_2")
    assert parse_event_id(text) == ID


@pytest.mark.parametrize(
    "text",
    [
        "",
        "5",
        "a.b.5",
        str(ID)[:-1] + "x",
        str(ID) + "-",
        str(ID) + ".4",
        str(ID).replace("_2", "_"),
        str(ID).replace("chatcmpl", "chat cmpl"),
        str(ID).replace(str(DIGEST), str(DIGEST)[:-4]),
        str(ID).replace(str(DIGEST), "B" + str(DIGEST)[1:]),  # of another form
        str(ID).replace(str(DIGEST), "é" + str(DIGEST)[1:]),
        str(ID) + "-1" * 2048,
    ],
)
def test_anything_else_is_no_id(text: str) -> None:
    assert parse_event_id(text) is None


def test_what_changed_is_named() -> None:
    other = short_hash(b"other")
    assert DIGEST.changes(replace(DIGEST, seed=1, created=2, cached=3)) == []
    assert DIGEST.changes(replace(DIGEST, model=other)) == ["model"]
    assert DIGEST.changes(replace(DIGEST, prompt=other)) == ["model"], "its files make another prompt of the same body"
    assert DIGEST.changes(replace(DIGEST, prompt=other, body=other)) == ["body"]
    assert DIGEST.changes(replace(DIGEST, sampling=other, numerics=other)) == ["sampling", "numerics"]


def test_all_events_of_a_stream_share_the_core_of_their_digest() -> None:
    assert DIGEST.core() == replace(DIGEST, created=5, cached=1).core() != replace(DIGEST, owner=short_hash(b"x")).core()


def test_what_was_said_is_ordered() -> None:
    assert SaidPart(3) < SaidPart(3, 1) < SaidPart(3, 2) < SaidPart(4)


def test_a_name_has_one_seed_for_each_key() -> None:
    assert seed_of("key", "name") == seed_of("key", "name") == 4689260409305593369
    assert len({seed_of("key", "name"), seed_of("other", "name"), seed_of("key", "names"), seed_of("keyn", "ame")}) == 4
    assert seed_of("", "\ud800") < 1 << 63


def test_the_basis_follows_from_components_and_numerics() -> None:
    one, two = chain("a", 2), chain("b", 3, own_from=0)
    assert basis_of([one], ["f32", "f32"]) == basis_of([replace(one, application="c")], ["f32"])
    assert basis_of([one], ["x", "f32"]).numerics == ("f32", "x")
    assert len({basis_of(found, []).chains for found in ([one], [two], [one, two], [two, one])}) == 4
