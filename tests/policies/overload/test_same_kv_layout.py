"""Models that are dropped together."""

from __future__ import annotations

from dataclasses import replace

from blockwright.policies.model.chain import Component, Kind, KvLayout
from blockwright.policies.overload.same_kv_layout import alike, united

LAYOUT = KvLayout(kv_heads=2, head_dim=4, dtype="float32", page_size=16)


def component(name: str, nbytes: int, kv: KvLayout | None = None) -> Component:
    return Component(name.encode().ljust(16), Kind.ATTENTION if kv else Kind.EMBEDDING, nbytes, 8, 8, kv)


FOUNDATION = [component("e", 100), component("a", 40, LAYOUT), component("b", 40, LAYOUT)]


def test_chains_are_alike_whose_kv_is_the_same_at_each_depth() -> None:
    tuned = [*FOUNDATION[:2], component("c", 44, LAYOUT)]
    assert alike([FOUNDATION])
    assert alike([FOUNDATION, tuned, FOUNDATION])
    assert not alike([FOUNDATION, FOUNDATION[:2]]), "another depth"
    assert not alike([FOUNDATION, [FOUNDATION[0], FOUNDATION[1], component("c", 40, replace(LAYOUT, kv_heads=4))]])
    assert not alike([FOUNDATION, [FOUNDATION[1], FOUNDATION[0], FOUNDATION[2]]]), "KV at another depth"


def test_what_chains_share_counts_once_and_their_own_besides() -> None:
    tuned = [FOUNDATION[0], FOUNDATION[1].adapted(b"d" * 16, 3), component("c", 44, LAYOUT)]
    other = [FOUNDATION[0], FOUNDATION[1].adapted(b"f" * 16, 5), FOUNDATION[2].adapted(b"g" * 16, 7)]
    found = united([FOUNDATION, tuned, other])
    assert [(c.nbytes, c.delta_nbytes) for c in found] == [(100, 0), (40, 3 + 5), (40 + 44, 7)]
    assert [c.kv for c in found] == [c.kv for c in FOUNDATION]
    assert united([FOUNDATION]) == FOUNDATION
