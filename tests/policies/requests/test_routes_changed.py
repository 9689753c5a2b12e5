"""Pieces of a publication of routes: together they are what was split, and half of one is never applied."""

from __future__ import annotations

import pytest

from blockwright.policies.model.chain import Block, Chain, Component, Hop, Kind, KvLayout, Route
from blockwright.policies.requests.load_failure import LoadFailure
from blockwright.policies.requests.routes_changed import RoutePieces, RoutesChanged
from blockwright.runtime.base.buffers import Sink
from blockwright.runtime.base.codec import encode, pack


def chain(name: str, components: int, per_block: int = 4) -> Chain:
    kv = KvLayout(2, 64, "bfloat16", 16)
    parts = [Component(n.to_bytes(16, "big"), Kind.ATTENTION, 1 << 20, 384, 384, kv) for n in range(components)]
    cut = tuple(Block(tuple(parts[at : at + per_block])) for at in range(0, components, per_block))
    return Chain(name, cut, 4096, checkpoint="/models/" + name, defaults='{"temperature": 0.5}')


def route(number: int, hops: int = 1) -> Route:
    workers = [f"worker-{number}-{hop}" for hop in range(hops)]
    name = f"model-{number % 7}"
    return Route(f"{name}@{'+'.join(workers)}", number, name, tuple(Hop(w, n, n + 1) for n, w in enumerate(workers)))


def publication(routes: int = 300, hops: int = 1, since: int = 0) -> RoutesChanged:
    every = [route(number, hops) for number in range(routes)]
    return RoutesChanged(
        9,
        [chain(f"model-{number}", 24) for number in range(7)],
        every[: routes // 2],
        every,
        withdrawn=["old"],
        capacity={one.id: 64 for one in every[: routes // 2]},
        since=since,
        ended=[f"gone-{number}" for number in range(50)],
        failed=[LoadFailure("model-1", 3, "no room")],
        default="model-0",
    )


def taken(pieces: list[RoutesChanged]) -> list[RoutesChanged]:
    receiver = RoutePieces()
    return [whole for piece in pieces if (whole := receiver.take(piece)) is not None]


@pytest.mark.parametrize("limit", [1, 500, 10_000, 1 << 20])
@pytest.mark.parametrize("since", [0, 8])
def test_the_pieces_are_together_what_was_split(limit: int, since: int) -> None:
    whole = publication(since=since)
    pieces = whole.split(limit)
    assert (len(pieces) > 1) == (limit < 1 << 20)
    assert taken(pieces) == [whole]
    assert all((piece.version, piece.since, piece.default) == (9, since, "model-0") for piece in pieces)


@pytest.mark.parametrize("hops", [1, 8])
@pytest.mark.parametrize("per_block", [1, 13])
def test_a_piece_is_no_larger_than_its_limit_when_encoded(hops: int, per_block: int) -> None:
    whole = publication(400, hops)
    whole.chains.append(chain("wide", 40, per_block))
    for piece in whole.split(16 << 10):
        assert len(pack(encode(piece, Sink()))) <= 16 << 10


def test_a_small_publication_travels_as_it_is() -> None:
    whole = publication(3)
    assert whole.split() == [whole]
    assert taken([whole]) == [whole]


def test_a_publication_that_lacks_a_piece_is_not_applied_and_the_next_one_is() -> None:
    pieces = publication().split(5_000)
    assert len(pieces) > 4
    for lost in range(len(pieces)):
        kept = pieces[:lost] + pieces[lost + 1 :]
        assert taken(kept) == []
        assert taken(kept + pieces) == [publication()]


def test_pieces_of_another_publication_end_the_one_before() -> None:
    first, second = publication().split(5_000), publication(since=8).split(5_000)
    assert taken([*first[:3], *second]) == [publication(since=8)]
    assert taken([*first[:3], publication(3), *first[3:]]) == [publication(3)]
