"""The surrogates that draft, by promise and never at the end of a chain; and the bottlenecks at which they do."""

from __future__ import annotations

import pytest

from blockwright.policies.adaptive.speculation import (
    MOST_SURROGATES,
    DraftingChain,
    DraftingSurrogate,
    bottlenecks,
    chosen_surrogates,
    drafting_chain,
    drafting_chains,
    promise,
    replaced,
)
from blockwright.policies.model.chain import Block, Chain
from blockwright.tests.claims import claim
from blockwright.tests.policies.sweep_world import chain, tier


def test_agreement_and_bytes_decide() -> None:
    small = DraftingSurrogate(1, 3, 10, 0.99)
    wide = DraftingSurrogate(1, 9, 45, 0.9)
    poor = DraftingSurrogate(1, 9, 45, 0.3)
    assert chosen_surrogates([small, wide, poor], 12, 100) == [1]
    assert chosen_surrogates([poor, small], 12, 100) == [1]
    assert chosen_surrogates([small, small], 12, 100) == [0]


def test_several_draft_if_they_do_not_overlap() -> None:
    some = [DraftingSurrogate(first, first + 2, 10 + first, 0.9) for first in range(0, 20, 2)]
    assert chosen_surrogates(some, 22, 1000) == [9, 8, 7, 6][:MOST_SURROGATES]
    assert chosen_surrogates([*some, DraftingSurrogate(0, 20, 400, 0.9)], 22, 1000) == [10]


def test_never_at_the_last_block_and_never_below_what_is_asked() -> None:
    last = DraftingSurrogate(4, 12, 45, 0.9)
    small = DraftingSurrogate(1, 3, 1, 0.5)
    assert chosen_surrogates([last], 12, 100) == []
    assert chosen_surrogates([last, small], 12, 100) == [1]
    assert chosen_surrogates([], 12, 100) == []
    assert chosen_surrogates([small], 12, 100, least=promise(small, 100)) == [0]
    assert chosen_surrogates([small], 12, 100, least=promise(small, 100) + 1e-9) == []
    assert (drafting_chain("a"), drafting_chain("a", 1)) == ("a~surrogate", "a~surrogate2")


def test_promise_is_tokens_for_bytes() -> None:
    assert promise(DraftingSurrogate(1, 3, 50, 1.0), 100) == pytest.approx(9 / 5)  # the longest round is the best
    assert promise(DraftingSurrogate(1, 3, 50, 0.0), 100) == pytest.approx(1 / 1.5)


def test_the_place_of_a_surrogate_follows_from_the_chains() -> None:
    own, other = chain("a", 4), chain("b", 4, own_from=3)
    mixed = (*own.components[:3], *other.components[3:5], *own.components[5:])
    shorter = (*own.components[:3], other.components[3], *own.components[5:])
    assert replaced(own.components, mixed) == (3, 5)
    assert replaced(own.components, shorter) == (3, 5)
    assert replaced(own.components, tier(own, 2).components)[0] == 5
    drafting = [
        Chain(name, (Block(parts),), 1000, drafts_for="a")
        for name, parts in (("a~surrogate2", mixed), ("a~surrogate", shorter))
    ]
    assert drafting_chains([*drafting, own, other]) == {
        "a": [DraftingChain("a~surrogate", 3, 5, "a~surrogate"), DraftingChain("a~surrogate2", 3, 5, "a~surrogate2")]
    }
    assert drafting_chains(drafting) == {}, "the application is not here"


def names(count: int) -> list[bytes]:
    return [b"%02d" % n for n in range(count)]


@claim("Speculation goes by the slowest tenth of block instances, never two in a row, never the last block", of="adaptive")
def test_bottlenecks() -> None:
    blocks = names(30)
    times = {block: float(n) for n, block in enumerate(blocks)}
    able = set(blocks)
    assert bottlenecks(times, [blocks], able) == [blocks[28], blocks[26]], "of neighbours the slower one; 29 is the last"
    assert bottlenecks(times, [blocks[:10], blocks[10:]], able) == [blocks[28], blocks[26]]
    assert bottlenecks(times, [blocks], able - {blocks[28]}) == [blocks[27], blocks[25]], "without a surrogate it cannot"
    assert bottlenecks(times, [[block, b"head"] for block in blocks], able) == [blocks[29], blocks[28], blocks[27]]
    few = dict.fromkeys(blocks[:3], 1.0)
    assert bottlenecks(few, [blocks[:3]], able) == [blocks[0]], "at least one, and of equals the first"
    assert bottlenecks(dict.fromkeys(blocks, 0.0), [blocks], able) == [], "no queue, no bottleneck"
    assert bottlenecks({}, [], able) == []
