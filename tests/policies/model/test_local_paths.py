"""What is cut again at a publication is as if nothing had been known, and what did not change is not made anew."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest

from blockwright.policies.model.chain import Block, Chain, Route
from blockwright.policies.model.local_paths import LocalPaths
from blockwright.policies.model.runs import Border

from ..sweep_world import chain, pipeline, replica, variant

WORKERS = ("w0", "w1", "w2")
BASE = chain("base", 4)


def drawn(chance: random.Random, name: str) -> Chain:
    """Another chain of that name: a foundation, a fine-tune, or a variant."""
    own = chain(name, 4, own_from=chance.choice((None, 0, 1, 4, 7)))
    attentions = chance.sample((1, 3, 5, 7), chance.randint(0, 3))
    made = variant(own, name, attentions)
    return replace(made, max_length=chance.choice((100, 1000)))


def placed(chance: random.Random, one: Chain) -> list[Route]:
    several = chance.sample(WORKERS, chance.randint(2, 3))
    return [replica("w0", one), *([pipeline(several, one)] if chance.random() < 0.5 else [])]


def changed(chance: random.Random, published: dict[str, tuple[Chain, list[Route]]]) -> None:
    name = f"a{chance.randrange(8)}"
    if name in published and chance.random() < 0.4:
        del published[name]
        return
    one = drawn(chance, name)
    published[name] = one, placed(chance, one)


@pytest.mark.parametrize("seed", range(20))
def test_after_any_changes_it_is_as_cut_from_nothing(seed: int) -> None:
    chance = random.Random(seed)
    published: dict[str, tuple[Chain, list[Route]]] = {"base": (BASE, [replica("w0", BASE)])}
    known = LocalPaths("w0", "numerics")
    borders: set[Border] = set()
    for step in range(40):
        changed(chance, published)
        chains = [one for one, _ in published.values()]
        routes = [route for _, several in published.values() for route in several]
        kept = {border for border in borders if chance.random() < 0.5}
        copy = known.fork()
        found = known.cut(chains, routes, kept)
        assert found == LocalPaths("w0", "numerics").cut(chains, routes, kept), step
        if step % 5 == 0:  # a fork goes its own way from here, and disturbs nobody
            assert copy.cut(chains[:1], routes) == LocalPaths("w0", "numerics").cut(chains[:1], routes)
            assert known.cut(chains, routes, kept) == found
        borders |= {(span.layer, span.lineages[0]) for local in found.values() for span in local.spans}


def test_what_did_not_change_is_not_made_anew() -> None:
    """With a hundred variants the loop of a worker would be held for longer than a sweep lasts."""
    chains = [BASE, *(variant(BASE, f"a{n}", [1, 3]) for n in range(20))]
    routes = [replica("w0", one) for one in chains]
    paths = LocalPaths("w0", "numerics")
    before = paths.cut(chains[:-1], routes[:-1])
    after = paths.cut([replace(one) for one in chains], [replace(route) for route in routes])
    assert [name for name in after if after[name] is not before.get(name)] == ["a19@w0"]
    assert all(local is after[name] for name, local in paths.cut(chains[:5], routes[:5]).items())


def test_another_chain_or_route_under_the_same_name_is_seen() -> None:
    paths = LocalPaths("w0", "numerics")
    route = replica("w0", BASE)
    before = paths.cut([BASE], [route])["base@w0"]
    assert paths.cut([replace(BASE, max_length=7)], [route])["base@w0"].max_length == 7
    assert paths.cut([BASE], [replace(route, version=2)])["base@w0"].route.version == 2
    tuned = replace(variant(BASE, "tuned", [3]), application="base")
    assert paths.cut([tuned], [route])["base@w0"].deltas != before.deltas
    assert paths.cut([BASE], [route])["base@w0"] == before
    assert paths.cut([BASE], [pipeline(["w1", "w2"], BASE)]) == {}


def test_a_span_has_one_layout_of_kv() -> None:
    """A surrogate in the middle of a chain has fewer heads than the layers around it."""
    whole = BASE.components
    (attention,) = [whole[3]]
    assert attention.kv is not None
    narrow = replace(attention, id=b"narrow".ljust(16), kv=replace(attention.kv, kv_heads=3 * attention.kv.kv_heads))
    blocks = (Block((*whole[:3], narrow, *whole[4:])),)
    small = replace(BASE, application="small", blocks=blocks)
    for chains in ([small], [BASE, small], [small, BASE]):
        found = LocalPaths("w0", "numerics").cut(chains, [replica("w0", one) for one in chains])
        spans = [(span.layer, span.layers, span.arena) for span in found["small@w0"].spans]
        keys = [part.kv.key for part in small.components if part.kv is not None]
        assert [key for _, layers, key in spans for _ in range(layers)] == keys
        assert len(spans) == 3
